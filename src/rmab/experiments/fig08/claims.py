"""The average reward grows with the number of agents (Fig. 8)."""

from rmab.experiments.estimates import with_error
from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim, Effect, Estimate

__all__ = ["judge"]


def judge(done: FigureResult) -> list[Claim]:
    """Judge gains by the shortfall to Whittle on the same trials, which varies less."""
    each = {
        v.study.agents: r["fedtswi"]
        for v, r in zip(done.figure.variants, done.results, strict=True)
    }
    short = {m: Estimate(r.behind, r.behind_se) for m, r in each.items()}
    trials = min(results.trials for results in done.results)
    up, more = short[1].less(short[4]), short[8].less(short[16])
    means = ", ".join(f"M = {m}: {r.mean:.4f}" for m, r in each.items())
    return [
        Claim(
            "The average reward improves strongly from M = 1 to M = 4.",
            f"{means}; from 1 to 4: {with_error(up)}.",
            [Effect("M = 4 less M = 1", *up, trials=trials)],
        ),
        Claim(
            "Beyond M = 8 the gain is small: doubling M gains less than it does from 1 to 4.",
            f"from 8 to 16: {with_error(more)}, from 1 to 4 {with_error(up.times(0.5))} each time.",
            [Effect("the gain that is missing", *up.times(0.5).less(more), trials=trials)],
        ),
    ]
