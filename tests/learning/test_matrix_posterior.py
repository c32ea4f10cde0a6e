"""Matrices drawn from looks at any gaps: calibrated, and the known laws where there are such."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rmab.learning.matrix_posterior import draw_matrices, mean_matrices
from rmab.random import DRAWS, Draws, stream

GAPS = 12
BATCH = 256  # trials of one call, for all tests alike: a width is a compilation
RARE = 1e-4


@jax.jit
def _draw_and_mean(
    counts: jax.Array, before: jax.Array, seed: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Both, (S, S, 1, BATCH): one program, compiled once for each S."""
    key = stream(jnp.stack([jnp.uint32(0), seed]), jnp.arange(BATCH), jnp.uint32(0), DRAWS)
    drawn = draw_matrices(counts, before, Draws(key, jnp.ones(BATCH, jnp.int32)))
    return drawn, mean_matrices(counts, before)


def drawn(counts: np.ndarray, seed: int, prior: tuple[float, ...]) -> np.ndarray:
    """Draws (S, S, trials) for counts (C, S, S, trials), BATCH at a time."""
    return in_batches(counts, seed, prior)[0]


def means(counts: np.ndarray, prior: tuple[float, ...]) -> np.ndarray:
    return in_batches(counts, 0, prior)[1]


def in_batches(
    counts: np.ndarray, seed: int, prior: tuple[float, ...]
) -> tuple[np.ndarray, np.ndarray]:
    more = -counts.shape[-1] % BATCH
    whole = np.pad(counts, [(0, 0)] * 3 + [(0, more)])[:, :, :, None]
    before = jnp.array(prior, jnp.float32)[None, :, None, None]
    parts = [
        _draw_and_mean(part, before, jnp.uint32(1000 * seed + k))
        for k, part in enumerate(np.split(whole, whole.shape[-1] // BATCH, -1))
    ]
    draws, estimates = (np.concatenate(each, -1) for each in zip(*parts, strict=True))
    return draws[:, :, 0, : counts.shape[-1]], estimates[:, :, 0, : counts.shape[-1]]


def stationary(truth: np.ndarray) -> np.ndarray:
    """The law (..., S) of matrices (..., S, S): states are censored one by one."""
    shares = []
    for last in range(truth.shape[-1] - 1, 0, -1):
        share = truth[..., :last, last] / truth[..., last, :last].sum(-1, keepdims=True)
        shares.append(share)
        truth = truth[..., :last, :last] + share[..., None] * truth[..., last, None, :last]
    law = np.ones((*truth.shape[:-2], 1))
    for share in reversed(shares):
        law = np.concatenate([law, (law * share).sum(-1, keepdims=True)], -1)
        law = law / law.sum(-1, keepdims=True)
    return law


def laws(truth: np.ndarray) -> np.ndarray:
    """P, P^2, ..., P^GAPS and the stationary law in every row: (..., GAPS + 1, S, S)."""
    powers = [truth]
    for _ in range(GAPS - 1):
        powers.append(powers[-1] @ truth)
    powers.append(np.broadcast_to(stationary(truth)[..., None, :], truth.shape))
    whole = np.stack(powers, -3)
    return np.asarray(whole / whole.sum(-1, keepdims=True))


def log_density(moves: np.ndarray, counts: np.ndarray, prior: np.ndarray) -> float:
    """Of the log odds of one matrix (S, S), for counts (C, S, S): the definition."""
    logs = np.log(laws(moves))
    return float((counts * logs).sum() + (prior * logs[0]).sum())


# How often a pair of looks is so many slots apart; the last: settled.
PLAYED = {
    "often": 0.6 * 0.4 ** np.arange(GAPS + 1.0),
    "now and then": np.r_[np.ones(GAPS), 0.0],
    "seldom": np.r_[np.full(5, 0.01), np.full(GAPS - 5, 0.1), 0.25],
    "settled": np.r_[np.zeros(GAPS), 1.0],
    "even": np.r_[np.tile([0.0, 1.0], GAPS // 2), 0.0],
    "hardly odd": np.r_[np.tile([0.01, 0.99], GAPS // 2), 0.0],
    "threes": np.r_[np.tile([0.0, 0.0, 1.0], GAPS // 3), 0.0],
}
USUAL = ("often", "now and then", "seldom", "settled")


def looks(rng: np.random.Generator, truth: np.ndarray, pairs: int, played: str) -> np.ndarray:
    """Counts (C, S, S, trials) of pairs that begin in any state, from truth (trials, S, S)."""
    n_trials, n_states = truth.shape[:2]
    apart = rng.multinomial(pairs, PLAYED[played] / PLAYED[played].sum(), n_trials)
    first = rng.multinomial(apart, rng.dirichlet(np.full(n_states, 5.0), n_trials)[:, None])
    return np.asarray(np.moveaxis(rng.multinomial(first, laws(truth)), 0, -1), np.float32)


# ------------------------------------------------------------------------- calibration


def values(moves: np.ndarray) -> np.ndarray:
    """What is ranked, (..., S S + S + 2, trials): entries, the stationary law, traces of P, P^2."""
    moves = np.moveaxis(moves.astype(float), -1, 0)
    moves = np.maximum(moves, 1e-25)
    plain = moves.reshape(*moves.shape[:-2], -1)
    law = laws(moves / moves.sum(-1, keepdims=True))[..., -1, 0, :]
    traces = np.stack([np.trace(x, axis1=-2, axis2=-1) for x in (moves, moves @ moves)], -1)
    return np.moveaxis(np.concatenate([plain, law, traces], -1), 0, -1)


def rank_tallies(
    n_states: int, prior: float, cases: list[tuple[int, str]], replicates: int, per_rank: int
) -> np.ndarray:
    """How often each rank came up, (per_rank + 1, values, cases); all alike if calibrated."""
    rng = np.random.default_rng(6)
    truth = rng.dirichlet(np.full(n_states, prior), (len(cases), replicates, n_states))
    truth = np.maximum(truth, 1e-25)
    counts = [looks(rng, one, *case) for one, case in zip(truth, cases, strict=True)]
    every = np.concatenate(counts, -1)  # (C, S, S, cases x replicates)
    true = values(np.moveaxis(truth.reshape(-1, n_states, n_states), 0, -1))
    under, alike = np.zeros(true.shape, int), np.zeros(true.shape, int)
    for seed in range(per_rank):
        found = values(drawn(every, seed, (prior,) * n_states))
        tied = abs(found - true) <= 4e-6 * true  # single precision does not tell them apart
        under, alike = under + ((found < true) & ~tied), alike + tied
    ranks = (under + rng.integers(0, alike + 1)).reshape(-1, len(cases), replicates)
    return np.stack([(ranks == rank).sum(-1) for rank in range(per_rank + 1)])


def test_true_matrices_rank_evenly_among_draws():
    """Matrices from the prior, looks by them: the truth is exchangeable with the draws."""
    cases = [(size, played) for size in (30, 2000) for played in USUAL]
    tallies = rank_tallies(3, 1.0, cases, replicates=64, per_rank=7)
    each = stats.chisquare(tallies, axis=0).pvalue  # (values, cases)
    assert each.min() > RARE / each.size


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_states", "prior", "pairs", "played"),
    [
        (3, 1.0, 2000, "seldom"),
        (3, 1.0, 2000, "settled"),
        (3, 1.0, 10**6, "settled"),
        (3, 0.2, 200, "now and then"),
        (3, 0.2, 2000, "seldom"),
        (4, 1.0, 200, "now and then"),
        (4, 1.0, 2000, "seldom"),
        (4, 1.0, 10**6, "often"),
    ],
)
def test_draws_are_as_wide_as_they_should_be(n_states, prior, pairs, played):
    """Enough matrices to see draws that are a tenth too narrow, where that is hardest to avoid."""
    assert_even(n_states, prior, (pairs, played), replicates=2048, per_rank=15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_states", "pairs", "played"),
    [(3, 10**5, "even"), (3, 10**5, "hardly odd"), (3, 10**5, "threes"), (4, 2000, "even")],
)
def test_draws_find_all_roots_of_a_power(n_states, pairs, played):
    """Looks tell P^2 or P^3 alone: draws are of all of their roots."""
    assert_even(n_states, 1.0, (pairs, played), replicates=512, per_rank=15)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_states", "pairs", "played", "replicates"),
    [(3, 200, "even", 512), (3, 10**5, "even", 256), (4, 2000, "even", 128)],
)
def test_draws_find_all_roots_of_a_power_at_the_edges(n_states, pairs, played, replicates):
    """Rows close to certain: what has the same power as the truth lies at the edges."""
    assert_even(n_states, 0.2, (pairs, played), replicates, per_rank=15)


@pytest.mark.slow
def test_draws_are_as_wide_where_rows_are_close_to_certain_and_only_their_law_is_known():
    """A bias of a tenth in few of the values: more draws are needed to see it."""
    assert_even(3, 0.2, (10**5, "settled"), replicates=4096, per_rank=31)


def assert_even(
    n_states: int, prior: float, case: tuple[int, str], replicates: int, per_rank: int
) -> None:
    tallies = rank_tallies(n_states, prior, [case], replicates, per_rank)[..., 0]
    each = stats.chisquare(tallies, axis=0).pvalue
    assert each.min() > RARE / each.size
    # All entries together: how often the truth lies outside all draws. Entries of a row lean on
    # each other; as if there were S independent ones.
    entries = tallies[:, : n_states**2]
    outside = (entries[0] + entries[-1]).mean() / replicates
    due = 2 / (per_rank + 1)
    assert abs(outside - due) < 4 * np.sqrt(due * (1 - due) / (replicates * n_states))


@pytest.mark.parametrize("pairs", [0, 3, 1000])
def test_neighbouring_looks_give_dirichlet_draws(pairs):
    n_trials, before = 4000, (0.7, 1.0, 2.0)
    rng = np.random.default_rng(2)
    counts = np.zeros((GAPS + 1, 3, 3, n_trials), np.float32)
    truth = [[0.1, 0.3, 0.6], [0.9, 0.1, 0.0], [0.2, 0.2, 0.6]]
    counts[0] = rng.multinomial(pairs, truth)[..., None]
    draws = drawn(counts, 1, before)
    shape = counts[0, :, :, 0] + np.array(before)
    whole = shape.sum(1, keepdims=True)
    for entry in np.ndindex(3, 3):
        law = stats.beta(shape[entry], whole[entry[0], 0] - shape[entry])
        assert stats.kstest(draws[entry], law.cdf).pvalue > RARE
    np.testing.assert_allclose(means(counts[..., :1], before)[..., 0], shape / whole, rtol=1e-4)


# --------------------------------------------------------------- against exact posteriors


def weighted_prior(
    counts: np.ndarray, prior: float, n_matrices: int
) -> tuple[np.ndarray, np.ndarray]:
    """Matrices (n, 3, 3) from the prior, and their shares of the posterior, (n,)."""
    matrices = np.random.default_rng(8).dirichlet(np.full(3, prior), (n_matrices, 3))
    matrices = np.maximum(matrices, 1e-25)
    seen = np.flatnonzero(counts.any((1, 2)))
    height = (counts[seen] * np.log(laws(matrices)[:, seen])).sum((1, 2, 3))
    share = np.exp(height - height.max())
    return matrices, share / share.sum()


@pytest.mark.parametrize(
    ("pairs", "played", "prior"),
    [
        (15, "often", 1.0),
        (4, "now and then", 1.0),
        (20, "now and then", 1.0),
        (20, "seldom", 1.0),
        (35, "even", 1.0),
        (35, "even", 0.4),
    ],
)
def test_moments_are_those_of_the_weighted_prior(pairs, played, prior):
    """With few looks, matrices from the prior weighted by their likelihood are the posterior."""
    n_trials = (6 if played != "even" else 2 if prior == 1 else 1) * BATCH  # roots take long
    rng = np.random.default_rng(pairs)
    counts = looks(rng, rng.dirichlet(np.full(3, prior), (1, 3)), pairs, played)
    matrices, share = weighted_prior(counts[..., 0], prior, 100_000)
    draws = np.moveaxis(drawn(np.repeat(counts, n_trials, -1), 3, (prior,) * 3), -1, 0)
    every = [*np.ndindex(3, 3)]
    for value in (
        *(lambda p, e=entry: p[:, *e] for entry in every),
        *(lambda p, e=entry: p[:, *e] ** 2 for entry in every),
        lambda p: p[:, 0, 0] * p[:, 1, 1],
        lambda p: p[:, 0, 2] * p[:, 2, 0],
        lambda p: np.linalg.det(p),
    ):
        exact, found = value(matrices), value(draws)
        mean = share @ exact
        error = np.hypot(
            found.std() / np.sqrt(n_trials), np.sqrt((share**2 * (exact - mean) ** 2).sum())
        )
        assert abs(found.mean() - mean) < 4.5 * error


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**16),
    pairs=st.sampled_from([10, 300, 10000]),
    played=st.sampled_from(sorted(USUAL)),
)
def test_the_estimate_is_a_summit(seed, pairs, played):
    """Steps to either side lead down, by what the posterior's spread there allows."""
    rng = np.random.default_rng(seed)
    before = (1.0, 1.0, 1.0)
    counts = looks(rng, rng.dirichlet(np.ones(3), (1, 3)), pairs, played)
    best = means(counts, before)[:, :, 0].astype(float)
    best /= best.sum(1, keepdims=True)
    top = log_density(best, counts[..., 0], np.ones(3))
    for _ in range(20):
        aside = best * np.exp(0.3 * rng.normal(size=(3, 3)))
        assert (
            log_density(aside / aside.sum(1, keepdims=True), counts[..., 0], np.ones(3))
            < top + 0.05
        )


# ------------------------------------------------------------------------------ extremes


def test_the_estimate_finds_the_truth():
    rng = np.random.default_rng(9)
    truth = rng.dirichlet(np.ones(3), (200, 3))
    counts = looks(rng, truth, 10**6, "often")
    found = np.moveaxis(means(counts, (1.0, 1.0, 1.0)), -1, 0)
    error = (found - truth) / np.sqrt(truth * (1 - truth) / 10**5)
    assert abs(error).max() < 8
    draws = np.moveaxis(drawn(counts, 4, (1.0, 1.0, 1.0)), -1, 0)
    apart = (draws - found) / np.sqrt(truth * (1 - truth) / 10**5)
    assert abs(apart).max() < 8


@pytest.mark.parametrize("whole", [0.3, 1e6, 1e9, 1e12])
def test_weights_of_any_size_give_matrices(whole):
    rng = np.random.default_rng(3)
    n_trials = 64
    truth = rng.dirichlet(np.full(3, 0.2), (n_trials, 3))
    counts = (
        np.moveaxis(laws(truth), 0, -1) * rng.dirichlet(np.full(GAPS + 1, 0.3))[:, None, None, None]
    )
    counts = np.asarray(counts * whole, np.float32)
    for matrix in (drawn(counts, 8, (1.0, 1.0, 1.0)), means(counts, (1.0, 1.0, 1.0))):
        assert np.isfinite(matrix).all()
        assert (matrix >= 0).all()
        np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-5)


def test_numbers_belong_to_their_trial():
    """What a trial draws does not depend on the trials beside it."""
    rng = np.random.default_rng(5)
    counts = looks(rng, rng.dirichlet(np.ones(3), (BATCH, 3)), 50, "often")
    before = (1.0, 1.0, 1.0)
    np.testing.assert_array_equal(
        drawn(counts, 2, before)[..., :16], drawn(counts[..., :16], 2, before)
    )
