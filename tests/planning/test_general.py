"""Tables and scores of arms of any kind against those of channels and what can be worked out."""

import numpy as np
import pytest

from rmab.errors import ModelError
from rmab.model.arms import Arm, Arms, channels
from rmab.model.beliefs import stationary_belief
from rmab.planning.channel.index import whittle_at
from rmab.planning.general import fixed_best_scores, fixed_scores, myopic_table, whittle_table
from rmab.planning.planners import index_table, myopic

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
# FACTS: Whittle indices 1.5 and 1.0 under average reward.
SEEN = Arm(
    [[0.5, 0.5], [0.25, 0.75]],
    [[1.0, 0.0], [0.5, 0.5]],
    reward_passive=[0.5, 0.5],
    reward_active=[2, 1],
    observed="always",
)
THREE = Arm(
    [[0.6, 0.4, 0], [0.1, 0.7, 0.2], [0, 0.5, 0.5]],
    np.eye(3)[[2, 2, 2]],
    reward_passive=[0, 0.5, 1],
    reward_active=[-1, 0, 1],
)


def test_tables_of_channels_are_those_of_the_planners():
    assert np.array_equal(whittle_table(PAPER, 9), index_table(whittle_at, PAPER, 9))
    assert myopic_table(PAPER, 9) == pytest.approx(index_table(myopic, PAPER, 9), abs=1e-12)


def test_rows_of_arms_of_several_sizes():
    """Three states and two ages: never seen, (0, 1), (0, 2), (1, 1), (1, 2), (2, 1), (2, 2)."""
    arms = Arms([SEEN, PAPER[0], THREE])
    seen, channel, three = myopic_table(arms, 2)
    assert seen.tolist() == [0, 1.5, 0, 0.5, 0, 0, 0]
    assert channel == pytest.approx([0.2, 0.08, 0.128, 0.32, 0.272, 0, 0])
    # A play resets to state 2, then (0, .5, .5); the resting law is (5, 20, 8) / 33.
    assert three == pytest.approx([-15 / 33, 0, -0.25, 0, -0.25, 0, -0.25])


def test_whittle_rows_of_several_kinds():
    arms = Arms([SEEN, PAPER[0]])
    seen, channel = whittle_table(arms, 3)
    assert seen == pytest.approx([0, 1.5, 0, 0, 1.0, 0, 0], abs=1e-9)
    assert channel.tolist() == whittle_table(PAPER, 3)[0].tolist()


def test_scores_of_fixed_play():
    assert fixed_scores(PAPER) == pytest.approx(stationary_belief(PAPER), abs=1e-12)
    wanted = PAPER.reward * stationary_belief(PAPER)
    assert fixed_best_scores(PAPER) == pytest.approx(wanted, abs=1e-12)
    # Always played SEEN ends in state 0, which pays most; THREE in state 2.
    assert fixed_scores(Arms([SEEN, THREE])) == pytest.approx([1, 1], abs=1e-12)
    assert fixed_best_scores(Arms([SEEN, THREE])) == pytest.approx([1.5, 1 - 18 / 33], abs=1e-12)


def test_scores_of_channels_that_pay_nothing_or_never_change():
    odd = channels([0.3, 0.0], [0.6, 1.0], [0.0, 1.0])
    assert fixed_scores(odd) == pytest.approx([3 / 7, 0.5], abs=1e-12)


def test_ages_start_at_one():
    with pytest.raises(ModelError, match="max_age must be at least 1, got 0"):
        myopic_table(PAPER, 0)
