"""The Whittle indices of an arm as `rmab index` gives them: plain values, ready for JSON."""

from __future__ import annotations

import math
from typing import Any

from rmab.model.arms import Arm, Arms
from rmab.planning.index.indices import Indices, whittle_indices
from rmab.planning.tables import index_table, whittle_at

__all__ = ["arm_indices"]


def arm_indices(arm: Arm, max_age: int, discount: float | None = None) -> dict[str, Any]:
    """indexable, index (and never_seen), and where not indexable the reason and the witness.

    An arm that is always seen has one index for each state, one seen only when played a list by age
    for each state last seen. An infinite index is the text "inf" or "-inf".

    >>> arm_indices(Arm([[0.8, 0.2], [0.2, 0.8]], reward=[0, 1]), max_age=1)["index"]
    [[0.2], [0.8]]
    """
    found = _indices(arm, max_age, discount)
    answer: dict[str, Any] = {"indexable": found.indexable}
    if found.never_seen is not None:
        answer["never_seen"] = _plain(found.never_seen)
    answer["index"] = _plain(found.index.tolist())
    if found.indexable is not True:
        answer["reason"] = found.reason
    if found.witness is not None:
        state, low, high = found.witness
        place: dict[str, int | None] = (
            {"last_seen": state[0], "age": state[1]}
            if isinstance(state, tuple)
            else {"state": state}
        )
        answer["witness"] = {**place, "low": low, "high": high}
    return answer


def _indices(arm: Arm, max_age: int, discount: float | None) -> Indices:
    """By the solver, but of a channel under average reward in closed form, which is proven."""
    alone = Arms([arm])
    if arm.observed == "always":
        return whittle_indices(arm, discount)
    if discount is not None or not alone.are_channels:
        return whittle_indices(arm, discount, max_age)
    row = index_table(whittle_at, alone, max_age)[0]
    frozen = alone.p01[0] == 0 and alone.p11[0] == 1 and alone.reward[0] > 0
    reason = "depends on the starting class: the arm never changes" if frozen else ""
    verdict = None if frozen else True
    return Indices(row[1:].reshape(2, max_age), verdict, reason, None, float(row[0]))


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if math.isfinite(value) else str(value)
