"""Learners: a calibrated posterior, and upper bounds and elimination against plain formulas."""

import math
from functools import partial
from itertools import combinations
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rmab.learning.evidence import WAITS, Evidence, count_kinds
from rmab.learning.thompson import thompson
from rmab.learning.ucb import survivors, ucb
from rmab.model import catalogue
from rmab.model.arms import Arm, ArmKind, Arms
from rmab.rng.variates import DRAWS, Draws, seed_words, stream

CHANNEL = ArmKind(2, fully_observed=False, action_dependent=False)
RARE = 1e-4  # the chance that one comparison would have had to fail for a faultless learner


def evidence(
    transitions: np.ndarray,
    visits: np.ndarray | None = None,
    episode: np.ndarray | int = 1,
    reward: np.ndarray | float = 1.0,
    plays: int = 1,
    agents: int = 1,
) -> Evidence:
    """transitions: (2, 2, N, trials); visits: (2, N, trials)."""
    n_arms, n_trials = transitions.shape[2:]
    pays = np.broadcast_to(reward, n_arms)
    return Evidence(
        counts=jnp.asarray(transitions, jnp.float32)[None],
        visits=jnp.asarray(transitions.sum(1) if visits is None else visits, jnp.float32),
        episode=jnp.broadcast_to(jnp.asarray(episode, jnp.int32), n_trials),
        rewards=jnp.asarray(np.stack([0 * pays, pays]), jnp.float32)[:, :, None],
        idle_rewards=jnp.zeros((2, n_arms, 1)),
        plays=jnp.int32(plays),
        agents=agents,
        kinds=(CHANNEL,) * n_arms,
    )


def draws(n_trials: int) -> Draws:
    key = stream(seed_words(11), jnp.arange(n_trials), jnp.uint32(0), DRAWS)
    return Draws(key, jnp.ones(n_trials, jnp.int32))


# ------------------------------------------------------------------------------ Thompson


@pytest.mark.parametrize(
    "prior",
    [(0.5, 0.7), *(pytest.param(x, marks=pytest.mark.slow) for x in ((1.0, 1.0), (3.0, 2.0)))],
)
def test_posterior_is_calibrated(prior):
    """Truth from the prior, counts from the truth: the truth's rank among posterior draws is
    uniform (Talts et al. 2018, simulation-based calibration)."""
    replicates, per_rank = 3000, 9
    observations = np.array([0, 1, 7, 60, 2000])  # one sample size for each arm
    rng = np.random.default_rng(5)
    truth = rng.beta(prior[0], prior[1], (2, observations.size, replicates))
    good = rng.binomial(observations[:, None], truth)
    seen = np.stack([observations[:, None] - good, good], axis=1)  # (2, 2, N, replicates)
    columns = np.repeat(seen, per_rank, axis=-1)
    got = thompson(evidence(columns), draws(columns.shape[-1]), prior=prior)
    posterior = np.asarray(got.passive[:, 1]).reshape(2, observations.size, replicates, per_rank)
    rank = (posterior < truth[..., None]).sum(-1)  # 0..per_rank
    for of_state in rank:
        for of_arm in of_state:
            counts = np.bincount(of_arm, minlength=per_rank + 1)
            assert stats.chisquare(counts).pvalue > RARE
    # One draw of p01 says nothing about that of p11, nor about another arm's.
    rows = rank.reshape(-1, replicates)
    off_diagonal = np.corrcoef(rows)[np.triu_indices(len(rows), 1)]
    assert np.abs(off_diagonal).max() < 4.5 / math.sqrt(replicates)


def test_a_prior_far_below_one_gives_probabilities():
    nothing = np.zeros((2, 2, 5, 27_000))
    for good in thompson(evidence(nothing), draws(27_000), prior=(0.01, 0.01)).passive[:, 1]:
        assert ((good >= 0) & (good <= 1)).all()
        assert abs(good.mean() - 0.5) < 4 * 0.5 / math.sqrt(good.size)


def of_kinds(kinds: tuple[ArmKind, ...], counts: np.ndarray) -> Evidence:
    """counts: (C, S, S, N, trials); all states pay alike."""
    n_states, n_arms, n_trials = counts.shape[1], len(kinds), counts.shape[-1]
    return Evidence(
        counts=jnp.asarray(counts, jnp.float32),
        visits=jnp.asarray(counts.sum((0, 2)), jnp.float32),
        episode=jnp.ones(n_trials, jnp.int32),
        rewards=jnp.ones((n_states, n_arms, 1)),
        idle_rewards=jnp.zeros((n_states, n_arms, 1)),
        plays=jnp.int32(1),
        agents=1,
        kinds=kinds,
    )


