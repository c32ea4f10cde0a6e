"""Learning from all pairs of looks in the engine: on arms of every kind, and what it gains."""

import numpy as np
import pytest

from rmab.model.arms import Arm, Arms, channels
from rmab.studies.run import run
from rmab.studies.study import Study

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
LEVELS = Arm([[0.7, 0.2, 0.1], [0.2, 0.6, 0.2], [0.1, 0.3, 0.6]], reward=[0.0, 0.5, 1.0])
CHANNEL = Arm([[0.8, 0.2], [0.25, 0.75]], reward=[0, 0.6])
HIDDEN = Arm(  # a play changes how it moves, and only then is it seen
    [[0.9, 0.1], [0.3, 0.7]],
    [[0.4, 0.6], [0.1, 0.9]],
    reward_active=[0, 0.3],
    reward_passive=[0, 0.2],
)
WATCHED = Arm([[0.6, 0.4], [0.7, 0.3]], reward=[0.0, 0.1], observed="always")


# A program is compiled for each case, and each kind of arm is a large part of it. The golden study
# of these policies has arms of all kinds, and holds that they are better there than random plays.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "arms", "draws"),
    [
        ("fedts-myopic-gap", Arms([LEVELS, WATCHED, CHANNEL]), "shared"),
        ("feducb-wi-gap", Arms([HIDDEN, CHANNEL]), "shared"),
        ("fedts-lookahead-gap", Arms([WATCHED, CHANNEL]), "per-agent"),
        ("fedtswi-gap", Arms([LEVELS, WATCHED, CHANNEL]), "per-agent"),
        ("fedts-myopic-gap", Arms([LEVELS, HIDDEN, WATCHED, CHANNEL]), "per-agent"),
    ],
)
def test_learning_on_arms_that_are_not_channels(policy, arms, draws):
    """Finite, and better than random plays where some arms pay far more than others."""
    study = Study(arms, 2, 1, 40, trials=128, policies=[policy, "random"], draws=draws, seed=3)
    found = run(study)
    assert np.isfinite(found[policy].slots.mean).all()
    error = found[policy].episode_error
    assert error is not None
    assert np.isfinite(error.mean).all()
    gain, spread = found.difference(policy, "random")
    assert gain > 4 * spread


@pytest.mark.slow  # test_protocol and the golden studies compile the policy, too
def test_observations_at_all_gaps_gain_on_the_papers_channels():
    """One play a slot leaves few looks in consecutive slots and many others."""
    study = Study(PAPER, 4, 1, 300, trials=256, policies=["fedtswi-gap", "fedtswi"], seed=4)
    gain, spread = run(study).difference("fedtswi-gap", "fedtswi")
    assert gain > 5 * spread
