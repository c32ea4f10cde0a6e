"""Where the ages of arms end, and how large their joint chain is: known before it is built.

J_n, the cap of arm n, is the least age from which on every belief that is replaced by another is
within a `tolerance` of it, in total variation. Past its cap the age of an arm falls back by
`wraps[n]` slots; a wrap of 0 stands for never seen again. Beliefs of arms whose passive chain
forgets tend to that of never seen; those of other arms come to repeat with its period.

In every slot after the first exactly K arms were just played, and those of them that are seen only
when played have age 1. So the joint states number at most

    (product of S_n over arms always seen) x (sum over j of the coefficient of z^j in
        prod over the others of (S_n z + u_n)),     K - (arms always seen) <= j <= K,

where u_n counts the rows of an arm that was not just played; plus those before the first slot. With
at most b_n rows to go to when left alone and c_n when played, the transitions from a state number
at most the coefficient of z^K in prod_n (b_n + c_n z).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.markov import forgets, limit, period
from rmab.model.arms import Arm, Arms
from rmab.model.information import settled_age

__all__ = [
    "MAX_CAP",
    "Ages",
    "count_outcomes",
    "count_states",
    "count_transitions",
    "kept_ages",
    "merged_ages",
    "rows_of_arms",
    "table_size",
]

IntArray = npt.NDArray[np.int64]

MAX_CAP = 5_000  # an arm that takes longer to forget makes a chain that takes too long to settle


class Ages(NamedTuple):
    """Caps and wraps of the arms, (N,); 0 for arms that are always seen."""

    caps: IntArray
    wraps: IntArray

    def at_least(self, age: int) -> Ages:
        """No cap below an age."""
        return self._replace(caps=np.where(self.caps > 0, np.maximum(self.caps, age), 0))


def merged_ages(arms: Arms, tolerance: float) -> Ages:
    """The fewest rows: past its cap an arm that forgets counts as never seen."""
    return _ages(arms, tolerance, _cycle)


def kept_ages(arms: Arms, tolerance: float) -> Ages:
    """Past its cap an arm that forgets stays there, on its side of the limit: an index that tends
    to that of a rival from below, say, must not be taken for equal."""
    return _ages(arms, tolerance, lambda arm: _cycle(arm) or 1 + _swings(arm))


def _ages(arms: Arms, tolerance: float, wrap_of: Callable[[Arm], int]) -> Ages:
    hidden = [arm.observed != "always" for arm in arms]
    wraps = [wrap_of(arm) if seldom else 0 for arm, seldom in zip(arms, hidden, strict=True)]
    caps = [
        _cap(arm, wrap, tolerance) if seldom else 0
        for arm, wrap, seldom in zip(arms, wraps, hidden, strict=True)
    ]
    return Ages(np.array(caps), np.array(wraps))


@lru_cache(maxsize=4096)
def _cycle(arm: Arm) -> int:
    """The period of the passive chain; 0 if it forgets."""
    return 0 if forgets(arm.passive) else period(arm.passive)


@lru_cache(maxsize=4096)
def _swings(arm: Arm) -> bool:
    """Whether the belief of an arm that forgets goes from side to side of its limit."""
    eigenvalues = np.linalg.eigvals(arm.passive)
    second = eigenvalues[np.argsort(-np.abs(eigenvalues))[1]]
    return bool(second.real < -1e-9 and second.imag == 0)


@lru_cache(maxsize=4096)
def _cap(arm: Arm, wrap: int, tolerance: float) -> int:
    """J: what ages past it fall back to is settled; MAX_CAP + 1 or more if that takes too long."""
    if arm.states > 2 and wrap > 0:  # two beliefs near one limit, perhaps on either side of it
        tolerance /= 2
    age = settled_age(arm, tolerance, MAX_CAP + 1)
    if age == wrap:  # as long as a period, or just that: is it settled at age 1 already?
        away = np.eye(arm.states) - limit(np.linalg.matrix_power(arm.passive, wrap))
        if float(np.abs(arm.active @ away).sum(1).max()) / 2 <= tolerance:
            return age
    return int(age + max(wrap - 1, 0))


def table_size(arms: Arms, ages: Ages) -> int:
    """The number of joint codes."""
    return math.prod(rows_of_arms(arms, ages).tolist())


def count_states(arms: Arms, ages: Ages, plays: int) -> int:
    """At most so many joint states are reachable; see the module."""
    ways = [1] + [0] * plays  # by how many arms have age 1
    seen = math.prod(arm.states for arm in arms if arm.observed == "always")
    for arm, cap, wrap in zip(arms, ages.caps.tolist(), ages.wraps.tolist(), strict=True):
        if arm.observed != "always":
            # Never seen, or of age 2..J; of age 1 too if J falls back to it.
            aged = 1 + arm.states * (cap - 1 + (cap == wrap))
            ways = _times(ways, aged, arm.states)
    fewest = plays - arms.observed.count("always")
    return seen * (sum(ways[max(fewest, 0) :]) + 1)


def count_transitions(arms: Arms, plays: int) -> int:
    """At most so many transitions leave a joint state, all choices of K arms together."""
    ways = [1] + [0] * plays
    for arm in arms:
        ways = _times(ways, *_widths(arm))
    return ways[plays]


def count_outcomes(arms: Arms, plays: int) -> int:
    """At most so many transitions leave a joint state under one policy."""
    seen = math.prod(max(_widths(arm)) for arm in arms if arm.observed == "always")
    seldom = sorted(arm.states for arm in arms if arm.observed != "always")
    return seen * math.prod(seldom[-plays:])


def _times(ways: list[int], stay: int, play: int) -> list[int]:
    """A polynomial times (stay + play z), up to its degree."""
    return [stay * w + play * v for w, v in zip(ways, [0, *ways[:-1]], strict=True)]


def _widths(arm: Arm) -> tuple[int, int]:
    """To how many rows an arm may go from one row, left alone and played."""
    if arm.observed != "always":
        return 1, arm.states
    widest = [int(np.count_nonzero(moves, axis=1).max()) for moves in (arm.passive, arm.active)]
    return widest[0], widest[1]


def rows_of_arms(arms: Arms, ages: Ages) -> IntArray:
    """The number of rows of each arm, (N,)."""
    return np.where(ages.caps > 0, 1 + arms.sizes * ages.caps, arms.sizes)
