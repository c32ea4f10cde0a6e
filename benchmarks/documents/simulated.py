"""Studies that pages tell of: run, and put down as plain numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import combinations
from typing import Any

from benchmarks.documents.blocks import Asked
from benchmarks.documents.kept import Json, number
from benchmarks.documents.words import Estimate

import rmab
from rmab.studies.results import Results
from rmab.studies.run import run_watched
from rmab.studies.study import Study

__all__ = ["PAPER", "apart", "final", "mean", "numbers", "paper", "ran", "seconds"]

PAPER = rmab.channels(
    p01=[0.20, 0.89, 0.10, 0.90], p11=[0.80, 0.17, 0.90, 0.16], reward=[0.4, 0.9, 0.7, 0.6]
)


def paper(asked: Asked, policies: Iterable[str], **keys: Any) -> Study:
    """A study of the paper's arms over 1,000 slots, with other keys as given."""
    usual = {"agents": 4, "plays": 2, "horizon": 1000, "trials": asked.often, "seed": asked.seed}
    return Study(arms=PAPER, policies=tuple(policies), **{**usual, **keys})


def ran(asked: Asked, study: Study, label: str) -> Json:
    """The numbers of a study that is run now."""
    found = numbers(rmab.run(study))
    asked.say(label)
    return found


def numbers(results: Results) -> Json:
    """By policy its mean and its last tenth, each with its error; by pair the paired difference."""
    names = list(results)
    return {
        "trials": results.trials,
        "policies": {
            name: {
                "mean": [each.mean, each.se],
                "final": [each.final, each.final_se],
                "regret": [each.regret.mean[-1], each.regret.se[-1]],
            }
            for name, each in results.items()
        },
        "apart": {
            f"{one} - {other}": list(results.difference(one, other))
            for one, other in combinations(names, 2)
        },
    }


def mean(found: Mapping[str, Any], policy: str) -> Estimate:
    """Average reward of a policy over all slots, from what `numbers` gave."""
    return _pair(found["policies"][policy]["mean"])


def final(found: Mapping[str, Any], policy: str) -> Estimate:
    """Average reward of a policy over the last tenth of the slots."""
    return _pair(found["policies"][policy]["final"])


def apart(found: Mapping[str, Any], one: str, other: str) -> Estimate:
    """How much more one policy earns than another over all slots, trial by trial."""
    pairs = found["apart"]
    if f"{one} - {other}" in pairs:
        return _pair(pairs[f"{one} - {other}"])
    back, error = _pair(pairs[f"{other} - {one}"])
    return -back, error


def _pair(estimate: Any) -> Estimate:
    one, error = estimate
    return number(one), number(error)


def seconds(study: Study) -> dict[str, float]:
    """Of a trial of each policy on one core, compiled: the best of the batches."""
    found: dict[str, float] = {}

    def watch(name: str, count: int, took: float) -> None:
        if name:
            found[name] = min(found.get(name, took / count), took / count)

    run_watched(study, watch, 0.0)
    return found
