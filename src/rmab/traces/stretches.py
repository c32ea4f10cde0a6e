"""What a trace has of pairs and runs.

A *series* is one arm as one agent measured it. It falls into *stretches*: measured slots that
follow one another inside a segment. Nothing is said about two slots of different stretches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = [
    "Bools",
    "Floats",
    "Ints",
    "Pairs",
    "Runs",
    "States",
    "by_series",
    "joined",
    "pairs_of",
    "runs_of",
    "slots_by_segment",
]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
States = npt.NDArray[np.int8]


class Pairs(NamedTuple):
    """The pairs of neighbouring slots of one series, in order of time; all (n,)."""

    at: Ints  # the slot of the second
    last: Ints  # the state of the first
    next: Ints  # the state of the second
    before: Ints  # the state of the slot before the first, -1 where the stretch begins there
    age: Ints  # slots that the stretch has been in `last`, from 1


class Runs(NamedTuple):
    """The runs of equal states of several series, one after another; all (n,)."""

    series: Ints
    state: Ints
    length: Ints  # slots
    begins: Bools  # whether it is the first of a stretch


def by_series(state: States) -> States:
    """(agents x arms, slots) of (agents, slots, arms)."""
    agents, slots, arms = state.shape
    return np.ascontiguousarray(state.swapaxes(1, 2)).reshape(agents * arms, slots)


def joined(state: States, segment: Ints) -> Bools:
    """(..., slots): whether a slot follows the one before it in one stretch."""
    found = np.zeros(state.shape, bool)
    measured = state >= 0
    found[..., 1:] = measured[..., 1:] & measured[..., :-1] & (segment[1:] == segment[:-1])
    return found


def pairs_of(state: States, segment: Ints) -> Pairs:
    """All pairs of one series: state and segment are (slots,)."""
    follows = joined(state, segment)
    changed = ~follows
    changed[1:] |= state[1:] != state[:-1]
    slot = np.arange(len(state))
    since = slot - np.maximum.accumulate(np.where(changed, slot, 0)) + 1
    at = np.flatnonzero(follows)
    before = np.where(follows[at - 1], state[at - 2], -1)  # the first slot follows none: at >= 1
    rest = (x.astype(np.int64) for x in (state[at - 1], state[at], before, since[at - 1]))
    return Pairs(at, *rest)


def runs_of(state: States, segment: Ints) -> Runs:
    """All runs of several series; state: (series, slots)."""
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


def slots_by_segment(segment: Ints) -> Ints:
    """(longest, segments): the slots of each segment, -1 where it has ended."""
    starts = np.flatnonzero(np.diff(segment, prepend=segment[0] - 1))
    lengths = np.diff(starts, append=len(segment))
    place = np.arange(lengths.max())[:, None]
    return np.where(place < lengths, starts + place, -1)
