from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab import markov as chains
from rmab.errors import ModelError
from rmab.linalg import resting, solve
from rmab.model.arms import Arm
from rmab.model.information import expand
from rmab.planning.index.finite import finite_indices
from rmab.planning.index.hidden import information_indices
from rmab.planning.index.nested import state_table
from rmab.planning.index.parametric import Models
from rmab.planning.index.walk import follow, information_table


def random_models(seed, S, B, spread=1.0):
    rng = np.random.default_rng(seed)
    matrices = np.moveaxis(rng.dirichlet(np.full(S, spread), (2, B, S)), 1, -1)
    return Models(*matrices, *rng.normal(size=(2, S, B)))


def degenerate_models(seed, S, B):
    """Frozen, swinging, absorbing, equal and nearly such rows."""
    rng = np.random.default_rng(seed)

    def matrix():
        whole = np.eye(S)
        kinds = [
            whole,
            whole[rng.permutation(S)],
            whole[rng.integers(0, S, S)],
            np.tile(rng.dirichlet(np.ones(S)), (S, 1)),
            rng.dirichlet(np.full(S, 0.02), S),
            rng.dirichlet(np.ones(S), S),
        ]
        return kinds[rng.integers(len(kinds))]

    matrices = np.stack([[matrix() for _ in range(B)] for _ in range(2)])
    rewards = rng.integers(-1, 2, (2, S, B)).astype(float)
    return Models(*np.moveaxis(matrices, 1, -1), *rewards)


def arm_of(models, b, observed="when_played"):
    passive, active, unpaid, paid = (array[..., b] for array in models)
    return Arm(passive, active, reward_passive=unpaid, reward_active=paid, observed=observed)


def table_of(models, max_age):
    passive, active, unpaid, paid = models
    return information_table(passive, active, unpaid, paid, max_age)


def compiled(models, max_age):
    table = jax.jit(table_of, static_argnums=1)
    return np.asarray(table([jnp.asarray(array, jnp.float32) for array in models], max_age))


@pytest.mark.parametrize(("S", "max_age"), [(2, 1), (2, 6), (3, 5), (4, 4)])
def test_the_table_is_that_of_the_arm_cut_at_the_age(S, max_age):
    models = random_models(S, S, 25)
    table = table_of(models, max_age)
    assert table.shape == (1 + S * max_age, 25)
    for b in range(25):
        found = finite_indices(expand(arm_of(models, b), max_age))
        if found.indexable is not None:
            np.testing.assert_allclose(table[:, b], found.index, atol=1e-9)


def test_the_table_is_what_information_indices_says():
    models = random_models(3, 3, 200)
    models = models._replace(passive=0.5 / 3 + 0.5 * models.passive)  # forgets within 50 slots
    table = table_of(models, 60)
    found = information_indices([arm_of(models, b) for b in range(200)], 60)
    np.testing.assert_allclose(table[0], np.array([f.never_seen for f in found]), atol=1e-8)
    seen = np.stack([f.index.ravel() for f in found], 1)
    np.testing.assert_allclose(table[1:], seen, atol=1e-8)


def test_compiled_in_single_precision():
    models = random_models(0, 4, 1000)
    exact, found = table_of(models, 24), compiled(models, 24)
    scale = np.abs([models.reward_passive, models.reward_active]).max((0, 1))
    wrong = np.abs(found - exact) / scale
    assert np.mean(wrong.max(0) < 1e-3) >= 0.999
    for b in np.flatnonzero(wrong.max(0) < 1e-3):
        apart = exact[:, None, b] - exact[:, b] > 2e-3 * scale[b]
        assert (found[:, None, b] > found[:, b])[apart].all()


def test_compiled_in_double_precision():
    """The two ways to pass over an interval agree, also where arms are not indexable."""
    models = random_models(1, 3, 300)
    assert any(
        f.indexable is False
        for f in information_indices([arm_of(models, b) for b in range(300)], 3)
    )
    exact = table_of(models, 12)
    with jax.enable_x64(True):
        found = np.asarray(jax.jit(table_of, static_argnums=1)(list(models), 12))
    np.testing.assert_allclose(found, exact, atol=1e-10)


def test_an_arm_does_not_depend_on_its_company():
    models = random_models(2, 3, 300)  # more arms than there are lanes
    some = Models(*(array[..., :7] for array in models))
    np.testing.assert_array_equal(compiled(some, 8), compiled(models, 8)[:, :7])
    np.testing.assert_allclose(table_of(some, 8), table_of(models, 8)[:, :7], atol=1e-12)


@pytest.mark.parametrize("S", [2, 4])
def test_always_finite(S):
    models = degenerate_models(S, S, 400)
    assert np.isfinite(table_of(models, 6)).all()
    assert np.isfinite(compiled(models, 6)).all()
    assert np.isfinite(state_table(*models)).all()
    single = [jnp.asarray(array, jnp.float32) for array in models]
    assert np.isfinite(np.asarray(jax.jit(state_table)(*single))).all()


def test_shapes_broadcast():
    models = random_models(4, 2, 6)
    passive, active = (array.reshape(2, 2, 2, 3) for array in models[:2])
    unpaid, paid = (array[:, :2, None] for array in models[2:])
    table, states = (
        information_table(passive, active, unpaid, paid, 5),
        state_table(passive, active, unpaid, paid),
    )
    assert table.shape == (11, 2, 3)
    assert states.shape == (2, 2, 3)
    one = information_table(
        passive[..., 1, 2], active[..., 1, 2], unpaid[:, 1, 0], paid[:, 1, 0], 5
    )
    np.testing.assert_allclose(table[:, 1, 2], one, atol=1e-12)
    with pytest.raises(ModelError, match="max_age must be at least 1, got 0"):
        table_of(models, 0)


@pytest.mark.parametrize("beta", [1.0, 0.9])
def test_a_walk_in_pieces_is_the_walk(beta):
    models = random_models(6, 3, 60)
    whole = follow(models, 70, beta)
    for pieces in (2, 5):
        parts = follow(models, 70, beta, None, pieces)
        for one, other in zip(whole[:2], parts[:2], strict=True):
            np.testing.assert_allclose(one, other, atol=1e-10)
        assert parts[2].all()
    assert whole[2].all()


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


def test_resting_laws():
    cases: list[Any] = [
        [[0.9, 0.1, 0], [0.5, 0, 0.5], [0.2, 0.3, 0.5]],
        [[1, 0, 0], [0, 1, 0], [0.3, 0.3, 0.4]],  # two classes
        [[0, 1, 0], [1, 0, 0], [0.5, 0, 0.5]],  # period 2, and a transient state
        [[0, 1, 0], [0, 0, 1], [1, 0, 0]],
        np.eye(3),
    ]
    passive = np.stack(cases, -1)
    expected = np.stack([chains.resting_law(np.array(case, float)) for case in cases], -1)
    np.testing.assert_allclose(resting(passive), expected, atol=1e-12)
    single = np.asarray(resting(jnp.asarray(passive, jnp.float32)))
    np.testing.assert_allclose(single, expected, atol=1e-5)
