"""What an arm is: its states, how it moves, what it pays and when it is observed.

An arm is a Markov chain over states 0..S-1 that moves in every slot, played or not:
`passive[s, s']` when left alone, `active[s, s']` after a play. It is observed `when_played` (the
paper) or `always`, which is fully observed (classic restless bandits).

A *channel* is the two-state arm of the paper's case study (Section V): state 1 is good and
pays `reward` when played, and both matrices are equal, so two numbers describe it,

    p01 = Pr(good next | bad now)      p11 = Pr(good next | good now).

An arm that is always observed may have *tied* rows: one event, a success say, has the same chance
in all of them. It says which next states the event leads to, and that chance is then all that is to
be learnt: given that the event happens, or does not, the next state has a law that is known, and so
have rows without the event.

What a player believes of an arm that it has not observed for a while is in `rmab.model.beliefs`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, overload

import numpy as np
import numpy.typing as npt

from rmab.arrays import Array, FloatArray
from rmab.errors import ModelError
from rmab.model.beliefs import OBSERVED
from rmab.text import shown

__all__ = [
    "OBSERVED",
    "WAITS",
    "Arm",
    "ArmKind",
    "Arms",
    "Dynamics",
    "Intervals",
    "Moves",
    "Tie",
    "channels",
]

Event = tuple[tuple[int, ...], ...]  # of each state the next states that an event leads to

# Of an action-dependent arm observed when played, waits below this many slots are learnt from.
WAITS = 8
_SUM_TOLERANCE = 1e-9  # rows that sum to 1 this closely are taken as they are,
_PRINTED_TOLERANCE = 1.001e-6  # and to six digits after division by their sum


@dataclass(frozen=True, init=False, eq=False)
class Arm:
    """One arm of S states, checked once, here.

    passive, active: (S, S) transition matrices, active as passive where it is not given;
    reward_passive, reward_active: (S,), what a slot pays in each state; `reward` alone is what a
    play pays, and nothing is paid otherwise; observed: one of OBSERVED; tied_passive, tied_active:
    S lists, of each state the next states to which the event of tied rows leads, none where a row
    does not depend on it.

    >>> Arm([[0.9, 0.1], [0.2, 0.8]], reward=[0, 1]).states
    2
    """

    passive: FloatArray
    active: FloatArray
    reward_passive: FloatArray
    reward_active: FloatArray
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
        object.__setattr__(self, "tie", _tie(self, tied_passive, tied_active))

    @property
    def states(self) -> int:
        """S, the number of states."""
        return self.reward_active.size

    @property
    def action_dependent(self) -> bool:
        """Whether it moves in another way when played than when left alone."""
        return not np.array_equal(self.passive, self.active)

    @property
    def kind(self) -> ArmKind:
        """What a learner knows of it."""
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


class Tie(NamedTuple):
    """Rows that one unknown chance describes.

    passive, active: where the event leads, see Event; for_sure, never: the rows (2, S, S), passive
    and active, if the event always happened and if it never did, as tuples. At a chance between
    they are mixed in that proportion.
    """

    passive: Event
    active: Event
    for_sure: tuple[tuple[tuple[float, ...], ...], ...]
    never: tuple[tuple[tuple[float, ...], ...], ...]


def _tie(arm: Arm, tied_passive: Any, tied_active: Any) -> Tie | None:
    """What an arm says of its rows, checked against them."""
    if tied_passive is None and tied_active is None:
        return None
    if arm.observed != "always":
        raise ModelError("tied rows must be those of an arm that is always observed")
    if not arm.action_dependent:
        tied_passive = tied_active = tied_active if tied_passive is None else tied_passive
    events = {
        "tied_passive": _event("tied_passive", tied_passive, arm.states),
        "tied_active": _event("tied_active", tied_active, arm.states),
    }
    rows = np.stack([arm.passive, arm.active])
    for_sure, never = rows.copy(), rows.copy()
    first: tuple[str, float] | None = None
    for action, (name, event) in enumerate(events.items()):
        for state, targets in enumerate(event):
            if not targets:
                continue
            row, place = rows[action, state], f"{name} row {state}"
            happens = np.isin(np.arange(arm.states), targets)
            chance = float(row[happens].sum())
            if not 0 < chance < 1:
                raise ModelError(
                    f"{place} must be an event of a chance between 0 and 1, got {chance:g}"
                )
            first = first or (place, chance)
            if abs(chance - first[1]) > _SUM_TOLERANCE:
                raise ModelError(
                    f"{place} must have the chance of {first[0]}, {first[1]:g}, as the rows are "
                    f"tied, got {chance:g}"
                )
            for_sure[action, state] = np.where(happens, row, 0) / chance
            never[action, state] = np.where(happens, 0, row) / row[~happens].sum()
    if first is None:
        raise ModelError("tied_passive or tied_active must have a row with an event")
    whole = (tuple(tuple(map(tuple, each.tolist())) for each in kind) for kind in (for_sure, never))
    return Tie(events["tied_passive"], events["tied_active"], *whole)


def _event(name: str, given: Any, S: int) -> Event:
    """Of each state the next states of an event; of none where nothing was given."""
    if given is None:
        return ((),) * S
    rule = f"{name} must be {S} lists of next states, one for each state"
    try:
        rows = tuple(tuple(row) for row in given)
    except TypeError:
        raise ModelError(rule) from None
    if len(rows) != S:
        raise ModelError(f"{rule}, got {len(rows)}")
    for state, row in enumerate(rows):
        for target in row:
            whole = isinstance(target, int | np.integer) and not isinstance(target, bool)
            if not whole or not 0 <= target < S:
                raise ModelError(
                    f"{name} row {state} must have states from 0 to {S - 1}, got {shown(target)}"
                )
    return tuple(tuple(sorted({int(target) for target in row})) for row in rows)


def _plain(given: Any) -> Any:
    """What was given, a sparse array or a matrix as an array."""
    given = given.toarray() if hasattr(given, "toarray") else given
    return np.asarray(given) if isinstance(given, np.matrix) else given


def _matrix(name: str, given: Any) -> FloatArray:
    """A frozen transition matrix; what is wrong with the first wrong row, if one is.

    Rows that sum to 1 only as far as they were printed are divided by their sum, with a warning,
    those of single precision without.
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
    """A frozen reward for each state; nothing where none was given."""
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

    As arrays they have the size S of the largest: passive, active (N, S, S); reward_passive,
    reward_active (N, S). States that an arm does not have stay where they are and pay nothing.
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
    def sizes(self) -> npt.NDArray[np.int64]:
        """The number of states of each arm, (N,)."""
        return np.array([arm.states for arm in self.each])

    @cached_property
    def passive(self) -> FloatArray:
        """Transitions when left alone, (N, S, S)."""
        return _stacked([arm.passive for arm in self.each])

    @cached_property
    def active(self) -> FloatArray:
        """Transitions after a play, (N, S, S)."""
        return _stacked([arm.active for arm in self.each])

    @cached_property
    def reward_passive(self) -> FloatArray:
        """What a slot without a play pays, (N, S)."""
        return _stacked([arm.reward_passive for arm in self.each])

    @cached_property
    def reward_active(self) -> FloatArray:
        """What a play pays, (N, S)."""
        return _stacked([arm.reward_active for arm in self.each])

    @cached_property
    def kinds(self) -> tuple[ArmKind, ...]:
        """What a learner knows of each arm, (N,)."""
        return tuple(arm.kind for arm in self.each)

    @cached_property
    def observed(self) -> tuple[str, ...]:
        """When each arm is observed, (N,)."""
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


