"""Agents that draw for themselves: their own observations protect them from others' counts."""

import pytest

from rmab import Policy, Study, channels, run
from rmab.errors import ModelError

ARMS = channels(p01=[0.8, 0.1], p11=[0.9, 0.2], reward=[1.0, 1.0])
SWAPPED = channels(p01=[0.1, 0.8], p11=[0.2, 0.9], reward=[1.0, 1.0])


def reward(policy, **changes):
    """Of four agents, of which the last has its arms the other way round."""
    made = Study(
        arms=ARMS,
        agents=4,
        agent=[{"agents": [4], "arms": SWAPPED}],
        horizon=200,
        trials=16,
        schedule="linear",
        policies=[policy],
        **changes,
    )
    return run(made).policies[policy].mean


@pytest.mark.slow
def test_a_stranger_does_not_follow_the_others():
    """By one draw of all it plays the arm that is bad for it, and the mean is .75; with known
    dynamics it is .88."""
    assert reward("fedtswi", draws="own", doubt=0.5) > 0.8


@pytest.mark.slow
def test_by_one_draw_it_does_follow_them():
    assert reward("fedtswi") < 0.78


@pytest.mark.slow
def test_nor_does_it_where_pairs_at_any_gap_are_counted():
    options = {"fedtswi-gap": {"gaps": 8}}
    assert reward("fedtswi-gap", draws="own", doubt=0.5, options=options) > 0.8


def test_a_policy_of_ones_own_must_draw_as_agents_can():
    def certain(evidence, draws):
        return evidence.counts[0, 0, 1] * 0 + 0.5, evidence.counts[0, 0, 1] * 0 + 0.5

    mine = Policy("mine", planner=lambda arms, states: states.age * arms.reward, learner=certain)
    made = Study(arms=ARMS, policies=[mine], draws="own", trials=1, horizon=10)
    with pytest.raises(ModelError, match="policy mine: draws must not be 'own' but for Thompson"):
        run(made)
