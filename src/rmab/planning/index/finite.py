"""Whittle indices and indexability of a fully observed finite arm.

An arm has states 0..S-1; in each slot it is left alone (passive: moves by P_0, pays r_0) or played
(active: P_1, r_1). Let every passive slot also pay a subsidy lambda. The *passive set* of lambda
holds the states in which leaving the arm alone is optimal; the arm is *indexable* if that set only
grows with lambda, and the Whittle index of a state is the lambda at which it joins: both actions
are then equally good (Whittle, 1988). Optimal means:

- discounted: the largest discounted reward;
- average reward: the largest gain, and among actions of one gain the largest bias, the Bellman
  pair; with the bias of the best gain-optimal policy this is the limit of discounted problems as
  the discount tends to 1.

Isolated subsidies at which the optimal policy changes are left out of the comparison.

The verdict is True or False only where the numbers allow no doubt. False comes with a witness, a
state and two subsidies, low < high: passive is better at low, active is better at high. Undecided
(None) comes with a reason:

- the average reward depends on the starting class: at some subsidy the best gain is not the same
  from all states, or a state chooses, once and for all, between classes of one gain, where only the
  constants between their biases could decide, which a relative value leaves open. The index then
  compares the actions within each class, and a choice between classes goes by gain;
- gain and bias of both actions are equal over a whole interval of subsidies, and whether the state
  changes back depends on whether that counts as a tie or the order after the bias decides;
- the arm is large, and rounding could hide a change back or reach every number (states that hardly
  ever reach one another).

The index of a state is the lowest subsidy above which passive is optimal, also if the arm is not
indexable. It is -inf or inf where one action is better at every subsidy, which average reward
allows: a state whose play leads to a poorer class that is never left, say. It is never NaN.

`rmab.planning.index.fast_pivoting` follows the optimal policies along the subsidy line at low cost.
Where that leaves a doubt, `rmab.planning.index.exact` decides in exact arithmetic about small
arms, and `rmab.planning.index.sensitive` follows large ones policy by policy.

An arm with uncontrolled transitions has the index r_1 - r_0.

Reference: P. Whittle, "Restless bandits: activity allocation in a changing world", J. Appl. Prob.
25A, 1988.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from rmab.arrays import FloatArray
from rmab.errors import ModelError
from rmab.model.arms import Arm
from rmab.planning.index.exact import RationalProblem, follow_exactly
from rmab.planning.index.fast_pivoting import follow_by_pivots
from rmab.planning.index.sensitive import confirmed, follow_by_solving
from rmab.planning.index.subsidy_line import Apart, History, LineProblem

__all__ = ["Indices", "changes_back", "checked_discount", "finite_indices"]

_NEAR_ONE = 1 - 1e-4  # discount that replaces average reward
_MAX_ERROR = 1e-6  # largest rounding of an advantage without a doubt
_MAX_EXACT_STATES = 30  # exact arithmetic would take minutes for more states
_REWARD_RANGE = 1e5  # rewards that differ by a larger factor are left to exact arithmetic


@dataclass(frozen=True, eq=False)
class Indices:
    """Indices of one arm and the verdict.

    index: (S,) by state; for an arm observed when played (S, max_age), state s last observed k
    slots ago at [s, k - 1]; indexable: True, False or None (undecided); reason: why it is not True,
    else ""; witness: (state, low, high) if False: passive is better at subsidy low, active at high
    > low, with the state (last observed, age) for an arm observed when played, (None, 0) for never;
    never_seen: index before the first observation, None for a fully observed arm.
    """

    index: FloatArray
    indexable: bool | None
    reason: str
    witness: tuple[int | tuple[int | None, int], float, float] | None
    never_seen: float | None = None


def finite_indices(
    arm: Arm,
    discount: float | None = None,
    name: Callable[[int], str] = "state {}".format,
    max_exact_states: int = _MAX_EXACT_STATES,
) -> Indices:
    """Compute the index of every state of an arm taken as fully observed, and the verdict.

    discount None is average reward; name formats a state in the reason; arms of more than
    max_exact_states are not solved exactly: 0 if the arm's numbers are rounded.

    >>> arm = Arm([[0.5, 0.5], [0.25, 0.75]], [[1, 0], [0.5, 0.5]],
    ...           reward_passive=[0.5, 0.5], reward_active=[2, 1], observed="always")
    >>> finite_indices(arm).index.round(6).tolist()
    [1.5, 1.0]
    """
    discount = checked_discount(discount)
    if not arm.action_dependent:
        return Indices(arm.reward_active - arm.reward_passive, True, "", None)
    problem, units = _in_units(arm, discount)
    small = arm.states <= max_exact_states
    history = History(problem.states)
    followed = follow_by_pivots(problem, history) and confirmed(problem, history.witness)
    if small and (not followed or history.in_doubt or _wide(arm)):
        return _exactly(arm, discount, name)
    if not followed:
        history = _by_solving(problem)
    return _judged(history, units, name)


def checked_discount(discount: Any) -> float | None:
    """Return a valid discount, None for average reward, or raise ModelError."""
    if discount is None:
        return None
    number = isinstance(discount, int | float | np.floating) and not isinstance(discount, bool)
    if number and 0 < discount < 1:
        return float(discount)
    raise ModelError(f"discount must lie in (0, 1), or be None for average reward: {discount!r}")


def _wide(arm: Arm) -> bool:
    """Whether rewards differ so much in size that the small ones would drown in rounding."""
    paid = np.abs(np.concatenate([arm.reward_passive, arm.reward_active]))
    paid = paid[paid > 0]
    return bool(paid.size and paid.max() > _REWARD_RANGE * paid.min())


def _judged(history: History, units: _Units, name: Callable[[int], str]) -> Indices:
    """Return the verdict from the line followed in floating point."""
    index = history.index * units.scale + units.shift
    doubt = _doubt(history, units, name)
    if doubt:
        return Indices(index, None, doubt, None)
    if history.witness is not None:
        state, *subsidies = history.witness
        low, high = (units.subsidy(x) for x in subsidies)
        return Indices(index, False, changes_back(name(state), low, high), (state, low, high))
    if history.doubtful.any():
        state = int(history.doubtful.argmax())
        reason = f"both actions are equally good in {name(state)} to rounding, more than once"
        return Indices(index, None, reason, None)
    return Indices(index, True, "", None)


def _exactly(arm: Arm, discount: float | None, name: Callable[[int], str]) -> Indices:
    """Return the verdict in exact arithmetic."""
    line = follow_exactly(RationalProblem(arm, discount))
    index = np.array(line.index)
    if line.apart is not None:
        return Indices(index, None, _starts_apart(line.apart, name), None)
    if line.undetermined is not None:
        return Indices(index, None, _between_classes(name(line.undetermined)), None)
    if line.back is None and line.by_bias is None:
        return Indices(index, True, "", None)
    if line.back is None or line.by_bias is None:
        state, _, _ = line.back or line.by_bias or (0, 0.0, 0.0)
        reason = f"gain and bias of both actions are equal in {name(state)} at many subsidies"
        return Indices(index, None, reason, None)
    state, low, high = line.by_bias
    return Indices(index, False, changes_back(name(state), low, high), (state, low, high))


def changes_back(state: str, low: float, high: float) -> str:
    """Describe a witness."""
    return f"{state} is passive at subsidy {low:.9g} and active again at subsidy {high:.9g}"


def _doubt(history: History, units: _Units, name: Callable[[int], str]) -> str:
    """Return the reason why not even a witness would count, "" if it does."""
    if history.apart is not None:
        subsidy, low_state, low_gain, high_state, high_gain = history.apart
        apart = Apart(
            units.subsidy(subsidy),
            low_state,
            units.gain(low_gain),
            high_state,
            units.gain(high_gain),
        )
        return _starts_apart(apart, name)
    if history.exhausted:
        return "rounding: the optimal policies cannot be followed to the end"
    if history.error > _MAX_ERROR:
        return f"rounding may change an advantage by {history.error:.0e}: classes hardly connected"
    if history.undetermined.any():
        return _between_classes(name(int(history.undetermined.argmax())))
    return ""


def _starts_apart(apart: Apart, name: Callable[[int], str]) -> str:
    return (
        f"depends on the starting class: the best average reward at subsidy {apart.subsidy:.9g} is "
        f"{apart.low_gain:.9g} from {name(apart.low_state)} and {apart.high_gain:.9g} from "
        f"{name(apart.high_state)}"
    )


def _between_classes(state: str) -> str:
    return (
        f"depends on the starting class: {state} chooses between closed classes of the same "
        "average reward"
    )


def _by_solving(problem: LineProblem) -> History:
    """Follow the whole line, each policy solved afresh.

    Where rounding ends the search early, the indices are those of a discount near 1.
    """
    history = History(problem.states)
    follow_by_solving(problem, history)
    if history.exhausted and problem.discount is None:
        near = History(problem.states)
        if follow_by_pivots(replace(problem, discount=_NEAR_ONE), near):
            history.index = near.index
    return history


class _Units(NamedTuple):
    """Units of a problem: rewards are an arm's less a centre for each action, over scale."""

    scale: float
    paid: float
    unpaid: float

    @property
    def shift(self) -> float:
        """Subsidy that is 0 in the problem."""
        return self.paid - self.unpaid

    def subsidy(self, x: float) -> float:
        return x * self.scale + self.shift

    def gain(self, x: float) -> float:
        return x * self.scale + self.paid


def _in_units(arm: Arm, discount: float | None) -> tuple[LineProblem, _Units]:
    """Return the arm with rewards around 0 of size 1, and its units."""
    rewards = np.stack([arm.reward_passive, arm.reward_active])
    largest = float(np.abs(rewards).max()) or 1.0
    rewards /= largest  # first, so that nothing overflows
    centres = rewards.mean(1)
    rewards -= centres[:, None]
    scale = float(np.abs(rewards).max())
    if scale <= 1e-12:  # rewards that are equal up to rounding
        scale = 1.0
    rewards /= scale
    problem = LineProblem(
        passive=arm.passive / arm.passive.sum(1, keepdims=True),
        active=arm.active / arm.active.sum(1, keepdims=True),
        reward_passive=rewards[0],
        reward_active=rewards[1],
        discount=discount,
    )
    unpaid, paid = (float(centre) * largest for centre in centres)
    return problem, _Units(scale * largest, paid, unpaid)
