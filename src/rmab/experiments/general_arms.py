"""FedTSWI on arms of any kind: indexability, and learning beside Whittle and random play.

These claims are not the paper's. They state the promise of its framework (Section II is for any
arms) and are judged as its own claims are.
"""

from __future__ import annotations

import numpy as np

from rmab.experiments.figure import FigureResult
from rmab.experiments.verdict import Claim, Effect, Estimate
from rmab.planning.index.api import whittle_indices
from rmab.studies.results import PolicyResult
from rmab.studies.run import value

__all__ = ["judge"]

_MIN_CLOSED = 0.75  # share of the distance from random to Whittle that "approaches" asks for
_INDEXABLE = {True: 1.0, False: 0.0, None: np.nan}


def judge(done: FigureResult) -> list[Claim]:
    results = done.results[0]
    arms = results.study.arms
    done.values = [value(results.study)]
    verdicts = [whittle_indices(arm) for arm in arms]
    proven = sum(verdict.indexable is True for verdict in verdicts)
    reasons = "; ".join(
        f"arm {n}: {verdict.reason}"
        for n, verdict in enumerate(verdicts, start=1)
        if verdict.indexable is not True
    )
    learnt, known, random = (results[name] for name in ("fedtswi", "whittle", "random"))
    gap = Estimate(known.final, known.final_se).less(Estimate(learnt.final, learnt.final_se))
    closed = _closed(learnt, known, random)
    gain, gain_se = results.difference("fedtswi", "random")
    return [
        Claim(
            "All arms are indexable.",
            f"{proven} of {len(arms)} proven so by the solver"
            + (f"; {reasons}." if reasons else "."),
            [
                Effect(f"arm {n}", _INDEXABLE[verdict.indexable], 0.0, 1.0, "about", 0.5)
                for n, verdict in enumerate(verdicts, start=1)
            ],
        ),
        Claim(
            "FedTSWI approaches Whittle with known dynamics.",
            f"in the last tenth of the slots it has closed {100 * closed.mean:.0f} % of the "
            f"distance from random to Whittle and is {gap.mean:.5f} ± {gap.se:.5f} behind; over "
            f"the horizon {learnt.behind:.5f} ± {learnt.behind_se:.5f}. Asked is "
            f"{100 * _MIN_CLOSED:.0f} %.",
            [Effect("the share that is closed", *closed, _MIN_CLOSED, trials=results.trials)],
        ),
        Claim(
            "Learning pays: FedTSWI is better than playing at random.",
            f"by {gain:.5f} ± {gain_se:.5f}.",
            [Effect("fedtswi less random", gain, gain_se, trials=results.trials)],
        ),
    ]


def _closed(learnt: PolicyResult, known: PolicyResult, random: PolicyResult) -> Estimate:
    """Share of the distance from random to Whittle, in the last tenth of the slots.

    Errors are added, as the correlation of the three is not known.
    """
    distance = known.final - random.final
    share = 1 - (known.final - learnt.final) / distance
    error = learnt.final_se + abs(share) * known.final_se + abs(1 - share) * random.final_se
    return Estimate(share, error / abs(distance))
