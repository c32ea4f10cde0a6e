"""Figures beyond the paper: arms of other kinds, from the catalogue.

Nobody else has made these claims; they say what the paper's framework promises (Section II is for
any arms) and are judged as the paper's own are.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rmab.planning.index.indices import whittle_indices
from rmab.studies.figure import SURE, Claim, Drawn
from rmab.studies.run import value

__all__ = ["FIGURES"]

CLOSE = 0.75  # of the distance from random to Whittle, for "approaches"


def _any_arms(drawn: Drawn) -> list[Claim]:
    """What is claimed of FedTSWI on arms of any kind."""
    results = drawn.results[0]
    arms = results.study.arms
    drawn.values = [value(results.study)]
    verdicts = [whittle_indices(arm) for arm in arms]
    sure = sum(found.indexable is True for found in verdicts)
    reasons = "; ".join(
        f"arm {n}: {found.reason}"
        for n, found in enumerate(verdicts, start=1)
        if found.indexable is not True
    )
    learnt, known, blind = (results[name] for name in ("fedtswi", "whittle", "random"))
    gap, gap_se = known.final - learnt.final, float(np.hypot(known.final_se, learnt.final_se))
    closed = 1 - gap / (known.final - blind.final)
    random, random_se = results.difference("fedtswi", "random")
    return [
        Claim(
            "All arms are indexable.",
            f"{sure} of {len(arms)} proven so by the solver"
            + (f"; {reasons}." if reasons else "."),
            sure == len(arms),
        ),
        Claim(
            "FedTSWI approaches Whittle with known dynamics.",
            f"in the last tenth of the slots it has closed {100 * closed:.0f} % of the distance "
            f"from random to Whittle and is {gap:.5f} ± {gap_se:.5f} behind; over the horizon "
            f"{learnt.behind:.5f} ± {learnt.behind_se:.5f}.",
            bool(closed > CLOSE),
        ),
        Claim(
            "Learning pays: FedTSWI is better than playing at random.",
            f"by {random:.5f} ± {random_se:.5f}.",
            random > SURE * random_se,
        ),
    ]


FIGURES: dict[str, Callable[[Drawn], list[Claim]]] = {
    "fading": _any_arms,
    "machine": _any_arms,
    "adherence": _any_arms,
}