@pytest.mark.slow
def test_the_first_number_of_a_prior_is_of_good_next_at_any_gap():
    """Beta(2, 8) has mean .2, of draws and of the best estimate."""
    width = 200
    given = evidence(np.zeros((2, 2, 1, width)))._replace(counts=jnp.zeros((9, 2, 2, 1, width)))

    @jax.jit
    def found(counts):
        by = [
            learner(given._replace(counts=counts), draws(width), prior=(2.0, 8.0), gaps=8).active
            for learner in (thompson, partial(ucb, clip=False))
        ]
        return [active[:, 1, 0] for active in by]

    drawn, upper = (np.asarray(x) for x in found(given.counts))
    # Standard error .009. Nothing was observed: the width is sqrt(ln(|A| |S| l)) = sqrt(ln 4).
    assert drawn.mean(1) == pytest.approx(0.2, abs=0.045)
    assert upper.mean(1) - math.sqrt(math.log(4)) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("seen", [0, pytest.param(40, marks=pytest.mark.slow)])
def test_the_numbers_of_a_prior_that_is_learnt_are_pairs_one_slot_apart(seen):
    """So with pairs one slot apart alone rows are Beta, each with numbers of its own."""
    learnt = np.array([[4.8, 1.2], [0.8, 5.0]])  # after bad, after good: bad, good next
    counts = np.zeros((9, 2, 2, 1, 4000), np.float32)
    counts[0] = seen * np.array([[0.75, 0.25], [0.1, 0.9]])[..., None, None]
    width = counts.shape[-1]
    given = evidence(counts[0])._replace(
        counts=jnp.asarray(counts),
        prior=jnp.broadcast_to(jnp.float32(learnt)[:, :, None, None], (2, 2, 1, width)),
    )
    drawn = np.asarray(thompson(given, draws(width), gaps=8).passive[:, 1, 0])
    likeliest = thompson(given, draws(width), gaps=8, mode=True).passive[:, 1, 0, 0]
    for state, (bad, good) in enumerate(learnt + counts[0, :, :, 0, 0]):
        assert stats.kstest(drawn[state], stats.beta(1 + good, 1 + bad).cdf).pvalue > RARE
        # The mode of the log odds: there a Beta's numbers are pairs themselves.
        assert float(likeliest[state]) == pytest.approx(good / (good + bad), rel=1e-3)


@pytest.mark.parametrize("prior", [pytest.param(1.0, marks=pytest.mark.slow), 0.4])
def test_rows_of_three_states_are_calibrated(prior):
    """As for two states; an arm of two states beside it never goes to a third."""
    replicates, per_rank, pairs = 2000, 9, np.array([0, 3, 400])
    rng = np.random.default_rng(8)
    truth = rng.dirichlet(np.full(3, prior), (3, 3, replicates))  # state, size, replicate, next
    counts = rng.multinomial(pairs[:, None], truth)
    counts = np.repeat(np.moveaxis(counts, -1, 1), per_rank, -1)  # (S, S, 3, trials)
    counts = np.concatenate([counts, np.zeros_like(counts[:, :, :1])], axis=2)
    kinds = (ArmKind(3, fully_observed=False, action_dependent=False),) * 3 + (CHANNEL,)
    given = of_kinds(kinds, counts[None])
    found = np.asarray(thompson(given, draws(counts.shape[-1]), prior=prior).passive)
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    assert not found[:, 2, 3].any()
    for size in range(3):
        true = np.moveaxis(truth[:, size], -1, 1)
        drawn = found[:, :, size].reshape(*true.shape, per_rank)
        rank = (drawn < true[..., None]).sum(-1)
        for s, to in np.ndindex(3, 3):
            tally = np.bincount(rank[s, to], minlength=per_rank + 1)
            assert stats.chisquare(tally).pvalue > RARE


