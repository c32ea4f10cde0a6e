"""Published learners against numbers that were measured with independent programs.

Differences are within four standard errors, of both; where none is known of the other, it is taken
to be no larger than ours.
"""

import math

import numpy as np
import pytest

from rmab.model.arms import Arm, Arms, channels
from rmab.planning.joint.optimum import optimal
from rmab.studies.run import run
from rmab.studies.study import Study

pytestmark = pytest.mark.slow

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
JT4 = channels([0.3, 0.4, 0.5, 0.6], [0.7, 0.6, 0.5, 0.4], [1.0] * 4)
C1 = channels([0.2, 0.4], [0.7, 0.5], [1.0, 0.8])


def _pays_when_bad(p01: float, p11: float, bad: float, good: float) -> Arm:
    return Arm([[1 - p01, p01], [1 - p11, p11]], reward=[bad, good])


HT = Arms(
    [
        _pays_when_bad(0.0221, 0.9293, 0.8748, 1.0),
        _pays_when_bad(0.0586, 0.8585, 0.9376, 0.9957),
    ]
)
GE5 = Arms(
    [
        _pays_when_bad(up, 1 - down, 0.1, 1.0)
        for up, down in ((0.1, 0.2), (0.1, 0.3), (0.5, 0.1), (0.1, 0.4), (0.1, 0.5))
    ]
)
RB4 = Arms(
    [
        Arm(
            [[1 - a, a], [1 - b, b]],
            [[1 - c, c], [1 - d, d]],
            reward_active=[0.0, 1.0],
            reward_passive=[0.0, 1.0],
            observed="always",
        )
        for a, b, c, d in (
            (0.1, 0.7, 0.5, 0.9),
            (0.2, 0.6, 0.3, 0.95),
            (0.05, 0.5, 0.6, 0.7),
            (0.3, 0.8, 0.4, 0.85),
        )
    ]
)


def check(expected, error, name, arms, plays, horizon, trials, schedule="paper", **options) -> None:
    """error: of the other program; None: not known."""
    study = Study(
        arms=arms,
        plays=plays,
        horizon=horizon,
        trials=trials,
        policies=[name],
        schedule=schedule,
        options={name: options},
        seed=7,
    )
    results = run(study)
    mean, own = results.mean[name], results.se[name]
    assert abs(mean - expected) < 4 * math.hypot(own, own if error is None else error)


@pytest.mark.parametrize(
    ("expected", "error", "arms", "plays", "horizon", "trials"),
    [
        (1.0958, 0.0011, JT4, 2, 2000, 500),
        (0.5709, 0.0003, PAPER, 1, 1000, 2000),
        (0.9772, 0.0006, PAPER, 2, 1000, 2000),
        (0.456464 - 20 / 5000, 5 / 5000, C1, 1, 5000, 200),
        (1.1137, None, JT4, 2, 10_000, 200),
    ],
)
def test_thompson_sampling_on_a_grid(expected, error, arms, plays, horizon, trials):
    check(expected, error, "ts-grid", arms, plays, horizon, trials, "linear")


def test_rb_tsde():
    check(2.0720, 0.0012, "rb-tsde", RB4, 1, 1000, 2000)


@pytest.mark.parametrize(
    ("expected", "error", "arms", "plays", "horizon", "trials", "options"),
    [
        (0.4340, 4 / 5000, C1, 1, 5000, 300, {"radius": 0}),
        (0.456464 - 123 / 5000, 4 / 5000, C1, 1, 5000, 300, {}),
        (0.9434, None, HT, 1, 5000, 300, {"radius": 0}),
        (0.3589, 0.0005, PAPER, 1, 1000, 2000, {}),
        (0.8312, 0.0006, PAPER, 2, 1000, 2000, {}),
        (0.5168, None, PAPER, 1, 1000, 1000, {"radius": 0, "scale": 0.25}),
        (0.9361, None, PAPER, 2, 1000, 1000, {"radius": 0, "scale": 0.25}),
        (0.4787, None, PAPER, 1, 10_000, 300, {}),
        (0.4843, None, PAPER, 1, 10_000, 300, {"radius": 0}),
        (0.9205, None, PAPER, 2, 10_000, 300, {"radius": 0}),
    ],
)
def test_restless_ucb(expected, error, arms, plays, horizon, trials, options):
    check(expected, error, "restless-ucb", arms, plays, horizon, trials, **options)


@pytest.mark.parametrize(
    ("name", "scale", "expected"),
    [
        ("ucw-value", 1, 1.951),
        ("ucw-value", 0.1, 2.087),
        ("ucw-extreme", 1, 1.800),
        ("ucw-extreme", 0.1, 2.013),
    ],
)
def test_ucwhittle(name, scale, expected):
    check(expected, None, name, RB4, 1, 1000, 1000, scale=scale)


@pytest.mark.parametrize(
    ("expected", "arms", "plays", "horizon", "trials", "exploration"),
    [
        (0.4087, PAPER, 1, 1000, 1000, 10),
        (0.4225, PAPER, 1, 1000, 1000, 2),
        (0.7780, PAPER, 2, 1000, 1000, 10),
        (0.7882, PAPER, 2, 1000, 1000, 2),
        (0.8317, GE5, 1, 10_000, 200, 10),
        (0.4437, PAPER, 1, 10_000, 300, 10),
        (0.7971, PAPER, 2, 10_000, 300, 10),
    ],
)
def test_dsee(expected, arms, plays, horizon, trials, exploration):
    check(expected, None, "dsee", arms, plays, horizon, trials, exploration=exploration)


@pytest.mark.parametrize(
    ("expected", "plays", "horizon", "trials", "c"),
    [
        (0.4301, 1, 10_000, 128, 2),
        (0.8249, 2, 10_000, 128, 2),
        (0.7967, 2, 1000, 256, 3),
    ],
)
def test_ucb(expected, plays, horizon, trials, c):
    check(expected, None, "ucb", PAPER, plays, horizon, trials, c=c)


@pytest.mark.parametrize(("expected", "plays"), [(0.4482, 1), (0.8072, 2)])
def test_rca(expected, plays):
    check(expected, None, "rca", PAPER, plays, 10_000, 128)


def test_index_learning_over_a_long_time():
    check(2.081, None, "qwi", RB4, 1, 20_000, 64)


def test_the_joint_optimum_of_draws_on_riverswim():
    """One arm of six states that plays move, beside one that pays nothing: a Markov decision
    process with two actions. Costs are 0 where the river is swum to its end, .8 where one rests."""
    left, right = np.eye(6, k=-1), np.zeros((6, 6))
    left[0, 0] = 1
    right[0, :2] = 0.7, 0.3
    for s in range(1, 5):
        right[s, s - 1 : s + 2] = 0.1, 0.6, 0.3
    right[5, 4:] = 0.7, 0.3
    river = Arm(
        left,
        right,
        reward_passive=[-0.8] + [-1] * 5,
        reward_active=[-1] * 5 + [0],
        observed="always",
    )
    nothing = Arm([[0.5, 0.5]] * 2, reward=[0, 0], observed="always")
    arms = Arms([river, nothing])
    optimum = -0.7770642
    assert optimal(arms, 1).value == pytest.approx(optimum, abs=1e-6)
    for schedule, regret in (("paper", 45.5), ("linear", 45.8)):
        check(optimum - regret / 1000, 1.5 / 1000, "tsde", arms, 1, 1000, 256, schedule, prior=0.1)
