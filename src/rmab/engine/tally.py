"""Sums over trials of rewards, episodes and errors, made where the trials are.

A batch's rewards, episodes and errors become whole numbers, and only sums leave the device, of
these and of their squares. Sums of whole numbers are exact in any order, so results do not depend
on how trials were batched, on threads, or on other policies, to the last bit; and the size of
results does not grow with the trials.

A quantity is v = unit * n with a whole number |n| < 2^31, where the unit is a billionth, or less,
of the largest value that is possible. Squares are summed in two halves of 31 bits: 2^32 trials fit.
Values may be missing: a trial without a twentieth episode says nothing about it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.engine.setting import Outcome

__all__ = [
    "REFERENCE_KEY",
    "Batch",
    "CoMoments",
    "Moments",
    "Simulated",
    "Sums",
    "Tally",
    "final_slots",
    "reduce_batch",
    "sums",
    "wide",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_BITS = 30  # bits of a whole number without its sign
_HALF = 31  # bits of the lower half of a square
_ERROR_BITS = 25  # bits of the fraction of a squared error
_MAX_ERROR = 32.0  # largest squared error: bounds that are not clipped may be off by more than 1


def wide() -> AbstractContextManager[None]:
    """Return a context in which JAX has numbers of 64 bits, in this thread only."""
    context: AbstractContextManager[None] = jax.enable_x64(True)
    return context


class Sums(NamedTuple):
    """Sums of whole numbers n over trials: their number, sum n, and sum n^2 in two halves."""

    count: Any
    total: Any
    high: Any
    low: Any


def sums(values: Array, there: Array) -> Sums:
    """Over the last axis; there: which values are, broadcast to them."""
    values = jnp.where(there, values, 0)
    squares = values * values
    count = jnp.broadcast_to(there, values.shape).sum(-1, dtype=jnp.int64)
    high, low = squares >> _HALF, squares & ((1 << _HALF) - 1)
    return Sums(count, values.sum(-1), high.sum(-1), low.sum(-1))


class Moments:
    """Count, mean and standard error of each entry of an array over trials."""

    def __init__(self, unit: float | Floats = 1.0) -> None:
        self._unit = unit
        self.sums: Sums | None = None

    def add(self, more: Sums) -> None:
        """Add the sums of more trials."""
        known = self.sums
        self.sums = more if known is None else Sums(*map(np.add, known, more))

    def _known(self) -> Sums:
        if self.sums is None:
            return Sums(*(np.zeros((), np.int64) for _ in Sums._fields))
        return self.sums

    @property
    def count(self) -> Floats:
        """Number of trials with a value."""
        return np.asarray(self._known().count, np.float64)

    @property
    def mean(self) -> Floats:
        """0 where no trial gave a value."""
        return np.asarray(self._known().total / np.maximum(self.count, 1) * self._unit)

    @property
    def se(self) -> Floats:
        """Standard error of the mean; NaN where fewer than two trials gave a value."""
        count, total, high, low = (np.asarray(x).astype(object) for x in self._known())
        # n sum of squares - square of sum, exactly: n (n - 1) times the variance
        spread = np.asarray(count * (high * (1 << _HALF) + low) - total**2, np.float64)
        many = self.count > 1
        n = np.where(many, self.count, 2)
        return np.where(many, np.sqrt(spread / (n - 1)) / n * self._unit, np.nan)


class CoMoments:
    """Means of several quantities of the same trials and the covariance of those means."""

    def __init__(self, size: int, unit: float = 1.0) -> None:
        self.count = 0
        self._unit = unit
        square = np.zeros((size, size), np.int64)
        self.sums: tuple[Ints, Ints, Ints] = np.zeros(size, np.int64), square, square

    def add(self, count: int, total: Ints, high: Ints, low: Ints) -> None:
        """Add sums (size,) of more trials and, in two halves, of their products (size, size)."""
        self.count += count
        before = self.sums
        self.sums = before[0] + total, before[1] + high, before[2] + low

    @property
    def mean(self) -> Floats:
        """(size,)"""
        total = self.sums[0].astype(object)
        return np.asarray(total / max(self.count, 1) * self._unit, np.float64)

    @property
    def covariance(self) -> Floats:
        """(size, size) covariance of the means; NaN for fewer than two trials."""
        n = self.count
        total, high, low = (x.astype(object) for x in self.sums)
        if n < 2:
            return np.full(high.shape, np.nan)
        spread = n * (high * (1 << _HALF) + low) - np.multiply.outer(total, total)
        return np.asarray(np.asarray(spread, np.float64) / (n - 1) / n / n * self._unit**2)


# ---------------------------------------------------------------------------- results of policies

REFERENCE_KEY = ""  # of the reference policy among those of a batch


class Tally:
    """One policy's results over trials; rewards are per agent and slot."""

    def __init__(self, units: Units) -> None:
        self.reward = Moments(units.slot)  # by slot
        self.regret = Moments(units.to_slot)  # cumulative, against the reference
        self.final = Moments(units.final)  # over the last tenth of the slots
        self.stuck = Moments()  # 1 where that was far below the reference's, 0 elsewhere
        self.episodes = Moments()  # how many there were
        self.length = Moments()  # by episode
        self.episode_reward = Moments(units.slot)
        self.episode_regret = Moments(units.slot)  # per slot
        self.error = Moments(2.0**-_ERROR_BITS)  # squared error of the dynamics


