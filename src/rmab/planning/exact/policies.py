"""The exact value of a policy that knows the dynamics: the chain of joint information states it
reaches.

The chain is that of `rmab.planning.exact.optimum`, restricted to what one policy can meet from the
start. How many states that is shows only on the way, so it is explored: from each joint state the
policy chooses K arms, and every outcome of positive chance is a state to come. Ages end where
beliefs are within a tolerance of what replaces them, the finest of TOLERANCES whose chain fits the
limits.

    policy_value     the K arms of largest index
    lookahead_value  the arms that `rmab.policies.lookahead.choose` chooses
    choice_value     any function of the information states
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from rmab.errors import TooLargeError
from rmab.model.arms import Arms
from rmab.model.beliefs import NEVER, InformationStates
from rmab.planning.exact.ages import MAX_CAP, Ages, count_outcomes, kept_ages, table_size
from rmab.planning.exact.chain import (
    JointChain,
    explore,
    joint_chain,
    joint_rows,
    start_law,
    transitions,
)
from rmab.planning.exact.gains import chain_gain
from rmab.planning.lookahead.tables import known_view
from rmab.policies.lookahead import DEPTH, check_depth
from rmab.policies.lookahead import choose as look_ahead

__all__ = [
    "MAX_KEYS",
    "MAX_TRANSITIONS",
    "TOLERANCES",
    "Choice",
    "choice_value",
    "lookahead_value",
    "policy_value",
    "readable",
    "refuse_slow",
    "rounded",
    "spread",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
IndexTable = Callable[[int], npt.ArrayLike]
Choice = Callable[[InformationStates], IntArray]

# 1e-9, 3e-9, ... 1e-2
TOLERANCES: tuple[float, ...] = tuple(10.0 ** -(half / 2) for half in range(18, 3, -1))
MAX_POLICY_STATES = 300_000  # of one policy's chain: a few seconds
MAX_KEYS = 2**62  # joint codes that fit an integer
MAX_TRANSITIONS = 50_000_000  # 12 bytes each
TIE_DIGITS = 12  # indices and scores that agree to so many digits tie, as equal arms must


def policy_value(
    arms: Arms, plays: int, table: IndexTable, *, max_states: int = MAX_POLICY_STATES
) -> float:
    """Average reward from the start of playing the K arms of largest index.

    table: from a highest age to the index of every information state up to it, (N, 1 + S max_age),
    rows as in `information_states` with S the largest number of states; an arm that is always seen
    has the index of state s in the row of (s, 1). Past the age at which beliefs settle the index
    counts as settled too. Ties go to the lower arm.
    """
    arms.check_plays(plays)

    def choose(max_age: int) -> Choice:
        rank = rounded(np.asarray(table(max_age), np.float64))

        def largest(states: InformationStates) -> IntArray:
            row = np.where(states.age == NEVER, 0, states.age + max_age * states.last_seen)
            here = np.take_along_axis(rank, row, 1).T  # (X, N)
            return np.argsort(-here, axis=1, kind="stable")[:, :plays]

        return largest

    return choice_value(arms, plays, choose, max_states=max_states)


def choice_value(
    arms: Arms,
    plays: int,
    choose: Callable[[int], Choice],
    *,
    max_states: int = MAX_POLICY_STATES,
) -> float:
    """Average reward from the start of a policy that chooses by the joint information state.

    choose: from a highest age to a function of information states (N, X) up to it that gives the
    arms to play, (X, K); an arm that is always seen is in (state now, 1). The chain holds only what
    the policy can reach, so it is exact for many arms whenever the policy keeps few of them in
    play.
    """
    arms.check_plays(plays)
    outcomes = count_outcomes(arms, plays)
    limit = min(max_states, MAX_TRANSITIONS // outcomes)
    seen = math.prod(arm.states for arm in arms if arm.observed == "always")
    # A policy may count slots (round robin): no cap below the longest turn.
    turn = -(-len(arms) // plays) + 2
    oldest = min(int(kept_ages(arms, TOLERANCES[0]).at_least(turn).caps.max()), MAX_CAP)
    choice = cache(lambda: choose(max(oldest, 1)))  # for all tolerances
    found: dict[int, tuple[JointChain, IntArray, IntArray, FloatArray]] = {}

    def fits(level: int) -> bool:
        ages = kept_ages(arms, TOLERANCES[level]).at_least(turn)
        if table_size(arms, ages) >= MAX_KEYS or ages.caps.max() > MAX_CAP:
            return False
        if max(outcomes, seen) > limit:
            return False
        chain = joint_chain(arms, ages)
        first, chances = start_law(chain, arms)

        def best(rows: IntArray) -> list[IntArray]:
            return [choice()(_information(chain, rows))]

        try:
            codes = explore(chain, first, best, limit)
        except TooLargeError:
            return False
        chosen = best(joint_rows(chain, codes))[0]
        found[level] = chain, codes, chosen, spread(codes, first, chances)
        return True

    # How many states a policy reaches shows on the way only; finer tolerances reach more.
    finest = bisect_left(range(len(TOLERANCES)), True, key=fits)
    if finest in found:
        chain, codes, chosen, start = found[finest]
        return chain_gain(*transitions(chain, codes, chosen), start)
    coarsest = kept_ages(arms, TOLERANCES[-1]).at_least(turn)
    refuse_slow(coarsest)
    size = table_size(arms, coarsest)
    if size >= MAX_KEYS:
        count, what = size, f"{readable(size)} joint codes"
    else:
        count = max(limit + 1, outcomes, seen)
        what = f"the policy reaches at least {readable(count)} joint information states"
    raise TooLargeError(
        f"{len(arms)} arms, {plays} plays: {what}, with {readable(outcomes)} transitions each and "
        f"beliefs rounded at {TOLERANCES[-1]:g}; the limit is {MAX_KEYS:.0e} codes, "
        f"{max_states:,} states and {MAX_TRANSITIONS:,} transitions",
        states=count,
    )


def lookahead_value(
    arms: Arms, plays: int, depth: int = DEPTH, *, max_states: int = MAX_POLICY_STATES
) -> float:
    """Average reward from the start of looking `depth` slots ahead, see
    rmab.policies.lookahead."""
    arms.check_plays(plays)
    check_depth(arms.kinds, plays, depth)

    def choose(max_age: int) -> Choice:
        view = known_view(arms, plays, depth, max_age)

        def chosen(states: InformationStates) -> IntArray:
            played = look_ahead(view(states), plays)  # (N, X)
            return np.argsort(~played, axis=0, kind="stable")[:plays].T

        return chosen

    return choice_value(arms, plays, choose, max_states=max_states)


def refuse_slow(coarsest: Ages) -> None:
    """Say so if an arm forgets too slowly, however coarse the tolerance."""
    slow = int(coarsest.caps.argmax())
    if coarsest.caps[slow] > MAX_CAP:
        raise TooLargeError(
            f"arm {slow + 1} takes more than {MAX_CAP:,} slots to forget what was seen, with "
            f"beliefs rounded at {TOLERANCES[-1]:g}; that is the limit",
            states=int(coarsest.caps[slow]),
        )


def readable(count: int) -> str:
    return f"{count:,}" if count < 10**12 else f"about 10^{math.log10(count):.0f}"


def spread(codes: IntArray, first: IntArray, chances: FloatArray) -> FloatArray:
    """The start (R,) over the reachable codes (R,), from the codes before the first slot."""
    start = np.zeros(codes.size)
    start[np.searchsorted(codes, first)] = chances
    return start


def _information(chain: JointChain, rows: IntArray) -> InformationStates:
    """The information states (N, X) of table rows (X, N)."""
    digit = (rows - chain.offsets).T
    caps = chain.layout.caps[:, None]
    cap = np.maximum(caps, 1)
    seldom = InformationStates(np.maximum(digit - 1, 0) // cap, np.maximum(digit - 1, 0) % cap + 1)
    return InformationStates(
        np.where(caps == 0, digit, seldom.last_seen),
        np.where((caps > 0) & (digit == 0), NEVER, np.where(caps == 0, 1, seldom.age)),
    )


def rounded(index: FloatArray) -> FloatArray:
    """Rounded so that equal arms tie."""
    scale = float(np.max(np.abs(index), where=np.isfinite(index), initial=0))
    return np.round(index / (scale or 1.0), TIE_DIGITS)
