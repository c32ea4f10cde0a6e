"""The optimum with known dynamics: the joint chain of information states (Section II).

With known dynamics agents do not need each other, so one agent is considered: it plays K of N arms
in each slot, observes some of them always and the others only when it plays them. The belief MDP of
the paper's Section II is then a countable chain. Arm n is in one row x_n: its state, if that is
fully observed, else its information state, never observed or (last observed s, age k), with belief

    b(s, k) = P_1[s] P_0^(k-1);     channels: b0 + memory^k (s - b0).

A play pays b . r_1, shows s' and leads to (s', 1); an arm left alone pays b . r_0 and ages by one
slot. With r(x, A) the expected reward of playing the K-subset A, the optimal average reward solves

    g + h(x) = max over K-subsets A of  r(x, A) + E[h(x') | x, A].

Age caps make the chain finite (`rmab.planning.joint.chain`): every belief that is replaced is
within `tolerance` of the belief that replaces it, so

    |g - true g| <= tolerance x K x (largest difference of rewards + span of h),

plus tolerance times what unplayed arms pay; `Optimum.error` reports it. The tolerance is the finest
that fits, 1e-2 the coarsest that is tried. Arms that never forget may need no tolerance: a channel
that never changes and one that changes in every slot are exact with caps 1 and 2.

Before the first slot all arms were left alone for ever. The equation is solved by
`rmab.planning.joint.average_reward`, which also knows what to do where g is not the same from all
states: what is learnt about an arm that never forgets holds for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.arrays import Array, IntArray
from rmab.errors import TooLargeError
from rmab.model.arms import Arms
from rmab.planning.joint.average_reward import MAX_SWEEPS, optimal_gain
from rmab.planning.joint.chain import (
    MAX_CAP,
    MAX_CODES,
    MAX_TRANSITIONS,
    TOLERANCES,
    Layout,
    Start,
    check_caps,
    count_states,
    count_transitions,
    explore,
    joint_chain,
    joint_code,
    merged_ages,
    readable,
    table_size,
    transitions,
)

__all__ = ["Optimum", "optimal", "solve_optimum"]


_MAX_STATES = 1_000_000
_MAX_TABLE_CODES = 2**25  # entries of a dense action table
_TABLE_TOLERANCE = 1e-4  # the coarsest that is taken so that an action table fits


@dataclass(frozen=True, eq=False)
class Optimum:
    """The optimal average reward per slot, and what to play for it.

    value: g from the start; error: how far the age caps can have moved it; span: of h over the
    reachable states, within end components where g is not the same from all (the error then leaves
    out how far the caps move the chance of ending up in each); states: their number R; tolerance:
    see the module; layout: of the joint codes; size: their number; subsets: (A, N), the K-subsets
    in lexicographic order of their arms; codes: (R,) the reachable joint codes, sorted; choices:
    (R,) the row of `subsets` to play there, the lowest among equally good ones.
    """

    value: float
    error: float
    span: float
    states: int
    tolerance: float
    layout: Layout
    size: int
    subsets: npt.NDArray[np.bool_]
    codes: IntArray
    choices: IntArray

    @cached_property
    def actions(self) -> npt.NDArray[np.signedinteger[Any]]:
        """(size,) the row of `subsets` to play by joint code, -1 if unreachable."""
        if self.size > _MAX_TABLE_CODES:
            raise TooLargeError(
                f"an action table of {readable(self.size)} joint codes; "
                f"the limit is {_MAX_TABLE_CODES:,}",
                states=self.size,
            )
        table = np.full(self.size, -1, np.min_scalar_type(-len(self.subsets)))
        table[self.codes] = self.choices
        return table

    def code(self, last_seen: Array, age: Array) -> Array:
        """Joint codes (...) of information states (N, ...): see `joint_code`."""
        return joint_code(last_seen, age, self.layout)


def optimal(arms: Arms, plays: int, *, max_states: int = _MAX_STATES) -> Optimum:
    """The optimum over all policies that know the dynamics.

    TooLargeError where more than max_states joint states may be reachable at every tolerance.
    """
    return solve_optimum(arms, plays, max_states=max_states)


def solve_optimum(
    arms: Arms, plays: int, *, max_states: int = _MAX_STATES, max_sweeps: int = MAX_SWEEPS
) -> Optimum:
    """As `optimal`, with the limit of value iteration too: ConvergenceError past max_sweeps."""
    arms.check_plays(plays)
    n_arms = len(arms)
    tolerance = _finest_tolerance(arms, plays, max_states)
    ages = merged_ages(arms, tolerance)
    chain = joint_chain(arms, ages)
    subsets = np.array(list(combinations(range(n_arms), plays)))  # (A, K)
    start = Start.of(chain, arms)
    codes = explore(chain, start.codes, lambda _: subsets, max_states)
    moves, rewards = zip(*(transitions(chain, codes, subset) for subset in subsets), strict=True)
    best = optimal_gain(moves, rewards, start.over(codes), max_sweeps=max_sweeps)
    return Optimum(
        value=best.value,
        error=tolerance * _sensitivity(arms, plays, best.span),
        span=best.span,
        states=codes.size,
        tolerance=tolerance,
        layout=chain.layout,
        size=table_size(arms, ages),
        subsets=np.any(subsets[:, :, None] == np.arange(n_arms), axis=1),
        codes=codes,
        choices=best.choices,
    )


def _finest_tolerance(arms: Arms, plays: int, max_states: int) -> float:
    """The finest tolerance that fits; an action table may coarsen it to _TABLE_TOLERANCE."""
    branches = count_transitions(arms, plays)
    most = min(max_states, MAX_TRANSITIONS // branches)
    levels = range(len(TOLERANCES))

    def fits(level: int) -> bool:
        ages = merged_ages(arms, TOLERANCES[level])
        return (
            ages.caps.max() <= MAX_CAP
            and count_states(arms, ages, plays) <= most
            and table_size(arms, ages) < MAX_CODES
        )

    def tabled(level: int) -> bool:
        return table_size(arms, merged_ages(arms, TOLERANCES[level])) <= _MAX_TABLE_CODES

    if fits(levels[-1]):
        finest = bisect_left(levels, True, key=fits)
        with_table = bisect_left(levels, True, lo=finest, key=tabled)
        if with_table < len(levels) and TOLERANCES[with_table] <= _TABLE_TOLERANCE:
            return TOLERANCES[with_table]
        return TOLERANCES[finest]
    coarsest = merged_ages(arms, TOLERANCES[-1])
    check_caps(coarsest)
    count = count_states(arms, coarsest, plays)
    raise TooLargeError(
        f"{len(arms)} arms, {plays} plays: {readable(count)} joint information states "
        f"of {readable(branches)} transitions each, with beliefs rounded at {TOLERANCES[-1]:g}; "
        f"the limit is {max_states:,} states and {MAX_TRANSITIONS:,} transitions",
        states=count,
    )


def _sensitivity(arms: Arms, plays: int, span: float) -> float:
    """By how much beliefs that are wrong by 1 in total variation can change the optimum."""
    hidden = [arm for arm in arms if arm.observed != "always"]
    if not hidden:
        return 0.0
    played = max(float(np.ptp(arm.reward_active)) for arm in hidden) + span
    alone = max(float(np.ptp(arm.reward_passive)) for arm in hidden)
    return min(plays, len(hidden)) * played + len(hidden) * alone
