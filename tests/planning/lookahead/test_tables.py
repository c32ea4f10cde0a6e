"""Lookahead tables of arms of any kind, by what is earned with them."""

import numpy as np
import pytest

from rmab.model.arms import Arm, Arms
from rmab.planning.joint.optimum import optimal
from rmab.planning.joint.policy_value import lookahead_value, policy_value
from tests.planning.lookahead.arms import random_arm, some_channels


@pytest.mark.parametrize("plays", [1, 2])
def test_channels_taken_as_any_arms_have_nearly_the_same_values(plays):
    """A third state that is never reached makes tables of what has a closed form."""
    arms = some_channels(3, 8)
    wider = Arms(
        Arm(
            np.block([[arm.passive, np.zeros((2, 1))], [np.full((1, 3), 1 / 3)]]),
            reward=[*arm.reward_active, 0],
        )
        for arm in arms
    )
    assert lookahead_value(wider, plays) == pytest.approx(lookahead_value(arms, plays), rel=1e-3)


@pytest.mark.parametrize("seed", range(4))
def test_never_above_the_optimum_on_any_arms(seed):
    rng = np.random.default_rng(seed)
    arms = Arms([random_arm(rng, 2, "when_played"), random_arm(rng, 3, "always")])
    best = optimal(arms, 1).value
    values = [lookahead_value(arms, 1, depth) for depth in (1, 2, 3)]
    assert max(values) <= best + 1e-6
    assert values[2] >= best - 0.05 * abs(best)


def test_machines_are_mended_though_that_pays_later():
    worn = np.eye(4, k=1) * 0.4 + np.eye(4) * 0.6
    worn[3, 3] = 1
    machine = Arm(
        worn,
        np.eye(4)[[0] * 4],
        reward_passive=[1, 0.7, 0.3, 0],
        reward_active=[0.2] * 4,
        observed="always",
    )
    arms = Arms([machine] * 3)
    best = optimal(arms, 1).value
    assert lookahead_value(arms, 1) == pytest.approx(best, rel=0.01)
    assert best > 1.5 * policy_value(arms, 1, lambda age: np.zeros((3, 1 + 4 * age)))
