"""Scores of policies on a problem of the arena, all on the same trials.

score    normalised: 0 is `random`, 1 the best policy that uses the true dynamics, of mean
         rewards over the horizon
rank     among policies that do not use the true dynamics: one more than the number of those
         that are better by more than four standard errors of the paired difference
tied     policies within four standard errors: of forty policies, 780 pairs, the chance is about
         5 % that any two equal ones are separated
first    the largest mean of policies that do not use the true dynamics, and those tied with it
failed   the share of failed trials. A trial fails if its last tenth earns less than that of
         `whittle`, which uses the true dynamics, in the same trial, by more than half the
         distance from `random` to the best known in the long run
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rmab.studies.results import Floats, Results

__all__ = ["RANDOM", "SIGMA", "Standing", "standings"]

RANDOM = "random"  # the reference policy whose score is 0
SIGMA = 4.0  # standard errors to each side within which values count as equal
_BAND_SIGMA = 1.96  # standard errors to each side of a 95 % band
_POINTS = 40  # evenly spaced slots of a regret curve


@dataclass(frozen=True)
class Standing:
    """Scores of a policy on a problem; rewards are averages per agent and slot.

    An unknown number is None: the error of a single trial, the score where nothing is to gain.
    """

    label: str
    uses_true_dynamics: bool = field(metadata={"key": "knows"})  # or is random; has no rank
    mean: float
    se: float | None
    final: float  # over the last tenth of the slots
    final_se: float | None
    regret: float  # over the horizon, against `whittle`
    regret_low: float | None  # 95 % band
    regret_high: float | None
    score: float | None = field(metadata={"key": "share"})
    score_se: float | None = field(metadata={"key": "share_se"})
    rank: int | None
    tied: list[str]
    failed: float | None = field(metadata={"key": "stuck"})
    seconds: float | None  # per trial, on one core, compiled
    episodes: float
    curve: dict[str, list[float]]  # slot, regret, se

    def __post_init__(self) -> None:
        if len({len(self.curve[key]) for key in ("slot", "regret", "se")}) != 1:
            raise ValueError("curve: slot, regret and se must be as long as one another")


def standings(
    results: Results,
    unranked: Sequence[str],
    labels: Mapping[str, str],
    seconds: Mapping[str, float],
) -> dict[str, Standing]:
    """Score all policies, from the best to the worst mean.

    Parameters
    ----------
    results
        Results of all policies on the same trials.
    unranked
        Policies that use the true dynamics, and `random`.
    labels
        Names for readers.
    seconds
        Seconds of a trial, by policy.
    """
    names = list(results)
    mean = np.array([results[name].mean for name in names])
    better = [names.index(name) for name in unranked if name != RANDOM]
    best = max(better, key=lambda place: float(mean[place]))
    ranked = [name for name in names if name not in unranked]
    tied = {
        name: [x for x in ranked if x != name and _are_tied(results, name, x)] for name in ranked
    }
    scored = {}
    for place in np.argsort(-mean, kind="stable").tolist():
        name = names[place]
        each = results[name]
        score, score_se = _score(mean, results.covariance, place, best, names.index(RANDOM))
        ahead = [x for x in ranked if results[x].mean > each.mean and x not in tied.get(name, [])]
        regret, se = float(each.regret.mean[-1]), float(each.regret.se[-1])
        scored[name] = Standing(
            label=labels[name],
            uses_true_dynamics=name in unranked,
            mean=each.mean,
            se=_known(each.se),
            final=each.final,
            final_se=_known(each.final_se),
            regret=regret,
            regret_low=_known(regret - _BAND_SIGMA * se),
            regret_high=_known(regret + _BAND_SIGMA * se),
            score=_known(score),
            score_se=_known(score_se),
            rank=None if name in unranked else 1 + len([x for x in ahead if x != name]),
            tied=tied.get(name, []),
            failed=each.failed,
            seconds=seconds.get(name),
            episodes=each.episodes,
            curve=_curve(each.regret.mean, each.regret.se),
        )
    return scored


def _known(number: float) -> float | None:
    return float(number) if math.isfinite(number) else None


def _are_tied(results: Results, one: str, other: str) -> bool:
    apart, se = results.difference(one, other)
    return not abs(apart) > SIGMA * se  # an unknown error tells nothing apart


def _score(
    mean: Floats, covariance: Floats, place: int, best: int, chance: int
) -> tuple[float, float]:
    """Normalised score and its standard error, by the paired covariance.

    NaN where the best policy is not above chance.
    """
    distance = mean[best] - mean[chance]
    if not distance > 0:
        return math.nan, math.nan
    score = (mean[place] - mean[chance]) / distance
    slope = np.zeros(len(mean))
    slope[place] += 1
    slope[chance] += score - 1
    slope[best] -= score
    spread = float(slope @ covariance @ slope)
    return float(score), math.sqrt(max(spread, 0.0)) / distance if spread == spread else math.nan


def _curve(mean: Floats, se: Floats) -> dict[str, list[float]]:
    """Curve at some slots; an unknown error is 0, as no band is drawn then."""
    slots = np.unique(np.linspace(1, len(mean), min(_POINTS, len(mean))).round().astype(int))
    at = slots - 1
    return {
        "slot": slots.tolist(),
        "regret": [float(f"{x:.6g}") for x in mean[at]],
        "se": [float(f"{x:.4g}") for x in np.nan_to_num(se[at])],
    }
