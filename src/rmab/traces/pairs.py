"""Pairs of neighbouring slots, and runs of equal states.

A *series* is one arm as one agent measured it. Its *intervals* are measured slots that follow one
another in a segment. Two slots of different intervals are no neighbours.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "Bools",
    "Floats",
    "Ints",
    "Lanes",
    "Runs",
    "SlotPairs",
    "States",
    "by_series",
    "joined",
    "lanes_of",
    "pairs_of",
    "runs_of",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
States = npt.NDArray[np.int8]


class SlotPairs(NamedTuple):
    """Pairs of neighbouring slots of one series, in order of time; all (n,)."""

    at: Ints  # the slot of the second
    last: Ints  # the state of the first
    next: Ints  # the state of the second
    before: Ints  # the state of the slot before the first, -1 where the interval begins there
    age: Ints  # run length of `last` so far, from 1 slot


class Runs(NamedTuple):
    """Runs of equal states of several series, one after another; all (n,)."""

    series: Ints
    state: Ints
    length: Ints  # slots
    begins: Bools  # whether it is the first of an interval


class Lanes(NamedTuple):
    """Slots in the order in which a loop goes through them, one of every lane at a time."""

    slots: Ints  # (steps, lanes); -1 where a lane has ended
    begins: Bools  # (steps, lanes): whether the slot is the first of its segment


def by_series(state: States) -> States:
    """Return states (agents, slots, arms) as (agents x arms, slots)."""
    agents, slots, arms = state.shape
    return np.ascontiguousarray(state.swapaxes(1, 2)).reshape(agents * arms, slots)


def joined(state: States, segment: Ints) -> Bools:
    """Return whether each slot (..., slots) follows the one before it in an interval."""
    found = np.zeros(state.shape, bool)
    measured = state >= 0
    found[..., 1:] = measured[..., 1:] & measured[..., :-1] & (segment[1:] == segment[:-1])
    return found


def pairs_of(state: States, segment: Ints) -> SlotPairs:
    """Return all pairs of one series; state and segment have shape (slots,)."""
    follows = joined(state, segment)
    changed = ~follows
    changed[1:] |= state[1:] != state[:-1]
    slot = np.arange(len(state))
    since = slot - np.maximum.accumulate(np.where(changed, slot, 0)) + 1
    at = np.flatnonzero(follows)
    before = np.where(follows[at - 1], state[at - 2], -1)  # the first slot follows none: at >= 1
    rest = (x.astype(np.int64) for x in (state[at - 1], state[at], before, since[at - 1]))
    return SlotPairs(at, *rest)


def runs_of(state: States, segment: Ints) -> Runs:
    """Return all runs of several series (series, slots)."""
    measured = state >= 0
    follows = joined(state, segment)
    starts = measured & ~follows
    starts[:, 1:] |= follows[:, 1:] & (state[:, 1:] != state[:, :-1])
    place = np.flatnonzero(starts[measured])
    series, slot = np.nonzero(starts)
    return Runs(
        series,
        state[series, slot].astype(np.int64),
        np.diff(place, append=measured.sum()),
        ~follows[series, slot],
    )


def lanes_of(segment: Ints) -> Lanes:
    """Return segments side by side, with short ones after one another in a lane."""
    starts = np.flatnonzero(np.diff(segment, prepend=segment[0] - 1))
    lengths = np.diff(starts, append=len(segment))
    longest = int(lengths.max())
    lane, at, place = 0, 0, []
    for length in lengths.tolist():
        if at + length > longest:
            lane, at = lane + 1, 0
        place.append((at, lane))
        at += length
    slots = np.full((longest, lane + 1), -1)
    begins = np.zeros(slots.shape, bool)
    for (at, lane), start, length in zip(place, starts.tolist(), lengths.tolist(), strict=True):
        slots[at : at + length, lane] = np.arange(start, start + length)
        begins[at, lane] = True
    return Lanes(slots, begins)
