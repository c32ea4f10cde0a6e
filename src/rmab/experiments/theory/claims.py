"""Lemma 1 bounds the episodes, Theorem 1 the regret."""

import numpy as np

from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim, Effect
from rmab.learning.bounds import episode_bound, regret_bound
from rmab.planning.joint.optimum import optimal

__all__ = ["judge"]


def judge(done: FigureResult) -> list[Claim]:
    results = done.results[0]
    study, trials = results.study, results.trials
    slots = np.arange(1, study.horizon + 1)
    shape = (study.agents, len(study.arms), study.plays)
    span = optimal(study.arms, study.plays).span
    measured = done.results[0]["fedtswi"]
    lengths = measured.by_episode("length")
    ends, ends_se = np.cumsum(lengths.mean), np.cumsum(lengths.se)
    done.series = {
        "slot": slots.astype(np.float64),
        "episode bound": episode_bound(*shape, slots),
        "regret bound": regret_bound(*shape, slots, span),
        "episodes": 1 + np.searchsorted(ends, slots, side="left").astype(np.float64),
        "span": np.asarray([span]),
    }
    # Episode l + 1 begins in the slot after the l-th ends, whose error is that of the bound there.
    begun = ends[ends < study.horizon]
    bounds = episode_bound(*shape, begun + 1)
    errors = episode_bound(*shape, begun + 1 + ends_se[: len(begun)]) - bounds
    below = [
        Effect(f"episodes when number {number} begins", number, error, bound, "below", None, trials)
        for number, (bound, error) in enumerate(
            zip(bounds.tolist(), errors.tolist(), strict=True), start=2
        )
    ]
    # The bound is for the sum over arms of one agent, as the measured regret is.
    regret, regret_se = float(measured.regret.mean[-1]), float(measured.regret.se[-1])
    limit = float(done.series["regret bound"][-1])
    broken = int(np.sum(done.series["episodes"] > done.series["episode bound"]))
    return [
        Claim(
            "Lemma 1: no more episodes than its bound.",
            f"{measured.episodes:.1f} episodes in {study.horizon} slots; the bound is "
            f"{float(done.series['episode bound'][-1]):.1f}"
            + (f", passed in {broken} of the slots on the way." if broken else "."),
            below,
        ),
        Claim(
            "Theorem 1: regret below its bound.",
            f"cumulative regret per agent {regret:.2f} ± {regret_se:.2f}, the bound without its "
            f"O(epsilon T) is {limit:.0f} with D = {span:.3f}, the span of the optimal relative "
            "values at the true dynamics (computed).",
            [Effect("regret", regret, regret_se, limit, "below", None, trials)],
        ),
    ]
