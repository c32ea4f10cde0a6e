"""Parametric policy iteration on JAX is that on NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.planning.index.hidden import information_indices
from rmab.planning.index.parametric import Models

from .models import arm_of, degenerate_models, random_models, table_of


def compiled(models, max_age):
    table = jax.jit(table_of, static_argnums=1)
    return np.asarray(table([jnp.asarray(array, jnp.float32) for array in models], max_age))


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
    """The two forms agree, also where arms are not indexable."""
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
    assert np.isfinite(compiled(degenerate_models(S, S, 400), 6)).all()
