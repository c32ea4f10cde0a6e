"""Coloured UCRL2: as plain loops play it, by published numbers, and what it refuses."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import rmab
from rmab.errors import StudyError
from rmab.policies.aggregation import AGGREGATIONS
from tests.oracles.joint_plan import plain_coloured_ucrl2
from tests.protocol.lockstep import engine_decisions, true_states

NAME = "colored-ucrl2"
PAPER = rmab.channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
C1 = rmab.channels([0.2, 0.4], [0.7, 0.5], [1.0, 0.8])
HORIZON = 300


def test_it_plays_as_plain_loops_do(monkeypatch):
    """Decision by decision, with radii that are narrow enough to matter."""
    asked: Any = SimpleNamespace(
        policy=NAME,
        horizon=HORIZON,
        options={"ages": 3, "scale": 0.1},
        weights={},
        schedule="paper",
        draws="shared",
        shares=AGGREGATIONS["sum"],
        plays=1,
        seed=4,
    )
    states = true_states(C1, asked.seed, 1, HORIZON)
    found = engine_decisions(monkeypatch, C1, asked, 1, HORIZON)
    rewards = [(0.0, float(r)) for r in C1.reward]
    wanted, lengths = plain_coloured_ucrl2(states[:, 0], rewards, 1, 3, 0.1)
    np.testing.assert_array_equal(np.argmax(found[:, 0], 1), wanted[:, 0])
    assert len(lengths) > 10
    assert 0 < wanted.mean() < 1


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["none", "sum", "gossip", "pairs"])
def test_agents_stop_by_what_they_share(aggregation):
    """Each by its own colours, or all together."""
    study = rmab.Study(
        C1,
        agents=2,
        plays=1,
        horizon=HORIZON,
        trials=32,
        policies=[NAME],
        aggregation=aggregation,
        options={NAME: {"ages": 3, "scale": 0.1}},
    )
    found = rmab.run(study)[NAME]
    assert 0.35 < found.mean < 0.46
    assert 20 < found.episodes < 90


@pytest.mark.slow
def test_agents_whose_rewards_differ_plan_by_themselves():
    """The second is paid for the other arm alone; both learn from the same counts."""
    paid = [{"number": 1, "reward": 0.0}, {"number": 2, "reward": 1.0}]
    study = rmab.Study(
        C1,
        agents=2,
        plays=1,
        horizon=HORIZON,
        trials=32,
        policies=[NAME, "tsde"],
        options={NAME: {"ages": 3, "scale": 0.1}},
        agent=[{"agents": 2, "arm": paid}],
    )
    found = rmab.run(study)
    # One earns .456 at best and the other, on a channel that is good .444 of the time, as much.
    assert all(0.40 < found.mean[name] < 0.46 for name in (NAME, "tsde"))


@pytest.mark.slow
@pytest.mark.parametrize(("scale", "value"), [(1.0, 0.4154), (0.1, 0.4248)])
def test_the_value_on_two_channels(scale, value):
    """Elsewhere it was measured to about .005."""
    options = {NAME: {"ages": 10, "scale": scale}}
    study = rmab.Study(C1, plays=1, horizon=5000, trials=128, policies=[NAME], options=options)
    found = rmab.run(study)
    assert abs(found.mean[NAME] - value) < 0.005


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plays", "scale", "value", "se"),
    [(1, 1, 0.466, 0.001), (2, 1, 0.818, 0.006), (1, 0.1, 0.537, 0.003), (2, 0.1, 0.942, 0.005)],
)
def test_the_value_in_the_papers_scenario(plays, scale, value, se):
    options = {NAME: {"ages": 3, "scale": scale}}
    study = rmab.Study(
        PAPER, plays=plays, horizon=1000, trials=64, policies=[NAME], options=options
    )
    found = rmab.run(study)
    assert abs(found.mean[NAME] - value) < 4 * math.hypot(found.se[NAME], se)


def test_what_it_is_not_for_is_refused():
    with pytest.raises(StudyError, match="'colored-ucrl2' is for few arms: ages up to 4 give"):
        rmab.Study(rmab.Arms([C1[0]] * 6), plays=1, horizon=10, trials=32, policies=[NAME])
    seen = rmab.Arm([[0.5, 0.5], [0.5, 0.5]], observed="always", reward=[0, 1])
    with pytest.raises(StudyError, match="'colored-ucrl2' is for channels alone, and arm 2 is not"):
        rmab.Study(rmab.Arms([C1[0], seen]), plays=1, horizon=10, trials=32, policies=[NAME])


def test_one_arm_leaves_no_choice():
    study = rmab.Study(
        rmab.Arms([C1[0]]), plays=1, horizon=60, trials=32, policies=[NAME, "tsde", "whittle"]
    )
    found = rmab.run(study)
    assert found.mean[NAME] == found.mean["tsde"] == found.mean["whittle"]
