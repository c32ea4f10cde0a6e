"""What an arm is, what is believed about it, and the information states of a player.

An arm is a Markov chain over states 0..S-1 that moves in every slot, played or not:
`passive[s, s']` when left alone, `active[s, s']` after a play. It is seen `when_played`
(the paper) or `always` (classic restless bandits).

A *channel* is the two-state arm of the paper's case study (Section V): state 1 is good and
pays `reward` when played, and both matrices are equal, so two numbers describe it,

    p01 = Pr(good next | bad now)      p11 = Pr(good next | good now).

With `memory = p11 - p01` and the stationary belief `b0 = p01 / (1 - memory)`, the belief after
j unseen slots (Proposition 3, with its misprint mended; see docs/deviations.md) is

    T^j(b) = b0 + memory^j (b - b0).

To its player an arm seen only when played is a finite chain of *information states*
(last seen state, age): a play shows s' and leads to (s', 1), no play leads from (s, age) to
(s, age + 1). Before the first look the state is "never seen", written as age 0, and the belief
is b0.

Functions here take anything with `p01` and `p11` (an `Arms` or `Dynamics`), broadcast, and
work on NumPy and JAX arrays alike; this module imports NumPy alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError

__all__ = [
    "NEVER",
    "OBSERVED",
    "Arms",
    "Dynamics",
    "InformationStates",
    "array_namespace",
    "belief_after",
    "channels",
    "deviation",
    "information_states",
    "slots_to_cross",
    "stationary_belief",
    "update_belief",
]

Array = Any  # a NumPy or JAX array: both follow the array API, no common static type exists
FloatArray = npt.NDArray[np.float64]

NEVER = 0  # the age of an arm that was never seen
OBSERVED = ("when_played", "always")


class TwoState(Protocol):
    """Anything that carries the transition probabilities of two-state arms."""

    @property
    def p01(self) -> Array: ...
    @property
    def p11(self) -> Array: ...


@dataclass(frozen=True, eq=False)
class Arms:
    """N arms of S states, checked once, here.

    passive, active: (N, S, S) transition matrices; reward_passive, reward_active: (N, S);
    observed: one of OBSERVED for each arm.
    """

    passive: FloatArray
    active: FloatArray
    reward_passive: FloatArray
    reward_active: FloatArray
    observed: tuple[str, ...]

    def __post_init__(self) -> None:
        if self.reward_active.ndim != 2:
            raise ModelError(
                f"reward_active must have shape (arms, states), got {self.reward_active.shape}"
            )
        n_arms, n_states = self.reward_active.shape
        if len(self.observed) != n_arms:
            raise ModelError(
                f"observed must have one entry for each of {n_arms} arms, got {len(self.observed)}"
            )
        shapes = {
            "passive": (n_arms, n_states, n_states),
            "active": (n_arms, n_states, n_states),
            "reward_passive": (n_arms, n_states),
        }
        for name, shape in shapes.items():
            if getattr(self, name).shape != shape:
                raise ModelError(f"{name} must have shape {shape}, got {getattr(self, name).shape}")
        for arm in range(n_arms):
            if self.observed[arm] not in OBSERVED:
                raise ModelError(
                    f"arm {arm + 1}: observed must be one of {', '.join(OBSERVED)}, "
                    f"got {self.observed[arm]!r}"
                )
            for name in ("passive", "active"):
                for state, row in enumerate(getattr(self, name)[arm]):
                    if not (np.all(row >= 0) and abs(row.sum() - 1) < 1e-9):
                        raise ModelError(
                            f"arm {arm + 1}: {name} row {state} must be probabilities that "
                            f"sum to 1, got {row.tolist()}"
                        )
            for name in ("reward_passive", "reward_active"):
                if not np.all(np.isfinite(getattr(self, name)[arm])):
                    raise ModelError(
                        f"arm {arm + 1}: {name} must be finite, "
                        f"got {getattr(self, name)[arm].tolist()}"
                    )
        for name in (*shapes, "reward_active"):
            fixed = getattr(self, name).copy()
            fixed.flags.writeable = False
            object.__setattr__(self, name, fixed)

    def __len__(self) -> int:
        return len(self.observed)

    def check_plays(self, plays: int) -> None:
        """Refuse a number of plays per slot that these arms do not allow."""
        if not 1 <= plays <= len(self):
            raise ModelError(f"plays must lie in 1..{len(self)}, the number of arms, got {plays}")

    @cached_property
    def _channels(self) -> bool:
        return (
            self.passive.shape[1] == 2
            and np.array_equal(self.passive, self.active)
            and set(self.observed) == {"when_played"}
            and not self.reward_passive.any()
            and not self.reward_active[:, 0].any()
        )

    def _need_channels(self) -> None:
        if not self._channels:
            raise ModelError(
                "this needs channels: two states that move alike, played or not, seen and paid "
                "only when played, nothing paid in state 0"
            )

    @property
    def p01(self) -> FloatArray:
        """Pr(good next | bad now) of each channel, shape (N,)."""
        self._need_channels()
        return self.passive[:, 0, 1]

    @property
    def p11(self) -> FloatArray:
        """Pr(good next | good now) of each channel, shape (N,)."""
        self._need_channels()
        return self.passive[:, 1, 1]

    @property
    def reward(self) -> FloatArray:
        """What a play of each channel pays in its good state, shape (N,)."""
        self._need_channels()
        return self.reward_active[:, 1]

    @property
    def dynamics(self) -> Dynamics:
        """The channels as plain arrays, as planners take them."""
        return Dynamics(self.p01, self.p11, self.reward)


class Dynamics(NamedTuple):
    """Channels as planners see them: arrays that broadcast, arms first, trials last.

    The values may be true, estimated or drawn from a posterior; nothing is checked here.
    """

    p01: Array
    p11: Array
    reward: Array


class InformationStates(NamedTuple):
    """Last seen state and slots since, as arrays that broadcast; age 0 is never seen."""

    last_seen: Array
    age: Array


def channels(
    p01: npt.ArrayLike | Sequence[float],
    p11: npt.ArrayLike | Sequence[float],
    reward: npt.ArrayLike | Sequence[float],
) -> Arms:
    """Two-state arms from p01, p11 and reward: a number or one number per arm.

    >>> len(channels(p01=[0.2, 0.89], p11=[0.8, 0.17], reward=[0.4, 0.9]))
    2
    """
    try:
        given = [np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (p01, p11, reward)]
        stay, good, pays = np.broadcast_arrays(*given)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            f"p01, p11 and reward must be numbers or lists of one length: {error}"
        ) from None
    if stay.ndim != 1 or stay.size == 0:
        raise ModelError(f"p01, p11 and reward must be one value per arm, got shape {stay.shape}")
    for name, values in (("p01", stay), ("p11", good)):
        for arm, value in enumerate(values):
            if not 0 <= value <= 1:
                raise ModelError(f"arm {arm + 1}: {name} must lie in [0, 1], got {value}")
    for arm, value in enumerate(pays):
        if not (np.isfinite(value) and value >= 0):
            raise ModelError(f"arm {arm + 1}: reward must be finite and not negative, got {value}")
    matrix = np.stack([np.stack([1 - stay, stay], -1), np.stack([1 - good, good], -1)], 1)
    return Arms(
        passive=matrix,
        active=matrix.copy(),
        reward_passive=np.zeros((stay.size, 2)),
        reward_active=np.stack([np.zeros_like(pays), pays], -1),
        observed=("when_played",) * stay.size,
    )


def array_namespace(*arrays: Array) -> Any:
    """numpy, or the namespace of the first array that is not NumPy's (jax.numpy)."""
    for array in arrays:
        if not isinstance(array, np.ndarray | np.generic) and hasattr(array, "__array_namespace__"):
            return array.__array_namespace__()
    return np


