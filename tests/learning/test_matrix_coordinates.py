"""Coordinates of matrices, steps in them, and roots: against their definitions, in doubles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.learning.matrix_charts import deviation_matrix, law_and_trees, log_bend, with_law
from rmab.learning.matrix_roots import log_slope_per_root, power_of, root_of, turned_over
from rmab.learning.matrix_walk import Place, to_law


def stationary(moves: np.ndarray) -> np.ndarray:
    """The law (S,) of a matrix (S, S): what leaves each state comes back to it."""
    balance = np.vstack([moves.T - np.eye(len(moves)), np.ones(len(moves))])
    found: np.ndarray = np.linalg.lstsq(balance, np.r_[np.zeros(len(moves)), 1.0], rcond=None)[0]
    return found


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
    plain = np.stack([stationary(moves[..., k]) for k in range(moves.shape[-1])], -1)
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


@pytest.mark.parametrize("n_states", [3, 4])
@pytest.mark.parametrize("prior", [0.3, 1.0])
def test_an_eigenvalue_turned_over_keeps_the_square(n_states, prior):
    """The square is kept, one sign changes, and the volume is that of the square's slopes."""
    rng = np.random.default_rng(15)
    n_trials = 300
    moves = rng.dirichlet(np.full(n_states, prior), (n_trials, n_states))
    plain = np.moveaxis(moves, 0, -1).astype(np.float32)
    choice = jnp.asarray(rng.random(n_trials), jnp.float32)

    @jax.jit
    def found(moves: jax.Array) -> tuple[jax.Array, jax.Array]:
        return turned_over(moves, law_and_trees(moves)[0], choice)

    other, log_turn = (np.moveaxis(np.asarray(x, float), -1, 0) for x in found(plain))
    error = abs(other @ other - moves @ moves).max((1, 2))
    right = error < 2e-5  # the others are not taken: two eigenvalues lie too close to each other
    assert right.mean() > 0.8
    assert (abs(other - moves).max((1, 2)) > 1e-3)[right].mean() > 0.9
    before, after = (np.linalg.eigvals(each) for each in (moves, other))
    kept = abs(before.sum(1) - after.sum(1))  # by twice the eigenvalue, or the two of them
    twice = np.concatenate([2 * abs(before), 2 * abs(before + before.conj())], 1)
    assert (abs(twice - kept[:, None]).min(1) < 1e-3)[right].all()
    for k in np.flatnonzero(right)[:100]:
        slopes = [log_slope_of_square(each) for each in (moves[k], other[k])]
        assert abs(slopes[0] - slopes[1] - log_turn[k]) < 0.02


def log_slope_of_square(moves: np.ndarray) -> float:
    """log |dP^2 / dP| of a matrix (S, S) whose rows add up to 1: the definition."""
    n_states = len(moves)
    columns = []
    for s, t in np.ndindex(n_states, n_states - 1):  # P(s, t) up, and the last of the row down
        turn = np.zeros((n_states, n_states))
        turn[s, t], turn[s, -1] = 1, -1
        columns.append((moves @ turn + turn @ moves)[:, :-1].ravel())
    return float(np.log(abs(np.linalg.det(np.array(columns)))))
