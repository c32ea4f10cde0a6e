"""The average reward grows with the number of arms played (Fig. 6)."""

from itertools import pairwise

import numpy as np

from rmab.experiments.estimates import over_episodes
from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim, Effect, Estimate
from rmab.model.beliefs import stationary_belief

__all__ = ["judge"]

_CONVERGED = 0.02  # tolerance of "converges", as a share of the level that is reached


def judge(done: FigureResult) -> list[Claim]:
    each = [r["fedtswi"] for r in done.results]
    labels = [v.label for v in done.figure.variants]
    trials = min(results.trials for results in done.results)
    steps = [
        Effect(f"{more} less {fewer}", *mine.less(theirs), trials=trials)
        for (fewer, theirs), (more, mine) in pairwise(
            (n, Estimate(r.mean, r.se)) for n, r in zip(labels, each, strict=True)
        )
    ]
    means = ", ".join(f"{n}: {r.mean:.4f}" for n, r in zip(labels, each, strict=True))
    late = [
        Effect(
            n,
            *Estimate(r.final, r.final_se).less(over_episodes(r.by_episode("reward"), slice(0, 1))),
            trials=trials,
        )
        for n, r in zip(labels, each, strict=True)
    ]
    gains = ", ".join(f"{gain.of}: {gain.value:+.4f} ± {gain.se:.4f}" for gain in late)
    arms = done.results[-1].study.arms
    level = float(np.sum(arms.reward * stationary_belief(arms)))
    curve = each[-1].by_episode("reward")
    converged = [
        Effect(
            f"episode {number}",
            float(curve.mean[place] / level),
            float(curve.se[place] / level),
            claimed=1.0,
            direction="about",
            within=_CONVERGED,
            trials=trials,
        )
        for place, number in enumerate(range(1, min(2, len(curve.mean)) + 1))
    ]
    off = " and ".join(
        f"{100 * (effect.value - 1):+.2f} ± {100 * effect.se:.2f} %" for effect in converged
    )
    return [
        Claim(
            "The average reward grows with K.",
            f"means over the horizon: {means}.",
            steps,
        ),
        Claim(
            "The average reward grows with the episodes.",
            f"last tenth of the slots less first episode: {gains}. With K = N there is nothing "
            "to learn.",
            late[:-1],
        ),
        Claim(
            "K = 4 converges within two episodes.",
            f"the first two episodes are {off} from the exact level {level:.5f}: all arms are "
            f"always played, so no decision is left. Asked is {100 * _CONVERGED:g} %.",
            converged,
        ),
    ]
