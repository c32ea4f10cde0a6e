"""What was measured to states: rules for good, and levels.

A grading is a row of comparisons, and the state of a value is how many of them hold: of one rule
for good 0 or 1, of S - 1 cuts 0 to S - 1. With a hysteresis h every comparison has a memory: it
ceases to hold at its bound, and holds again only h beyond it. So with `<= -95` and h = 3 a channel
is bad above -95 dB, and good again at -98 dB or less.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rmab.errors import TraceError
from rmab.traces.trace import Comparison

__all__ = ["ABOVE_FLOOR_DB", "FLOOR_PERCENT", "Grading", "by_noise_floor", "parse_levels"]

FLOOR_PERCENT = 10.0  # of an arm's powers lie below its noise floor
ABOVE_FLOOR_DB = 6.0  # a power is good up to so much above it
_MAX_LEVELS = 127


@dataclass(frozen=True)
class Grading:
    """Comparisons, the widest first: a value's state is how many hold.

    hysteresis: by how much more a comparison must hold to hold again.
    """

    comparisons: tuple[Comparison, ...]
    hysteresis: float = 0.0

    def __post_init__(self) -> None:
        if self.hysteresis and any(rule.sign in ("==", "!=") for rule in self.comparisons):
            raise TraceError(
                "--hysteresis needs a rule for good with <=, <, >= or >, or --levels, got "
                f'"{self.comparisons[0]}"'
            )

    @property
    def states(self) -> int:
        """How many states it tells apart."""
        return len(self.comparisons) + 1

    def __call__(self, values: np.ndarray, segment: np.ndarray) -> np.ndarray:
        """The state (samples,) int8 of each value; memory ends with the segment of a sample."""
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


def by_noise_floor(values: np.ndarray) -> tuple[float, Comparison]:
    """The noise floor of an arm's finite powers (samples,) in dB, and the rule for good by it."""
    floor = float(np.percentile(values, FLOOR_PERCENT))
    return floor, Comparison("<=", floor + ABOVE_FLOOR_DB)


def parse_levels(text: str) -> tuple[Comparison, ...]:
    """The comparisons of cuts such as "-95,-80".

    Cuts that rise are reached from below: state 1 begins at the first. Cuts that fall are reached
    from above, for values of which the lower ones are better.
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
    return tuple(Comparison(sign, cut) for cut in cuts)
