"""Draws given observations at any gaps: against numeric integration, Betas, and by calibration."""

from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from rmab.learning.channel.posterior import draw_channels, log_odds_moments, mean_channels
from rmab.rng.variates import Draws, seed_words, stream
from tests.learning.posteriors import chances, integrate

GAPS = 32
WIDTH = 1000  # trials of one call, for all tests alike: a width is a compilation
DRAWN = 15
SKEWED = pytest.param((2.0, 5.0), marks=pytest.mark.slow)  # a prior is a compilation


@cache
def sampler(prior):
    """From counts (G + 1, 2, 2, WIDTH) to DRAWN draws (DRAWN, 2, WIDTH) of each trial."""

    @jax.jit
    def drawn(seed, counts):
        key = stream(seed, jnp.arange(WIDTH, dtype=jnp.uint32), jnp.uint32(0), 1)
        return jax.lax.map(
            lambda episode: jnp.stack(
                draw_channels(counts, prior, Draws(key, jnp.full(WIDTH, episode)))
            ),
            jnp.arange(1, DRAWN + 1, dtype=jnp.uint32),
        )

    def sample(counts, seed=0):
        return np.asarray(drawn(seed_words(seed), jnp.asarray(counts[:, :, :, None], jnp.float32)))[
            :, :, 0
        ].astype(np.float64)

    return sample


@cache
def averages(prior):
    """From counts (G + 1, 2, 2, n, trials) to means."""
    return jax.jit(lambda counts: mean_channels(counts, prior))


def g_step(p01, p11):
    """Probabilities (G + 1, 2, 2, ...) of all gaps, the last settled, by matrix powers."""
    step = np.moveaxis(np.array([[1 - p01, p01], [1 - p11, p11]]), (0, 1), (-2, -1))
    powers = [step]
    for _ in range(GAPS - 1):
        powers.append(powers[-1] @ step)
    one = p01 / (1 - p11 + p01)
    law = np.stack([1 - one, one], -1)
    powers.append(np.stack([law, law], -2))
    return np.moveaxis(np.stack(powers), (-2, -1), (1, 2))


@cache
def grid(size=300):
    """p01 and p11, each (size^2,), and the logs of their probabilities, (G + 1, 2, 2, size^2)."""
    nodes = (np.arange(size) + 0.5) / size
    p01, p11 = (x.ravel() for x in np.meshgrid(nodes, nodes, indexing="ij"))
    return p01, p11, np.log(g_step(p01, p11))


def integrated(counts, prior):
    """A grid of p01 and p11, and its weights under the posterior."""
    p01, p11, logs = grid()
    height = np.tensordot(counts, logs, 3)
    for p in (p01, p11):
        height += (prior[0] - 1) * np.log(p) + (prior[1] - 1) * np.log1p(-p)
    weights = np.exp(height - height.max())
    return p01, p11, weights / weights.sum()


def some_counts(*entries):
    counts = np.zeros((GAPS + 1, 2, 2))
    for gap, start, end, number in entries:
        counts[gap - 1, start, end] += number
    return counts


