"""Counts that lose weight, a longest episode, draws of a policy's own: what the engine makes of it.

The policies here learn from consecutive observations alone, so that their programs are small. That
engine and server decide alike with all the options of policies of any gap is in
tests/protocol/test_planner.py.
"""

from functools import partial

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.engine.environment import truth
from rmab.engine.program import simulator
from rmab.engine.setting import Outcome, Setting
from rmab.errors import ModelError
from rmab.learning.thompson import thompson
from rmab.model.arms import Arm, Arms, channels
from rmab.planning.tables import whittle_at
from rmab.policies.aggregation import AGGREGATIONS
from rmab.policies.policy import Forgetting, Policy
from rmab.rng.variates import seed_words

ARMS = channels([0.2, 0.5, 0.1], [0.8, 0.6, 0.9], [1.0, 1.0, 1.0])
SETTING = Setting.of(ARMS, 2, 120, schedule="linear")
TRIALS = 8


def learner(**options) -> Policy:
    thompson_now = partial(thompson, prior=1.0)
    return Policy("mine", whittle_at, thompson_now, statewise=True, reads_visits=False, **options)


def played(policy: Policy, setting: Setting = SETTING) -> Outcome:
    program = simulator(setting, policy, TRIALS)
    trials = jnp.arange(TRIALS, dtype=jnp.uint32)
    return program(seed_words(3), trials, truth(ARMS), jnp.int32(1), None)


@pytest.fixture(scope="module")
def never() -> Outcome:
    return played(learner(longest=5))


def test_no_episode_is_longer_than_the_longest(never):
    lengths = np.asarray(never.lengths)
    assert lengths[:6, 0].tolist() == [2, 3, 4, 5, 5, 5]
    assert lengths.sum(0).tolist() == [120] * TRIALS


def test_a_half_life_without_end_is_never(never):
    """Counts are kept from episode to episode, and are what they would be if they were not."""
    found = played(learner(longest=5, forget=Forgetting((1e12,))))
    np.testing.assert_array_equal(found.rewards, never.rewards)
    np.testing.assert_array_equal(found.error, never.error)


@pytest.mark.slow  # a program of its own
def test_a_short_half_life_knows_less(never):
    found = played(learner(longest=5, forget=Forgetting((2.0,))))
    last = int(np.asarray(never.episodes).min()) - 1
    assert np.asarray(found.error)[last].mean() > 3 * np.asarray(never.error)[last].mean()


@pytest.mark.parametrize(
    ("others", "aggregation"),
    [({"prior": "population"}, "sum"), ({}, "pairs"), ({"forget": Forgetting((9.0, 1.0))}, "sum")],
)
def test_what_is_for_channels_alone_is_refused_elsewhere(others, aggregation):
    watched = Arms([Arm([[0.6, 0.4], [0.7, 0.3]], reward=[0.0, 0.1], observed="always"), *ARMS])
    setting = Setting.of(watched, 2, 10, aggregation=AGGREGATIONS[aggregation])
    with pytest.raises(ModelError, match="are for arms of two states, observed when played"):
        simulator(setting, learner(**others), 1)
