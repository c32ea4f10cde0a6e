"""The three studies whose results are frozen.

    paper    four channels as the paper has them, every setting at its default
    mixed    one arm of every kind, agents that draw for themselves, episodes that grow by one slot
    weighed  channels of positive and negative memory that all agents share, agents that weigh
             differently, episodes that double, and options of the policies

Sizes are as small as they can be: what a study costs is to compile its programs.
"""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

import rmab

__all__ = ["POLICIES", "STUDIES", "one_quick"]

POLICIES = (
    "fedtswi",
    "fedts-myopic",
    "feducb-wi",
    "feducb-myopic",
    "fedtswi-gap",
    "fedts-myopic-gap",
    "feducb-wi-gap",
    "fedts-lookahead-gap",
    "fed1-ucb",
    "whittle",
    "myopic",
    "lookahead",
    "optimal",
    "fixed",
    "fixed-best",
    "random",
)


def _paper(policies: list[str]) -> rmab.Study:
    arms = rmab.channels(
        p01=[0.2, 0.89, 0.1, 0.9], p11=[0.8, 0.17, 0.9, 0.16], reward=[0.4, 0.9, 0.7, 0.6]
    )
    return rmab.Study(
        arms=arms, agents=4, plays=2, horizon=60, trials=32, seed=11, policies=policies
    )


def _mixed(policies: list[str]) -> rmab.Study:
    slow = [[0.8, 0.2, 0.0], [0.1, 0.7, 0.2], [0.0, 0.2, 0.8]]
    falls, lifted = [[0.9, 0.1], [0.4, 0.6]], [[0.4, 0.6], [0.1, 0.9]]
    arms = [
        rmab.channels(p01=0.3, p11=0.85, reward=0.8)[0],
        rmab.Arm(slow, reward=[0.0, 0.5, 1.0]),
        rmab.Arm(falls, lifted, reward_active=[0.0, 0.9], reward_passive=[0.0, 0.2]),
        rmab.Arm(falls, lifted, reward=[0.1, 0.7], observed="always"),
    ]
    return rmab.Study(
        arms=rmab.Arms(arms),
        agents=2,
        plays=2,
        horizon=40,
        trials=16,
        seed=12,
        schedule="linear",
        draws="per-agent",
        policies=policies,
        options={name: {"gaps": 8} for name in policies if name.endswith("-gap")},
    )


def _weighed(policies: list[str]) -> rmab.Study:
    options: dict[str, dict[str, Any]] = {
        "fedtswi": {"prior": [1.0, 0.5]},
        "feducb-wi": {"clip": False},
        "feducb-myopic": {"prior": 2.0},
        "fedtswi-gap": {"gaps": 16},
        "fedts-myopic-gap": {"gaps": 8, "prior": 0.5},
        "feducb-wi-gap": {"gaps": 8},
        "fedts-lookahead-gap": {"gaps": 8, "depth": 3},
        "lookahead": {"depth": 3},
        "fed1-ucb": {"sigma": 0.7},
    }
    return rmab.Study(
        arms=rmab.channels(p01=[0.1, 0.9, 0.6], p11=[0.7, 0.2, 0.1], reward=[0.5, 1.0, 0.8]),
        agents=3,
        plays=1,
        horizon=60,
        trials=32,
        seed=13,
        realisations="shared",
        schedule="doubling",
        draws="per-agent",
        weights=[1.0, 0.5, 2.0],
        policies=policies,
        options={name: options[name] for name in policies if name in options},
    )


STUDIES: dict[str, Callable[[list[str]], rmab.Study]] = {
    "paper": _paper,
    "mixed": _mixed,
    "weighed": _weighed,
}


def one_quick(policies: Iterable[str], quick: str | None = None) -> list[Any]:
    """These policies as parameters of a test; of those that take long to compile, all but one, if
    that is named, are left to the slow suite."""
    return [
        pytest.param(name, marks=pytest.mark.slow)
        if name.endswith("-gap") and name != quick
        else name
        for name in policies
    ]
