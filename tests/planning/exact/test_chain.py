"""Joint codes and where ages end."""

import numpy as np
import pytest

from rmab.model.arms import Arm, Arms
from rmab.model.information import expansion
from rmab.planning.exact.chain import joint_code
from rmab.planning.exact.optimum import optimal
from tests.planning.exact.arms import MIXED, ODD, SWINGING, arms_of


def test_codes_fold_ages_past_the_cap():
    """An arm that forgets becomes never seen, one that swings falls back by two slots."""
    best = optimal(arms_of((0.2, 0.8), SWINGING), 1)
    (forgets, swings), (first, second) = best.layout.caps.tolist(), best.layout.strides.tolist()
    assert (swings, first, second) == (2, 5, 1)
    assert best.layout.wraps.tolist() == [0, 2]
    last_seen = np.array([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
    age = np.array([[1, forgets, forgets + 5, 0, 0, 0], [0, 0, 2, 2, 3, 4]])
    expected = [(forgets + 1) * first, 2 * forgets * first, 2, 4, 3, 4]
    assert best.code(last_seen, age).tolist() == expected
    assert best.actions.size == best.size == (1 + 2 * forgets) * 5
    assert np.count_nonzero(best.actions >= 0) == best.states


def test_codes_of_jax_arrays():
    jnp = pytest.importorskip("jax.numpy")
    best = optimal(arms_of((0.2, 0.8), (0.8, 0.2)), 1)
    last_seen, age = np.array([[1, 0], [0, 1]]), np.array([[90, 0], [2, 91]])
    codes = best.code(jnp.asarray(last_seen), jnp.asarray(age))
    assert codes.tolist() == best.code(last_seen, age).tolist()


def test_codes_of_mixed_arms():
    pytest.importorskip("jax")
    import jax.numpy as jnp

    arms = Arms([MIXED[0], MIXED[1], ODD["turns"]])
    layout = optimal(arms, 1).layout
    cap = int(layout.caps[0])
    assert layout.caps.tolist() == [cap, 0, 3]
    assert layout.wraps.tolist() == [0, 0, 3]
    assert layout.always.tolist() == [False, True, False]
    assert layout.strides.tolist() == [20, 10, 1]
    last_seen = np.array([[2, 2, 0, 1], [1, 0, 1, 0], [0, 1, 2, 2]])
    age = np.array([[cap, cap + 1, 0, 1], [0, 7, 0, 0], [0, 3, 4, 6]])
    expected = [20 * 3 * cap + 10, 6, 10 + 7, 20 * (1 + cap) + 9]
    assert joint_code(last_seen, age, layout).tolist() == expected
    on_device = type(layout)(*map(jnp.asarray, layout))
    assert joint_code(jnp.asarray(last_seen), jnp.asarray(age), on_device).tolist() == expected


@pytest.mark.parametrize("period", [2, 3, 5])
def test_ages_past_the_cap_fall_back_as_the_chain_does(period):
    arm = Arm(np.roll(np.eye(period), 1, 1), reward=np.arange(period))
    arms = Arms([arm])
    layout = optimal(arms, 1).layout
    after = expansion(arm, int(layout.caps[0])).after
    assert layout.wraps[0] == period
    for state in range(period):
        row = joint_code(np.array([state]), np.array([1]), layout)
        for age in range(2, 4 * period):
            row = after[row]
            assert joint_code(np.array([state]), np.array([age]), layout) == row
