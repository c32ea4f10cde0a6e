"""Estimates that claims of several figures are judged by.

Differences of policies in one study are paired trial by trial. Other differences are of the same
realisations, too (of one policy in two studies, or at two times), but how they are correlated is
not known: there the errors are added. The draws of different arms are independent. A mean over
episodes has the mean of their errors, which is a bound: over half of the episodes of Fig. 7 it is
about twice the error.
"""

from __future__ import annotations

import numpy as np

from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Effect, Estimate
from rmab.studies.results import Curve, Results
from rmab.studies.run import value

__all__ = ["add_exact_values", "over_episodes", "paired", "ratio", "with_error", "with_known_error"]


def with_error(estimate: tuple[float, float]) -> str:
    """Write an estimate with its standard error."""
    return f"{estimate[0]:.5f} ± {estimate[1]:.5f}"


def with_known_error(mean: float, se: float, form: str) -> str:
    """Write an estimate with its standard error, if it has one: a single trial has none."""
    return f"{mean:{form}}" if np.isnan(se) else f"{mean:{form}} ± {se:{form.strip('+')}}"


def paired(results: Results, better: str, worse: str) -> Effect:
    """Effect that one policy earns more than another."""
    mean, se = results.difference(better, worse)
    return Effect(f"{better} less {worse}", mean, se, trials=results.trials)


def ratio(results: Results, name: str, base: str) -> Estimate:
    """Reward of a policy as a share of another's, paired trial by trial."""
    names = list(results)
    places = [names.index(each) for each in (name, base)]
    covariance = results.covariance[np.ix_(places, places)]
    share = results[name].mean / results[base].mean
    slope = np.asarray([1.0, -share]) / results[base].mean  # derivatives of the share by the means
    return Estimate(share, float(np.sqrt(np.maximum(slope @ covariance @ slope, 0))))


def over_episodes(curve: Curve, chosen: slice) -> Estimate:
    """Mean of a curve over some episodes."""
    return Estimate(float(curve.mean[chosen].mean()), float(curve.se[chosen].mean()))


def add_exact_values(done: FigureResult) -> None:
    """Compute the exact values of each variant of a figure."""
    done.values = [value(variant.study) for variant in done.figure.variants]
