"""Exact values of policies that know the dynamics.

A policy that chooses by the joint information state makes a chain of the states it can meet from
the start, a part of the joint chain of `rmab.planning.joint.optimum`. Their number is not known
beforehand, so the chain is explored: from each joint state the policy chooses K arms, and every
outcome of positive chance is a next state. Ages end where beliefs are within a tolerance of their
replacements, the finest whose chain fits the limits.

    policy_value     the K arms of largest index
    lookahead_value  the arms that `rmab.policies.lookahead.choose` chooses
    choice_value     any function of the information states
    fixed_value      always the same K arms, without a chain
    random_value     K arms at random in each slot, without a chain
    known_values     all policies that know the dynamics, and the optimum
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.arrays import Float, FloatArray, Int, IntArray
from rmab.errors import ConvergenceError, TooLargeError
from rmab.markov import limit, limiting_distribution
from rmab.model.arms import Arms
from rmab.model.information import NEVER, InformationStates, row_of
from rmab.planning.joint.average_reward import MAX_SWEEPS, chain_gain
from rmab.planning.joint.chain import (
    MAX_CAP,
    MAX_CODES,
    MAX_TRANSITIONS,
    TOLERANCES,
    Ages,
    JointChain,
    Start,
    check_caps,
    count_outcomes,
    explore,
    fully_observed_states,
    joint_chain,
    joint_rows,
    kept_ages,
    readable,
    table_size,
    transitions,
)
from rmab.planning.joint.optimum import solve_optimum
from rmab.planning.lookahead.tables import known_lookahead
from rmab.planning.tables import (
    fixed_best_scores,
    fixed_scores,
    myopic_table,
    played_distribution,
    whittle_table,
)
from rmab.policies.constraint import Constraint
from rmab.policies.lookahead import DEPTH, check_depth
from rmab.policies.lookahead import choose as look_ahead

__all__ = [
    "KNOWN",
    "Choice",
    "KnownValues",
    "choice_value",
    "fixed_value",
    "known_values",
    "lookahead_value",
    "policy_value",
    "random_value",
]

IndexTable = Callable[[int], npt.ArrayLike]
Choice = Callable[[InformationStates], IntArray]

KNOWN = ("optimum", "whittle", "myopic", "lookahead", "random", "fixed", "fixed-best")
_MAX_STATES = 300_000  # states of one policy's chain
_TIE_DIGITS = 12  # indices and scores that agree to this many digits tie, as equal arms must


# ------------------------------------------------------------------------------------- all of them


@dataclass(frozen=True)
class KnownValues:
    """Average reward per slot with known dynamics, by policy, in the order of KNOWN.

    Where a value is None, `reasons` has the reason under the same key.
    """

    values: dict[str, float | None]
    reasons: dict[str, str]


def known_values(
    arms: Arms,
    plays: int,
    depth: int = DEPTH,
    *,
    max_sweeps: int = MAX_SWEEPS,
    progress: Callable[[int], None] | None = None,
) -> KnownValues:
    """Compute the value of each policy of KNOWN with known dynamics, where that is possible.

    depth: slots that "lookahead" looks ahead; max_sweeps: limit of value iteration; progress:
    called with 1 after each value.
    """
    arms.check_plays(plays)
    if plays == len(arms):  # there is nothing to choose, whatever the number of arms
        return KnownValues(dict.fromkeys(KNOWN, random_value(arms, plays)), {})
    indexed = partial(policy_value, arms, plays, max_sweeps=max_sweeps)
    compute: dict[str, Callable[[], float]] = {
        "optimum": lambda: solve_optimum(arms, plays, max_sweeps=max_sweeps).value,
        "whittle": lambda: indexed(partial(whittle_table, arms)),
        "myopic": lambda: indexed(partial(myopic_table, arms)),
        "lookahead": lambda: lookahead_value(arms, plays, depth, max_sweeps=max_sweeps),
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
        if progress is not None:
            progress(1)
    return KnownValues(values, reasons)


# ------------------------------------------------------------------- policies that observe nothing


def fixed_value(arms: Arms, plays: int, scores: npt.ArrayLike) -> float:
    """Return the average reward of always playing the K arms of largest score, then lower arms."""
    arms.check_plays(plays)
    best = Constraint(plays).ranked(_rounded(np.asarray(scores, np.float64)))
    return float(
        sum(
            played_distribution(arm) @ arm.reward_active
            if n in best
            else limiting_distribution(arm.passive) @ arm.reward_passive
            for n, arm in enumerate(arms)
        )
    )


def random_value(arms: Arms, plays: int) -> float:
    """Return the average reward of playing K arms drawn at random in each slot.

    Each arm by itself is played with chance K / N, independently of its state and past.
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


# ------------------------------------------------------------- policies by their information states


def policy_value(
    arms: Arms,
    plays: int,
    table: IndexTable,
    *,
    max_states: int = _MAX_STATES,
    max_sweeps: int = MAX_SWEEPS,
) -> float:
    """Return the average reward from the start of playing the K arms of largest index.

    table maps a highest age to an index table (N, 1 + S max_age) as in `rmab.planning.tables`. Past
    the age at which beliefs settle the index counts as settled too. Ties go to the lower arm.
    """
    arms.check_plays(plays)

    def choose(max_age: int) -> Choice:
        rank = _rounded(np.asarray(table(max_age), np.float64))

        def largest(states: InformationStates) -> IntArray:
            row = row_of(states, max_age, np.int64(0))
            here = np.take_along_axis(rank, row, 1).T  # (X, N)
            return Constraint(plays).ranked(here, axis=1)

        return largest

    return choice_value(arms, plays, choose, max_states=max_states, max_sweeps=max_sweeps)


