"""FedTSWI beside known dynamics, FedTS-myopic and Fed1-UCB (Fig. 10)."""

import numpy as np

from rmab.experiments.estimates import add_exact_values, paired, ratio, with_error
from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim, Effect, Estimate

__all__ = ["judge"]

_VERY_CLOSE = 2.0  # largest shortfall to Whittle, in per cent, that is "very close"
_GAIN = 15.0  # per cent that FedTSWI is claimed to be above Fed1-UCB
_GAIN_WITHIN = 1.0  # per cent around _GAIN that are still 15 %
_EPSILON = 4.6e-5  # 4.56e-5 as it would be rounded


def judge(done: FigureResult) -> list[Claim]:
    add_exact_values(done)
    results, exact = done.results[0], done.values[0]
    learnt, ucb = results["fedtswi"], results["fed1-ucb"]
    kept, over = ratio(results, "fedtswi", "whittle"), ratio(results, "fedtswi", "fed1-ucb")
    missing = Estimate(100 * (1 - kept.mean), 100 * kept.se)
    more = Estimate(100 * (over.mean - 1), 100 * over.se)
    myopic = paired(results, "fedtswi", "fedts-myopic")
    over_late = 100 * (learnt.final / ucb.final - 1)
    fixed = 100 * (results["whittle"].mean / (exact["fixed-best"] or np.nan) - 1)
    gap = (exact["optimum"] or np.nan) - (exact["whittle"] or np.nan)
    return [
        Claim(
            "FedTSWI is very close to Whittle with known dynamics.",
            f"{learnt.behind:.5f} ± {learnt.behind_se:.5f} behind over the horizon, "
            f"{missing.mean:.2f} ± {missing.se:.2f} %; "
            f"{results['whittle'].final - learnt.final:.5f} in the last tenth. Asked is "
            f"{_VERY_CLOSE:g} %.",
            [Effect("per cent behind", *missing, _VERY_CLOSE, "below", trials=results.trials)],
        ),
        Claim(
            "FedTSWI is better than FedTS-myopic.",
            f"by {with_error((myopic.value, myopic.se))}.",
            [myopic],
        ),
        Claim(
            "FedTSWI is 15 % above Fed1-UCB.",
            f"{more.mean:.2f} ± {more.se:.2f} % over the horizon, {over_late:.1f} % in the last "
            f"tenth: after {results.study.horizon} slots Fed1-UCB still plays arms in turn "
            f"({ucb.episodes:.1f} phases). Against the pair of arms it would end with, Whittle is "
            f"{fixed:.1f} % ahead.",
            [Effect("per cent above", *more, _GAIN, within=_GAIN_WITHIN, trials=results.trials)],
        ),
        Claim(
            "The Whittle policy is within epsilon = 4.56e-5 of the optimum.",
            f"exact: {gap:.2e} below.",
            [Effect("below the optimum", gap, 0.0, _EPSILON, "below")],
        ),
    ]
