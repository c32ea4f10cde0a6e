"""Tables filled inside the engine are those of known arms, which are computed one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.model.arms import Arm, Arms
from rmab.planning.general import myopic_table, whittle_table
from rmab.planning.tables import Model, fill_myopic, fill_whittle

AGES = 40  # by which these arms have settled
ARMS = Arms(
    [
        Arm([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]], reward=[0.0, 0.4, 1.0]),
        Arm([[0.5, 0.5], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]], reward=[2, 1], observed="always"),
        Arm(
            [[0.8, 0.2], [0.4, 0.6]],
            [[0.4, 0.6], [0.1, 0.9]],
            reward_active=[0, 0.5],
            reward_passive=[0.1, 0.4],
        ),
        Arm(
            [[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.2, 0.7]],
            [[0.9, 0.1, 0.0], [0.8, 0.1, 0.1], [0.7, 0.2, 0.1]],
            reward_active=[-0.3, -0.2, -0.1],
            reward_passive=[0.9, 0.5, 0.1],
            observed="always",
        ),
        Arm([[0.8, 0.2], [0.25, 0.75]], reward=[0, 0.6]),
    ]
)
PAIRS = [(fill_whittle, whittle_table), (fill_myopic, myopic_table)]


@pytest.mark.parametrize(("fill", "exact"), PAIRS)
def test_filled_tables_are_those_of_known_arms(fill, exact):
    filled = fill(Model.of(ARMS), AGES)
    assert filled.shape == (5, 1 + 3 * AGES, 1)
    np.testing.assert_allclose(filled[:, :, 0], exact(ARMS, AGES), atol=1e-6)


@pytest.mark.parametrize(("fill", "exact"), PAIRS)
def test_single_precision_under_jax_comes_close(fill, exact):
    known = Model.of(ARMS)
    narrow = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), known[:3])

    @jax.jit
    def filled_in(given):
        moves, idle, pays = given
        return fill(Model(moves, idle, pays, ARMS.kinds), AGES)

    filled = filled_in(narrow)
    np.testing.assert_allclose(filled[:, :, 0], exact(ARMS, AGES), atol=1e-3)
