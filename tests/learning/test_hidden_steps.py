"""Matrices from observations with hidden steps: calibrated, and exact where the law is known."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from rmab.learning.hidden_steps import both_matrices, one_matrix
from rmab.rng.variates import DRAWS, Draws, seed_words, stream

from .observations import after_waits, counted, powers

GAPS, WAITS = 12, 8
DRAWN = 39  # draws for each matrix: 2 of 40 ranks at each end lie outside the central 90 %
RARE = 1e-4

# How often a pair is so many slots apart; the last: further than GAPS.
SHARES = {
    "1 to 12": np.r_[np.ones(GAPS), 0.0],
    "mostly long": np.r_[1 / 16, np.zeros(GAPS - 4), np.full(3, 5 / 16), 0.0],
    "long and further": np.r_[np.full(5, 0.01), np.full(GAPS - 5, 0.1), 0.25],
    "played often": 0.6 * 0.4 ** np.arange(GAPS + 1.0),
}
AFTER_WAITS = 0.5 ** np.arange(WAITS)


def draws(n_trials: int, seed: int = 5, first: int = 0) -> Draws:
    key = stream(seed_words(seed), jnp.arange(first, first + n_trials), jnp.uint32(0), DRAWS)
    return Draws(key, jnp.ones(n_trials, jnp.int32))


def weights(*prior: float) -> np.ndarray:
    return np.array(prior, np.float32)[None, :, None, None]


@cache
def _program(method):
    return jax.jit(lambda counts, before: method(counts, before, draws(counts.shape[-1])))


@cache
def _estimator(method):
    return jax.jit(lambda counts, before: method(counts, before, None))


def drawn(method, counts: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Draws, (..., S, S, trials), for counts (C, S, S, 1, trials)."""
    return np.asarray(_program(method)(counts, before))[..., 0, :]


def estimated(method, counts: np.ndarray, before: np.ndarray) -> np.ndarray:
    return np.asarray(_estimator(method)(counts, before))[..., 0, :]


# ------------------------------------------------------------------------- calibration


def outside(truth: np.ndarray, found: np.ndarray) -> np.ndarray:
    """How often entries (S, S, n) lie outside the central 50 % and 90 % of (S, S, DRAWN, n)."""
    rank = (found < truth[:, :, None]).sum(2)
    return np.array([((rank < k) | (rank > DRAWN - k)).mean() for k in (10, 2)])


def deviation(n_states: int, prior: float, pairs: int, gaps: str, matrices: int) -> np.ndarray:
    """What `outside` is more than what is due, for matrices drawn from the prior."""
    rng = np.random.default_rng([n_states, pairs])
    truth = rng.dirichlet(np.full(n_states, prior), (matrices, n_states))
    counts = counted(rng, powers(truth, GAPS), pairs, SHARES[gaps])
    found = drawn(one_matrix, np.tile(counts, DRAWN), weights(*[prior] * n_states))
    found = found.reshape(n_states, n_states, DRAWN, matrices)
    return outside(np.moveaxis(truth, 0, -1), found) - (0.5, 0.1)


def allowed(n_states: int, matrices: int) -> np.ndarray:
    """The bar, 2.5 percentage points, and four standard errors; entries of a row lean on each
    other, as if there were S independent ones."""
    due = np.array([0.5, 0.1])
    return np.asarray(0.025 + 4 * np.sqrt(due * (1 - due) / (n_states * matrices)))


@pytest.mark.slow
@pytest.mark.parametrize("gaps", ["1 to 12", "mostly long", "played often"])
@pytest.mark.parametrize(("pairs", "prior"), [(30, 1.0), (10_000, 0.5)])
def test_draws_are_calibrated(gaps, pairs, prior):
    """The truth is exchangeable with the draws: simulation-based calibration."""
    assert (abs(deviation(3, prior, pairs, gaps, 256)) < allowed(3, 256)).all()