def test_a_fully_observed_arm_is_learnt_apart_for_both_actions():
    counts = np.zeros((2, 2, 2, 2, 500), np.float32)
    counts[0, :, :, 0] = [[[300], [100]], [[20], [380]]]  # after a play
    counts[1, :, :, 0] = [[[40], [360]], [[200], [200]]]  # not played
    counts[0, :, :, 1] = [[[500], [500]], [[100], [900]]]  # uncontrolled: all pairs stand here
    kinds = tuple(ArmKind(2, fully_observed=True, action_dependent=x) for x in (True, False))
    assert count_kinds(kinds) == 2
    given = of_kinds(kinds, counts)
    found = thompson(given, draws(500))
    for got, pairs in (
        (found.active[:, :, 0], counts[0, :, :, 0, 0]),
        (found.passive[:, :, 0], counts[1, :, :, 0, 0]),
        (found.active[:, :, 1], counts[0, :, :, 1, 0]),
    ):
        weights = pairs + 1
        for s in (0, 1):
            posterior = stats.beta(weights[s, 1], weights[s, 0])
            assert stats.kstest(np.asarray(got)[s, 1], posterior.cdf).pvalue > RARE
    np.testing.assert_array_equal(found.active[:, :, 1], found.passive[:, :, 1])
    upper = ucb(given, draws(500))
    mean = (counts[1, 1, 1, 0, 0] + 1) / (counts[1, 1, :, 0, 0].sum() + 2)
    width = np.sqrt(np.log(4.0) / counts[1, :, :, 0, 0].sum())
    assert upper.passive[1, 1, 0, 0] == pytest.approx(mean + width, rel=1e-5)


def test_tied_rows_have_one_chance_by_the_counts_of_all():
    """Of a source whose updates succeed with one chance at every age, of a machine that wears with
    one, and of an arm beside them without ties, whose rows are learnt one by one."""
    arms = Arms(
        [
            catalogue.age_of_information(3, success=0.8),
            catalogue.machine(3, wear=0.3, renewal=0.1),
            Arm([[0.5, 0.5], [0.5, 0.5]], np.eye(2), reward=[0, 1], observed="always"),
        ]
    )
    counts = np.zeros((2, 3, 3, 3), int)
    counts[0, :, :, 0] = [[9, 4, 0], [30, 0, 3], [11, 0, 3]]  # 50 successes, 10 failures
    counts[1, :, :, 0] = [[0, 40, 0], [0, 0, 20], [0, 0, 60]]  # which are no attempts
    counts[1, :, :, 1] = [[7, 5, 0], [4, 8, 6], [9, 0, 2]]  # 11 steps on, 19 others, in two rows
    counts[0, :2, :2, 2] = [[7, 3], [5, 5]]
    given = of_kinds(arms.kinds, np.repeat(counts[..., None], 2000, -1))
    drawn = jax.jit(lambda: thompson(given, draws(2000), tied=True, prior=2.0))()
    passive, active = (np.asarray(x) for x in drawn)
    success, wear = active[0, 0, 0], passive[0, 1, 1]
    for chances, posterior in (
        (success, stats.beta(52, 12)),
        (wear, stats.beta(13, 21)),
        (active[0, 0, 2], stats.beta(9, 5)),
        (active[1, 0, 2], stats.beta(7, 7)),
    ):
        assert stats.kstest(chances, posterior.cdf).pvalue > RARE
    for trial in range(3):
        source = catalogue.age_of_information(3, float(success[trial]))
        np.testing.assert_allclose(active[:, :, 0, trial], source.active, atol=1e-6)
        np.testing.assert_allclose(passive[:, :, 0, trial], source.passive, atol=1e-6)
        stays, as_new = (1 - wear[trial]) * np.array([0.6, 0.1]) / 0.7  # in known proportion
        np.testing.assert_allclose(passive[1, :, 1, trial], [as_new, stays, wear[trial]], atol=1e-6)
        np.testing.assert_allclose(passive[2, :, 1, trial], [0.1, 0, 0.9], atol=1e-6)
        np.testing.assert_allclose(active[:, 0, 1, trial], 1, atol=1e-6)


