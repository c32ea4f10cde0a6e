"""The error of the dynamics falls, fastest for the arms played most (Fig. 7)."""

from rmab.experiments.estimates import over_episodes, with_error
from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim, Effect
from rmab.studies.results import Curve

__all__ = ["judge"]


def judge(done: FigureResult) -> list[Claim]:
    curve, trials = done.results[0]["fedtswi"].by_episode("error"), done.results[0].trials
    n_episodes, n_arms = curve.mean.shape
    half = slice(n_episodes // 2, n_episodes)
    by_arm = [Curve(curve.mean[:, n], curve.se[:, n]) for n in range(n_arms)]
    falls = [
        Effect(
            f"arm {n}",
            *over_episodes(arm, slice(0, 1)).less(
                over_episodes(arm, slice(n_episodes - 1, n_episodes))
            ),
            trials=trials,
        )
        for n, arm in enumerate(by_arm, start=1)
    ]
    shown = ", ".join(
        f"arm {n}: {arm.mean[0]:.3f} to {arm.mean[-1]:.5f}" for n, arm in enumerate(by_arm, start=1)
    )
    late = [over_episodes(arm, half) for arm in by_arm]
    # Arms 2 and 3, counted from 0, below each of the others.
    apart = [
        Effect(f"arm {above + 1} less arm {n + 1}", *late[above].apart(late[n]), trials=trials)
        for n in (1, 2)
        for above in (0, 3)
    ]
    least = min(apart, key=lambda effect: effect.value)
    order = sorted(range(n_arms), key=lambda n: late[n].mean)
    return [
        Claim(
            "The error of every arm's dynamics falls with the episodes.",
            f"{shown}, first to last of the {n_episodes} episodes that count.",
            falls,
        ),
        Claim(
            "Arms 2 and 3 have the lowest errors: they are played most.",
            f"from lowest to highest: arms {', '.join(str(n + 1) for n in order)}; over the second "
            f"half of the episodes {least.of} is {with_error((least.value, least.se))}, the least "
            "distance.",
            apart,
        ),
    ]
