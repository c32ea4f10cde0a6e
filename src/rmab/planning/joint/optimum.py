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

plus tolerance times the rewards of unplayed arms: `Optimum.error`. The tolerance is the finest that
fits, 1e-2 the coarsest that is tried. Arms that never forget may need no tolerance: a channel
that never changes and one that changes in every slot are exact with caps 1 and 2.

Arms start as if never played before. The equation is solved by
`rmab.planning.joint.average_reward`, also where g differs between states: observations of an arm
that never forgets hold for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.arrays import Array, Bool, BoolArray, Int, IntArray
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
    """Optimal average reward per slot, and an optimal choice in each reachable state.

    value: g from the start; error: bound on the effect of the age caps; span: of h over the
    reachable states, or within end components where g differs between states (the error then leaves
    out how far the caps move the chance of ending up in each); states: number R of reachable
    states; tolerance: see the module; layout, size: of the joint codes; subsets: the K-subsets in
    lexicographic order; codes: reachable joint codes, sorted; choices: lowest of the best rows of
    `subsets`.
    """

    value: float
    error: float
    span: float
    states: int
    tolerance: float
    layout: Layout
    size: int
    subsets: Bool[BoolArray, "A N"]
    codes: Int[IntArray, " R"]
    choices: Int[IntArray, " R"]

    @cached_property
    def actions(self) -> npt.NDArray[np.signedinteger[Any]]:
        """Row of `subsets` to play by joint code, (size,), -1 if unreachable."""
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
        """Return joint codes (...) of information states (N, ...): see `joint_code`."""
        return joint_code(last_seen, age, self.layout)


def optimal(arms: Arms, plays: int, *, max_states: int = _MAX_STATES) -> Optimum:
    """Compute the optimum over all policies that know the dynamics.

    Raises TooLargeError where more than max_states joint states may be reachable.
    """
    return solve_optimum(arms, plays, max_states=max_states)


def solve_optimum(
    arms: Arms, plays: int, *, max_states: int = _MAX_STATES, max_sweeps: int = MAX_SWEEPS
) -> Optimum:
    """Compute `optimal` in at most max_sweeps of value iteration, or raise ConvergenceError."""
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
    """Return the finest tolerance that fits, up to _TABLE_TOLERANCE so that a table fits."""
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
    """Return the largest change of the optimum if beliefs are wrong by 1 in total variation."""
    hidden = [arm for arm in arms if arm.observed != "always"]
    if not hidden:
        return 0.0
    played = max(float(np.ptp(arm.reward_active)) for arm in hidden) + span
    alone = max(float(np.ptp(arm.reward_passive)) for arm in hidden)
    return min(plays, len(hidden)) * played + len(hidden) * alone
