"""Information states and beliefs of arms observed when played, and rows of their tables.

To its player an arm observed when played is a finite chain of *information states*
(last observed state, age): a play shows s' and leads to (s', 1), no play leads from (s, age) to
(s, age + 1). Before the first observation the state is "never observed", written as age 0.
For a channel, with `memory = p11 - p01` and the stationary belief `b0 = p01 / (1 - memory)`, the
belief after j slots without an observation (Proposition 3, with its misprint mended; see
docs/deviations.md) is

    T^j(b) = b0 + memory^j (b - b0),

and b0 where the arm was never observed. Tables have a row for each information state up to an age:
`information_states` is their order, `row_of` finds a row. `rmab.model.expansion` makes the chain.

Functions of beliefs take anything with `p01` and `p11` (`Arms` or `Dynamics`), broadcast, and work
on NumPy and JAX arrays alike. Agents import this module, so it needs only NumPy.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import numpy as np

from rmab.arrays import Array
from rmab.errors import ModelError
from rmab.linalg import array_namespace

__all__ = [
    "NEVER",
    "OBSERVED",
    "Dynamics",
    "InformationStates",
    "TwoState",
    "after",
    "belief_after",
    "deviation",
    "information_states",
    "row_of",
    "slots_to_cross",
    "stationary_belief",
    "update_belief",
]

OBSERVED = ("when_played", "always")  # when an arm is observed
NEVER = 0  # age of an arm that was never observed


class TwoState(Protocol):
    """Carrier of the transition probabilities of two-state arms."""

    @property
    def p01(self) -> Array: ...
    @property
    def p11(self) -> Array: ...


class Dynamics(NamedTuple):
    """Channels as planners see them: arrays that broadcast, arms first, trials last.

    The values may be true, estimated or drawn from a posterior; they are not checked.
    """

    p01: Array
    p11: Array
    reward: Array


class InformationStates(NamedTuple):
    """Last observed state and slots since, as arrays that broadcast; age 0 is never observed."""

    last_seen: Array
    age: Array


def stationary_belief(arms: TwoState) -> Array:
    """Return b0 = p01 / (p01 + 1 - p11), 1/2 for an arm that never changes (p01 = 0, p11 = 1)."""
    xp = array_namespace(arms.p01, arms.p11)
    change = xp.asarray(arms.p01 + (1 - arms.p11))
    return xp.where(change > 0, arms.p01 / xp.where(change > 0, change, 1), 0.5)


def _memory_power(xp: Any, arms: TwoState, slots: Array) -> Array:
    """Return memory^slots for whole slots >= 0, without warnings at memory 0 or denormals."""
    memory = xp.asarray(arms.p11 - arms.p01)
    size = xp.exp(slots * xp.log(xp.maximum(xp.abs(memory), 1e-30)))
    size = xp.where(size > 1e-30, size, 0)
    return xp.where((memory < 0) & (slots % 2 == 1), -size, size)


def belief_after(arms: TwoState, belief: Array, slots: Array) -> Array:
    """Return T^j(b), the belief after j slots without an observation: Proposition 3, eq. (32)."""
    xp = array_namespace(arms.p01, belief, slots)
    rest = stationary_belief(arms)
    belief, slots = xp.asarray(belief), xp.asarray(slots)
    after = rest + _memory_power(xp, arms, slots) * (belief - rest)
    # Eq. (33), which rounding may break.
    after = xp.clip(after, xp.minimum(arms.p01, arms.p11), xp.maximum(arms.p01, arms.p11))
    return xp.where(slots == 0, belief, after)


def update_belief(arms: TwoState, belief: Array, played: Array, state: Array) -> Array:
    """Return the next slot's belief, eq. (27), from the observed state, or else the belief."""
    xp = array_namespace(arms.p01, belief, played, state)
    now = xp.where(xp.asarray(played), xp.asarray(state), xp.asarray(belief))
    return now * arms.p11 + (1 - now) * arms.p01


def slots_to_cross(arms: TwoState, start: Array, target: Array) -> Array:
    """Return L(b, b'), the fewest slots without a play after which the belief exceeds b', or inf.

    With memory >= 0 the belief tends monotonically to b0, so the logarithm of the distance left
    gives the slot; a rounded logarithm may miss by one, which the last lines correct. With
    memory < 0 the belief oscillates ever closer around b0: its peak is at slot 0 or 1.
    """
    start, target = np.asarray(start, np.float64), np.asarray(target, np.float64)
    memory = np.asarray(arms.p11 - arms.p01)
    rest = stationary_belief(arms)
    start, target, memory, rest = np.broadcast_arrays(start, target, memory, rest)
    climbs = (memory > 0) & (memory < 1) & (start < rest) & (target < rest) & (start <= target)
    ratio = np.where(climbs, (rest - target) / np.where(climbs, rest - start, 1), 0.5)
    guess = np.floor(np.log(ratio) / np.log(np.where(climbs, memory, 0.5)))
    answer = np.full(start.shape, np.inf)
    # From far to near: the last candidate that has crossed is the first slot to do so.
    for candidate in (guess + 2, guess + 1, guess, guess - 1):
        crossed = climbs & (candidate >= 1) & (belief_after(arms, start, candidate) > target)
        answer = np.where(crossed, candidate, answer)
    answer = np.where(~climbs & (belief_after(arms, start, np.float64(1)) > target), 1.0, answer)
    return np.where(start > target, 0.0, answer)


def deviation(arms: TwoState, states: InformationStates) -> Array:
    """Return belief - b0 in each information state: memory^age (s - b0), 0 where never observed.

    The index needs it to full precision at high ages, where the belief itself has lost it.
    """
    xp = array_namespace(arms.p01, states.age)
    age = xp.asarray(states.age)
    gap = states.last_seen - stationary_belief(arms)
    return xp.where(age == NEVER, 0, gap * _memory_power(xp, arms, age))


def information_states(max_age: int, n_states: int = 2) -> InformationStates:
    """Return all information states up to max_age in the order of an index table's rows.

    Row 0 is never observed, then (0, 1), (0, 2), ..., (0, max_age), (1, 1), ...
    """
    if max_age < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
    last_seen = np.repeat(np.arange(n_states), max_age)
    age = np.tile(np.arange(1, max_age + 1), n_states)
    return InformationStates(np.append(0, last_seen), np.append(NEVER, age))


def row_of(states: InformationStates, max_age: Array, wraps: Array) -> Array:
    """Return the rows of information states in tables up to max_age; all arguments broadcast.

    Ages past max_age fall back by `wraps` slots, repeatedly; with wraps = 0 they become never
    observed.

    >>> row_of(InformationStates(np.array(1), np.array([0, 1, 3, 4, 5])), 3, np.array(2)).tolist()
    [0, 4, 6, 5, 6]
    """
    xp = array_namespace(states.age)
    age = xp.asarray(states.age)
    past = xp.where(wraps == 0, NEVER, max_age - (max_age - age) % xp.maximum(wraps, 1))
    age = xp.where(age > max_age, past, age)
    return xp.where(age == NEVER, 0, age + max_age * xp.asarray(states.last_seen))


def after(states: InformationStates, slots: int) -> InformationStates:
    """Return the information states after some slots without a play."""
    xp = array_namespace(states.age)
    age = xp.asarray(states.age)
    return states._replace(age=xp.where(age == NEVER, NEVER, age + slots))