def lookahead_value(
    arms: Arms,
    plays: int,
    depth: int = DEPTH,
    *,
    max_states: int = _MAX_STATES,
    max_sweeps: int = MAX_SWEEPS,
) -> float:
    """Return the average reward of looking `depth` slots ahead, see rmab.policies.lookahead."""
    arms.check_plays(plays)
    check_depth(arms.kinds, plays, depth)

    def choose(max_age: int) -> Choice:
        lookahead_at = known_lookahead(arms, plays, depth, max_age)

        def chosen(states: InformationStates) -> IntArray:
            played = look_ahead(lookahead_at(states), plays)  # (N, X)
            return Constraint(plays).ranked(played.astype(np.int8)).T

        return chosen

    return choice_value(arms, plays, choose, max_states=max_states, max_sweeps=max_sweeps)


def choice_value(
    arms: Arms,
    plays: int,
    choose: Callable[[int], Choice],
    *,
    max_states: int = _MAX_STATES,
    max_sweeps: int = MAX_SWEEPS,
) -> float:
    """Return the average reward of a policy that chooses by the joint information state.

    choose maps a highest age to a function of information states (N, X) up to it that returns the
    arms to play, (X, K); a fully observed arm is in (state now, 1). The chain holds only states
    that the policy can reach, so that many arms are possible if it keeps few in play.
    """
    arms.check_plays(plays)
    exploration = _Exploration(arms, plays, choose, max_states)
    reached = exploration.finest()
    if reached is None:
        raise exploration.too_large()
    moves, rewards = transitions(reached.chain, reached.codes, reached.played)
    return chain_gain(moves, rewards, reached.start, max_sweeps=max_sweeps)


class _Reached(NamedTuple):
    """Joint codes that a policy reaches, sorted, the arms it plays there, and starting chances."""

    chain: JointChain
    codes: Int[IntArray, " R"]
    played: Int[IntArray, "R K"]
    start: Float[FloatArray, " R"]


class _Exploration:
    """Search for the finest tolerance at which the chain of a policy fits."""

    def __init__(
        self, arms: Arms, plays: int, choose: Callable[[int], Choice], max_states: int
    ) -> None:
        self.arms, self.plays, self.max_states = arms, plays, max_states
        self.choose = choose
        self.outcomes = count_outcomes(arms, plays)
        self.first = fully_observed_states(arms)
        self.limit = min(max_states, MAX_TRANSITIONS // self.outcomes)

    @cached_property
    def choice(self) -> Choice:
        """Policy for all tolerances."""
        return self.choose(max(min(int(self._ages(0).caps.max()), MAX_CAP), 1))

    def finest(self) -> _Reached | None:
        """Return the chain at the finest tolerance that fits, if any does: finer ones reach more.

        The coarsest is tried first, to refuse soon a chain that is too large at every tolerance.
        """
        coarsest = len(TOLERANCES) - 1
        reached = self._reached(coarsest)
        if reached is None:
            return None
        found = {coarsest: reached}

        def fits(level: int) -> bool:
            reached = self._reached(level)
            if reached is not None:
                found[level] = reached
            return reached is not None

        return found[bisect_left(range(coarsest), True, key=fits)]

    def too_large(self) -> TooLargeError:
        """Return the reason why not even the coarsest fits."""
        coarsest = self._ages(-1)
        check_caps(coarsest)
        size = table_size(self.arms, coarsest)
        if size >= MAX_CODES:
            count, excess = size, f"{readable(size)} joint codes"
        else:
            count = max(self.limit + 1, self.outcomes, self.first)
            excess = f"the policy reaches at least {readable(count)} joint information states"
        return TooLargeError(
            f"{len(self.arms)} arms, {self.plays} plays: {excess}, with {readable(self.outcomes)} "
            f"transitions each and beliefs rounded at {TOLERANCES[-1]:g}; the limit is "
            f"{MAX_CODES:.0e} codes, {self.max_states:,} states and {MAX_TRANSITIONS:,} "
            "transitions",
            states=count,
        )

    def _ages(self, level: int) -> Ages:
        # A policy may count slots (round robin): no cap below the longest turn.
        turn = -(-len(self.arms) // self.plays) + 2
        return kept_ages(self.arms, TOLERANCES[level]).at_least(turn)

    def _reached(self, level: int) -> _Reached | None:
        """Return the codes that the policy reaches at a tolerance, None if too many."""
        ages = self._ages(level)
        if table_size(self.arms, ages) >= MAX_CODES or ages.caps.max() > MAX_CAP:
            return None
        if max(self.outcomes, self.first) > self.limit:
            return None
        chain = joint_chain(self.arms, ages)
        start = Start.of(chain, self.arms)

        def played(rows: IntArray) -> IntArray:
            return self.choice(_information_states(chain, rows))

        try:
            codes = explore(chain, start.codes, lambda rows: [played(rows)], self.limit)
        except TooLargeError:
            return None
        return _Reached(chain, codes, played(joint_rows(chain, codes)), start.over(codes))


def _information_states(chain: JointChain, rows: IntArray) -> InformationStates:
    """Return the information states (N, X) of table rows (X, N)."""
    digit = (rows - chain.offsets).T
    caps = chain.layout.caps[:, None]
    cap = np.maximum(caps, 1)
    hidden = InformationStates(np.maximum(digit - 1, 0) // cap, np.maximum(digit - 1, 0) % cap + 1)
    return InformationStates(
        np.where(caps == 0, digit, hidden.last_seen),
        np.where((caps > 0) & (digit == 0), NEVER, np.where(caps == 0, 1, hidden.age)),
    )


def _rounded(index: FloatArray) -> FloatArray:
    """Round so that equal arms tie."""
    scale = float(np.max(np.abs(index), where=np.isfinite(index), initial=0))
    return np.round(index / (scale or 1.0), _TIE_DIGITS)
