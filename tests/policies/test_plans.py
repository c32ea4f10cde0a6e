"""Plans: which arms they choose from what was observed, ties and turns included."""

import numpy as np
import pytest

from rmab.model.information import NEVER, InformationStates
from rmab.policies.constraint import Constraint
from rmab.policies.plans import IndexPlan, OwnPlan, TurnsPlan
from rmab.policies.published.q_learning import ActionValues
from rmab.policies.published.ucb import MeanRewards
from rmab.policies.rules.turns import take_turns


def observed(states, ages):
    return InformationStates(np.array(states), np.array(ages))


@pytest.mark.parametrize(
    ("index", "plays", "chosen"),
    [
        ([1.0, 3.0, 2.0], 1, [1]),
        ([1.0, 3.0, 2.0], 2, [1, 2]),
        ([3.0, 1.0, 3.0, 3.0], 2, [0, 2]),  # ties to the lower arm
        ([0.0, 0.0, 0.0], 3, [0, 1, 2]),
        ([-np.inf, 0.0, np.inf], 1, [2]),
    ],
)
def test_the_largest_are_chosen_in_ascending_order(index, plays, chosen):
    assert np.sort(Constraint(plays).ranked(np.array(index))).tolist() == chosen


def test_an_index_is_read_by_state_and_age():
    """Rows of max_age 3: never observed, state 0 at ages 1 to 3, state 1 at ages 1 to 3."""
    table = np.zeros((3, 7), np.float32)
    table[0, 0], table[1, 2], table[2, 6] = 1.0, 2.0, 3.0
    plan = IndexPlan(3, 3, table, (2, 2, 2))
    for states, ages, chosen in (
        ([0, 0, 1], [NEVER, 2, 3], [1, 2]),
        ([0, 0, 1], [NEVER, 1, 3], [0, 2]),
        ([0, 0, 0], [NEVER, 2, 3], [0, 1]),
        ([0, 1, 1], [1, 2, 3], [0, 2]),
        ([0, 1, 1], [1, 2, 9], [0, 2]),  # older than the table is as old as it goes
    ):
        assert plan.choose(observed(states, ages), 2).tolist() == chosen


def turns(ages, in_play=None):
    in_play = np.ones(len(ages), bool) if in_play is None else np.array(in_play)
    return take_turns(in_play, observed([0] * len(ages), ages)).tolist()


def test_arms_in_play_take_turns():
    assert turns([3, NEVER, 1]) == [3.0, np.inf, 1.0]
    assert turns([2, 1, 3], [True, False, True]) == [2.0, -1.0, 3.0]
    # Those of the first arm's age that come after others were the last of a round.
    assert turns([1, 1, 2]) == [1.0, 1.0, 2.0]
    assert turns([2, 1, 2]) == [2.0, 1.0, 2.5]
    assert turns([1, 1, 1]) == [1.0, 1.0, 1.0]
    assert turns([5, 5], [False, True]) == [-1.0, 5.0]


@pytest.mark.parametrize(("n_arms", "plays"), [(3, 1), (3, 2), (5, 2), (5, 3), (4, 4), (7, 4)])
@pytest.mark.parametrize("left_out", [0, 2])
def test_turns_are_fair(n_arms, plays, left_out):
    """Whether or not K divides the arms in play: no arm is ever more than one play ahead."""
    in_play = np.arange(n_arms + left_out) >= left_out
    plan, ages = TurnsPlan(in_play), np.full(n_arms + left_out, NEVER)
    number = np.zeros(n_arms + left_out, int)
    for _ in range(60):
        chosen = plan.choose(observed([0] * len(ages), ages), plays)
        assert len(chosen) == plays
        number[chosen] += 1
        ages = np.where(ages == NEVER, NEVER, ages + 1)
        ages[chosen] = 1
        assert number[in_play].max() - number[in_play].min() <= 1
    assert not number[~in_play].any()


def test_turns_of_many_columns_are_those_of_each():
    rng = np.random.default_rng(1)
    ages, in_play = rng.integers(0, 5, (6, 40)), rng.random((6, 40)) < 0.7
    found = take_turns(in_play, observed(np.zeros_like(ages), ages))
    for column in range(40):
        alone = turns(ages[:, column].tolist(), in_play[:, column])
        assert found[:, column].tolist() == alone


def test_a_learner_of_an_agents_own_is_made_with_its_options():
    assert OwnPlan("ucb", {"c": 3.0}).own == MeanRewards(3.0)
    assert OwnPlan("wiql", {}).own == ActionValues()
    plan = OwnPlan("ucb", {"c": 3.0})
    assert plan.own is plan.own