@pytest.mark.slow
@pytest.mark.parametrize("gaps", ["1 to 12", "mostly long", "played often"])
@pytest.mark.parametrize("prior", [0.5, 1.0, 5.0])
@pytest.mark.parametrize("n_states", [3, 4, 5])
def test_draws_of_more_states_are_calibrated(n_states, prior, gaps):
    for pairs in (30, 300, 10_000):
        assert (abs(deviation(n_states, prior, pairs, gaps, 512)) < allowed(n_states, 512)).all()


@pytest.mark.slow
def test_draws_with_pairs_further_apart_are_calibrated():
    """They are taken as twice GAPS apart, and were drawn from the stationary distribution."""
    off = deviation(3, 1.0, 300, "long and further", 256)
    assert (abs(off) < 0.01 + allowed(3, 256)).all()


@pytest.mark.slow  # a program of its own to compile
@pytest.mark.parametrize("pairs", [30, 300, 10_000])
def test_draws_of_both_matrices_are_calibrated(pairs):
    matrices = 512
    rng = np.random.default_rng(pairs)
    passive, active = rng.dirichlet(np.ones(2), (2, matrices, 2))
    counts = counted(rng, after_waits(passive, active, WAITS), pairs, AFTER_WAITS)
    found = drawn(both_matrices, np.tile(counts, DRAWN), weights(1, 1))
    for truth, those in zip((passive, active), found, strict=True):
        off = outside(np.moveaxis(truth, 0, -1), those.reshape(2, 2, DRAWN, matrices)) - (0.5, 0.1)
        assert (abs(off) < allowed(2, matrices)).all()


# -------------------------------------------------------------------- known posteriors


@pytest.mark.parametrize("pairs", [0, 3, 1000])
def test_consecutive_observations_give_dirichlet_draws(pairs):
    n_trials, before = 4000, (0.7, 1.0, 2.0)
    truth = [[0.1, 0.3, 0.6], [0.9, 0.1, 0.0], [0.2, 0.2, 0.6]]
    counts = np.zeros((GAPS + 1, 3, 3, 1, n_trials), np.float32)
    counts[0] = np.random.default_rng(2).multinomial(pairs, truth)[..., None, None]
    found = drawn(one_matrix, counts, weights(*before))
    shape = counts[0, :, :, 0, 0] + np.array(before)
    whole = shape.sum(1, keepdims=True)
    for entry in np.ndindex(3, 3):
        law = stats.beta(shape[entry], whole[entry[0], 0] - shape[entry])
        assert stats.kstest(found[entry], law.cdf).pvalue > RARE
    mean = estimated(one_matrix, counts[..., :1], weights(*before))[..., 0]
    np.testing.assert_allclose(mean, shape / whole, rtol=1e-4)


@pytest.mark.slow
def test_without_waits_the_passive_matrix_keeps_the_prior():
    counts = np.zeros((WAITS, 2, 2, 1, 4000), np.float32)
    counts[0] = np.array([[7, 2], [0, 11]])[:, :, None, None]
    passive, active = drawn(both_matrices, counts, weights(2, 3))
    for s in (0, 1):
        assert stats.kstest(passive[s, 1], stats.beta(3, 2).cdf).pvalue > RARE
        posterior = stats.beta(3 + counts[0, s, 1, 0, 0], 2 + counts[0, s, 0, 0, 0])
        assert stats.kstest(active[s, 1], posterior.cdf).pvalue > RARE


def moments(matrices: np.ndarray) -> np.ndarray:
    """Entries, their squares and two products, (values, n), of matrices (n, ..., S, S)."""
    flat = matrices.reshape(len(matrices), -1)
    products = [flat[:, 0] * flat[:, -1], flat[:, 1] * flat[:, -2]]
    return np.asarray(np.concatenate([flat.T, flat.T**2, products]))


def assert_moments(exact: np.ndarray, shares: np.ndarray, found: np.ndarray) -> None:
    """Means agree to a quarter of a standard deviation and what two samples leave open.

    The bootstrap is right to first order where pairs are many. These are 15 or 20 pairs.
    """
    exact, found = moments(exact), moments(found)
    means = exact @ shares
    spread = np.sqrt((exact - means[:, None]) ** 2 @ shares)
    error = spread * np.sqrt(1 / found.shape[1] + (shares**2).sum())
    assert (abs(found.mean(1) - means) < 0.25 * spread + 4.5 * error).all()


