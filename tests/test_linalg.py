"""Small matrices of many arms at once, on NumPy and JAX."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.linalg import compute_in_branch, compute_once, propagate, repeat, solve


def test_small_systems():
    rng = np.random.default_rng(0)
    matrix, right = rng.normal(size=(4, 4, 50)), rng.normal(size=(4, 2, 50))
    found = solve(matrix, right)
    np.testing.assert_allclose(np.einsum("srb,rcb->scb", matrix, found), right, atol=1e-9)
    with jax.enable_x64(True):
        other = np.asarray(solve(jnp.asarray(matrix), jnp.asarray(right)))
    np.testing.assert_allclose(other, found, atol=1e-9)
    matrix[..., 7] = 0  # singular: the others are solved, and this one is finite
    again = solve(matrix, right)
    np.testing.assert_allclose(np.delete(again, 7, -1), np.delete(found, 7, -1), atol=1e-9)
    assert np.isfinite(again).all()


@pytest.mark.parametrize("times", [1, 2, 7])
def test_rows_are_propagated(times):
    rng = np.random.default_rng(1)
    rows, matrix = rng.dirichlet(np.ones(3), (2, 3, 5)).transpose(0, 1, 3, 2)
    found = propagate(rows, matrix, times)
    assert found.shape == (times, 3, 3, 5)
    for b in range(5):
        for k in range(times):
            expected = rows[..., b] @ np.linalg.matrix_power(matrix[..., b], k)
            np.testing.assert_allclose(found[k, :, :, b].T, expected, atol=1e-15)
    with jax.enable_x64(True):
        other = np.asarray(propagate(jnp.asarray(rows), jnp.asarray(matrix), times))
    np.testing.assert_allclose(other, found, atol=1e-15)


def test_numbers_that_are_all_but_zero_become_zero():
    half = np.full((2, 2, 1), 0.5) * 1e-4
    assert propagate(half, half, 12)[-1].max() == 0
    assert propagate(half, half, 7)[-1].max() > 0


def test_a_loop_is_the_same_on_both():
    def add(i, state):
        return state[0] + i, state[1] * 2

    assert [x.tolist() for x in repeat(4, add, (np.zeros(2), np.ones(2)))] == [[6, 6], [16, 16]]
    found = jax.jit(lambda x: repeat(4, add, (x, x + 1)))(jnp.zeros(2))
    assert [np.asarray(x).tolist() for x in found] == [[6, 6], [16, 16]]


def test_what_is_computed_once_is_itself():
    values = np.arange(3.0)
    assert compute_once(values) is values

    def both(x):
        once = compute_once(x * 2)
        tree = compute_in_branch(x.sum() >= 0, lambda a: {"a": a, "b": (x + 1,)}, once)
        return once, tree

    once, tree = jax.jit(both)(jnp.arange(3.0))
    assert np.asarray(once).tolist() == [0, 2, 4]
    assert np.asarray(tree["a"]).tolist() == [0, 2, 4]
    assert np.asarray(tree["b"][0]).tolist() == [1, 2, 3]