def final_slots(horizon: int) -> int:
    """Return the number of slots of the last tenth; at least one."""
    return max(1, round(horizon / 10))


@dataclass(frozen=True)
class Units:
    """Units of the whole numbers of a study, per agent.

    scale: whole numbers to a reward of 1, summed over agents, a power of two; horizon: T.
    """

    scale: float
    horizon: int
    n_agents: int

    @classmethod
    def of(cls, horizon: int, n_agents: int, largest: float) -> Units:
        """largest: a bound on the reward of all agents in a slot."""
        bits = _BITS - (int(np.ceil(np.log2(largest))) if largest > 0 else 0)
        return cls(2.0**bits, horizon, n_agents)

    @property
    def slot(self) -> float:
        return 1 / (self.scale * self.n_agents)

    @property
    def to_slot(self) -> Floats:
        """Units of sums over all slots up to each, (T,)."""
        return np.array([self.slot * 2.0 ** shift(slots) for slots in range(1, self.horizon + 1)])

    @property
    def mean(self) -> float:
        """Unit of the average over all slots, from sums over them."""
        return self.slot * 2.0 ** shift(self.horizon) / self.horizon

    @property
    def final(self) -> float:
        last = final_slots(self.horizon)
        return self.slot * 2.0 ** shift(last) / last


def shift(slots: int) -> int:
    """Bits by which a sum over slots is larger than one of them."""
    return (slots - 1).bit_length()


def _shortened(values: Array, bits: int | Array) -> Array:
    """values / 2^bits, rounded."""
    return jnp.right_shift(values + jnp.right_shift(jnp.left_shift(jnp.int64(1), bits), 1), bits)


def _paid(rewards: Array, scale: Array) -> Array:
    return jnp.round(rewards.astype(jnp.float64) * scale).astype(jnp.int64)


@jax.jit
def _sums_of(
    out: Outcome, reference: Array, scale: Array, count: Array, margin: Array | None = None
) -> tuple[tuple[Array, Array], Any]:
    """Return rewards of a policy and the reference by trial, and the policy's sums over trials.

    Rewards are (R,) whole numbers; sums are over the first `count` trials, by attribute of Tally.
    reference: its rewards, (T, R). margin: a trial has failed if it earns less than the reference
    by more than this over the last tenth of the slots, in whole numbers.
    """
    horizon, n_trials = out.rewards.shape
    there = jnp.arange(n_trials) < count
    several, last = len(out.lengths) > 1, final_slots(horizon)

    # Slot by slot: a slot of all trials stays in a core's cache.
    def earn(state: Any, slot: tuple[Array, ...]) -> tuple[Any, Any]:
        mine, theirs, early = state
        number, bits, rewards, other = slot
        paid = _paid(rewards, scale)
        mine, theirs = mine + paid, theirs + _paid(other, scale)
        soon = (mine,) if margin is None else (mine, theirs)
        early = tuple(
            jnp.where(number < horizon - last, x, before)
            for x, before in zip(soon, early, strict=True)
        )
        by_slot = sums(jnp.stack([paid, _shortened(theirs - mine, bits)]), there)
        return (mine, theirs, early), (by_slot, (mine, theirs) if several else ())

    none = jnp.zeros(n_trials, jnp.int64)
    bits = jnp.array([shift(slots) for slots in range(1, horizon + 1)], jnp.int64)
    slots = jnp.arange(horizon), bits, out.rewards, reference
    before: tuple[Array, ...] = (none,) if margin is None else (none, none)
    (total, against, early), (by_slot, after) = lax.scan(earn, (none, none, before), slots)
    # After each slot, (T, R); of one episode only the end matters.
    after = after if several else (total[None], against[None])
    final = total - early[0]
    each_trial = [_shortened(final, shift(last)), out.episodes]
    if margin is not None:
        each_trial.append((against - early[1] - final > margin).astype(jnp.int64))
    # Stacked, so that the sums are compiled once.
    by_trial = sums(jnp.stack(each_trial), there)

    # Episode by episode, up to the last that a trial has.
    def conclude(state: tuple[Array, Array, Array, Sums]) -> tuple[Array, Array, Array, Sums]:
        k, ended, before, known = state
        length = out.lengths[k].astype(jnp.int64)  # 0 past the last episode
        ended = ended + length
        place = jnp.clip(ended - 1, 0, len(after[0]) - 1), jnp.arange(n_trials)
        earned = jnp.stack([x[place] for x in after])
        mine, theirs = earned - before
        each = jnp.maximum(length, 1)
        series = [length, _divided(mine, each), _divided(theirs - mine, each)]
        if out.error.shape[0]:
            off = jnp.clip(out.error[k], 0, _MAX_ERROR).astype(jnp.float64) * (1 << _ERROR_BITS)
            series += list(jnp.round(off).astype(jnp.int64))
        new = sums(jnp.stack(series), there & (length > 0))
        return (
            k + 1,
            ended,
            earned,
            Sums(*(x.at[k].set(y) for x, y in zip(known, new, strict=True))),
        )

    size = 3 + (out.error.shape[1] if out.error.shape[0] else 0)
    nothing = Sums(*(jnp.zeros((len(out.lengths), size), jnp.int64) for _ in Sums._fields))
    begin = jnp.int64(0), none, jnp.stack([none, none]), nothing
    by_episode = lax.while_loop(lambda s: s[0] < out.episodes.max(), conclude, begin)[3]
    found = {
        "reward": Sums(*(x[:, 0] for x in by_slot)),
        "regret": Sums(*(x[:, 1] for x in by_slot)),
        "final": Sums(*(x[0] for x in by_trial)),
        "episodes": Sums(*(x[1] for x in by_trial)),
        "length": Sums(*(x[:, 0] for x in by_episode)),
        "episode_reward": Sums(*(x[:, 1] for x in by_episode)),
        "episode_regret": Sums(*(x[:, 2] for x in by_episode)),
    }
    if margin is not None:
        found["stuck"] = Sums(*(x[2] for x in by_trial))
    if out.error.shape[0]:
        found["error"] = Sums(*(x[:, 3:] for x in by_episode))
    return (total, against), found


