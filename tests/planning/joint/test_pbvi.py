"""The optimum of the joint chain against point-based value iteration, which shares no method with
it."""

import numpy as np
import pytest

from rmab.errors import ModelError, TooLargeError
from rmab.model.arms import channels
from rmab.model.information import stationary_belief
from rmab.planning.joint.optimum import optimal
from tests.oracles.pbvi import point_based_value

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])


@pytest.mark.parametrize(("plays", "optimum"), [(1, 0.586142), (2, 0.987557), (3, 1.219879)])
def test_the_papers_arms(plays, optimum):
    assert point_based_value(PAPER, plays) == pytest.approx(optimum, abs=1e-5)


@pytest.mark.parametrize(
    ("arms", "plays", "optimum"),
    [
        (channels([0.2, 0.2], 0.8, 1.0), 1, 0.650000),
        (channels([0.2] * 4, 0.8, 1.0), 2, 1.332827),
        (
            channels([0.13, 0.26, 0.77, 0.57], [0.13, 0.44, 0.48, 0.19], [0.81, 0.38, 0.57, 0.66]),
            1,
            0.355319,
        ),
        (channels([0.2, 0.4], [0.7, 0.5], [1.0, 0.8]), 1, 0.456464),
        (channels([0.0, 0.0, 0.0], 1.0, 1.0), 1, 0.875),  # never change
        (channels([1.0, 1.0], 0.0, 1.0), 1, 0.75),  # change in every slot
        (channels([1.0, 0.5], [0.5, 0.5], 1.0), 1, 2 / 3),
    ],
)
def test_arms_with_known_optimum(arms, plays, optimum):
    assert point_based_value(arms, plays, sweeps=160) == pytest.approx(optimum, abs=2e-6)


@pytest.mark.parametrize("seed", range(4))
def test_random_arms_agree_with_the_joint_chain(seed):
    p01, p11, reward = np.random.default_rng(seed).uniform(0.1, 0.9, (3, 3))
    arms = channels(p01, (p01 + p11) / 2, reward)
    for plays in (1, 2):
        value = point_based_value(arms, plays, points=200, sweeps=160, seed=seed)
        assert value == pytest.approx(optimal(arms, plays).value, abs=1e-5)


def test_all_arms_played():
    total = (PAPER.reward * stationary_belief(PAPER)).sum()
    assert point_based_value(PAPER, 4, points=50, sweeps=80) == pytest.approx(total, abs=1e-8)


def test_few_points_give_a_lower_value():
    few = point_based_value(PAPER, 2, points=20)
    assert 0.9 < few < 0.987557


def test_a_seed_repeats_the_run():
    runs = [point_based_value(PAPER, 2, points=40, sweeps=40, seed=s) for s in (5, 5, 6)]
    assert runs[0] == runs[1] != runs[2]


def test_too_many_joint_states():
    with pytest.raises(TooLargeError, match=r"30 arms, 2 plays: 2\^30 joint states") as error:
        point_based_value(channels([0.2] * 30, 0.8, 1.0), 2)
    assert error.value.states == 2**30


@pytest.mark.parametrize("options", [{"points": 3}, {"sweeps": 7}])
def test_options_out_of_range(options):
    with pytest.raises(ModelError, match="points must be at least 4 and sweeps at least 8"):
        point_based_value(PAPER, 2, **options)