def of_the_posterior(heights: np.ndarray) -> np.ndarray:
    shares = np.exp(heights - heights.max())
    return np.asarray(shares / shares.sum())


@pytest.mark.parametrize("weight", [1, 0.6])
@pytest.mark.parametrize("gaps", ["1 to 12", "mostly long", "played often"])
def test_moments_of_one_matrix_are_those_of_the_weighted_prior(gaps, weight):
    """With few pairs, matrices from the prior weighted by their likelihood are the posterior.

    An agent's weight is a power of its likelihood, and makes counts that are not whole.
    """
    rng = np.random.default_rng(8)
    counts = counted(rng, powers(rng.dirichlet(np.ones(3), (1, 3)), GAPS), 15, SHARES[gaps])
    counts = counts * np.float32(weight)
    many = rng.dirichlet(np.ones(3), (100_000, 3))
    logs = np.log(np.maximum(powers(many, GAPS), 1e-30))
    # Pairs further apart are twice GAPS apart here, as the method has it.
    logs[:, GAPS] = np.log(np.linalg.matrix_power(many, 2 * GAPS))
    shares = of_the_posterior((counts[..., 0, 0] * logs).sum((1, 2, 3)))
    found = drawn(one_matrix, np.tile(counts, 4000), weights(1, 1, 1))
    assert_moments(many, shares, np.moveaxis(found, -1, 0))


def test_moments_of_both_matrices_are_those_of_the_weighted_prior():
    rng = np.random.default_rng(9)
    truth = rng.dirichlet(np.ones(2), (2, 1, 2))
    counts = counted(rng, after_waits(truth[0], truth[1], WAITS), 20, AFTER_WAITS)
    many = rng.dirichlet(np.ones(2), (2, 100_000, 2))
    logs = np.log(after_waits(many[0], many[1], WAITS))
    shares = of_the_posterior((counts[..., 0, 0] * logs).sum((1, 2, 3)))
    found = drawn(both_matrices, np.tile(counts, 4000), weights(1, 1))
    assert_moments(np.moveaxis(many, 0, 1), shares, np.moveaxis(found, -1, 0))


# --------------------------------------------------------------------------- estimates


def log_density(matrix: np.ndarray, counts: np.ndarray) -> float:
    """Of the log odds of one matrix (S, S) with a uniform prior, for counts (C, S, S)."""
    laws = powers(matrix, GAPS)
    laws[GAPS] = np.linalg.matrix_power(matrix, 2 * GAPS)
    return float((counts * np.log(laws)).sum() + np.log(matrix).sum())


@settings(max_examples=15)
@given(
    seed=st.integers(0, 2**16),
    pairs=st.sampled_from([10, 300, 10_000]),
    gaps=st.sampled_from(sorted(SHARES)),
)
def test_the_estimate_is_a_mode(seed, pairs, gaps):
    """Steps to either side lead down."""
    rng = np.random.default_rng(seed)
    counts = counted(rng, powers(rng.dirichlet(np.ones(3), (1, 3)), GAPS), pairs, SHARES[gaps])
    best = estimated(one_matrix, counts, weights(1, 1, 1))[:, :, 0].astype(float)
    best /= best.sum(1, keepdims=True)
    top = log_density(best, counts[..., 0, 0])
    for _ in range(20):
        aside = best * np.exp(0.3 * rng.normal(size=(3, 3)))
        assert log_density(aside / aside.sum(1, keepdims=True), counts[..., 0, 0]) < top + 0.05


@pytest.mark.slow  # a program of its own to compile
def test_many_observations_find_the_matrix():
    rng = np.random.default_rng(9)
    truth = rng.dirichlet(np.ones(3), (200, 3))
    counts = counted(rng, powers(truth, GAPS), 10**6, SHARES["played often"])
    scale = np.sqrt(truth * (1 - truth) / 10**5)
    for found in (f(one_matrix, counts, weights(1, 1, 1)) for f in (estimated, drawn)):
        assert (abs(np.moveaxis(found, -1, 0) - truth) / scale).max() < 8


