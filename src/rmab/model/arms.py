"""Arms: states, transition matrices, rewards, and when the state is observed.

An arm is a Markov chain over states 0..S-1 that moves in every slot, played or not:
`passive[s, s']` when left alone, `active[s, s']` after a play. It is observed `when_played` (the
paper) or `always`, which is fully observed (classic restless bandits).

A *channel* is the two-state arm of the paper's case study (Section V): state 1 is good and
pays `reward` when played, and both matrices are equal, so two numbers describe it,

    p01 = Pr(good next | bad now)      p11 = Pr(good next | good now).

An arm that is always observed may have *tied* rows, which one unknown chance determines: see
`rmab.model.tied_rows`. Arms observed when played have information states:
`rmab.model.information`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from rmab.arrays import Array, Float, FloatArray, Int, IntArray
from rmab.errors import ModelError
from rmab.model.information import OBSERVED, Dynamics
from rmab.model.tied_rows import Tie, tie_of

__all__ = [
    "OBSERVED",
    "WAITS",
    "Arm",
    "ArmKind",
    "Arms",
    "Dynamics",
    "Intervals",
    "Moves",
    "channels",
]

WAITS = 8  # action-dependent arms observed when played: shorter waits, in slots, are learnt from
_SUM_TOLERANCE = 1e-9  # rows whose sum is this close to 1 are not divided by it
_PRINTED_TOLERANCE = 1.001e-6  # rows printed with six digits are this close to 1, and are divided


@dataclass(frozen=True, init=False, eq=False)
class Arm:
    """One arm of S states, checked when it is made.

    Parameters
    ----------
    passive, active : (S, S) transition matrices; without `active` both are equal.
    reward_passive, reward_active : (S,) reward of a slot in each state, 0 where not given.
    reward : another name of reward_active.
    observed : "when_played" or "always".
    tied_passive, tied_active : S lists, the next states of the event of tied rows, by state; empty
        where a row does not depend on it.

    >>> Arm([[0.9, 0.1], [0.2, 0.8]], reward=[0, 1]).states
    2
    """

    passive: Float[FloatArray, "S S"]
    active: Float[FloatArray, "S S"]
    reward_passive: Float[FloatArray, " S"]
    reward_active: Float[FloatArray, " S"]
    observed: str
    tie: Tie | None

    def __init__(
        self,
        passive: npt.ArrayLike,
        active: npt.ArrayLike | None = None,
        *,
        reward: npt.ArrayLike | None = None,
        reward_active: npt.ArrayLike | None = None,
        reward_passive: npt.ArrayLike | None = None,
        observed: str = "when_played",
        tied_passive: Sequence[Sequence[int]] | None = None,
        tied_active: Sequence[Sequence[int]] | None = None,
    ) -> None:
        moves = _matrix("passive", passive)
        S = len(moves)
        played = moves if active is None else _matrix("active", active)
        if len(played) != S:
            raise ModelError(
                f"active must have {S} rows, as passive has {S} states, got {len(played)}"
            )
        if reward is not None and reward_active is not None:
            raise ModelError("reward and reward_active are the same: only one may be given")
        if reward is None and reward_active is None and reward_passive is None:
            raise ModelError(f"reward is missing: {S} numbers, one for each state")
        name = "reward_active" if reward is None else "reward"
        pays = reward_active if reward is None else reward
        object.__setattr__(self, "passive", moves)
        object.__setattr__(self, "active", played)
        object.__setattr__(self, "reward_passive", _rewards("reward_passive", reward_passive, S))
        object.__setattr__(self, "reward_active", _rewards(name, pays, S))
        if observed not in OBSERVED:
            raise ModelError(f"observed must be one of {', '.join(OBSERVED)}, got {observed!r}")
        object.__setattr__(self, "observed", observed)
        tie = None
        if tied_passive is not None or tied_active is not None:
            if observed != "always":
                raise ModelError("tied rows must be those of an arm that is always observed")
            tie = tie_of(moves, played, tied_passive, tied_active)
        object.__setattr__(self, "tie", tie)

    @property
    def states(self) -> int:
        """Number of states S."""
        return self.reward_active.size

    @property
    def action_dependent(self) -> bool:
        """Whether its two transition matrices differ."""
        return not np.array_equal(self.passive, self.active)

    @property
    def kind(self) -> ArmKind:
        """Kind of the arm, as learners know it."""
        always = self.observed == "always"
        return ArmKind(self.states, always, self.action_dependent, self.tie)

    @property
    def is_channel(self) -> bool:
        """Whether it is a channel: p01, p11 and reward describe it."""
        return (
            self.states == 2
            and self.observed == "when_played"
            and not self.action_dependent
            and not self.reward_passive.any()
            and self.reward_active[0] == 0
            and bool(self.reward_active[1] >= 0)
        )


def _plain(given: Any) -> Any:
    """Convert a sparse array or a matrix to an array."""
    given = given.toarray() if hasattr(given, "toarray") else given
    return np.asarray(given) if isinstance(given, np.matrix) else given


def _matrix(name: str, given: Any) -> FloatArray:
    """Return a frozen transition matrix, or name its first wrong row in an error.

    Rows that sum to 1 only as far as they were printed are divided by their sum, with a warning
    unless they have single precision.
    """
    given = _plain(given)
    single = getattr(given, "dtype", None) in (np.float32, np.float16)
    try:
        rows = [np.array(row, dtype=np.float64) for row in given]
    except (TypeError, ValueError, OverflowError):
        raise ModelError(f"{name} must be a list of rows of numbers") from None
    S = len(rows)
    if S < 2:
        raise ModelError(f"{name} must have at least 2 rows, one for each state, got {S}")
    for state, row in enumerate(rows):
        if row.shape != (S,):
            got = f"{row.size} numbers" if row.ndim == 1 else f"shape {row.shape}"
            raise ModelError(f"{name} row {state} must have {S} numbers, as there are rows: {got}")
    matrix = np.stack(rows)
    sums = matrix.sum(1)
    off = np.abs(sums - 1)
    wrong = ~((matrix >= 0).all(1) & (off <= _PRINTED_TOLERANCE))
    for state in np.flatnonzero(wrong)[:1]:
        values = matrix[state]
        for column in np.flatnonzero(~(values >= 0) | np.isinf(values))[:1]:
            raise ModelError(
                f"{name} row {state}: column {column} must be a probability, got {values[column]}"
            )
        shown = values.tolist() if S <= 8 else f"{S} numbers"
        raise ModelError(f"{name} row {state} must sum to 1, got {sums[state]:.10g}: {shown}")
    rough = off >= _SUM_TOLERANCE
    for state in np.flatnonzero(rough)[: not single]:
        warnings.warn(
            f"{name} row {state} sums to {sums[state]:.10g} and was divided by that",
            RuntimeWarning,
            stacklevel=4,
        )
    matrix[rough] /= sums[rough, None]
    matrix.flags.writeable = False
    return matrix


def _rewards(name: str, given: npt.ArrayLike | None, S: int) -> FloatArray:
    """Return a frozen reward for each state, 0 where none is given."""
    if given is None:
        rewards = np.zeros(S)
    else:
        try:
            whole = _plain(given)
            rewards = np.array(whole, dtype=np.float64)
            rewards = rewards if whole is given else rewards.ravel()
        except (TypeError, ValueError, OverflowError):
            raise ModelError(f"{name} must be {S} numbers, one for each state") from None
    if rewards.shape != (S,):
        got = f"{rewards.size} numbers" if rewards.ndim == 1 else f"shape {rewards.shape}"
        raise ModelError(f"{name} must be {S} numbers, one for each state, got {got}")
    for state in np.flatnonzero(~np.isfinite(rewards))[:1]:
        raise ModelError(f"{name}: state {state} must be finite, got {rewards[state]}")
    rewards.flags.writeable = False
    return rewards


@dataclass(frozen=True, eq=False)
class Arms(Sequence[Arm]):
    """N arms, of any kinds and sizes.

    Arrays of several arms have the size S of the largest arm. States that an arm does not have stay
    where they are and pay nothing.
    """

    each: tuple[Arm, ...]

    def __init__(self, each: Iterable[Arm]) -> None:
        arms = tuple(each)
        if not arms:
            raise ModelError("there must be at least one arm")
        for number, arm in enumerate(arms, start=1):
            if not isinstance(arm, Arm):
                raise ModelError(f"arm {number} must be an Arm, got {type(arm).__name__}")
        object.__setattr__(self, "each", arms)

    @overload
    def __getitem__(self, place: int) -> Arm: ...
    @overload
    def __getitem__(self, place: slice) -> Arms: ...
    def __getitem__(self, place: int | slice) -> Arm | Arms:
        return Arms(self.each[place]) if isinstance(place, slice) else self.each[place]

    def __len__(self) -> int:
        return len(self.each)

    @cached_property
    def sizes(self) -> Int[IntArray, " N"]:
        """Number of states of each arm."""
        return np.array([arm.states for arm in self.each])

    @cached_property
    def passive(self) -> Float[FloatArray, "N S S"]:
        """Transition probabilities without a play."""
        return _stacked([arm.passive for arm in self.each])

    @cached_property
    def active(self) -> Float[FloatArray, "N S S"]:
        """Transition probabilities after a play."""
        return _stacked([arm.active for arm in self.each])

    @cached_property
    def reward_passive(self) -> Float[FloatArray, "N S"]:
        """Reward of a slot without a play."""
        return _stacked([arm.reward_passive for arm in self.each])

    @cached_property
    def reward_active(self) -> Float[FloatArray, "N S"]:
        """Reward of a play."""
        return _stacked([arm.reward_active for arm in self.each])

    @cached_property
    def kinds(self) -> tuple[ArmKind, ...]:
        """Kind of each arm, (N,)."""
        return tuple(arm.kind for arm in self.each)

    @cached_property
    def observed(self) -> tuple[str, ...]:
        """Observation rule of each arm, (N,)."""
        return tuple(arm.observed for arm in self.each)

    def check_plays(self, plays: int) -> None:
        """Refuse a number of plays per slot that these arms do not allow."""
        if not 1 <= plays <= len(self):
            raise ModelError(f"plays must lie in 1..{len(self)}, the number of arms, got {plays}")

    @cached_property
    def are_channels(self) -> bool:
        """Whether all are channels: p01, p11 and reward describe them."""
        return all(arm.is_channel for arm in self.each)

    def _need_channels(self) -> None:
        if not self.are_channels:
            raise ModelError(
                "this needs channels: two states, uncontrolled transitions, observed and paid only "
                "when played, nothing paid in state 0"
            )

    @property
    def p01(self) -> Float[FloatArray, " N"]:
        """Pr(good next | bad now) of each channel."""
        self._need_channels()
        return self.passive[:, 0, 1]

    @property
    def p11(self) -> Float[FloatArray, " N"]:
        """Pr(good next | good now) of each channel."""
        self._need_channels()
        return self.passive[:, 1, 1]

    @property
    def reward(self) -> Float[FloatArray, " N"]:
        """Reward of a play of each channel in its good state."""
        self._need_channels()
        return self.reward_active[:, 1]

    @property
    def dynamics(self) -> Dynamics:
        """Channels as plain arrays, as planners take them."""
        return Dynamics(self.p01, self.p11, self.reward)


class ArmKind(NamedTuple):
    """Structure of an arm, known before its transition probabilities are learnt.

    states: S; fully_observed: in every slot, not only when played; action_dependent: its two
    transition matrices differ; tie: the tie of its rows, if any.
    """

    states: int
    fully_observed: bool
    action_dependent: bool
    tie: Tie | None = None

    @property
    def always(self) -> bool:
        """Other name of fully_observed, for learners of users."""
        return self.fully_observed

    @property
    def alike(self) -> bool:
        """Opposite of action_dependent, for learners of users."""
        return not self.action_dependent


CHANNEL = ArmKind(2, fully_observed=False, action_dependent=False)


class Moves(NamedTuple):
    """Transition probabilities [s, s', arm, ...] of arms of at most S states."""

    passive: Float[Array, "S S N *B"]
    active: Float[Array, "S S N *B"]


class Intervals(NamedTuple):
    """Confidence intervals of the belief that a channel is good, by information state.

    Rows are those of a table with ages cut at J; accuracy is that of the gain of plans made from
    the intervals.
    """

    lower: Float[Array, "I N R"]
    upper: Float[Array, "I N R"]
    accuracy: Float[Array, " R"]


class Uncertain(NamedTuple):
    """Transition probabilities with confidence widths of their rows, width (S, N, ...)."""

    moves: Moves
    width: Moves


def channels(
    p01: npt.ArrayLike | Sequence[float],
    p11: npt.ArrayLike | Sequence[float],
    reward: npt.ArrayLike | Sequence[float],
) -> Arms:
    """Return two-state arms from p01, p11 and reward: a number or one number per arm.

    >>> len(channels(p01=[0.2, 0.89], p11=[0.8, 0.17], reward=[0.4, 0.9]))
    2
    """
    try:
        given = [np.atleast_1d(np.asarray(x, dtype=np.float64)) for x in (p01, p11, reward)]
        to_good, stays_good, pays = np.broadcast_arrays(*given)
    except (TypeError, ValueError, OverflowError) as error:
        raise ModelError(
            f"p01, p11 and reward must be numbers or lists of one length: {error}"
        ) from None
    if pays.ndim != 1 or pays.size == 0:
        raise ModelError(f"p01, p11 and reward must be one value per arm, got shape {pays.shape}")
    for name, values in (("p01", to_good), ("p11", stays_good)):
        for arm, value in enumerate(values):
            if not 0 <= value <= 1:
                raise ModelError(f"arm {arm + 1}: {name} must lie in [0, 1], got {value}")
    for arm, value in enumerate(pays):
        if not (np.isfinite(value) and value >= 0):
            raise ModelError(f"arm {arm + 1}: reward must be finite and not negative, got {value}")
    rows = [np.stack([1 - good, good], -1) for good in (to_good, stays_good)]
    matrix = np.stack(rows, 1)
    return Arms(Arm(matrix[n], reward=[0.0, pays[n]]) for n in range(pays.size))


def _stacked(parts: Sequence[FloatArray]) -> FloatArray:
    """Stack matrices (S_n, S_n) or vectors (S_n,) of several sizes in one frozen array."""
    S = max(len(part) for part in parts)
    square = parts[0].ndim == 2
    whole = np.tile(np.eye(S) if square else np.zeros(S), (len(parts), 1, 1)[: parts[0].ndim + 1])
    for row, part in zip(whole, parts, strict=True):
        size = len(part)
        row[(slice(size),) * part.ndim] = part
    whole.flags.writeable = False
    return whole
