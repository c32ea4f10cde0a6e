"""Random numbers: known answers, the laws they should follow, and their independence of company.

Seeds are fixed, so a test passes always or never. RARE is the chance that one comparison would
have had to fail for a faultless generator when its seed was chosen.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry_2x32
from scipy import stats

from rmab.rng.variates import (
    CHANNELS,
    DRAWS,
    PLAYS,
    Draws,
    Key,
    seed_words,
    stream,
    threefry,
    unit,
)

RARE = 1e-4
SEED = seed_words(20_240_601)
ONES = 0xFFFFFFFF


def key_of(high: int, low: int) -> Key:
    return Key(jnp.uint32(high), jnp.uint32(low))


def draws(n_trials: int, episode: int = 1) -> Draws:
    key = stream(SEED, jnp.arange(n_trials), jnp.uint32(0), DRAWS)
    return Draws(key, jnp.full(n_trials, episode))


def uniform_squares(first: np.ndarray, second: np.ndarray, bins: int = 16) -> float:
    """p-value of the hypothesis that the pairs fill the unit square evenly."""
    place = (first * bins).astype(int) * bins + (second * bins).astype(int)
    p_value: float = stats.chisquare(np.bincount(place.ravel(), minlength=bins**2)).pvalue
    return p_value


# ------------------------------------------------------------------------------ Threefry


@pytest.mark.parametrize(
    ("key", "counter", "answer"),
    [  # the known-answer file of Random123, threefry2x32 with 20 rounds
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((ONES, ONES), (ONES, ONES), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_gives_the_known_answers(key, counter, answer):
    got = threefry(key_of(*key), jnp.uint32(counter[0]), jnp.uint32(counter[1]), rounds=20)
    assert tuple(int(x) for x in got) == answer


def test_threefry_equals_jax():
    rng = np.random.default_rng(1)
    key = rng.integers(0, 2**32, 2, dtype=np.uint32)
    high, low = jnp.asarray(rng.integers(0, 2**32, (2, 1000), dtype=np.uint32))
    mine = jnp.concatenate(threefry(key_of(*key.tolist()), high, low, rounds=20))
    theirs = threefry_2x32(jnp.asarray(key), jnp.concatenate([high, low]))
    np.testing.assert_array_equal(mine, theirs)


@pytest.fixture(scope="module")
def cube() -> np.ndarray:
    """Uniforms as the engine takes them: (purposes, trials, agents, slots, arms, words)."""
    trial, agent = jnp.arange(40)[:, None, None, None], jnp.arange(4)[:, None, None]
    slot, arm = jnp.arange(64, dtype=jnp.uint32)[:, None], jnp.arange(8, dtype=jnp.uint32)

    @jax.jit
    def uniforms(use: int) -> list[jax.Array]:
        return [unit(word) for word in threefry(stream(SEED, trial, agent, use), slot, arm)]

    return np.stack([np.stack(uniforms(use), -1) for use in (CHANNELS, DRAWS, PLAYS)])


def test_uniforms_are_uniform(cube):
    for use in cube:
        counts = np.bincount((use * 1024).astype(int).ravel(), minlength=1024)
        assert stats.chisquare(counts).pvalue > RARE
    # Within each trial too: its p-values must be uniform themselves.
    by_trial = (cube[CHANNELS] * 16).astype(int).reshape(cube.shape[1], -1)
    p_values = [stats.chisquare(np.bincount(row, minlength=16)).pvalue for row in by_trial]
    assert stats.kstest(p_values, "uniform").pvalue > RARE


@pytest.mark.parametrize("axis", range(6), ids=["use", "trial", "agent", "slot", "arm", "word"])
def test_neighbours_are_independent(cube, axis):
    line = np.moveaxis(cube, axis, 0)
    even = len(line) // 2 * 2
    assert uniform_squares(line[:even:2], line[1:even:2]) > RARE
    assert abs(stats.pearsonr(line[0].ravel(), line[1].ravel()).statistic) < 4.5 / math.sqrt(
        line[0].size
    )


def test_uniforms_stay_inside_the_open_interval():
    lowest, highest = unit(jnp.uint32(0)), unit(jnp.uint32(ONES))
    assert 0 < lowest < 1e-7
    assert 1 - 1e-7 < highest < 1


def test_every_bit_of_the_seed_counts():
    seven, one = jnp.uint32(7), jnp.uint32(1)
    seeds = [0, *(1 << bit for bit in range(64)), 2**64 - 1]
    key = jax.jit(lambda seed: stream(seed, seven, one, CHANNELS))
    keys = {tuple(int(k) for k in key(seed_words(s))) for s in seeds}
    assert len(keys) == len(seeds)


# ------------------------------------------------------------------------------ variates

N_DRAWS = 40_000
SHAPES = [0.3, 1.0, 2.5, 50.0, 1e5]


@pytest.mark.parametrize("promised", [0.0, 1.0], ids=["any", "one-or-more"])
def test_gammas_follow_their_law(promised):
    shapes = [a for a in SHAPES if a >= promised]
    column = jnp.asarray(shapes, jnp.float32)[:, None] * jnp.ones(N_DRAWS)
    gammas = jax.jit(lambda column: draws(N_DRAWS).gamma(column, promised))(column)
    for a, got in zip(shapes, np.asarray(gammas), strict=True):
        assert stats.kstest(got, stats.gamma(a).cdf).pvalue > RARE
        wide = got.astype(np.float64)
        assert abs(wide.mean() - a) < 4 * math.sqrt(a / N_DRAWS)
        # Var of a sample variance: sigma^4 (2 + excess kurtosis) / n, with 6 / a for a gamma.
        assert abs(wide.var() - a) < 4 * a * math.sqrt((2 + 6 / a) / N_DRAWS)


def test_betas_follow_their_law():
    pairs = [(1, 1), (0.3, 2), (0.5, 0.5), (40, 3), (1e4, 2e4), (0.05, 0.02), (1e-3, 1e-3)]
    columns = jnp.asarray(pairs, jnp.float32).T[..., None] * jnp.ones(N_DRAWS)
    betas = jax.jit(lambda *columns: draws(N_DRAWS).beta(*columns))(*columns)
    for (a, b), got in zip(pairs, np.asarray(betas), strict=True):
        law = stats.beta(a, b)
        assert ((got >= 0) & (got <= 1)).all()
        if min(a, b) >= 0.5:
            assert stats.kstest(got, law.cdf).pvalue > RARE
        # Mass nearer to an end than a float32 can tell lands on that end: compare inside.
        for x in (1e-20, 1e-6, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99):
            share = law.cdf(x)
            spread = math.sqrt(share * (1 - share) / N_DRAWS)
            assert abs((got <= np.float32(x)).mean() - share) <= 4.5 * spread + 1 / N_DRAWS


def test_a_trial_draws_the_same_in_any_company():
    shape = np.random.default_rng(2).uniform(0.4, 30, (2, 3, 64)).astype(np.float32)

    @jax.jit
    def variates(who: jax.Array, shape: jax.Array, wanted: jax.Array) -> list[jax.Array]:
        key = stream(SEED, who, jnp.uint32(0), DRAWS)
        source = Draws(key, jnp.full(who.shape, 3), wanted)
        return [source.uniform(2), source.gamma(shape[0]), source.beta(*shape)]

    def take(who: np.ndarray, wanted: bool | np.ndarray = True) -> list[np.ndarray]:
        got = variates(who, shape[..., who], np.broadcast_to(wanted, who.shape))
        return [np.asarray(x) for x in got]

    everyone = np.arange(64, dtype=np.uint32)
    whole = take(everyone)
    for some in (everyone[41:42], everyone[::-1]):
        for alone, among in zip(take(some), whole, strict=True):
            np.testing.assert_array_equal(alone, among[..., some])
    wanted = everyone % 5 == 2
    for marked, among in zip(take(everyone, wanted), whole, strict=True):
        np.testing.assert_array_equal(marked[..., wanted], among[..., wanted])


def test_no_number_is_given_twice():
    @jax.jit
    def several() -> list[jax.Array]:
        first, other = draws(20), draws(20, episode=2)
        given = [first.uniform(3), first.uniform(3), first.gamma(jnp.ones((3, 20)), 1.0)]
        return [*given, first.uniform(2, 2), other.uniform(3)]

    given = several()
    flat = np.concatenate([np.asarray(x).ravel() for x in given])
    assert len(np.unique(flat)) == flat.size
    for a, b in itertools.combinations([np.asarray(x)[:2].ravel() for x in given], 2):
        assert abs(np.corrcoef(a[:40], b[:40])[0, 1]) < 4.5 / math.sqrt(40)