@pytest.mark.slow  # five samplers to compile; the golden mixed study has them too
def test_arms_of_all_kinds_and_sizes_stand_side_by_side():
    """Each is learnt from its own counts, by its own numbers, and goes to no state it has not."""
    kinds = (
        CHANNEL,
        ArmKind(3, fully_observed=False, action_dependent=False),
        ArmKind(4, fully_observed=False, action_dependent=False),
        ArmKind(3, fully_observed=False, action_dependent=True),
        ArmKind(4, fully_observed=False, action_dependent=True),
        ArmKind(3, fully_observed=True, action_dependent=True),
    )
    gaps, n_trials = WAITS, 400
    counts = np.zeros((count_kinds(kinds, gaps), 4, 4, len(kinds), n_trials))
    for arm, kind in enumerate(kinds):
        counts[:3, : kind.states, : kind.states, arm] = 2.0
    given = of_kinds(kinds, counts)
    found = thompson(given, draws(n_trials), gaps=gaps)
    mean = ucb(given, draws(n_trials), gaps=gaps)
    for arm, kind in enumerate(kinds):
        size = kind.states
        for moves in (*found, *mean):
            matrix = np.asarray(moves)[:size, :, arm]
            np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-4)
            assert not matrix[:, size:].any()
        same = np.array_equal(found.passive[:, :, arm], found.active[:, :, arm])
        assert same != kind.action_dependent
    # Twelve draws of a diagonal entry beside each other: of different numbers, so not correlated.
    entries = np.concatenate([np.asarray(moves)[1, 1] for moves in found])[[0, 1, 2, 3, 4, 9, 10]]
    off_diagonal = np.corrcoef(entries)[np.triu_indices(len(entries), 1)]
    own = {(3, 5), (4, 6)}  # P_0 and P_1 of one arm may be
    pairs = combinations(range(len(entries)), 2)
    alien = [abs(c) for c, pair in zip(off_diagonal, pairs, strict=True) if pair not in own]
    assert max(alien) < 4.5 / math.sqrt(n_trials)


# ------------------------------------------------------------------------------ UCB


