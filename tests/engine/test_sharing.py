"""Sums that are released with noise: what learners of a batch of trials see."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.engine.counting import Counting
from rmab.engine.environment import SimulatedEnvironment, truth
from rmab.engine.program import simulator
from rmab.engine.setting import Setting
from rmab.engine.sharing import EvidenceSharing, NoisyState
from rmab.model.arms import channels
from rmab.model.information import InformationStates
from rmab.policies.aggregation import AGGREGATIONS
from rmab.policies.own_index import Observations
from rmab.policies.registry import named
from rmab.privacy.accounting import Budget, cell_noise
from rmab.privacy.denoising import LEAST_FOR_SUMMARIES, denoised
from rmab.privacy.noise import mixing
from rmab.rng.variates import EXPERTS, Draws, seed_words, stream

ARMS = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
BUDGET = Budget(2.0)
AGENTS, PLAYS, TRIALS = 5, 2, 600
SETTING = Setting.of(ARMS, AGENTS, 400, schedule="linear", budget=BUDGET)
POLICY = named("fedtswi", 400)


def chances(lane, of):
    key = stream(seed_words(7), jnp.arange(TRIALS, dtype=jnp.uint32), jnp.uint32(lane), EXPERTS)
    return Draws(key, jnp.full(TRIALS, of, jnp.int32))


@pytest.fixture(scope="module")
def seen():
    """What is kept after each of the first episodes of linear rounds, each with the same pairs of
    each agent, large enough to be told from noise."""
    sharing = EvidenceSharing(SETTING, POLICY)
    pairs = np.zeros((1, 2, 2, 4, AGENTS, TRIALS), np.float32)
    pairs[0] = np.array([[300, 500], [400, 600]])[..., None, None, None]
    kept, found = sharing.start(TRIALS, jnp.int16), []
    for episode in range(8):
        length = jnp.full(TRIALS, episode + 1 if episode else 0, jnp.int32)  # 0, 2, 3, ...
        new = jnp.asarray(pairs) if episode else jnp.zeros_like(pairs)
        shared, kept = sharing.after_episode(new, None, kept, length, chances, jnp.int32(PLAYS))
        assert isinstance(kept, NoisyState)
        np.testing.assert_array_equal(shared.pairs, kept.released)
        found.append(kept)
    return found


def test_a_sum_is_released_when_slots_have_doubled(seen):
    slots = [int(kept.slots[0]) for kept in seen]
    assert slots == [0, 2, 5, 9, 14, 20, 27, 35]
    assert [int(kept.releases[0]) for kept in seen] == [0, 0, 0, 1, 1, 2, 2, 2]
    for kept, before in zip(seen[1:], seen, strict=False):
        same = np.array_equal(kept.released, before.released)
        assert same == (int(kept.releases[0]) == int(before.releases[0]))
    assert not np.any(seen[2].released)
    assert np.all(np.asarray(seen[7].pairs)[0, 0, 0] == 7 * AGENTS * 300)


def test_the_noise_is_that_of_the_releases(seen):
    """Each is made anew from all z before it, and denoised by the deviation it has."""
    sigma = BUDGET.scale(PLAYS)
    z = [np.asarray(chances(2, number).normal(1, 2, 2, 4, 1)) for number in (0, 1)]
    b = [float(x) for x in mixing()]
    for episode, noise in ((3, b[0] * z[0]), (5, b[0] * z[1] + b[1] * z[0])):
        releases = int(seen[episode].releases[0])
        told = np.floor(np.asarray(seen[episode].pairs) + sigma * noise + 0.5)
        s = cell_noise(BUDGET, PLAYS, releases)
        assert (sigma * noise).std() == pytest.approx(s, rel=0.03)
        np.testing.assert_allclose(seen[episode].released, denoised(told, s), rtol=2e-3)


def test_who_shares_nothing_has_no_noise():
    alone = replace(SETTING, aggregation=AGGREGATIONS["none"])
    sharing = EvidenceSharing(alone, POLICY)
    assert sharing.start(3, jnp.int16) is None


def earned(epsilon):
    """A slot and agent, by a whole program."""
    setting = replace(SETTING, budget=Budget(epsilon))
    trials = jnp.arange(64, dtype=jnp.uint32)
    program = simulator(setting, POLICY, 64)
    out = program(seed_words(3), trials, truth(ARMS), jnp.int32(PLAYS), None)
    return float(np.asarray(out.rewards).mean()) / AGENTS


def test_learners_see_noise():
    assert 0.6 < earned(0.05) < 0.9  # .66 by random plays, .96 without noise


@pytest.mark.slow  # a program of its own
def test_little_noise_costs_little():
    assert earned(100.0) > 0.93


def test_agents_that_draw_for_themselves_keep_what_they_counted():
    """Their counts are of all episodes, and what is new in them is added to the sum once."""
    own = replace(SETTING, draws="own")
    sharing = EvidenceSharing(own, POLICY)
    assert not sharing.clears
    kept = sharing.start(TRIALS, jnp.int16)
    for episode in range(1, 4):
        pairs = jnp.full((1, 2, 2, 4, AGENTS, TRIALS), 10.0 * episode)
        length = jnp.full(TRIALS, episode + 1, jnp.int32)
        _, kept = sharing.after_episode(pairs, None, kept, length, chances, jnp.int32(PLAYS))
        assert isinstance(kept, NoisyState)
        assert np.all(np.asarray(kept.pairs) == 10 * episode * AGENTS)


def test_sums_of_groups_have_noise_of_their_own():
    """Agents 1, 3 and 5 are the first group. The sum of all is that of both releases, and has the
    noise of both."""
    own = replace(SETTING, draws="own", groups=2)
    sharing = EvidenceSharing(own, POLICY)
    assert (sharing.groups, sharing.sums, sharing.merges) == (2, 3, False)
    pairs = jnp.broadcast_to(1000.0 * jnp.arange(1, AGENTS + 1)[:, None], (1, 2, 2, 4, 5, TRIALS))
    length = jnp.full(TRIALS, 8, jnp.int32)
    shared, kept = sharing.after_episode(
        pairs, None, sharing.start(TRIALS, jnp.int16), length, chances, jnp.int32(PLAYS)
    )
    assert isinstance(kept, NoisyState)
    assert np.asarray(kept.pairs)[0, 0, 0, 0, :, 0].tolist() == [9000, 6000]
    z = np.asarray(chances(2, 0).normal(1, 2, 2, 4, 2))
    assert abs(np.corrcoef(z[..., 0, :].ravel(), z[..., 1, :].ravel())[0, 1]) < 0.05
    released = np.floor(np.asarray(kept.pairs) + BUDGET.scale(PLAYS) * z + 0.5)
    s = cell_noise(BUDGET, PLAYS, 1)
    whole = denoised(released.sum(-2, keepdims=True), s * np.sqrt(2), least=LEAST_FOR_SUMMARIES)
    expected = np.concatenate([whole, denoised(released, s, least=LEAST_FOR_SUMMARIES)], -2)
    np.testing.assert_allclose(shared.pairs, expected, rtol=2e-3)


@pytest.mark.parametrize("name", ["fedtswi", "fedtswi-gap"])
def test_a_survey_gives_pairs_of_its_slots_and_agents_count_all(name):
    """By slots of a batch in which all arms are good, played now and then."""
    own = replace(SETTING, draws="own", survey=3)
    policy = named(name, 400)
    sharing = EvidenceSharing(own, policy)
    counting = Counting(own, policy, SimulatedEnvironment(own.kinds, own.idle_pay), sharing)
    counts, shape = counting.start(TRIALS), (4, AGENTS, TRIALS)
    good = jnp.ones(shape, jnp.int8)
    observed = InformationStates(good, jnp.ones(shape, jnp.int32))
    for slot in range(5):
        seen = Observations(jnp.ones(shape, bool), jnp.ones(shape, bool), good, good, slot)
        counts = counting.update(counts, observed, seen)
    length = jnp.full(TRIALS, 8, jnp.int32)
    given, fresh = counting.pairs(counts.given), sharing.start(TRIALS, jnp.int16)
    _, kept = sharing.after_episode(given, None, fresh, length, chances, jnp.int32(PLAYS))
    assert isinstance(kept, NoisyState)
    assert np.all(np.asarray(kept.pairs)[0, 1, 1] == 3 * AGENTS)
    assert np.all(np.asarray(counting.pairs(counts.pairs))[0, 1, 1] == 5)
    few = counting.of_trials(counts, jnp.array([1, 2]))
    assert few.given is not None
    assert few.pairs is not None
    assert few.given.shape == few.pairs.shape


def test_without_noise_or_own_draws_there_is_no_survey():
    for setting in (
        replace(SETTING, survey=3),
        replace(SETTING, draws="own", budget=None, survey=3),
        replace(SETTING, draws="own"),
    ):
        sharing = EvidenceSharing(setting, POLICY)
        assert sharing.survey == 0


def test_without_noise_groups_are_told_their_sums():
    own = replace(SETTING, draws="own", groups=2, budget=None)
    sharing = EvidenceSharing(own, POLICY)
    pairs = jnp.broadcast_to(jnp.arange(1.0, AGENTS + 1)[:, None], (1, 2, 2, 4, 5, 3))
    length = jnp.full(3, 8, jnp.int32)
    shared, _ = sharing.after_episode(pairs, None, sharing.start(3, jnp.int16), length, chances)
    assert np.asarray(shared.pairs)[0, 1, 0, 2, :, 1].tolist() == [15, 9, 6]


def test_groups_make_no_difference_to_who_draws_from_the_whole_sum():
    """But to its noise."""
    for budget, groups in ((None, 1), (BUDGET, 2)):
        setting = replace(SETTING, groups=2, budget=budget)
        sharing = EvidenceSharing(setting, POLICY)
        assert (sharing.groups, sharing.sums) == (groups, 1)


@pytest.mark.slow  # a program of its own
def test_noise_does_not_harm_who_draws_for_itself():
    """As .96 without noise, and less than .9 by sums of this noise alone."""
    setting = replace(SETTING, draws="own", budget=Budget(0.05))
    trials = jnp.arange(32, dtype=jnp.uint32)
    program = simulator(setting, POLICY, 32)
    out = program(seed_words(3), trials, truth(ARMS), jnp.int32(PLAYS), None)
    assert float(np.asarray(out.rewards).mean()) / AGENTS > 0.9
