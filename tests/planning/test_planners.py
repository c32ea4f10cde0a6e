"""Index tables: their shape, the order of their rows, and what each planner puts there."""

import numpy as np
import pytest

from rmab.model.arms import Dynamics, channels
from rmab.model.beliefs import InformationStates
from rmab.planning import planners

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
REST = [0.5, 0.89 / 1.72, 0.5, 0.9 / 1.74]
PLANNERS = [
    planners.whittle_at,
    planners.myopic,
    planners.fixed,
    planners.fixed_best,
    planners.round_robin,
]


def test_whittle_table():
    """Never seen, ages 1 to 3 after bad, ages 1 to 3 after good; rewards .4 and .9."""
    table = planners.index_table(planners.whittle_at, PAPER, max_age=3)
    assert table.shape == (4, 7)
    unit = [
        [0.5 / 0.7, 0.2, 0.392857, 0.518987, 0.8, 0.772727, 0.752475],
        [0.89 / 1.1224, 0.89, 0.270634, 0.792944, 0.17, 0.792944, 0.405115],
    ]
    wanted = np.array([[0.4], [0.9]]) * unit
    np.testing.assert_allclose(table[:2], wanted, rtol=0, atol=5e-7)


def test_myopic_table_is_reward_times_belief():
    table = planners.index_table(planners.myopic, PAPER, max_age=5)
    np.testing.assert_allclose(table[:, 0], PAPER.reward * REST, rtol=1e-14)
    belief = np.array([[0.0] * 4, [1.0] * 4])  # (last seen, arm)
    for age in range(1, 6):
        belief = belief * PAPER.p11 + (1 - belief) * PAPER.p01
        np.testing.assert_allclose(table[:, [age, 5 + age]].T, PAPER.reward * belief, rtol=1e-12)


def test_fixed_tables_do_not_look():
    for planner, wanted in [
        (planners.fixed, np.array(REST)),
        (planners.fixed_best, PAPER.reward * REST),
    ]:
        table = planners.index_table(planner, PAPER, max_age=4)
        assert table.shape == (4, 9)
        np.testing.assert_allclose(table, np.repeat(wanted[:, None], 9, axis=1), rtol=1e-15)


def test_fixed_policies_choose_as_the_paper_and_better():
    """Largest b0: arms 2 and 4, worth .776; largest reward x b0: arms 2 and 3, worth .816."""
    worth = PAPER.reward * REST
    for planner, chosen, value in [
        (planners.fixed, [1, 3], 0.7760),
        (planners.fixed_best, [1, 2], 0.8157),
    ]:
        table = planners.index_table(planner, PAPER, max_age=1)
        assert np.argsort(-table[:, 0], kind="stable")[:2].tolist() == chosen
        assert worth[chosen].sum() == pytest.approx(value, abs=5e-5)


def test_round_robin_takes_turns_and_skips_dropped_arms():
    """Five arms, one out of play (p11 = 0), two plays a slot: each other arm every second slot."""
    arms = channels(0.5, [0.5, 0.0, 0.2, 0.5, 1.0], 1.0)
    table = planners.index_table(planners.round_robin, arms, max_age=9)
    age = np.zeros(5, int)
    plays = []
    for _ in range(6):
        index = table[np.arange(5), age]  # rows 0 to 9: never seen, then ages after bad
        played = np.argsort(-index, kind="stable")[:2]
        plays.append(sorted(played.tolist()))
        age = np.minimum(np.where(age > 0, age + 1, 0), 9)
        age[played] = 1
    assert plays == [[0, 2], [3, 4]] * 3
    assert np.all(table[1] == -1)
    np.testing.assert_array_equal(table[:, 1:10], table[:, 10:])  # whatever was seen


@pytest.mark.parametrize("planner", PLANNERS, ids=lambda planner: planner.__name__)
def test_planners_broadcast_over_agents_and_trials(planner):
    """(arms, agents, trials) at once equals one look-up after the other in the tables."""
    rng = np.random.default_rng(4)
    p01, p11 = rng.random((2, 3, 1, 5))
    dynamics = Dynamics(p01, p11, np.array([0.4, 0.9, 0.7])[:, None, None])
    states = InformationStates(rng.integers(0, 2, (3, 2, 5)), rng.integers(0, 7, (3, 2, 5)))
    index = np.broadcast_to(planner(dynamics, states), (3, 2, 5))
    for trial in range(5):
        arms = channels(p01[:, 0, trial], p11[:, 0, trial], [0.4, 0.9, 0.7])
        table = planners.index_table(planner, arms, max_age=6)
        seen, age = states.last_seen[..., trial], states.age[..., trial]
        row = np.where(age == 0, 0, seen * 6 + age)  # (arms, agents)
        wanted = np.take_along_axis(table, row, axis=1)
        np.testing.assert_allclose(index[..., trial], wanted, rtol=1e-13)