def random_counts(n_arms: int, n_trials: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Transitions (2, 2, N, trials) and visits (2, N, trials) that go together; some are 0."""
    rng = np.random.default_rng(seed)
    transitions = rng.integers(0, rng.choice([1, 4, 300], (2, 2, n_arms, n_trials)))
    return transitions, transitions.sum(1) + rng.integers(0, 9, (2, n_arms, n_trials))


@pytest.mark.parametrize("clip", [True, False])
def test_ucb_is_the_mean_plus_a_width(clip):
    transitions, visits = random_counts(3, 50, seed=6)
    visits[:, 0, :5] = transitions[:, :, 0, :5] = 0  # arms that nobody has played
    episode = np.arange(1, 51)
    a, b = prior = (1.5, 0.5)
    found = ucb(evidence(transitions, visits, episode), draws(50), clip=clip, prior=prior)
    got = np.asarray(found.passive[:, 1])
    np.testing.assert_allclose(found.passive.sum(1), 1, rtol=1e-5)
    for s, arm, trial in np.ndindex(2, 3, 50):
        to_bad, to_good = (int(n) for n in transitions[s, :, arm, trial])
        mean = (a + to_good) / (a + b + to_bad + to_good)
        played = max(1, int(visits[:, arm, trial].sum()))
        upper = mean + math.sqrt(math.log(2 * 2 * (trial + 1)) / played)
        assert got[s][arm, trial] == pytest.approx(min(upper, 1) if clip else upper, rel=1e-5)
    assert (got.max() > 1) == (not clip)


# ------------------------------------------------------------------------------ Fed1-UCB


def plain_elimination(
    alive: set[int], means: list[float], pulls: list[int], keep: int, horizon: int, sigma: float
) -> tuple[set[int], float]:
    """The rule for the `keep` best of the arms in play, and how near the closest call was."""
    bound = {n: math.sqrt(4 * sigma**2 * math.log(horizon) / pulls[n]) for n in alive}
    best = sorted((means[n] for n in alive), reverse=True)[keep - 1]
    margin = {n: means[n] + bound[n] - (best - bound[n]) for n in alive}
    return {n for n in alive if margin[n] >= 0}, min(abs(m) for m in margin.values())


@pytest.mark.parametrize("keep", [1, 2, 4, 5])
def test_survivors_are_those_of_plain_elimination(keep):
    n_arms, n_agents, n_trials, pulls, horizon, sigma = 5, 3, 60, 40, 1000, 0.3
    rng = np.random.default_rng(keep)
    reward = np.array([0.4137, 0.9021, 0.7333, 0.6179, 1.1])
    good = rng.random((n_arms, n_trials))
    alive = [set(range(n_arms)) for _ in range(n_trials)]
    visits = np.zeros((2, n_arms, n_trials), int)
    dropped, close = 0, 0
    settled = np.zeros(n_trials, bool)  # a call too close for float32: not looked at any more
    for _ in range(12):
        for trial, arms in enumerate(alive):
            for arm in sorted(arms):
                # Phases end in the middle of a turn: an arm may be a pull or two ahead.
                taken = n_agents * pulls + int(rng.integers(0, 3))
                hits = int(rng.binomial(taken, good[arm, trial]))
                visits[:, arm, trial] += taken - hits, hits
        given = evidence(
            np.zeros((2, 2, n_arms, n_trials)), visits, reward=reward, plays=keep, agents=n_agents
        )
        got = np.asarray(
            survivors(given, draws(n_trials), pulls=pulls, horizon=horizon, sigma=sigma)
        )
        np.testing.assert_array_equal(got[0], got[1])
        for trial in range(n_trials):
            pulled: list[Any] = visits[:, :, trial].sum(0).tolist()
            means = (reward * visits[1, :, trial] / np.maximum(pulled, 1)).tolist()
            left, nearest = plain_elimination(alive[trial], means, pulled, keep, horizon, sigma)
            if nearest < 1e-6:
                settled[trial] = True
                close += 1
            if not settled[trial]:
                assert set(np.flatnonzero(got[0][:, trial])) == left
            assert len(left) >= keep
            dropped += len(alive[trial]) - len(left)
            alive[trial] = left
    assert close <= 1
    assert dropped >= {1: 120, 2: 90, 4: 20, 5: 0}[keep]


# ------------------------------------------------------------------------------------------- edges


@pytest.mark.parametrize("agents", [1.0, 4.0])
def test_bounds_on_noisy_means_are_wider_by_what_noise_may_be(monkeypatch, agents):
    """Of noise that is 0 by chance: what is kept is what plain formulas keep."""
    monkeypatch.setattr(
        "rmab.learning.ucb.phase_noise", lambda d, phases, agents, n: jnp.zeros((n, 1))
    )
    rng = np.random.default_rng(2)
    N, pulls, horizon, epsilon, reward = 6, 50, 1000, 0.5, np.array([0.4, 0.9, 0.7, 0.6, 1.0, 0.2])
    n_trials = 40
    good = rng.binomial(400, rng.random((N, n_trials)))
    visits = np.stack([400 - good, good])
    episode = rng.integers(1, 6, n_trials)
    seen = evidence(np.zeros((2, 2, N, n_trials)), visits, episode, reward, 2, agents)
    alive, again = survivors(
        seen, draws(n_trials), pulls=pulls, horizon=horizon, sigma=0.1, epsilon=epsilon
    )
    mean = reward[:, None] * good / 400
    width = math.sqrt(4 * 0.1**2 * math.log(horizon) / 400)
    phases = np.maximum(episode - 1, 1)
    span = reward[:, None] / (epsilon * pulls)
    wider = width + span * np.log(4 * N * phases**2 / 0.1) / math.sqrt(agents)
    second = np.sort(mean, axis=0)[-2]
    keeps = (mean + wider >= second - wider) | (episode <= 1)
    np.testing.assert_array_equal(alive, keeps)
    np.testing.assert_array_equal(again, keeps)
    assert 0.1 < keeps[:, episode > 1].mean() < 0.95


def test_steps_after_no_play_are_those_of_their_own_kind():
    """Kind 0 after a play, kind 1 after none; a third kind says nothing of an arm that is always
    observed."""
    rng = np.random.default_rng(3)
    counts = rng.integers(2, 9, (3, 2, 2, 2, 1)) * 1e6
    kinds = (ArmKind(2, fully_observed=True, action_dependent=True), CHANNEL)
    seen = evidence(counts[0])._replace(counts=jnp.asarray(counts, jnp.float32), kinds=kinds)
    passive, active = thompson(seen, draws(1))
    rows = counts / counts.sum(2, keepdims=True)
    np.testing.assert_allclose(active, rows[0], atol=0.01)
    np.testing.assert_allclose(passive[:, :, 0], rows[1, :, :, 0], atol=0.01)
    np.testing.assert_allclose(passive[:, :, 1], rows[0, :, :, 1], atol=0.01)


def test_how_many_kinds_of_pairs_tell_of_arms():
    always = ArmKind(2, fully_observed=True, action_dependent=True)
    hidden = ArmKind(2, fully_observed=False, action_dependent=True)
    shown = ArmKind(2, fully_observed=True, action_dependent=False)
    for kinds, plain, gap, many in (
        ((CHANNEL,), 1, 2, 33),
        ((CHANNEL, shown), 1, 2, 33),
        ((CHANNEL, always), 2, 2, 33),
        ((CHANNEL, hidden), WAITS, WAITS, 33),
        ((always, hidden), WAITS, WAITS, 33),
    ):
        assert [count_kinds(kinds, gaps) for gaps in (0, 1, 32)] == [plain, gap, max(many, WAITS)]
