"""Exact values with known dynamics: the joint chain of information states (Section II).

With known dynamics agents do not need each other, so one agent is looked at: it plays K of N arms
in each slot, sees some of them always and the others only when it plays them. The belief MDP of the
paper's Section II is then a countable chain. Arm n is in one row x_n: its state, if that is always
seen, else its information state, never seen or (last seen s, age k), with belief

    b(s, k) = P_1[s] P_0^(k-1);     channels: b0 + memory^k (s - b0).

A play pays b . r_1, shows s' and leads to (s', 1); an arm left alone pays b . r_0 and ages by one
slot. With r(x, A) the expected reward of playing the K-subset A, the optimal average reward solves

    g + h(x) = max over K-subsets A of  r(x, A) + E[h(x') | x, A].

Age caps make the chain finite (`rmab.planning.ages`): every belief that is replaced is within
`tolerance` of the belief that replaces it, so

    |g - true g| <= tolerance x K x (largest difference of rewards + span of h),

plus tolerance times what unplayed arms pay; `Optimum.error` reports it. The tolerance is the finest
of TOLERANCES that fits. On the paper's arms the change of g is far below the bound:

    tolerance   1e-1     3e-2     1e-2     1e-3
    K = 1       1e-3     2e-4     2e-5     3e-7
    K = 2       4e-4     6e-5     1e-5     3e-7

and 1e-2 is the coarsest that is tried. Arms that never forget may need no tolerance: a channel that
never changes and one that changes in every slot are exact with caps 1 and 2.

Before the first slot all arms were left alone for ever: `rmab.planning.joint_chain.start_law`. The
equation is solved by `rmab.planning.gains`, which also knows what to do where g is not the same
from all states: what is learnt about an arm that never forgets holds for ever.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.arms import Arms, Array
from rmab.errors import ConvergenceError, TooLargeError
from rmab.planning.ages import (
    MAX_CAP,
    Ages,
    count_outcomes,
    count_states,
    count_transitions,
    kept_ages,
    merged_ages,
    table_size,
)
from rmab.planning.chains import limit, resting_law
from rmab.planning.gains import chain_gain, optimal_gain
from rmab.planning.general import (
    fixed_best_scores,
    fixed_scores,
    myopic_table,
    played_law,
    whittle_table,
)
from rmab.planning.joint_chain import (
    JointChain,
    Layout,
    explore,
    joint_chain,
    joint_code,
    joint_rows,
    start_law,
    transitions,
)

__all__ = [
    "KNOWN",
    "KnownValues",
    "Layout",
    "Optimum",
    "fixed_value",
    "joint_code",
    "known_values",
    "optimal",
    "policy_value",
    "random_value",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
IndexTable = Callable[[int], npt.ArrayLike]

KNOWN = ("optimum", "whittle", "myopic", "random", "fixed", "fixed-best")
# 1e-9, 3e-9, ... 1e-2
TOLERANCES: tuple[float, ...] = tuple(10.0 ** -(half / 2) for half in range(18, 3, -1))
MAX_STATES = 1_000_000  # of the optimum: some ten seconds
MAX_POLICY_STATES = 300_000  # of one policy's chain: a few seconds
MAX_CODES = 2**25  # entries of a dense action table
MAX_KEYS = 2**62  # joint codes that fit an integer
TABLE_TOLERANCE = 1e-4
MAX_TRANSITIONS = 50_000_000  # 12 bytes each
TIE_DIGITS = 12  # indices and scores that agree to so many digits tie, as equal arms must


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
                f"an action table of {_readable(self.size)} joint codes; "
                f"the limit is {MAX_CODES:,}",
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
    best = np.argsort(-_rounded(np.asarray(scores, np.float64)), kind="stable")[:plays]
    return float(
        sum(
            played_law(arm) @ arm.reward_active
            if n in best
            else resting_law(arm.passive) @ arm.reward_passive
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
            resting_law(arm.passive)
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
    best = optimal_gain(moves, rewards, _spread(codes, first, chances))
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


def policy_value(
    arms: Arms, plays: int, table: IndexTable, *, max_states: int = MAX_POLICY_STATES
) -> float:
    """Average reward from the start of playing the K arms of largest index.

    table: from a highest age to the index of every information state up to it, (N, 1 + S max_age),
    rows as in `information_states` with S the largest number of states; an arm that is always seen
    has the index of state s in the row of (s, 1). Past the age at which beliefs settle the index
    counts as settled too. Ties go to the lower arm. The chain holds only what the policy can reach,
    so it is exact for many arms whenever the policy keeps few of them in play.
    """
    arms.check_plays(plays)
    outcomes = count_outcomes(arms, plays)
    limit = min(max_states, MAX_TRANSITIONS // outcomes)
    seen = math.prod(arm.states for arm in arms if arm.observed == "always")
    # A policy may count slots (round robin): no cap below the longest turn.
    turn = -(-len(arms) // plays) + 2
    oldest = min(int(kept_ages(arms, TOLERANCES[0]).at_least(turn).caps.max()), MAX_CAP)
    index = cache(lambda: np.asarray(table(max(oldest, 1)), np.float64))  # for all tolerances
    found: dict[int, tuple[JointChain, IntArray, IntArray, FloatArray]] = {}

    def fits(level: int) -> bool:
        ages = kept_ages(arms, TOLERANCES[level]).at_least(turn)
        if table_size(arms, ages) >= MAX_KEYS or ages.caps.max() > MAX_CAP:
            return False
        if max(outcomes, seen) > limit:
            return False
        chain = joint_chain(arms, ages)
        rank = _rounded(_index_rows(index(), arms, ages))  # (rows,)
        first, chances = start_law(chain, arms)

        def best(rows: IntArray) -> list[IntArray]:
            return [np.argsort(-rank[rows], axis=1, kind="stable")[:, :plays]]

        try:
            codes = explore(chain, first, best, limit)
        except TooLargeError:
            return False
        chosen = best(joint_rows(chain, codes))[0]
        found[level] = chain, codes, chosen, _spread(codes, first, chances)
        return True

    # How many states a policy reaches shows on the way only; finer tolerances reach more.
    finest = bisect_left(range(len(TOLERANCES)), True, key=fits)
    if finest in found:
        chain, codes, chosen, start = found[finest]
        return chain_gain(*transitions(chain, codes, chosen), start)
    coarsest = kept_ages(arms, TOLERANCES[-1]).at_least(turn)
    _refuse_slow(coarsest)
    size = table_size(arms, coarsest)
    if size >= MAX_KEYS:
        count, what = size, f"{_readable(size)} joint codes"
    else:
        count = max(limit + 1, outcomes, seen)
        what = f"the policy reaches at least {_readable(count)} joint information states"
    raise TooLargeError(
        f"{len(arms)} arms, {plays} plays: {what}, with {_readable(outcomes)} transitions each and "
        f"beliefs rounded at {TOLERANCES[-1]:g}; the limit is {MAX_KEYS:.0e} codes, "
        f"{max_states:,} states and {MAX_TRANSITIONS:,} transitions",
        states=count,
    )


def known_values(arms: Arms, plays: int) -> KnownValues:
    """What each policy of KNOWN earns with known dynamics, exactly, where it can be computed."""
    arms.check_plays(plays)
    if plays == len(arms):  # there is nothing to choose, whatever the number of arms
        return KnownValues(dict.fromkeys(KNOWN, random_value(arms, plays)), {})
    compute: dict[str, Callable[[], float]] = {
        "optimum": lambda: optimal(arms, plays).value,
        "whittle": lambda: policy_value(arms, plays, partial(whittle_table, arms)),
        "myopic": lambda: policy_value(arms, plays, partial(myopic_table, arms)),
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
    _refuse_slow(coarsest)
    count = count_states(arms, coarsest, plays)
    raise TooLargeError(
        f"{len(arms)} arms, {plays} plays: {_readable(count)} joint information states "
        f"of {_readable(branches)} transitions each, with beliefs rounded at {TOLERANCES[-1]:g}; "
        f"the limit is {max_states:,} states and {MAX_TRANSITIONS:,} transitions",
        states=count,
    )


def _refuse_slow(coarsest: Ages) -> None:
    """Say so if an arm forgets too slowly, however coarse the tolerance."""
    slow = int(coarsest.caps.argmax())
    if coarsest.caps[slow] > MAX_CAP:
        raise TooLargeError(
            f"arm {slow + 1} takes more than {MAX_CAP:,} slots to forget what was seen, with "
            f"beliefs rounded at {TOLERANCES[-1]:g}; that is the limit",
            states=int(coarsest.caps[slow]),
        )


def _readable(count: int) -> str:
    return f"{count:,}" if count < 10**12 else f"about 10^{math.log10(count):.0f}"


def _spread(codes: IntArray, first: IntArray, chances: FloatArray) -> FloatArray:
    """The start (R,) over the reachable codes (R,), from the codes before the first slot."""
    start = np.zeros(codes.size)
    start[np.searchsorted(codes, first)] = chances
    return start


def _sensitivity(arms: Arms, plays: int, span: float) -> float:
    """By how much beliefs that are wrong by 1 in total variation can change the optimum."""
    seldom = [arm for arm in arms if arm.observed != "always"]
    if not seldom:
        return 0.0
    played = max(float(np.ptp(arm.reward_active)) for arm in seldom) + span
    alone = max(float(np.ptp(arm.reward_passive)) for arm in seldom)
    return min(plays, len(seldom)) * played + len(seldom) * alone


def _index_rows(index: FloatArray, arms: Arms, ages: Ages) -> FloatArray:
    """The index in each row of the chain (rows,), from an index table (N, 1 + S max_age)."""
    max_age = (index.shape[1] - 1) // int(arms.sizes.max())
    rows = []
    for arm, line, cap in zip(arms, index, ages.caps.tolist(), strict=True):
        by_state = line[1 : 1 + arm.states * max_age].reshape(arm.states, max_age)
        rows.append(by_state[:, 0] if cap == 0 else np.append(line[0], by_state[:, :cap]))
    return np.concatenate(rows)


def _rounded(index: FloatArray) -> FloatArray:
    """Rounded so that equal arms tie."""
    scale = float(np.max(np.abs(index), where=np.isfinite(index), initial=0))
    return np.round(index / (scale or 1.0), TIE_DIGITS)
