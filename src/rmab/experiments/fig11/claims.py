"""The regret per slot falls, and not to zero (Fig. 11)."""

from rmab.experiments.estimates import over_episodes, with_error
from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim, Effect

__all__ = ["judge"]

_FEW_EPISODES = 5  # at each end of the horizon that are compared


def judge(done: FigureResult) -> list[Claim]:
    claims = []
    trials = done.results[0].trials
    for policy, name in (("fedtswi", "FedTSWI"), ("fedts-myopic", "FedTS-myopic")):
        curve = done.results[0][policy].by_episode("regret")
        few = min(_FEW_EPISODES, len(curve.mean))
        before = over_episodes(curve, slice(0, few))
        after = over_episodes(curve, slice(len(curve.mean) - few, len(curve.mean)))
        claims += [
            Claim(
                f"The regret per slot of {name} falls with the episodes.",
                f"from {with_error(before)} (first {few}) to {with_error(after)} (last {few} of "
                f"the {len(curve.mean)} that count).",
                [Effect("first episodes less last", *before.less(after), trials=trials)],
            ),
            Claim(
                f"The regret per slot of {name} does not reach zero.",
                f"last {few} episodes: {with_error(after)}.",
                [Effect("last episodes", *after, trials=trials)],
            ),
        ]
    return claims
