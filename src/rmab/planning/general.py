"""What known dynamics are worth in every information state, for arms of any kind.

A table has the rows of `rmab.model.beliefs.information_states` with S the largest number of states:
never seen, (0, 1), ..., (0, max_age), (1, 1), ... An arm that is always seen has the index of
state s in the row of (s, 1). Rows that an arm does not have are 0 and never read.

    whittle_table      the closed form for channels, else `rmab.planning.index.indices`
    myopic_table       what a play pays now, less what leaving the arm alone pays: b . (r_1 - r_0)
    fixed_scores       the share of slots that an arm, always played, spends in its best state
    fixed_best_scores  what always playing an arm pays in the long run, less what never playing does

Before the first slot an arm was left alone for ever, so its law is mu, the resting law of P_0. In
the long run always playing it pays mu P_1* . r_1, never playing it mu . r_0, where P* is the Cesaro
limit of P.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.markov import limit, limiting_distribution
from rmab.model.arms import Arm, Arms
from rmab.model.information import expansion
from rmab.planning.channel.index import whittle_at
from rmab.planning.index.indices import whittle_indices
from rmab.planning.planners import index_table

__all__ = ["fixed_best_scores", "fixed_scores", "myopic_table", "played_law", "whittle_table"]

FloatArray = npt.NDArray[np.float64]


def whittle_table(arms: Arms, max_age: int) -> FloatArray:
    """The Whittle index under average reward in every row, (N, 1 + S max_age).

    An arm that is not indexable has the lowest subsidy from which on it is left alone.
    """
    if arms.are_channels:  # all at once
        return np.asarray(index_table(whittle_at, arms, max_age))
    return _stacked(arms, max_age, _whittle_rows)


def myopic_table(arms: Arms, max_age: int) -> FloatArray:
    """What a play pays now, less what no play pays, in every row, (N, 1 + S max_age): eq. (13).

    >>> arm = Arm([[0.9, 0.1], [0.3, 0.7]], reward_active=[0, 1], reward_passive=[0.5, 0])
    >>> myopic_table(Arms([arm]), max_age=2).round(3).tolist()
    [[-0.125, -0.35, -0.26, 0.55, 0.28]]
    """
    return _stacked(arms, max_age, _myopic_rows)


def played_law(arm: Arm) -> FloatArray:
    """The share of slots in each state if the arm is always played, (S,)."""
    return np.asarray(limiting_distribution(arm.passive) @ limit(arm.active))


def fixed_scores(arms: Arms) -> FloatArray:
    """The long-run chance of the state that pays most, under constant play, (N,); b0 for channels.

    Of states that pay alike the highest counts.
    """
    return np.array([played_law(arm)[_best_state(arm)] for arm in arms])


def fixed_best_scores(arms: Arms) -> FloatArray:
    """What always playing pays in the long run, less what never playing does, (N,)."""
    return np.array(
        [
            played_law(arm) @ arm.reward_active
            - limiting_distribution(arm.passive) @ arm.reward_passive
            for arm in arms
        ]
    )


def _best_state(arm: Arm) -> int:
    return arm.states - 1 - int(np.argmax(arm.reward_active[::-1]))


def _stacked(arms: Arms, max_age: int, rows_of: Callable[[Arm, int], FloatArray]) -> FloatArray:
    """The rows of each arm, as many as it has, in one table."""
    if max_age < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
    table = np.zeros((len(arms), 1 + int(arms.sizes.max()) * max_age))
    for arm, line in zip(arms, table, strict=True):
        rows = rows_of(arm, max_age)
        line[: rows.size] = rows
    return table


def _whittle_rows(arm: Arm, max_age: int) -> FloatArray:
    """(1 + S_n max_age,)"""
    alone = Arms([arm])
    if alone.are_channels:
        return np.asarray(index_table(whittle_at, alone, max_age)[0])
    if arm.observed == "always":
        return _by_state(whittle_indices(arm).index, max_age)
    found = whittle_indices(arm, max_age=max_age)
    assert found.never_seen is not None  # as the arm is seen only when played
    return np.append(found.never_seen, found.index)


def _myopic_rows(arm: Arm, max_age: int) -> FloatArray:
    """(1 + S_n max_age,)"""
    if arm.observed == "always":
        return _by_state(arm.reward_active - arm.reward_passive, max_age)
    chain = expansion(arm, max_age)
    return np.asarray(chain.reward_active - chain.reward_passive)


def _by_state(index: FloatArray, max_age: int) -> FloatArray:
    """An index for each state (S_n,) in the rows of age 1, (1 + S_n max_age,)."""
    rows = np.zeros(1 + index.size * max_age)
    rows[1::max_age] = index
    return rows
