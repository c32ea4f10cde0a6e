"""The pivots along the subsidy line are there for speed only: they agree with solving afresh."""

import numpy as np
import pytest

from rmab.model.arms import Arm
from rmab.model.expansion import expand
from rmab.planning.index.fast_pivoting import follow_by_pivots
from rmab.planning.index.sensitive import follow_by_solving
from rmab.planning.index.subsidy_line import History, LineProblem

# An arm that is not indexable.
PASSIVE = [[0.005, 0.793, 0.202], [0.027, 0.558, 0.415], [0.736, 0.249, 0.015]]
ACTIVE = [[0.718, 0.254, 0.028], [0.347, 0.097, 0.556], [0.015, 0.956, 0.029]]
REWARD = [0.699, 0.362, 0.715]


@pytest.mark.parametrize("discount", [None, 0.5, 0.95])
def test_both_ways_along_the_line_agree(discount):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        S = 80 if seed == 0 else 12  # more than one block of pivots
        passive, active = rng.dirichlet(np.full(S, 0.5), (2, S))
        unpaid, paid = rng.uniform(-1, 1, (2, S))
        problem = LineProblem(passive, active, unpaid, paid, discount)
        fast, slow = History(S), History(S)
        assert follow_by_pivots(problem, fast)
        follow_by_solving(problem, slow)
        assert fast.index == pytest.approx(slow.index, abs=1e-8)
        assert (fast.witness is None) == (slow.witness is None)
        assert not (fast.doubtful | slow.doubtful).any()


def test_pivots_follow_an_arm_that_is_not_indexable():
    """A long path back and forth, against the same arm solved afresh at each change."""
    rng = np.random.default_rng(3)
    S = 60
    near = rng.dirichlet(np.full(S, 0.5), (2, S))
    # Blocks of the arm above, weakly tied together.
    passive, active = (
        0.9 * np.kron(np.eye(S // 3), P) + 0.1 * noise
        for P, noise in zip((PASSIVE, ACTIVE), near, strict=True)
    )
    rewards = np.tile(REWARD, S // 3) + rng.normal(0, 0.01, S)
    problem = LineProblem(passive, active, np.zeros(S), rewards, None)
    fast, slow = History(S), History(S)
    assert follow_by_pivots(problem, fast)
    follow_by_solving(problem, slow)
    assert fast.witness is not None
    assert slow.witness is not None
    assert fast.index == pytest.approx(slow.index, abs=1e-8)


@pytest.mark.parametrize(("S", "ages"), [(2, 20), (3, 12), (4, 10)])
def test_pivots_go_on_where_two_classes_become_one_again(S, ages):
    """Never seen becomes a class of its own once it is left alone, until all lead there."""
    paused = 0
    for seed in range(6):
        rng = np.random.default_rng(seed)
        arm = expand(Arm(rng.dirichlet(np.ones(S), S), reward=rng.random(S)), ages)
        problem = LineProblem(
            arm.passive, arm.active, arm.reward_passive, arm.reward_active, discount=None
        )
        fast, slow = History(problem.states), History(problem.states)
        assert follow_by_pivots(problem, fast)
        follow_by_solving(problem, slow)
        assert fast.index == pytest.approx(slow.index, abs=1e-9)
        assert (fast.witness is None) == (slow.witness is None)
        paused += int((np.diff(np.sort(fast.index)) < 1e-12).any())
    assert paused > 0  # several states leave at one subsidy: lambda stood still


def test_pivots_leave_arms_alone_of_which_no_policy_has_one_class():
    apart = np.kron(np.eye(2), np.full((2, 2), 0.5))
    problem = LineProblem(apart, apart, np.zeros(4), np.arange(4.0), None)
    assert not follow_by_pivots(problem, History(4))
