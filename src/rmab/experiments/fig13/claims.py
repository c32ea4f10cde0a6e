"""Threshold policies are best for one arm with a subsidy (Fig. 13)."""

from __future__ import annotations

import numpy as np

from rmab.experiments.figure import Figure, FigureResult
from rmab.experiments.verdict import Claim, Effect
from rmab.planning.channel.subsidy import solve, threshold
from rmab.studies.results import Floats

__all__ = ["judge"]


def judge(done: FigureResult) -> list[Claim]:
    done.series = _value_functions(done.figure)
    arms = done.figure.variants[0].study.arms
    belief = done.series["belief"]
    crossings, right, words = [], [], []
    for arm in range(len(arms)):
        plays = done.series[f"active {arm}"] > done.series[f"passive {arm}"]
        at, above = done.series[f"threshold {arm}"]
        crossings.append(int(np.sum(plays[1:] != plays[:-1])))
        right.append(bool(above) and not plays[0] and bool(plays[-1]))
        words.append(
            f"({arms.p01[arm]:g}, {arms.p11[arm]:g}): b* = {at:.4f}, played for b "
            f"{'above' if above else 'below'} it"
        )
    text = "; ".join(words) + f", subsidy {done.figure.subsidy:g}, {len(belief)} beliefs"
    return [
        Claim(
            "The best policy for one arm with a subsidy is a threshold on the belief.",
            text + ".",
            [_whole_number("crossings", each, 1) for each in crossings],
        ),
        Claim(
            "The arm is played on the left of the threshold (as the printed figure has it).",
            "it is played on the right, where the arm is likelier to be good."
            if all(right)
            else "see the figure.",
            [_whole_number("sides that are the right one", int(each), 0) for each in right],
        ),
    ]


def _value_functions(figure: Figure) -> dict[str, Floats]:
    """V(b; 0) and V(b; 1) of each arm of the figure over the belief."""
    belief = np.linspace(0, 1, 401)
    arms = figure.variants[0].study.arms
    series = {"belief": belief}
    for arm in range(len(arms)):
        one = (float(arms.p01[arm]), float(arms.p11[arm]), float(arms.reward[arm]))
        solved = solve(*one, figure.subsidy)
        crossing = threshold(*one, figure.subsidy)
        series[f"passive {arm}"] = np.asarray(solved.passive_value(belief))
        series[f"active {arm}"] = np.asarray(solved.active_value(belief))
        series[f"threshold {arm}"] = np.asarray([crossing.belief, crossing.active_above], float)
    return series


def _whole_number(name: str, count: int, claimed: int) -> Effect:
    """Effect that a computed whole number is the claimed one."""
    return Effect(name, float(count), 0.0, float(claimed), "about", 0.5)
