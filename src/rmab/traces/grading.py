"""Grading: values of a recording become states.

A grading is a row of comparisons, and the state of a value is the number of them that hold: of one
rule for good 0 or 1, of S - 1 cuts 0 to S - 1. With a hysteresis h every comparison has a memory:
it ceases to hold at its bound, and holds again only h beyond it. So with `<= -95` and h = 3 a
channel is bad above -95 dB, and good again at -98 dB or less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rmab.errors import TraceError
from rmab.traces.readers.options import AUTO, RecordingOptions
from rmab.traces.samples import Samples
from rmab.traces.trace import MISSING, Threshold

__all__ = ["ABOVE_FLOOR_DB", "Floor", "Grading", "check_states", "gradings", "states_of"]

_STATES = Threshold("==", 1.0)  # of values that are states themselves
_FLOOR_PERCENT = 10.0  # of an arm's powers lie below its noise floor
ABOVE_FLOOR_DB = 6.0  # a power is good up to this much above its noise floor
_MAX_LEVELS = 127


class Floor(NamedTuple):
    """Noise floor of an arm as an agent measured it, and the highest power that is good, in dB."""

    agent: str
    arm: str
    floor: float
    good_up_to: float


@dataclass(frozen=True)
class Grading:
    """Comparisons, the widest first.

    Parameters
    ----------
    comparisons : tuple of Threshold
        The state of a value is the number of those that hold.
    hysteresis : float
        Distance beyond its bound at which a comparison holds again.
    """

    comparisons: tuple[Threshold, ...]
    hysteresis: float = 0.0

    def __post_init__(self) -> None:
        if self.hysteresis and any(rule.sign in ("==", "!=") for rule in self.comparisons):
            raise TraceError(
                "--hysteresis needs a rule for good with <=, <, >= or >, or --levels, got "
                f'"{self.comparisons[0]}"'
            )

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self.comparisons) + 1

    def __call__(self, values: np.ndarray, segment: np.ndarray) -> np.ndarray:
        """Return the state (samples,) int8 of each value; memory ends with a sample's segment."""
        state = np.zeros(values.shape, np.int8)
        first = np.concatenate(([True], segment[1:] != segment[:-1]))[: len(segment)]
        for rule in self.comparisons:
            holds = rule(values)
            if self.hysteresis:
                again = rule.stricter(self.hysteresis)(values)
                # Between the two bounds a sample is as the one before it, unless it is the first.
                decided = first | again | ~holds
                last = np.maximum.accumulate(np.where(decided, np.arange(len(values)), 0))
                holds = holds[last]
            state += holds
        return state


def gradings(options: RecordingOptions) -> dict[str, Grading | None]:
    """Return the gradings "good" and "levels" that are asked for; None: by noise floors."""
    made: dict[str, Grading | None] = {}
    if options.good == AUTO:
        made["good"] = None
    elif options.good is not None or options.levels is None:
        rule = _STATES if options.good is None else Threshold.parse(options.good)
        made["good"] = Grading((rule,), options.hysteresis)
    if options.levels is not None:
        made["levels"] = Grading(_parse_levels(options.levels), options.hysteresis)
    return made


def states_of(
    samples: Samples, segment: np.ndarray, grading: Grading | None, options: RecordingOptions
) -> tuple[np.ndarray, list[Floor]]:
    """Return states (agents, slots, arms) int8 of samples in slots, and noise floors, if used.

    Parameters
    ----------
    samples : Samples
        Its times are slots.
    segment : ndarray, shape (slots,)
        Segment of each slot.
    grading : Grading or None
        None grades each series by its noise floor.
    """
    state = np.full((len(samples.agents), len(segment), len(samples.arms)), MISSING, np.int8)
    floors = []
    for (m, n), one in samples.series.items():
        finite = np.isfinite(one.values)
        if not finite.any():
            continue
        slots, values = one.times[finite], one.values[finite]
        rule = grading
        if rule is None:
            floor = float(np.percentile(values, _FLOOR_PERCENT))
            good_up_to = floor + ABOVE_FLOOR_DB
            floors.append(Floor(samples.agents[m], samples.arms[n], floor, good_up_to))
            rule = Grading((Threshold("<=", good_up_to),), options.hysteresis)
        slots, states = _graded(slots, values, segment, rule, options.how)
        state[m, slots, n] = states
    return state, floors


def check_states(path: str, samples: Samples) -> None:
    """Refuse values that are no states, where there is no rule for good; -1 becomes missing."""
    for key, one in samples.series.items():
        with np.errstate(invalid="ignore"):
            wrong = np.flatnonzero(~(np.isin(one.values, (-1, 0, 1)) | np.isnan(one.values)))
        if wrong.size:
            at = int(wrong[0])
            raise TraceError(
                f"{path}: {samples.place(key, at)}: {one.values[at]:g} is no state: that is 0, 1, "
                "or -1 where nothing was measured; --good or --levels make states of values"
            )
        one.values = np.where(one.values == MISSING, np.nan, one.values)


def _graded(
    slots: np.ndarray, values: np.ndarray, segment: np.ndarray, rule: Grading, how: str
) -> tuple[np.ndarray, np.ndarray]:
    """Return the slots of a series that have samples, and the state in each.

    slots, values: (samples,) in the order of time; a slot may have several.
    """
    starts = np.flatnonzero(np.concatenate(([True], slots[1:] != slots[:-1])))
    if how == "any-bad":
        states = np.minimum.reduceat(rule(values, segment[slots]), starts)
        return slots[starts], states
    if how == "mean":
        with np.errstate(over="ignore"):
            sums = np.add.reduceat(values.astype(np.float64), starts)
            values = (sums / np.diff([*starts, values.size])).astype(values.dtype)
    else:
        values = values[starts]
    slots = slots[starts]
    return slots, rule(values, segment[slots])


def _parse_levels(text: str) -> tuple[Threshold, ...]:
    """Return the comparisons of cuts such as "-95,-80".

    Cuts that rise are reached from below: state 1 begins at the first. Cuts that fall are reached
    from above, for values that are better when they are lower.
    """
    try:
        cuts = [float(cut) for cut in text.split(",")]
    except ValueError:
        cuts = []
    steps = np.diff(cuts)
    sound = all(math.isfinite(cut) for cut in cuts) and (np.all(steps > 0) or np.all(steps < 0))
    if not 1 <= len(cuts) < _MAX_LEVELS or not sound:
        raise TraceError(
            "--levels must be numbers that rise, or that fall, with commas between them, as in "
            f'"-95,-80", got {text!r}'
        )
    sign = "<=" if len(cuts) > 1 and cuts[1] < cuts[0] else ">="
    return tuple(Threshold(sign, cut) for cut in cuts)