def _divided(values: Array, by: Array) -> Array:
    """values / by, rounded; both below 2^52."""
    return jnp.round(values.astype(jnp.float64) / by.astype(jnp.float64)).astype(jnp.int64)


@jax.jit
def _products(totals: list[Array], count: Array, horizon: Array) -> tuple[Array, Array, Array]:
    """Sums over trials of all policies' totals, (size,), and of their products in two halves,
    (size, size)."""
    there = jnp.arange(totals[0].size) < count
    ends = jnp.stack([jnp.where(there, _shortened(x, horizon), 0) for x in totals])
    products = ends[:, None] * ends
    high, low = products >> _HALF, products & ((1 << _HALF) - 1)
    return ends.sum(-1), high.sum(-1), low.sum(-1)


class Batch(NamedTuple):
    """Sums of a batch, as the tallies take them."""

    n_trials: int
    joint: tuple[Ints, Ints, Ints]  # see CoMoments
    parts: dict[str, dict[str, Sums]]  # by policy and by attribute of Tally


def reduce_batch(
    outcomes: Mapping[str, Outcome], units: Units, count: int, margin: float | None = None
) -> Batch:
    """Sums over the first `count` trials of a batch; the reference comes last, as REFERENCE_KEY.

    margin: a trial is stuck whose last tenth earns less than the reference's of the same trial by
    more than this, per agent and slot; None: that is not counted.
    """
    with wide():
        scale, first = jnp.float64(units.scale), jnp.int64(count)
        far = None
        if margin is not None:
            far = jnp.int64(round(margin / units.slot * final_slots(units.horizon)))
        reference = outcomes[REFERENCE_KEY].rewards
        totals, parts = [], {}
        for name, out in outcomes.items():
            if name != REFERENCE_KEY:
                (total, against), parts[name] = _sums_of(out, reference, scale, first, far)
                totals.append(total)
        bits = jnp.int64(shift(units.horizon))
        joint = _products([*totals, against], first, bits)
        joint, fetched = jax.device_get((joint, parts))
    return Batch(count, joint, {name: fetched[name] for name in parts})  # JAX sorts the names


class Simulated:
    """Results of `simulate`: tallies by policy, and the policies' joint moments."""

    def __init__(self, units: Units, size: int) -> None:
        self.n_trials = 0
        self.tallies: dict[str, Tally] = {}
        self.means = CoMoments(size, units.mean)  # of the policies in order, then of the reference
        self.interrupted = False
        self._units = units

    def add(self, batch: Batch) -> None:
        """Add a batch."""
        for name, part in batch.parts.items():
            tally = self.tallies.setdefault(name, Tally(self._units))
            for key, more in part.items():
                getattr(tally, key).add(more)
        self.means.add(batch.n_trials, *batch.joint)
        self.n_trials += batch.n_trials

    def as_batch(self) -> Batch:
        """All trials so far as one batch: another `Simulated` that adds it is equal to this."""
        parts = {
            name: {key: each.sums for key, each in vars(tally).items() if each.sums is not None}
            for name, tally in self.tallies.items()
        }
        return Batch(self.n_trials, self.means.sums, parts)
