"""Samples as they were measured, and the slots they fall into.

Times are whole nanoseconds, so that 0.1 s has a multiple that is 0.3 s.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rmab.errors import TraceError
from rmab.traces.readers.arrays import MAX_CELLS, check_cells
from rmab.traces.readers.clock import NS

__all__ = [
    "DUPLICATES",
    "Samples",
    "Series",
    "natural_order",
    "on_grid",
    "on_steps",
    "segments",
]

DUPLICATES = ("first", "last", "mean")  # what becomes of samples of one arm at one time
# A time may lie so much before a slot's start, in slots, and still count as at it: times that
# were added up from steps, or printed with few digits, are a little off.
_SLACK = 1e-5
_LEAST_FILLED = 0.01  # of a grid


@dataclass
class Series:
    """Samples of one arm as one agent measured it.

    times: (samples,) int64: nanoseconds, or slots where the recording has no times.
    values: (samples,) float64, NaN where nothing was measured.
    lines: (samples,) of the file, where it has lines.
    """

    times: np.ndarray
    values: np.ndarray
    lines: np.ndarray | None = None

    def take(self, places: np.ndarray) -> None:
        """Keep the samples at these places, in their order."""
        self.times, self.values = self.times[places], self.values[places]
        self.lines = None if self.lines is None else self.lines[places]

    def merge(self, how: str) -> None:
        """Keep one sample of each time, as one of DUPLICATES; times must not go back.

        It is the first or the last that was measured, or the mean of those that were.
        """
        if not self.times.size:
            return
        starts = np.flatnonzero(np.diff(self.times, prepend=self.times[0] - 1))
        measured = np.isfinite(self.values)
        place = np.arange(len(self.values))
        if how == "last":
            found = np.maximum.reduceat(np.where(measured, place, -1), starts)
        else:
            found = np.minimum.reduceat(np.where(measured, place, len(place)), starts)
        some = np.logical_or.reduceat(measured, starts)
        found = np.where(some, found, starts)  # nothing was measured: it stays missing
        if how == "mean":
            sums = np.add.reduceat(np.where(measured, self.values, 0.0), starts)
            number = np.add.reduceat(measured, starts, dtype=np.int64)
            means = np.where(some, sums / np.maximum(number, 1), np.nan)
            self.take(found)
            self.values = means
        else:
            self.take(found)


@dataclass
class Samples:
    """Samples of a recording: series by the places of agent and arm.

    timed: whether samples have times; where not, each has a slot.
    not_finite: number of values that were NaN or infinite, and so were read as missing.
    segment: (slots,) ids, where the recording has them itself.
    """

    agents: tuple[str, ...]
    arms: tuple[str, ...]
    series: dict[tuple[int, int], Series]
    timed: bool
    not_finite: int
    segment: np.ndarray | None = None
    slot_s: float | None = None

    def place(self, key: tuple[int, int], i: int) -> str:
        """Return the place of sample i of a series in its file."""
        one = self.series[key]
        if one.lines is None:
            return f"cell [{key[0]}, {one.times[i]}, {key[1]}]"
        return f"line {one.lines[i]}"

    def in_order(self, path: str, sort: bool, duplicates: str | None = None) -> None:
        """Sort the samples of each series, make one of those of one time, or refuse times that go
        back or repeat; duplicates: one of DUPLICATES, None: refused."""
        worst: tuple[int, str] | None = None
        for (_, arm), one in self.series.items():
            if sort:
                one.take(np.argsort(one.times, kind="stable"))
            steps = np.diff(one.times)
            wrong = np.flatnonzero(steps <= 0 if duplicates is None else steps < 0)
            if wrong.size:
                at = int(wrong[0]) + 1
                line = at if one.lines is None else int(one.lines[at])
                before, time = one.times[at - 1 : at + 1].tolist()
                how = f"goes back from {before / NS:.15g}; --sort sorts"
                if before == time:
                    how = f"comes twice; --duplicates {', '.join(DUPLICATES)} makes one of them"
                said = f"time {time / NS:.15g} s of arm {self.arms[arm]!r} {how}"
                if worst is None or line < worst[0]:
                    worst = line, said
            elif duplicates is not None:
                one.merge(duplicates)
        if worst is not None:
            raise TraceError(f"{path}: line {worst[0]}: {worst[1]}")


def _number_key(digits: str) -> tuple[int, int, str]:
    """Return a key that sorts digits as their number, whatever their length."""
    digits = digits.lstrip("0")
    return 1, len(digits), digits


def natural_order(names: list[str]) -> list[str]:
    """Return the names sorted, with the numbers in them as numbers."""

    def key(name: str) -> tuple[list[tuple[int, int, str]], str]:
        parts = re.split(r"([0-9]+)", name)
        split = [_number_key(p) if p.isdecimal() else (0, 0, p) for p in parts if p]
        return split, name

    return sorted(names, key=key)


def on_grid(path: str, samples: Samples, slot_s: float) -> int:
    """Put the samples on a grid from the first one on; return its slots."""
    times = [one.times for one in samples.series.values() if one.times.size]
    start, end = min(int(t.min()) for t in times), max(int(t.max()) for t in times)
    resolution = float(np.spacing(max(abs(start), abs(end)) / NS))
    slack = min(0.25, max(_SLACK, resolution / slot_s))

    def slots(times: np.ndarray) -> np.ndarray:
        return np.floor((times - start) / (slot_s * NS) + slack).astype(np.int64)

    length = (end - start) / (slot_s * NS) + slack
    if not length < MAX_CELLS:
        raise TraceError(
            f"{path}: a slot of {slot_s:g} s is too short: the grid would have more than 2^31 cells"
        )
    n_slots = int(length) + 1
    _put(path, samples, slots, n_slots, f"{slot_s:g} s")
    return n_slots


def on_steps(path: str, samples: Samples) -> tuple[int, float]:
    """Give each time its slot, with a slot for each median step that was left out.

    Returns the number of slots, and the median step in seconds.
    """
    times = np.unique(np.concatenate([one.times for one in samples.series.values()]))
    if times.size < 2:
        raise TraceError(f"{path}: a trace has 2 slots or more, this has {times.size}")
    steps = np.diff(times)
    step = float(np.median(steps))
    at = np.concatenate(([0], np.cumsum(np.maximum(1, np.rint(steps / step))))).astype(np.int64)

    def slots(some: np.ndarray) -> np.ndarray:
        return at[np.searchsorted(times, some)]

    n_slots = int(at[-1]) + 1
    _put(path, samples, slots, n_slots, f"{step / NS:g} s, the median step between times,")
    return n_slots, step / NS


def _put(
    path: str,
    samples: Samples,
    slots: Callable[[np.ndarray], np.ndarray],
    n_slots: int,
    slot: str,
) -> None:
    """Give every sample its slot in place of its time, unless nearly all slots would be empty."""
    measured = {
        key: np.isfinite(one.values)
        for key, one in samples.series.items()
        if np.isfinite(one.values).any()
    }

    def check(n_filled: int) -> None:
        if n_filled < _LEAST_FILLED * len(measured) * n_slots:
            raise TraceError(
                f"{path}: a slot of {slot} is too short: over 99 % of the grid of {n_slots} slots "
                "would be holes; --slot sets it"
            )

    check(sum(int(np.count_nonzero(some)) for some in measured.values()))
    shape = (len(samples.agents), n_slots, len(samples.arms))
    check_cells(path, shape)
    for one in samples.series.values():
        one.times = slots(one.times)
    check(sum(np.unique(samples.series[key].times[some]).size for key, some in measured.items()))


def segments(measured: np.ndarray, hole: int) -> np.ndarray:
    """Segment ids (slots,): a new one after each hole of more than `hole` slots.

    measured: (slots,) whether anything was measured there.
    """
    found = np.flatnonzero(measured)
    starts = np.zeros(measured.shape, np.int64)
    starts[found[1:][np.diff(found) - 1 > hole]] = 1
    return np.cumsum(starts)
