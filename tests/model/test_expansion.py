"""The information states of an arm against powers of its matrices."""

import numpy as np
import pytest

from rmab.errors import ModelError
from rmab.model.arms import Arm
from rmab.model.expansion import expand, expansion, settled_age
from rmab.model.information import information_states

SWINGS = [[0.0, 0.2, 0.8], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]  # period 2
PARTS = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]]  # two classes


def random_arm(seed, S=3, passive=None):
    rng = np.random.default_rng(seed)
    P, Q = rng.dirichlet(np.ones(S), (2, S))
    unpaid, paid = rng.normal(size=(2, S))
    return Arm(P if passive is None else passive, Q, reward_passive=unpaid, reward_active=paid)


def belief(arm, s, age):
    return arm.active[s] @ np.linalg.matrix_power(arm.passive, age - 1)


@pytest.mark.parametrize("passive", [None, SWINGS, PARTS])
def test_rows_are_beliefs_in_the_order_of_tables(passive):
    arm = random_arm(1, passive=passive)
    chain, states = expansion(arm, 5), information_states(5, 3)
    for row in range(1, 16):
        expected = belief(arm, states.last_seen[row], states.age[row])
        np.testing.assert_allclose(chain.beliefs[row], expected, atol=1e-12)
    np.testing.assert_allclose(chain.beliefs[0] @ arm.passive, chain.beliefs[0], atol=1e-12)
    np.testing.assert_allclose(chain.reward_active, chain.beliefs @ arm.reward_active)
    np.testing.assert_allclose(chain.reward_passive, chain.beliefs @ arm.reward_passive)
    assert chain.played.tolist() == [1, 6, 11]


@pytest.mark.parametrize(("passive", "wrap", "end"), [(None, 0, 0), (SWINGS, 2, 4), (PARTS, 1, 5)])
def test_ages_past_the_last_fall_back(passive, wrap, end):
    chain = expansion(random_arm(2, passive=passive), 5)
    assert chain.wrap == wrap
    assert chain.after[:6].tolist() == [0, 2, 3, 4, 5, end]


def test_the_finite_arm_moves_as_told():
    arm = random_arm(3)
    chain, whole = expansion(arm, 4), expand(arm, 4)
    assert whole.observed == "always"
    assert whole.passive.argmax(1).tolist() == chain.after.tolist()
    np.testing.assert_allclose(whole.active[:, chain.played], chain.beliefs)
    assert np.delete(whole.active, chain.played, 1).max() == 0


@pytest.mark.parametrize("tolerance", [0.3, 1e-3, 1e-9])
def test_the_belief_settles_where_a_plain_search_finds_it(tolerance):
    for seed in range(20):
        arm = random_arm(seed)
        limit = np.linalg.matrix_power(arm.passive, 2000)[0]
        age = 1
        while max(np.abs(belief(arm, s, age) - limit).sum() / 2 for s in range(3)) > tolerance:
            age += 1
        assert settled_age(arm, tolerance) == age


def test_an_arm_that_settles_late():
    slow = Arm([[0.99, 0.01], [0.01, 0.99]], reward=[0, 1])
    assert settled_age(slow, most=100) == 100
    assert settled_age(random_arm(4, passive=SWINGS), 0.9) == 2  # at least the period


def test_what_is_refused():
    arm = random_arm(5)
    with pytest.raises(ModelError, match="max_age must be at least 1, got 0"):
        expansion(arm, 0)
    with pytest.raises(ModelError, match="tolerance must be positive, got 0"):
        settled_age(arm, 0)
    with pytest.raises(ModelError, match="most must be at least 1, got 0"):
        settled_age(arm, most=0)
