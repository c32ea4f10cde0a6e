"""Episodes whose lengths a policy sets itself, from the evidence at their start."""

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.engine.environment import truth
from rmab.engine.program import simulator
from rmab.engine.setting import Setting
from rmab.errors import ModelError
from rmab.model.arms import channels
from rmab.planning.tables import myopic
from rmab.policies.aggregation import AGGREGATIONS
from rmab.policies.policy import Lengths, Policy
from rmab.rng.variates import seed_words

ARMS = channels([0.2, 0.5, 0.1], [0.8, 0.6, 0.9], [1.0, 1.0, 1.0])
TRIALS = 16
HORIZON = 20


def mean(evidence, draws):
    """Without draws: a small program."""
    good = (1 + evidence.transitions[:, 1]) / (2 + evidence.transitions.sum(1))
    return good[0], good[1]


def more_when_good(evidence, found):
    """A slot, and one for each play that was good."""
    assert found[1].shape == evidence.visits.shape[1:]
    return 1 + evidence.visits[1].sum(0)


def lengths_of(lengths: Lengths) -> np.ndarray:
    """Slots of the episodes of two agents who learn alone, (L, R)."""
    setting = Setting.of(ARMS, 2, HORIZON, aggregation=AGGREGATIONS["none"])
    policy = Policy("mine", myopic, mean, statewise=True, randomised=False, lengths=lengths)
    program = simulator(setting, policy, TRIALS)
    trials = jnp.arange(TRIALS, dtype=jnp.uint32)
    return np.asarray(program(seed_words(3), trials, truth(ARMS), jnp.int32(1), None).lengths)


def test_an_episode_ends_with_the_first_agent_or_when_all_have_ended():
    first = lengths_of(Lengths(more_when_good))
    last = lengths_of(Lengths(more_when_good, complete=True))
    assert first.sum(0).tolist() == last.sum(0).tolist() == [HORIZON] * TRIALS
    assert (first[0] == 1).all()
    assert (last[0] == 1).all()
    # Of one slot with one play an agent saw good or not, so it wants one slot or two.
    assert set(first[1]) == set(last[1]) == {1, 2}
    assert (first[1] <= last[1]).all()
    assert (first[1] < last[1]).any()
    assert (first[1] == last[1]).any()


def test_the_least_length_bounds_how_many_episodes_are_kept():
    found = lengths_of(Lengths(lambda evidence, found: 8, least=8))
    assert found.T.tolist() == [[8, 8, 4]] * TRIALS


def test_lengths_need_a_learner_of_counts():
    with pytest.raises(ModelError, match="policy mine: lengths must come with a learner"):
        Policy("mine", myopic, lengths=Lengths(more_when_good))
