"""Index rules that several policies plan by: one for each map from dynamics to indices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rmab.arrays import FloatArray
from rmab.model.arms import Arms
from rmab.planning import tables
from rmab.policies.rules.index import IndexRule

__all__ = ["FIXED", "FIXED_BEST", "MYOPIC", "WHITTLE"]


def _constant(scores: Callable[[Arms], FloatArray]) -> Callable[[Arms, int], FloatArray]:
    """Return a table that does not depend on observations."""

    def known(arms: Arms, max_age: int) -> FloatArray:
        return np.repeat(scores(arms)[:, None], 1 + arms.passive.shape[1] * max_age, 1)

    return known


WHITTLE = IndexRule(
    tables.whittle_at, tables.fill_whittle, tables.whittle_table, statewise=True, name="whittle"
)
MYOPIC = IndexRule(
    tables.myopic, tables.fill_myopic, tables.myopic_table, statewise=True, name="myopic"
)
FIXED = IndexRule(tables.fixed, known=_constant(tables.fixed_scores), statewise=True)
FIXED_BEST = IndexRule(
    tables.fixed_best,
    tables.fill_fixed_best,
    _constant(tables.fixed_best_scores),
    statewise=True,
)
