"""Exact values with known dynamics: the joint chain of information states (Section II).

With known dynamics agents do not need each other, so one agent is looked at: it plays K of N arms
in each slot, sees some of them always and the others only when it plays them. The belief MDP of the
paper's Section II is then a countable chain. Arm n is in one row x_n: its state, if that is always
seen, else its information state, never seen or (last seen s, age k), with belief

    b(s, k) = P_1[s] P_0^(k-1);     channels: b0 + memory^k (s - b0).

A play pays b . r_1, shows s' and leads to (s', 1); an arm left alone pays b . r_0 and ages by one
slot. With r(x, A) the expected reward of playing the K-subset A, the optimal average reward solves

    g + h(x) = max over K-subsets A of  r(x, A) + E[h(x') | x, A].

Age caps make the chain finite (`rmab.planning.exact.ages`): every belief that is replaced is within
`tolerance` of the belief that replaces it, so

    |g - true g| <= tolerance x K x (largest difference of rewards + span of h),

plus tolerance times what unplayed arms pay; `Optimum.error` reports it. The tolerance is the finest
of TOLERANCES (`rmab.planning.exact.policies`) that fits. On the paper's arms the change of g is far
below the bound:

    tolerance   1e-1     3e-2     1e-2     1e-3
    K = 1       1e-3     2e-4     2e-5     3e-7
    K = 2       4e-4     6e-5     1e-5     3e-7

and 1e-2 is the coarsest that is tried. Arms that never forget may need no tolerance: a channel that
never changes and one that changes in every slot are exact with caps 1 and 2.

Before the first slot all arms were left alone for ever: `rmab.planning.exact.chain.start_law`. The
equation is solved by `rmab.planning.exact.gains`, which also knows what to do where g is not the
same from all states: what is learnt about an arm that never forgets holds for ever.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.errors import ConvergenceError, TooLargeError
from rmab.linalg import Array
from rmab.markov import limit, limiting_distribution
from rmab.model.arms import Arms
from rmab.planning.exact.ages import (
    MAX_CAP,
    count_states,
    count_transitions,
    merged_ages,
    table_size,
)
from rmab.planning.exact.chain import (
    Layout,
    explore,
    joint_chain,
    joint_code,
    start_law,
    transitions,
)
from rmab.planning.exact.gains import optimal_gain
from rmab.planning.exact.policies import (
    MAX_KEYS,
    MAX_TRANSITIONS,
    TOLERANCES,
    choice_value,
    lookahead_value,
    policy_value,
    readable,
    refuse_slow,
    rounded,
    spread,
)
from rmab.planning.general import (
    fixed_best_scores,
    fixed_scores,
    myopic_table,
    played_law,
    whittle_table,
)
from rmab.policies.lookahead import DEPTH

__all__ = [
    "KNOWN",
    "KnownValues",
    "Layout",
    "Optimum",
    "choice_value",
    "fixed_value",
    "joint_code",
    "known_values",
    "lookahead_value",
    "optimal",
    "policy_value",
    "random_value",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

KNOWN = ("optimum", "whittle", "myopic", "lookahead", "random", "fixed", "fixed-best")
MAX_STATES = 1_000_000  # of the optimum: some ten seconds
MAX_CODES = 2**25  # entries of a dense action table
TABLE_TOLERANCE = 1e-4


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
        if self.size > MAX_CODES:
            raise TooLargeError(
                f"an action table of {readable(self.size)} joint codes; the limit is {MAX_CODES:,}",
                states=self.size,
            )
        table = np.full(self.size, -1, np.min_scalar_type(-len(self.subsets)))
        table[self.codes] = self.choices
        return table

    def code(self, last_seen: Array, age: Array) -> Array:
        """Joint codes (...) of information states (N, ...): see `joint_code`."""
        return joint_code(last_seen, age, self.layout)


@dataclass(frozen=True)
class KnownValues:
    """Average reward per slot with known dynamics, by policy, in the order of KNOWN.

    Where a value is None, `reasons` tells why under the same key.
    """

    values: dict[str, float | None]
    reasons: dict[str, str]


def fixed_value(arms: Arms, plays: int, scores: npt.ArrayLike) -> float:
    """Average reward of playing the K arms of largest score for ever; ties to the lower arm."""
    arms.check_plays(plays)
    best = np.argsort(-rounded(np.asarray(scores, np.float64)), kind="stable")[:plays]
    return float(
        sum(
            played_law(arm) @ arm.reward_active
            if n in best
            else limiting_distribution(arm.passive) @ arm.reward_passive
            for n, arm in enumerate(arms)
        )
    )


def random_value(arms: Arms, plays: int) -> float:
    """Average reward of playing K arms drawn at random in each slot.

    To itself each arm is played with chance K / N, whatever its state and its past.
    """
    arms.check_plays(plays)
    share = plays / len(arms)
    return float(
        sum(
            limiting_distribution(arm.passive)
            @ limit(share * arm.active + (1 - share) * arm.passive)
            @ (share * arm.reward_active + (1 - share) * arm.reward_passive)
            for arm in arms
        )
    )


def optimal(arms: Arms, plays: int, *, max_states: int = MAX_STATES) -> Optimum:
    """The optimum over all policies that know the dynamics."""
    arms.check_plays(plays)
    n_arms = len(arms)
    tolerance = _finest_tolerance(arms, plays, max_states)
    ages = merged_ages(arms, tolerance)
    chain = joint_chain(arms, ages)
    subsets = np.array(list(combinations(range(n_arms), plays)))  # (A, K)
    first, chances = start_law(chain, arms)
    codes = explore(chain, first, lambda _: subsets, max_states)
    moves, rewards = zip(*(transitions(chain, codes, subset) for subset in subsets), strict=True)
    best = optimal_gain(moves, rewards, spread(codes, first, chances))
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


def known_values(arms: Arms, plays: int, depth: int = DEPTH) -> KnownValues:
    """What each policy of KNOWN earns with known dynamics, exactly, where it can be computed.

    depth: slots that "lookahead" looks ahead.
    """
    arms.check_plays(plays)
    if plays == len(arms):  # there is nothing to choose, whatever the number of arms
        return KnownValues(dict.fromkeys(KNOWN, random_value(arms, plays)), {})
    compute: dict[str, Callable[[], float]] = {
        "optimum": lambda: optimal(arms, plays).value,
        "whittle": lambda: policy_value(arms, plays, partial(whittle_table, arms)),
        "myopic": lambda: policy_value(arms, plays, partial(myopic_table, arms)),
        "lookahead": lambda: lookahead_value(arms, plays, depth),
        "random": lambda: random_value(arms, plays),
        "fixed": lambda: fixed_value(arms, plays, fixed_scores(arms)),
        "fixed-best": lambda: fixed_value(arms, plays, fixed_best_scores(arms)),
    }
    values: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for name in KNOWN:
        try:
            values[name] = compute[name]()
        except (TooLargeError, ConvergenceError) as error:
            values[name] = None
            reasons[name] = str(error)
    return KnownValues(values, reasons)


def _finest_tolerance(arms: Arms, plays: int, max_states: int) -> float:
    """The finest tolerance that fits; an action table may coarsen it to TABLE_TOLERANCE."""
    branches = count_transitions(arms, plays)
    most = min(max_states, MAX_TRANSITIONS // branches)
    levels = range(len(TOLERANCES))

    def fits(level: int) -> bool:
        ages = merged_ages(arms, TOLERANCES[level])
        return (
            ages.caps.max() <= MAX_CAP
            and count_states(arms, ages, plays) <= most
            and table_size(arms, ages) < MAX_KEYS
        )

    def tabled(level: int) -> bool:
        return table_size(arms, merged_ages(arms, TOLERANCES[level])) <= MAX_CODES

    if fits(levels[-1]):
        finest = bisect_left(levels, True, key=fits)
        with_table = bisect_left(levels, True, lo=finest, key=tabled)
        if with_table < len(levels) and TOLERANCES[with_table] <= TABLE_TOLERANCE:
            return TOLERANCES[with_table]
        return TOLERANCES[finest]
    coarsest = merged_ages(arms, TOLERANCES[-1])
    refuse_slow(coarsest)
    count = count_states(arms, coarsest, plays)
    raise TooLargeError(
        f"{len(arms)} arms, {plays} plays: {readable(count)} joint information states "
        f"of {readable(branches)} transitions each, with beliefs rounded at {TOLERANCES[-1]:g}; "
        f"the limit is {max_states:,} states and {MAX_TRANSITIONS:,} transitions",
        states=count,
    )


def _sensitivity(arms: Arms, plays: int, span: float) -> float:
    """By how much beliefs that are wrong by 1 in total variation can change the optimum."""
    seldom = [arm for arm in arms if arm.observed != "always"]
    if not seldom:
        return 0.0
    played = max(float(np.ptp(arm.reward_active)) for arm in seldom) + span
    alone = max(float(np.ptp(arm.reward_passive)) for arm in seldom)
    return min(plays, len(seldom)) * played + len(seldom) * alone
