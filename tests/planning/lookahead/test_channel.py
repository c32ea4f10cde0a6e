"""Terminal values of channels in closed form against the subsidy problem."""

import numpy as np
import pytest

from rmab.model.arms import Dynamics, channels
from rmab.model.information import deviation, information_states, stationary_belief
from rmab.planning.channel.subsidy import solve
from rmab.planning.joint.optimum import optimal
from rmab.planning.joint.policy_value import lookahead_value
from rmab.planning.joint.relaxation import upper_bound
from rmab.planning.lookahead.channel import ChannelValues, channel_values, terminal_value
from tests.planning.lookahead.arms import some_channels

MAX_AGE = 12


@pytest.mark.parametrize("seed", range(6))
def test_values_of_channels_are_those_of_the_subsidy_problem(seed):
    arms = some_channels(5, seed)
    plays = 1 + seed % 4
    values = channel_values(arms.dynamics, plays)
    more = upper_bound(arms, plays + 1) - upper_bound(arms, plays)
    assert values.subsidy == pytest.approx(np.full(5, more), abs=1e-3)
    states = information_states(MAX_AGE)
    column = ChannelValues(*(x[:, None] for x in values))
    dynamics = Dynamics(*(x[:, None] for x in arms.dynamics))
    belief = stationary_belief(dynamics) + deviation(dynamics, states)
    exact = solve(*dynamics, column.subsidy)
    assert values.excess == pytest.approx(exact.excess[:, 0], abs=1e-3)
    short = (exact.waits[:, :, 0] <= 8).all(0) | (exact.excess[:, 0] <= 0)
    assert short.any()
    found = terminal_value(column, *states, belief)
    assert found[short] == pytest.approx(exact.value(belief)[short], abs=1e-9)


def test_channels_that_never_change_or_always_do():
    arms = channels([0.0, 1.0, 0.0, 0.5], [1.0, 0.0, 0.5, 1.0], 1.0)
    for plays in (1, 2, 3):
        values = channel_values(arms.dynamics, plays)
        assert all(np.isfinite(x).all() for x in values[:8])
        assert lookahead_value(arms, plays) <= optimal(arms, plays).value + 1e-9