def stationary_belief(arms: TwoState) -> Array:
    """b0 = p01 / (p01 + 1 - p11); 1/2 for an arm that never changes (p01 = 0, p11 = 1)."""
    xp = array_namespace(arms.p01, arms.p11)
    change = xp.asarray(arms.p01 + (1 - arms.p11))
    return xp.where(change > 0, arms.p01 / xp.where(change > 0, change, 1), 0.5)


def _memory_power(xp: Any, arms: TwoState, slots: Array) -> Array:
    """memory^slots for whole slots >= 0, without warnings at memory 0 and without denormals."""
    memory = xp.asarray(arms.p11 - arms.p01)
    size = xp.exp(slots * xp.log(xp.maximum(xp.abs(memory), 1e-30)))
    size = xp.where(size > 1e-30, size, 0)
    return xp.where((memory < 0) & (slots % 2 == 1), -size, size)


def belief_after(arms: TwoState, belief: Array, slots: Array) -> Array:
    """T^j(b), the belief after j unseen slots: Proposition 3, eq. (32)."""
    xp = array_namespace(arms.p01, belief, slots)
    rest = stationary_belief(arms)
    belief, slots = xp.asarray(belief), xp.asarray(slots)
    after = rest + _memory_power(xp, arms, slots) * (belief - rest)
    # Eq. (33), which rounding may break.
    after = xp.clip(after, xp.minimum(arms.p01, arms.p11), xp.maximum(arms.p01, arms.p11))
    return xp.where(slots == 0, belief, after)


def update_belief(arms: TwoState, belief: Array, played: Array, state: Array) -> Array:
    """The next slot's belief, eq. (27): from the state if it was seen, else from the belief."""
    xp = array_namespace(arms.p01, belief, played, state)
    now = xp.where(xp.asarray(played), xp.asarray(state), xp.asarray(belief))
    return now * arms.p11 + (1 - now) * arms.p01


def slots_to_cross(arms: TwoState, start: Array, target: Array) -> Array:
    """L(b, b'): the fewest unseen slots after which the belief exceeds b'; inf if it never does.

    With memory >= 0 the belief runs monotonically to b0, so the logarithm of the distance left
    tells the slot; a rounded logarithm may miss by one, which the last lines settle. With
    memory < 0 the belief swings ever closer around b0: its peak is at slot 0 or 1.
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
    """belief - b0 in each information state: memory^age (s - b0), 0 where never seen.

    Kept apart from the belief because the index needs it to full precision at high ages.
    """
    xp = array_namespace(arms.p01, states.age)
    age = xp.asarray(states.age)
    gap = states.last_seen - stationary_belief(arms)
    return xp.where(age == NEVER, 0, gap * _memory_power(xp, arms, age))


def information_states(max_age: int, n_states: int = 2) -> InformationStates:
    """All information states up to max_age in the order of an index table's rows.

    Row 0 is never seen, then (0, 1), (0, 2), ..., (0, max_age), (1, 1), ...
    """
    if max_age < 1:
        raise ModelError(f"max_age must be at least 1, got {max_age}")
    last_seen = np.repeat(np.arange(n_states), max_age)
    age = np.tile(np.arange(1, max_age + 1), n_states)
    return InformationStates(np.append(0, last_seen), np.append(NEVER, age))
