"""Chain of the information states of an arm observed when played, as a finite arm.

State s observed k >= 1 slots ago has for its belief over the state now the row

    b(s, k) = P_1[s] P_0^(k-1).

Playing pays b . r_1, shows s' with probability b[s'] and leads to (s', 1); leaving it alone pays
b . r_0 and leads to (s, k + 1). The belief of an arm that was *never observed* is the limiting
distribution of P_0, and leaving it alone keeps it there. Ages end at a cap J:

- P_0 that forgets (one recurrent class, no period) is past J where the never-observed arm is. This
  is exact in the limit, which `settled_age` finds;
- where P_0 does not forget, the belief comes to repeat with its period d, and ages past J fall back
  by d slots: `wrap` = d, or J where J is smaller.

Rows are those of `rmab.model.information.information_states`: never observed, (0, 1), ..., (0, J),
(1, 1), ...
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rmab.arrays import BoolArray, Float, FloatArray, Int, IntArray
from rmab.errors import ModelError
from rmab.markov import forgets, limit, limiting_distribution, period
from rmab.model.arms import Arm

__all__ = ["Expansion", "expand", "expansion", "last_unsettled", "settled_age"]

_SETTLED_VARIATION = 1e-12  # beliefs this close to their limit, in total variation, have settled
_MAX_AGE = 10_000


@dataclass(frozen=True, eq=False)
class Expansion:
    """Chain of the information states of one arm: I = 1 + S J rows.

    after: row reached without a play; played: row reached by a play that shows each state;
    max_age: J; wrap: slots by which ages past J fall back, 0 where they become never observed.
    """

    beliefs: Float[FloatArray, "I S"]
    after: Int[IntArray, " I"]
    played: Int[IntArray, " S"]
    reward_passive: Float[FloatArray, " I"]
    reward_active: Float[FloatArray, " I"]
    max_age: int
    wrap: int


def expansion(arm: Arm, max_age: int) -> Expansion:
    """Return the chain of an arm's information states up to an age; `arm.observed` is ignored."""
    if max_age < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
    S, J = arm.states, max_age
    passive = _rows(arm.passive)
    wrap = 0 if forgets(passive) else min(period(passive), J)
    beliefs = np.empty((1 + S * J, S))
    beliefs[0] = limiting_distribution(passive)
    by_state = beliefs[1:].reshape(S, J, S)
    belief = _rows(arm.active)
    for age in range(J):
        by_state[:, age] = belief
        belief = belief @ passive
    after = np.arange(1 + S * J) + 1
    ends = np.arange(J, 1 + S * J, J)
    after[0], after[ends] = 0, ends + 1 - wrap if wrap else 0
    return Expansion(
        beliefs=beliefs,
        after=after,
        played=np.arange(S) * J + 1,
        reward_passive=beliefs @ arm.reward_passive,
        reward_active=beliefs @ arm.reward_active,
        max_age=J,
        wrap=wrap,
    )


def expand(arm: Arm, max_age: int) -> Arm:
    """Return the finite arm of 1 + S max_age information states, always observed.

    >>> arm = Arm([[0.5, 0.5], [0.5, 0.5]], [[0.9, 0.1], [0.1, 0.9]], reward=[0, 1])
    >>> expand(arm, 2).reward_active.round(6).tolist()
    [0.5, 0.1, 0.5, 0.9, 0.5]
    """
    chain = expansion(arm, max_age)
    rows = len(chain.after)
    passive, active = np.zeros((rows, rows)), np.zeros((rows, rows))
    passive[np.arange(rows), chain.after] = 1
    active[:, chain.played] = chain.beliefs
    return Arm(
        passive,
        active,
        reward_passive=chain.reward_passive,
        reward_active=chain.reward_active,
        observed="always",
    )


def settled_age(arm: Arm, tolerance: float = _SETTLED_VARIATION, most: int = _MAX_AGE) -> int:
    """Return the first age from which on all beliefs are within tolerance of their limit.

    Distances are in total variation; the age is at most `most`. Where P_0 has a period, the limit
    oscillates with it, and the age is at least that period; a cap at which ages fall back must be a
    period less one slot higher.
    """
    if not tolerance > 0:
        raise ModelError(f"tolerance must be positive, got {tolerance}")
    if most < 1:
        raise ModelError(f"most must be at least 1, got {most}")
    passive, belief = _rows(arm.passive), _rows(arm.active)
    cycle = period(passive)
    away = np.eye(arm.states) - limit(np.linalg.matrix_power(passive, cycle))

    def unsettled(beliefs: FloatArray) -> BoolArray:
        return np.asarray(np.abs(beliefs @ away).sum(-1).max(-1) / 2 > tolerance)

    ages, _ = last_unsettled(belief[None], passive[None], unsettled, most)
    return min(max(int(ages[0]) + 1, cycle), most)


def last_unsettled(
    first: Float[FloatArray, "B S S"],
    passive: Float[FloatArray, "B S S"],
    unsettled: Callable[[FloatArray], BoolArray],
    most: int,
) -> tuple[Int[IntArray, " B"], Float[FloatArray, "B S S"]]:
    """Return the last age below `most` whose rows have not settled, 0 if none, and those rows.

    Rows are `first` at age 1 and multiplied by `passive` in each further slot. unsettled maps rows
    (B, S, S) to (B,), False from the first False on.
    """
    powers = [passive]
    while 2 ** len(powers) <= most:
        powers.append(powers[-1] @ powers[-1])
    rows, age = first, unsettled(first).astype(np.int64)
    for step in reversed(range(len(powers))):
        further = rows @ powers[step]
        goes = (age > 0) & (age + 2**step < most) & unsettled(further)
        rows, age = np.where(goes[:, None, None], further, rows), age + goes * 2**step
    return age, rows


def _rows(matrix: FloatArray) -> FloatArray:
    return np.asarray(matrix / matrix.sum(-1, keepdims=True))
