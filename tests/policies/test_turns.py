"""Arms that take turns: everyone in play alike, dropped arms never."""

import numpy as np
import pytest

from rmab.model.information import InformationStates
from rmab.policies.rules.turns import TurnsPlan, take_turns


def played(in_play: list[bool], plays: int, slots: int) -> list[list[int]]:
    """The arms played slot by slot, from the start."""
    plan = TurnsPlan(np.array(in_play))
    age = np.zeros(len(in_play), int)
    chosen = []
    for _ in range(slots):
        arms = plan.choose(InformationStates(np.zeros_like(age), age), plays)
        chosen.append(arms.tolist())
        age = np.where(age > 0, age + 1, 0)
        age[arms] = 1
    return chosen


def test_each_arm_in_play_in_its_turn_and_dropped_arms_never():
    """Five arms, one out of play, two plays a slot: each other arm every second slot."""
    assert played([True, False, True, True, True], 2, 6) == [[0, 2], [3, 4]] * 3


@pytest.mark.parametrize(("n_arms", "plays"), [(3, 2), (5, 2), (5, 3), (7, 4)])
def test_turns_are_fair_where_the_plays_do_not_divide_the_arms(n_arms, plays):
    slots = 4 * n_arms
    counts = np.bincount(np.concatenate(played([True] * n_arms, plays, slots)))
    assert counts.tolist() == [4 * plays] * n_arms


def test_what_was_observed_does_not_matter_and_dropped_arms_come_last():
    age = np.array([[0, 3, 1], [2, 0, 9]])
    in_play = np.array([[True], [False]])
    index = take_turns(in_play, InformationStates(np.ones_like(age), age))
    assert index.tolist() == take_turns(in_play, InformationStates(0 * age, age)).tolist()
    assert index[0].tolist() == [np.inf, 3, 1]
    assert index[1].tolist() == [-1, -1, -1]


def test_turns_broadcast_over_agents_and_trials():
    rng = np.random.default_rng(4)
    in_play = rng.random((3, 1, 5)) < 0.7
    age = rng.integers(0, 7, (3, 2, 5))
    index = take_turns(in_play, InformationStates(0 * age, age))
    for agent in range(2):
        for trial in range(5):
            alone = InformationStates(np.zeros(3, int), age[:, agent, trial])
            wanted = take_turns(in_play[:, 0, trial], alone)
            np.testing.assert_array_equal(index[:, agent, trial], wanted)