LATE = GAPS + 1
CASES = {
    "no observations": some_counts(),
    "one crossing after two slots": some_counts((2, 0, 1, 1)),
    "two modes": some_counts((2, 0, 0, 40), (2, 0, 1, 8), (2, 1, 0, 6), (2, 1, 1, 46)),
    "a curve": some_counts((LATE, 0, 0, 700), (LATE, 1, 1, 300)),
    "a curve that bends": some_counts((7, 0, 0, 70), (7, 1, 0, 60), (7, 0, 1, 15), (7, 1, 1, 17)),
    "slow": some_counts((1, 0, 0, 60), (5, 1, 1, 40), (3, 0, 1, 2), (20, 1, 0, 3)),
    "strongly alternating, seen by state": some_counts(
        (2, 1, 0, 18), (2, 1, 1, 156), (3, 0, 0, 3), (3, 0, 1, 24), (4, 1, 0, 29), (4, 1, 1, 141)
    ),
    "two modes where m < 0": some_counts((1, 0, 0, 1), (1, 0, 1, 5), (2, 1, 0, 4), (2, 1, 1, 30)),
    "two far modes where m < 0": some_counts(
        (1, 0, 0, 150), (1, 0, 1, 1350), (2, 1, 0, 360), (2, 1, 1, 1140)
    ),
    "the same, states exchanged": some_counts(
        (1, 1, 1, 150), (1, 1, 0, 1350), (2, 0, 1, 360), (2, 0, 0, 1140)
    ),
    "alternating": some_counts((1, 0, 1, 30), (1, 1, 0, 28), (3, 0, 1, 20), (4, 0, 0, 20)),
    "all gaps": some_counts(
        *((g, s, t, 3 + (s == t) * 20 // g) for g in range(1, 34) for s in (0, 1) for t in (0, 1))
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("prior", [(1.0, 1.0), SKEWED])
def test_moments_are_those_of_numeric_integration(name, prior):
    counts = CASES[name]
    p01, p11, weights = integrated(counts, prior)
    drawn = np.moveaxis(sampler(prior)(np.repeat(counts[..., None], WIDTH, -1), seed=3), 1, 0)
    drawn = drawn.reshape(2, -1)
    for value in (
        lambda a, b: a,
        lambda a, b: b,
        lambda a, b: a * a,
        lambda a, b: b * b,
        lambda a, b: a * b,
        lambda a, b: (b > a) * 1.0,
        lambda a, b: a / (1 + a - b),
    ):
        exact = weights @ value(p01, p11)
        found = value(*drawn)
        coarse = 3e-4  # error of the integration
        assert abs(found.mean() - exact) < coarse + 5 * found.std() / np.sqrt(found.size)
    means = [weights @ p01, weights @ p11]
    spread = [np.sqrt(weights @ (p - m) ** 2) for p, m in zip((p01, p11), means, strict=True)]
    found = averages(prior)(jnp.asarray(counts[:, :, :, None, None], jnp.float32))
    for mean, exact, wide in zip(found, means, spread, strict=True):
        assert abs(float(mean[0, 0]) - exact) < 0.15 * wide


@pytest.mark.parametrize("observations", [0, 4, 60, 4000])
@pytest.mark.parametrize("prior", [(1.0, 1.0), SKEWED])
def test_observations_in_consecutive_slots_alone_give_betas(observations, prior):
    chances = np.array([[0.7, 0.3], [0.05, 0.95]])
    counts = np.zeros((GAPS + 1, 2, 2))
    counts[0] = np.round(observations * chances)
    drawn = sampler(prior)(np.repeat(counts[..., None], WIDTH, -1), seed=5)
    for state in (0, 1):
        law = stats.beta(prior[0] + counts[0, state, 1], prior[1] + counts[0, state, 0])
        assert stats.kstest(drawn[:, state].ravel(), law.cdf).pvalue > 1e-4
    rows = drawn - drawn.mean(axis=(0, 2), keepdims=True)
    correlation = (rows[:, 0] * rows[:, 1]).mean() / (rows[:, 0].std() * rows[:, 1].std())
    assert abs(correlation) < 5 / np.sqrt(rows[:, 0].size)


def chosen_gaps(pattern, rng):
    """How likely each gap is, (G + 1, WIDTH)."""
    weights = np.zeros((GAPS + 1, WIDTH))
    if pattern == "random plays":  # a chance of play for each channel
        chance = rng.uniform(0.02, 1, WIDTH)
        weights[:GAPS] = chance * (1 - chance) ** np.arange(GAPS)[:, None]
        weights[GAPS] = 1 - weights[:GAPS].sum(0)
    else:
        places = {
            "consecutive": [0],
            "pairs": [1],
            "up to twelve": range(12),
            "eights": [7],
            "seldom": [*range(5, 20), *[GAPS] * 100],
            "settled": [GAPS],
        }[pattern]
        for place in places:
            weights[place] += 1
    weights = np.maximum(weights, 0)
    return weights / weights.sum(0)


def simulated(p01: Any, p11: Any, observations: int, pattern: str, rng: Any) -> Any:
    """Counts (G + 1, 2, 2, WIDTH) of that many pairs; a share of them, drawn, begins in 0."""
    chances = g_step(p01, p11)
    weights = chosen_gaps(pattern, rng)
    from_zero = rng.binomial(observations, rng.uniform(0.1, 0.9, WIDTH))
    counts = np.zeros(chances.shape)
    for start, number in enumerate((from_zero, observations - from_zero)):
        for trial in range(WIDTH):
            seen = rng.multinomial(number[trial], weights[:, trial])
            up = rng.binomial(seen, np.clip(chances[:, start, 1, trial], 0, 1))
            counts[:, start, 1, trial], counts[:, start, 0, trial] = up, seen - up
    return counts


PATTERNS = ("consecutive", "random plays", "pairs", "up to twelve", "eights", "seldom", "settled")


def ranks_fit(drawn, p01, p11):
    """Chi-square p-values of the ranks of p01, p11, the memory and b0 among the draws."""
    values = []
    for value in (
        lambda a, b: a,
        lambda a, b: b,
        lambda a, b: b - a,
        lambda a, b: a / (1 + a - b),
    ):
        rank = (value(drawn[:, 0], drawn[:, 1]) < value(p01, p11)).sum(0)
        values.append(stats.chisquare(np.bincount(rank, minlength=DRAWN + 1)).pvalue)
    return values


@pytest.mark.parametrize("observations", [0, 1, 10, 100, 1000, 1_000_000])
def test_draws_are_calibrated_at_every_number_of_observations(observations):
    rng = np.random.default_rng(observations + 11)
    for pattern in PATTERNS:
        p01, p11 = rng.uniform(size=(2, WIDTH))
        drawn = sampler((1.0, 1.0))(
            simulated(p01, p11, observations, pattern, rng), seed=observations
        )
        assert min(ranks_fit(drawn, p01, p11)) > 1e-4, pattern


@pytest.mark.slow  # a prior is a compilation
@pytest.mark.parametrize(
    "prior",
    [
        pytest.param((0.5, 0.5), id="sure"),
        pytest.param((100.0, 100.0), id="independent"),
        pytest.param((0.5, 3.0), id="low"),
    ],
)
@pytest.mark.parametrize("observations", [3, 100, 3000, 1_000_000])
def test_near_deterministic_and_near_independent_channels_are_calibrated(prior, observations):
    rng = np.random.default_rng(observations + 107)
    for pattern in ("consecutive", "random plays", "pairs", "up to twelve", "seldom"):
        p01, p11 = rng.beta(prior[0], prior[1], size=(2, WIDTH))
        drawn = sampler(prior)(simulated(p01, p11, observations, pattern, rng), seed=observations)
        assert min(ranks_fit(drawn, p01, p11)) > 1e-4, pattern


def waiting_by_state(p01: Any, p11: Any, observations: int, waits: Any, rng: Any) -> Any:
    """Counts (G + 1, 2, 2, WIDTH) of one path each, with gaps drawn by the state last seen."""
    chances, trial = g_step(p01, p11), np.arange(WIDTH)
    counts = np.zeros(chances.shape)
    state = rng.integers(0, 2, WIDTH)
    for _ in range(observations):
        gap = np.where(state == 0, *(rng.choice(wait, WIDTH) for wait in waits)) - 1
        after = (rng.uniform(size=WIDTH) < chances[gap, state, 1, trial]).astype(int)
        np.add.at(counts, (gap, state, after, trial), 1)
        state = after
    return counts


@pytest.mark.parametrize(
    "waits",
    [([1], [2]), ([2], [1]), ([1, 3], [2, 4]), ([1], [6, 8]), ([3], [4])],
    ids=["12", "21", "odd", "8", "34"],
)
def test_gaps_that_depend_on_the_state_last_seen_leave_draws_calibrated(waits):
    """P^2(1, 1) is the same for p11 and p01 - p11: posteriors then have two modes where m < 0."""
    rng = np.random.default_rng(3)
    for observations in (10, 40, 300, 3000):
        p01, p11 = rng.uniform(size=(2, WIDTH))
        drawn = sampler((1.0, 1.0))(
            waiting_by_state(p01, p11, observations, waits, rng), seed=observations
        )
        assert min(ranks_fit(drawn, p01, p11)) > 1e-4, observations


@pytest.mark.parametrize("slots", [20, 300])
def test_one_agents_observations_over_time_are_calibrated(slots):
    """Observations of one path each, played at random; the law of the first is not the chain's."""
    rng = np.random.default_rng(slots)
    p01, p11 = rng.uniform(size=(2, WIDTH))
    chance = rng.uniform(0.15, 1, WIDTH)
    counts = np.zeros((GAPS + 1, 2, 2, WIDTH))
    state = last = rng.integers(0, 2, WIDTH)
    age = np.zeros(WIDTH, int)
    for _ in range(slots):
        state = (rng.uniform(size=WIDTH) < np.where(state == 1, p11, p01)).astype(int)
        age += 1
        seen = np.flatnonzero(rng.uniform(size=WIDTH) < chance)
        np.add.at(counts, (np.minimum(age[seen], LATE) - 1, last[seen], state[seen], seen), 1)
        last = np.where(np.isin(np.arange(WIDTH), seen), state, last)
        age[seen] = 0
    assert counts[GAPS].sum() < 0.01 * counts.sum()  # so late that none has to be settled
    assert min(ranks_fit(sampler((1.0, 1.0))(counts), p01, p11)) > 1e-4


def wild_counts():
    """Counts up to 1e12, many of them 0; the first two channels have none, and weighted ones."""
    rng = np.random.default_rng(1)
    scale = 10.0 ** rng.uniform(0, 12, (1, 1, 1, WIDTH))
    counts = rng.integers(0, 2, (GAPS + 1, 2, 2, WIDTH)) * scale
    counts[..., 0], counts[..., 1] = 0, 0.3
    return counts


@pytest.mark.slow  # a width of its own to compile
def test_whatever_the_counts_draws_and_means_are_probabilities():
    drawn = sampler((1.0, 1.0))(wild_counts())
    counts = jnp.asarray(wild_counts()[:, :, :, None], jnp.float32)
    for p in (drawn, np.asarray(averages((1.0, 1.0))(counts))):
        assert ((p >= 0) & (p <= 1)).all()


@pytest.mark.slow  # a prior is a compilation
@pytest.mark.parametrize("weight", [1e-6, 1e6])
def test_whatever_the_prior_draws_are_probabilities(weight):
    drawn = sampler((weight, weight))(wild_counts())
    assert ((drawn >= 0) & (drawn <= 1)).all()


# ------------------------------------------------------------------------- rare draws


def pairs_of(arm, pairs, gaps, telling):
    """Expected counts of so many pairs gaps[0] slots after bad and gaps[1] slots after good, and of
    a few one slot after good."""
    law, counts = chances(arm[0], arm[1], GAPS + 1), np.zeros((GAPS + 1, 2, 2))
    for gap, state, number in ((gaps[0], 0, pairs), (gaps[1], 1, pairs), (1, 1, telling)):
        good = round(number * float(law[gap - 1, state, 1]))
        counts[gap - 1, state] += [number - good, good]
    return counts


def drawn_often(counts, draws):
    """p01 and p11, of at least so many draws."""
    wide = np.repeat(counts[..., None], WIDTH, -1)
    calls = range(-(-draws // (WIDTH * DRAWN)))
    found = [sampler((1.0, 1.0))(wide, seed=call) for call in calls]
    return np.concatenate(found).swapaxes(0, 1).reshape(2, -1)


def check_rare_draws(counts, draws):
    """No set of places, from the least likely up, is drawn more than three times as often as it
    should be, but for two draws in a million; nor is a third of it missing."""
    exact = integrate(counts)
    p01, p11 = drawn_often(counts, draws)
    depth = exact.depth(p01, p11)
    for share in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-8):
        found, due = (depth < share).sum(), share * depth.size
        most = 3 * due + 2e-6 * depth.size
        assert found <= stats.poisson.isf(1e-6, most), share
        assert found >= stats.poisson.ppf(1e-6, due / 3), share
    return exact, p01, p11


@pytest.mark.parametrize(
    ("pairs", "telling"), [(50_000, 25), pytest.param(50_000, 100, marks=pytest.mark.slow)]
)
def test_a_mode_that_few_pairs_rule_out_is_not_drawn(pairs, telling):
    """Two slots after good p11 and p01 - p11 do equally well; one slot after good tells them apart.
    A chain that begins in the wrong one has seldom left it by its end."""
    exact, p01, p11 = check_rare_draws(pairs_of((0.89, 0.17), pairs, (1, 2), telling), 150_000)
    share = exact.share(lambda a, b: b > a / 2)
    assert share < 1e-7
    assert (p11 > p01 / 2).sum() <= 3


def test_modes_of_a_channel_that_sees_good_as_often_as_bad_are_drawn_by_their_shares():
    """There b0 = 1/2, where one of the systems has a kink."""
    check_rare_draws(pairs_of((0.05, 0.95), 2000, (2, 2), 0), 60_000)


def test_a_mode_is_found_where_a_strong_prior_and_many_pairs_contradict_each_other():
    """Fisher scoring by itself goes back and forth: the posterior bends more than it expects."""
    counts = np.zeros((1, GAPS + 1, 2, 2))
    law = chances(0.97, 0.05, GAPS + 1)
    for gap, number in ((1, 180), (2, 4000), (4, 300), (6, 1300), (8, 1000)):
        counts[0, gap - 1, 1] = number * law[gap - 1, 1]
    counts = np.moveaxis(counts, 0, -1)
    prior = (100.0, 100.0)
    exact = integrate(counts[..., 0], prior)
    means = averages(prior)(jnp.asarray(counts[:, :, :, None], jnp.float32))
    for p, mean in zip((exact.p01, exact.p11), means, strict=True):
        middle = (exact.weights * p).sum()
        spread = np.sqrt((exact.weights * (p - middle) ** 2).sum())
        assert abs(float(mean[0, 0]) - middle) < 0.2 * spread


@pytest.mark.slow  # a million draws of each
@pytest.mark.parametrize("gaps", [(1, 2), (2, 1), (2, 2), (2, 3), (3, 2), (3, 1)])
@pytest.mark.parametrize("arm", [(0.89, 0.17), (0.2, 0.8)], ids=["falling", "rising"])
def test_no_rare_draw_is_three_times_as_frequent_as_it_should_be(arm, gaps):
    for pairs, telling in ((300, 4), (5000, 14), (50_000, 14), (50_000, 100), (200_000, 25)):
        check_rare_draws(pairs_of(arm, pairs, gaps, telling), 1_000_000)


def test_laws_of_pairs_one_slot_apart_have_the_numbers_of_their_prior():
    """Beta(a, b) is a for good next and b for bad next."""
    counts = np.zeros((1, 2, 2, 1, 1), np.float32)
    counts[0, :, :, 0, 0] = [[12, 3], [1, 20]]
    mean, covariance = log_odds_moments(jnp.asarray(counts), (2.0, 5.0), 0)
    for row, (a, b) in enumerate(((2 + 3, 5 + 12), (2 + 20, 5 + 1))):
        assert float(mean[row, 0, 0]) == pytest.approx(special.psi(a) - special.psi(b), abs=1e-4)
        spread = special.polygamma(1, a) + special.polygamma(1, b)
        assert float(covariance[2 * row, 0, 0]) == pytest.approx(spread, rel=1e-4)
