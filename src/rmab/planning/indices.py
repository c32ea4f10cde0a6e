"""Whittle and Gittins indices of any finite arm, and whether the arm is indexable.

An arm has states 0..S-1; in each slot it is left alone (passive: moves by P_0, pays r_0) or played
(active: P_1, r_1). Let every passive slot also pay a subsidy lambda. The *passive set* of lambda
holds the states in which leaving the arm alone is optimal; the arm is *indexable* if that set only
grows with lambda, and the Whittle index of a state is the lambda at which it joins: both actions
are then equally good (Whittle, 1988). Optimal means:

- discounted: the largest discounted reward;
- average reward: the largest gain, and among actions of one gain the largest bias, the Bellman
  pair; with the bias of the best gain-optimal policy this is what discounted problems tend to as
  the discount tends to 1. The gain may differ between starting classes: each is then compared
  within itself, and a choice between classes goes by gain. Where a state chooses, once and for
  all, between classes of one gain, only the constants between their biases could decide; these
  are what a relative value leaves open, so the verdict is then undecided and says so.

Isolated subsidies at which the optimal policy changes are left out of the comparison.

The verdict is True or False only where the numbers allow no doubt. False comes with a witness, a
state and two subsidies, low < high: passive is better at low, active is better at high. Undecided
(None) comes with a reason: rounding could hide a change back or reach every number (states that
hardly ever reach one another), or the classes above.

The index of a state is the lowest subsidy from which on passive is optimal. If the arm is not
indexable that still is a number for every state. It is -inf or inf where one action is better
whatever the subsidy, which average reward allows: a state whose play leads to a poorer class that
is never left, say. It is never NaN.

The Gittins index of a rested arm (passive freezes the state and pays nothing) is the Whittle index
of just that arm; as a reward rate it is (1 - beta) times the largest value per discounted slot.

References: P. Whittle, "Restless bandits: activity allocation in a changing world", J. Appl. Prob.
25A, 1988; J. C. Gittins, "Bandit processes and dynamic allocation indices", JRSS B 41(2), 1979.
`rmab.planning.subsidy` has the algorithms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.planning.subsidy import ILL, Problem, follow

__all__ = ["FiniteArm", "Indices", "gittins_indices", "whittle_indices"]

FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, init=False, eq=False)
class FiniteArm:
    """One arm of S states, always observed, checked once, here.

    passive, active: (S, S) transition matrices; reward_passive, reward_active: (S,).

    >>> arm = FiniteArm([[0.5, 0.5], [0.25, 0.75]], [[1, 0], [0.5, 0.5]], [0.5, 0.5], [2, 1])
    >>> whittle_indices(arm).index.round(6).tolist()
    [1.5, 1.0]
    """

    passive: FloatArray
    active: FloatArray
    reward_passive: FloatArray
    reward_active: FloatArray

    def __init__(
        self,
        passive: npt.ArrayLike,
        active: npt.ArrayLike,
        reward_passive: npt.ArrayLike,
        reward_active: npt.ArrayLike,
    ) -> None:
        object.__setattr__(self, "passive", _numbers("passive", passive))
        object.__setattr__(self, "active", _numbers("active", active))
        object.__setattr__(self, "reward_passive", _numbers("reward_passive", reward_passive))
        object.__setattr__(self, "reward_active", _numbers("reward_active", reward_active))
        if self.reward_active.ndim != 1 or self.reward_active.size == 0:
            raise ModelError(
                f"reward_active must be one number per state, got shape {self.reward_active.shape}"
            )
        S = self.reward_active.size
        shapes = {"passive": (S, S), "active": (S, S), "reward_passive": (S,)}
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ModelError(
                    f"{name} must have shape {shape}, as reward_active has {S} states, "
                    f"got {getattr(self, name).shape}"
                )
        for name in ("passive", "active"):
            _check_rows(name, getattr(self, name))
        for name in ("reward_passive", "reward_active"):
            rewards = getattr(self, name)
            for state in np.flatnonzero(~np.isfinite(rewards))[:1]:
                raise ModelError(f"{name}: state {state} must be finite, got {rewards[state]}")

    def __len__(self) -> int:
        return self.reward_active.size


@dataclass(frozen=True, eq=False)
class Indices:
    """Index of every state, (S,), and the verdict; see the module's text for their meaning.

    indexable: True, False or None (undecided); reason: why not True, "" if it is;
    witness: (state, low, high) if False: passive is better at subsidy low, active at high > low.
    """

    index: FloatArray
    indexable: bool | None
    reason: str
    witness: tuple[int, float, float] | None


def whittle_indices(arm: FiniteArm, discount: float | None = None) -> Indices:
    """Whittle index of every state and whether the arm is indexable; None: average reward."""
    if discount is not None and not 0 < discount < 1:
        raise ModelError(f"discount must lie in (0, 1), or be None for average reward: {discount}")
    problem, scale, shift = _in_units(arm, discount)
    history = follow(problem)
    index = history.index * scale + shift
    if history.exhausted:
        return Indices(
            index, None, "rounding: the optimal policies cannot be followed to the end", None
        )
    if history.error > ILL:
        reason = (
            f"rounding may change an advantage by {history.error:.0e}: classes hardly connected"
        )
        return Indices(index, None, reason, None)
    if history.undetermined.any():
        state = int(history.undetermined.argmax())
        reason = (
            f"depends on the starting class: state {state} chooses between closed classes of the "
            "same average reward"
        )
        return Indices(index, None, reason, None)
    if history.witness is not None:
        state, low, high = history.witness
        low, high = low * scale + shift, high * scale + shift
        reason = (
            f"state {state} is passive at subsidy {low:.9g} and active again at subsidy {high:.9g}"
        )
        return Indices(index, False, reason, (state, low, high))
    if history.doubtful.any():
        state = int(history.doubtful.argmax())
        reason = f"both actions are equally good in state {state} to rounding, more than once"
        return Indices(index, None, reason, None)
    return Indices(index, True, "", None)


def gittins_indices(arm: FiniteArm, discount: float) -> FloatArray:
    """Gittins index of every state of the arm when played, as a reward rate, shape (S,).

    What the arm does and pays when left alone plays no part: a rested arm freezes.
    """
    S = len(arm)
    rested = FiniteArm(np.eye(S), arm.active, np.zeros(S), arm.reward_active)
    return whittle_indices(rested, discount).index


def _in_units(arm: FiniteArm, discount: float | None) -> tuple[Problem, float, float]:
    """The arm with rewards around 0 of size 1, and what turns its indices back: scale, shift."""
    centres = float(arm.reward_active.mean()), float(arm.reward_passive.mean())
    active, passive = arm.reward_active - centres[0], arm.reward_passive - centres[1]
    scale = float(max(np.abs(active).max(), np.abs(passive).max()))
    largest = float(max(np.abs(arm.reward_active).max(), np.abs(arm.reward_passive).max()))
    if scale <= 1e-12 * largest:  # equal rewards, but for rounding
        scale = largest
    scale = scale or 1.0
    problem = Problem(
        passive=arm.passive / arm.passive.sum(1, keepdims=True),
        active=arm.active / arm.active.sum(1, keepdims=True),
        reward_passive=passive / scale,
        reward_active=active / scale,
        discount=discount,
    )
    return problem, scale, centres[0] - centres[1]


def _numbers(name: str, given: npt.ArrayLike) -> FloatArray:
    """A frozen copy of what was given as floats."""
    try:
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(f"{name} must be numbers, with rows of one length: {error}") from None
    array.flags.writeable = False
    return array


def _check_rows(name: str, matrix: FloatArray) -> None:
    sums = matrix.sum(1)
    negative = (matrix < 0).any(1)
    wrong = ~(np.isfinite(matrix).all(1) & (np.abs(sums - 1) < 1e-9)) | negative
    for row in np.flatnonzero(wrong)[:1]:
        values = matrix[row]
        for column in np.flatnonzero(~(values >= 0) | np.isinf(values))[:1]:
            raise ModelError(
                f"{name} row {row}: column {column} must be a probability, got {values[column]}"
            )
        raise ModelError(f"{name} row {row} must sum to 1, got {sums[row]}: {values.tolist()}")