class ArmKind(NamedTuple):
    """What is known of an arm beforehand: all but its transition probabilities and rewards.

    states: S; fully_observed: in every slot, not only when played; action_dependent: it moves in
    another way when played than when left alone; tie: what its rows have in common, if anything.
    """

    states: int
    fully_observed: bool
    action_dependent: bool
    tie: Tie | None = None

    @property
    def always(self) -> bool:
        """fully_observed, as learners of users may call it."""
        return self.fully_observed

    @property
    def alike(self) -> bool:
        """Not action_dependent, as learners of users may call it."""
        return not self.action_dependent


CHANNEL = ArmKind(2, fully_observed=False, action_dependent=False)


class Moves(NamedTuple):
    """Transition probabilities [s, s', arm, ...] of arms of at most S states: (S, S, N, ...)."""

    passive: Array
    active: Array


class Intervals(NamedTuple):
    """What the chance that a channel shows itself good is held to lie between.

    lower, upper: (1 + 2 J, N, trials), by information state with ages cut at J, as rows of a table;
    accuracy: (trials,), of the gain of plans that are made from them.
    """

    lower: Array
    upper: Array
    accuracy: Array


class Uncertain(NamedTuple):
    """Transition probabilities, and how far off each row may be: moves (S, S, N, ...), width
    (S, N, ...), both without a play and with one."""

    moves: Moves
    width: Moves


class Dynamics(NamedTuple):
    """Channels as planners see them: arrays that broadcast, arms first, trials last.

    The values may be true, estimated or drawn from a posterior; nothing is checked here.
    """

    p01: Array
    p11: Array
    reward: Array


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
    """Matrices (S_n, S_n) or vectors (S_n,) of several sizes as one frozen array."""
    S = max(len(part) for part in parts)
    square = parts[0].ndim == 2
    whole = np.tile(np.eye(S) if square else np.zeros(S), (len(parts), 1, 1)[: parts[0].ndim + 1])
    for row, part in zip(whole, parts, strict=True):
        size = len(part)
        row[(slice(size),) * part.ndim] = part
    whole.flags.writeable = False
    return whole
