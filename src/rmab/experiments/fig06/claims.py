"""The average reward grows with the number of arms played (Fig. 6)."""

from itertools import pairwise

import numpy as np

from rmab.experiments.estimates import over_episodes
from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim, Effect, Estimate
from rmab.model.information import stationary_belief

__all__ = ["judge"]

_CONVERGED = 0.02  # tolerance of "converges", as a share of the level that is reached


def judge(done: FigureResult) -> list[Claim]:
    variants = zip(done.figure.variants, done.results, strict=True)
    named = [(variant.label, results["fedtswi"]) for variant, results in variants]
    trials = min(results.trials for results in done.results)
    means = [(name, Estimate(each.mean, each.se)) for name, each in named]
    steps = [
        Effect(f"{more} less {fewer}", *better.less(worse), trials=trials)
        for (fewer, worse), (more, better) in pairwise(means)
    ]
    late = []
    for name, each in named:
        first = over_episodes(each.by_episode("reward"), slice(0, 1))
        late.append(Effect(name, *Estimate(each.final, each.final_se).less(first), trials=trials))
    gains = ", ".join(f"{gain.of}: {gain.value:+.4f} ± {gain.se:.4f}" for gain in late)
    arms = done.results[-1].study.arms
    level = float(np.sum(arms.reward * stationary_belief(arms)))
    curve = named[-1][1].by_episode("reward")
    shares = zip((curve.mean[:2] / level).tolist(), (curve.se[:2] / level).tolist(), strict=True)
    converged = [
        Effect(f"episode {number}", share, se, 1.0, "about", _CONVERGED, trials)
        for number, (share, se) in enumerate(shares, start=1)
    ]
    off = " and ".join(
        f"{100 * (effect.value - 1):+.2f} ± {100 * effect.se:.2f} %" for effect in converged
    )
    return [
        Claim(
            "The average reward grows with K.",
            f"means over the horizon: {', '.join(f'{n}: {x.mean:.4f}' for n, x in means)}.",
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