def test_many_observations_find_both_matrices():
    """What is observed, the laws after each wait, is met closely, and so are most matrices; where
    both are nearly singular many matrices have nearly the same laws."""
    rng = np.random.default_rng(3)
    passive, active = rng.dirichlet(np.ones(3), (2, 200, 3))
    laws = after_waits(passive, active, WAITS)
    counts = np.asarray(np.moveaxis(laws, 0, -1)[:, :, :, None] * 1e6, np.float32)
    found = np.moveaxis(estimated(both_matrices, counts, weights(1, 1, 1)), -1, 1)
    off = abs(after_waits(found[0], found[1], WAITS) - laws)
    assert np.quantile(off, [0.5, 0.99]) == pytest.approx([0, 0], abs=0.01)
    assert off.max() < 0.05
    for truth, estimate in zip((passive, active), found, strict=True):
        away = np.quantile(abs(truth - estimate), [0.5, 0.9])
        assert away == pytest.approx([0, 0], abs=0.03)


@pytest.mark.slow
def test_rows_that_are_never_entered_keep_the_prior():
    """A restart to state 0, from which state 2 is never reached: its row cannot be learnt."""
    passive = np.array([[0.7, 0.3, 0.0], [0.4, 0.6, 0.0], [0.2, 0.3, 0.5]])
    active = np.array([[1.0, 0.0, 0.0]] * 3)
    counts = after_waits(passive, active, WAITS)[..., None, None] * 500.0
    drift = drawn(both_matrices, np.tile(counts, 1000).astype(np.float32), weights(1, 1, 1))[0]
    assert abs(float(drift[0, 1].mean()) - 0.3) < 0.02
    assert np.std(drift[0], axis=-1).max() < 0.05
    # As the prior allows a step into state 2 at times, and it was never observed, leaving it at
    # once is a little likelier than Dirichlet(1, 1, 1) has it; the spread stays that of a guess.
    for to, mean in enumerate((0.4, 0.4, 0.2)):
        assert np.mean(drift[2, to]) == pytest.approx(mean, abs=0.1)
        assert np.std(drift[2, to]) > 0.1


# ---------------------------------------------------------------------------- extremes


@pytest.mark.slow  # a program of its own to compile
@pytest.mark.parametrize("whole", [0.3, 1e6, 1e9, 1e12])
@pytest.mark.parametrize("prior", [1e-3, 1.0])
def test_weights_of_any_size_give_matrices(whole, prior):
    rng = np.random.default_rng(3)
    laws = powers(np.maximum(rng.dirichlet(np.full(3, 0.2), (64, 3)), 1e-25), GAPS)
    shares = rng.dirichlet(np.full(GAPS + 1, 0.3))[:, None, None, None, None]
    counts = np.asarray(np.moveaxis(laws, 0, -1)[:, :, :, None] * shares * whole, np.float32)
    for matrix in (f(one_matrix, counts, weights(*[prior] * 3)) for f in (drawn, estimated)):
        assert np.isfinite(matrix).all()
        assert (matrix >= 0).all()
        np.testing.assert_allclose(matrix.sum(1), 1, rtol=1e-4)


@pytest.mark.slow  # a program of its own to compile
def test_numbers_belong_to_their_trial():
    """What a trial draws does not depend on the trials beside it, hidden steps or none."""
    rng = np.random.default_rng(5)
    counts = counted(rng, powers(rng.dirichlet(np.ones(3), (32, 3)), GAPS), 50, SHARES["1 to 12"])
    counts[1:, ..., 7] = 0  # nothing hidden
    counts[3:, ..., 8] = 0  # and nothing far apart
    whole = drawn(one_matrix, counts, weights(1, 1, 1))
    for trial in (0, 7, 8):
        one = jnp.asarray(counts[..., trial : trial + 1])
        alone = jax.jit(lambda c, t=trial: one_matrix(c, weights(1, 1, 1), draws(1, first=t)))(one)
        np.testing.assert_allclose(np.asarray(alone)[:, :, 0, 0], whole[..., trial], rtol=2e-5)
