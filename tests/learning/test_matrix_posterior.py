"""Matrices drawn from looks at any gaps: calibrated, and the known laws where there are such."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rmab.learning.matrix_charts import deviation_matrix, law_and_trees, log_bend, with_law
from rmab.learning.matrix_posterior import draw_matrices, mean_matrices
from rmab.learning.matrix_roots import log_slope_per_root, power_of, root_of
from rmab.learning.matrix_walk import Place, to_law
from rmab.learning.randomness import DRAWS, Draws, stream

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


def weighted_prior(counts: np.ndarray, n_matrices: int) -> tuple[np.ndarray, np.ndarray]:
    """Matrices (n, 3, 3) from the uniform prior, and their shares of the posterior, (n,)."""
    matrices = np.random.default_rng(8).dirichlet(np.ones(3), (n_matrices, 3))
    seen = np.flatnonzero(counts.any((1, 2)))
    height = (counts[seen] * np.log(laws(matrices)[:, seen])).sum((1, 2, 3))
    share = np.exp(height - height.max())
    return matrices, share / share.sum()


@pytest.mark.parametrize(
    ("pairs", "played"),
    [(15, "often"), (4, "now and then"), (20, "now and then"), (20, "seldom"), (35, "even")],
)
def test_moments_are_those_of_the_weighted_prior(pairs, played):
    """With few looks, matrices from the prior weighted by their likelihood are the posterior."""
    n_trials = (2 if played == "even" else 6) * BATCH  # steps among roots take long
    rng = np.random.default_rng(pairs)
    counts = looks(rng, rng.dirichlet(np.ones(3), (1, 3)), pairs, played)
    matrices, share = weighted_prior(counts[..., 0], 100_000)
    draws = np.moveaxis(drawn(np.repeat(counts, n_trials, -1), 3, (1.0, 1.0, 1.0)), -1, 0)
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


# ---------------------------------------------------------------------------- coordinates


def test_coordinates_reach_the_law_they_name():
    """The stationary law is the one asked for, and odds ratios are those of P e^z."""
    rng = np.random.default_rng(12)
    moves = np.moveaxis(rng.dirichlet(np.ones(3), (40, 3)), 0, -1)
    z = 0.7 * rng.normal(size=moves.shape)

    @jax.jit
    def reach(moves: jax.Array, z: jax.Array) -> tuple[jax.Array, ...]:
        law = law_and_trees(moves)[0]
        reached = with_law(moves, law, z)
        turns = deviation_matrix(moves, law), log_bend(moves, law)
        return law, reached, law_and_trees(reached)[0], *turns

    found = reach(moves.astype(np.float32), z.astype(np.float32))
    law, reached, new_law, deviations, bend = (np.asarray(x, float) for x in found)
    plain = laws(np.moveaxis(moves, -1, 0))[:, -1, 0].T  # (S, items)
    np.testing.assert_allclose(law, plain, rtol=1e-4)
    asked = plain * np.exp((plain[:, None] * z).sum(0))
    np.testing.assert_allclose(new_law, asked / asked.sum(0), rtol=2e-3)

    def odds(log: np.ndarray) -> np.ndarray:
        return np.asarray(log[1:, 1:] + log[:1, :1] - log[1:, :1] - log[:1, 1:])

    np.testing.assert_allclose(odds(np.log(reached)), odds(np.log(moves) + z), atol=1e-3)
    for k in range(moves.shape[-1]):
        P, pi = moves[..., k], plain[:, k]
        settled = np.outer(np.ones(3), pi)
        inverse = np.linalg.inv(np.eye(3) - P + settled) - settled
        np.testing.assert_allclose(deviations[..., k], inverse, atol=1e-3 * abs(inverse).max())
        # How the log odds of the law answer to columns scaled by e^beta, beta(0) = 0.
        answer = (np.diag(pi) - P.T @ np.diag(pi) @ P) @ inverse / pi
        odds_answer = answer[1:, 1:] - answer[1:, :1]
        assert abs(np.log(abs(np.linalg.det(odds_answer))) - bend[k]) < 1e-3


@pytest.mark.parametrize("prior", [0.2, 1.0])
def test_a_step_of_the_law_that_counts_has_a_way_back(prior):
    """The step back is found, and leads back; else the walk would drift."""
    rng = np.random.default_rng(13)
    n_trials = 4000
    moves = np.moveaxis(rng.dirichlet(np.full(3, prior), (n_trials, 3)), 0, -1)
    moves = np.maximum(moves, 1e-20).astype(np.float32)
    z = (2 * rng.normal(size=moves.shape)).astype(np.float32)
    z[:, :, ::2] *= 4

    @jax.jit
    def there_and_back(moves: jax.Array, z: jax.Array) -> tuple[jax.Array, ...]:
        law, trees = law_and_trees(moves)
        tilt = (law[:, None] * z).sum(0)
        new, new_law, new_trees, extra = to_law(Place(moves, law, trees, trees), z, tilt)
        back = to_law(Place(new, new_law, new_trees, trees), -z, -tilt)
        return extra, back[0], back[3]

    extra, back, back_extra = (np.asarray(x) for x in there_and_back(moves, z))
    counts = np.isfinite(extra)
    assert counts.mean() > 0.2
    # Rounding may decide of a step that is hardly found.
    assert np.isfinite(back_extra)[counts].mean() > 0.99
    both = counts & np.isfinite(back_extra)
    # Laws are reached to 3e-4, which matters a little for rows that are nearly alike.
    error = abs(back - moves) / (moves + 0.01)
    assert np.quantile(error[..., both], 0.999) < 0.01
    assert np.quantile(abs(back_extra + extra)[both], 0.99) < 0.02


@pytest.mark.parametrize("n_states", [3, 4])
@pytest.mark.parametrize("order", [2, 3])
def test_roots_have_the_power_and_its_slope(n_states, order):
    """Any root has the power; the slope of the power is that of its definition, in doubles."""
    rng = np.random.default_rng(14)
    n_trials = 200
    moves = rng.dirichlet(np.ones(n_states), (n_trials, n_states))
    plain = np.moveaxis(moves, 0, -1).astype(np.float32)
    signs = jnp.asarray(rng.choice([-1.0, 1.0], (n_states - 1, n_trials)), jnp.float32)
    turns = jnp.asarray(rng.integers(0, order, (n_states - 1, n_trials)))
    orders = jnp.full(n_trials, order)

    @jax.jit
    def found(moves: jax.Array) -> tuple[jax.Array, ...]:
        law = law_and_trees(moves)[0]
        power = power_of(moves, orders)
        root = root_of(power, law, orders, signs, turns)
        return power, root, *log_slope_per_root(moves, law, orders)

    power, root, slope, sure = (np.asarray(x) for x in found(plain))
    exact = np.moveaxis(np.linalg.matrix_power(moves, order), 0, -1)
    np.testing.assert_allclose(power, exact, atol=1e-6)
    root = root / root.sum(1, keepdims=True)
    again = np.linalg.matrix_power(np.moveaxis(root.astype(float), -1, 0), order)
    error = abs(np.moveaxis(again, 0, -1) - exact).max((0, 1))
    assert np.quantile(error, 0.8) < 2e-4  # the others are not taken: small eigenvalues get lost
    assert (abs(root - plain).max((0, 1)) > 0.01).mean() > 0.1
    assert sure.mean() > 0.9
    free = [*np.ndindex(n_states, n_states - 1)]
    for k in np.flatnonzero(sure)[:50]:
        powers = [np.linalg.matrix_power(moves[k], g) for g in range(order)]
        columns = []
        for s, t in free:  # P(s, t) up, and the last entry of the row down
            turn = np.zeros((n_states, n_states))
            turn[s, t], turn[s, -1] = 1, -1
            change = sum(a @ turn @ b for a, b in zip(powers, powers[::-1], strict=True))
            columns.append(np.asarray(change)[:, :-1].ravel())
        values = np.linalg.eigvals(moves[k])
        real = (abs(values.imag) < 1e-9).sum() - 1
        roots = real * np.log(2) * (order == 2) + (n_states - 1 - real) / 2 * np.log(order)
        known = np.log(abs(np.linalg.det(np.array(columns)))) - roots
        assert abs(slope[k] - known) < 2e-3


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
