"""Gain of four agents over isolated agents on random channels, with noise of epsilon = 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rmab.experiments.estimates import with_known_error
from rmab.experiments.figure import Figure, FigureResult
from rmab.experiments.privacy.claims import LEARNER
from rmab.experiments.verdict import Claim, Effect, Estimate, Verdict
from rmab.model.arms import channels
from rmab.studies.results import Curve
from rmab.studies.sweep import Point

__all__ = ["extend", "gains", "judge"]

_DRAWN = 200  # draws of random channels: p01 and p11 from .05 to .95, rewards from .3 to 1
_MOST_BELOW_ALONE = 0.001


def extend(figure: Figure) -> Figure:
    """Replace the study by draws of channels, each also with isolated agents."""
    study = figure.variants[0].study
    rng = np.random.default_rng(study.seed)
    points = []
    for number in range(1, _DRAWN + 1):
        p01, p11 = rng.uniform(0.05, 0.95, (2, len(study.arms)))
        arms = channels(p01, p11, rng.uniform(0.3, 1.0, len(study.arms)))
        drawn = replace(study, arms=arms)
        alone = replace(drawn, draws="shared", aggregation="none", privacy=None)
        points += [Point(f"draw {number}", drawn), Point(f"draw {number}, alone", alone)]
    return replace(figure, variants=tuple(points))


def gains(done: FigureResult) -> Curve:
    """Rewards per agent and slot above isolated agents, by draw that was run."""
    pairs = [*zip(done.results[::2], done.results[1::2], strict=False)]
    gained = [
        Estimate(alone[LEARNER].behind, alone[LEARNER].behind_se).less(
            Estimate(own[LEARNER].behind, own[LEARNER].behind_se)
        )
        for own, alone in pairs
    ]
    mean, se = np.asarray(gained, np.float64).reshape(-1, 2).T
    return Curve(mean, se)


def judge(done: FigureResult) -> list[Claim]:
    gain = gains(done)
    done.series.update({"gain": gain.mean, "gain, se": gain.se})
    worst = int(gain.mean.argmin())
    trials = min(results.trials for results in done.results)
    each = [
        Effect(f"the gain of draw {number}", mean, se, -_MOST_BELOW_ALONE, trials=trials)
        for number, (mean, se) in enumerate(
            zip(gain.mean.tolist(), gain.se.tolist(), strict=True), start=1
        )
    ]
    least = with_known_error(gain.mean[worst], gain.se[worst], ".4f")
    words = [effect.verdict(len(each)) for effect in each]
    return [
        Claim(
            f"With epsilon = 1 four agents earn nowhere less than alone by above "
            f"{_MOST_BELOW_ALONE:g}.",
            f"on {len(each)} draws they earn {least} more at worst, {gain.mean.mean():.4f} in "
            f"the mean and {gain.mean.max():.4f} at best; "
            f"{np.count_nonzero(gain.mean < -_MOST_BELOW_ALONE)} are measured to be lower by more, "
            f"{words.count(Verdict.CONTRADICTED)} of them clearly, and "
            f"{words.count(Verdict.UNDECIDED)} of all are undecided.",
            each,
        )
    ]
