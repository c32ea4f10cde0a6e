"""Indices of nested policies of small arms, many at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.planning.index.adaptive_greedy import state_table
from rmab.planning.index.finite import finite_indices

from .models import arm_of, degenerate_models, random_models


@pytest.mark.parametrize("S", [2, 3, 5, 9])
def test_state_table_is_the_dense_solver_s(S):
    models = random_models(S, S, 60)
    table = state_table(*models)
    single = [jnp.asarray(array, jnp.float32) for array in models]
    np.testing.assert_allclose(np.asarray(jax.jit(state_table)(*single)), table, atol=2e-3)
    for b in range(60):
        found = finite_indices(arm_of(models, b, "always"))
        if found.indexable:
            np.testing.assert_allclose(table[:, b], found.index, atol=1e-8)


def test_published_values_of_states():
    forward = np.array([[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0, 0, 0.5, 0.5], [0.5, 0, 0, 0.5]])
    pays = np.array([-1.0, 0, 0, 1])
    circulant = state_table(forward.T, forward, pays, pays)
    np.testing.assert_allclose(circulant, [-0.5, 0.5, 1, -1], atol=1e-9)
    wears = 0.1 * np.eye(5)[[0] * 5] + 0.9 * np.eye(5)[[1, 2, 3, 4, 4]]
    restart = state_table(wears, np.eye(5)[[0] * 5], 0.9 ** np.arange(1, 6), np.zeros(5))
    expected = [-0.9, -0.729, -0.50949, -0.258787, 0.009893]
    np.testing.assert_allclose(restart, expected, atol=5e-7)


@pytest.mark.parametrize("S", [2, 4])
def test_always_finite(S):
    models = degenerate_models(S, S, 400)
    assert np.isfinite(state_table(*models)).all()
    single = [jnp.asarray(array, jnp.float32) for array in models]
    assert np.isfinite(np.asarray(jax.jit(state_table)(*single))).all()


def test_shapes_broadcast():
    models = random_models(4, 2, 6)
    passive, active = (array.reshape(2, 2, 2, 3) for array in models[:2])
    unpaid, paid = (array[:, :2, None] for array in models[2:])
    states = state_table(passive, active, unpaid, paid)
    assert states.shape == (2, 2, 3)
    one = state_table(passive[..., 1, 2], active[..., 1, 2], unpaid[:, 1, 0], paid[:, 1, 0])
    np.testing.assert_allclose(states[:, 1, 2], one, atol=1e-12)
