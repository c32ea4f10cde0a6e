"""The exact value of looking ahead, beside the optimum and Whittle."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmab.model.arms import channels
from rmab.planning.joint.optimum import optimal
from rmab.planning.joint.policy_value import lookahead_value, policy_value
from rmab.planning.tables import whittle_table
from tests.planning.lookahead.arms import PAPER, POOR, some_channels


@pytest.mark.parametrize(
    ("arms", "plays", "depth", "value"),
    [
        (PAPER, 1, 2, 0.586135),
        (PAPER, 2, 2, 0.987134),
        (PAPER, 3, 2, 1.219876),
        (POOR, 1, 1, 0.355319),
        (POOR, 1, 2, 0.355178),
        (POOR, 1, 3, 0.355319),
    ],
)
def test_exact_values(arms, plays, depth, value):
    found = lookahead_value(arms, plays, depth, max_states=60_000)
    assert found == pytest.approx(value, abs=3e-6)


@pytest.mark.slow
def test_it_is_near_the_optimum_where_whittle_is_not():
    best, whittle = 0.987557, 0.985198
    two = lookahead_value(PAPER, 2, max_states=20_000)
    three = lookahead_value(PAPER, 2, 3, max_states=5_000)
    assert 0.9866 < two < three < best + 1e-5
    assert two - whittle > 0.8 * (best - whittle)
    assert lookahead_value(POOR, 1, max_states=20_000) > 0.3549


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), plays=st.integers(1, 2), depth=st.integers(1, 3))
def test_never_above_the_optimum(seed, plays, depth):
    p01, p11, reward = np.random.default_rng(seed).uniform(0.1, 0.9, (3, 3))
    arms = channels(p01, (p01 + p11) / 2, reward)
    best = optimal(arms, plays, max_states=20_000)
    assert lookahead_value(arms, plays, depth, max_states=5_000) <= best.value + 1e-4


def test_whittle_is_beaten_on_average():
    """Ten random sets of channels; both exact."""
    gain = []
    for seed in range(10):
        arms = some_channels(3, 100 + seed)
        whittle = policy_value(arms, 1, partial(whittle_table, arms), max_states=3_000)
        gain.append(lookahead_value(arms, 1, max_states=3_000) / whittle - 1)
    assert np.mean(gain) > 0
    assert min(gain) > -0.01
