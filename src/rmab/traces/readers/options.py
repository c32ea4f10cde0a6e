"""Options of reading a recording: columns, marks, slots and the rule for states."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from rmab.errors import TraceError
from rmab.text import shown
from rmab.traces.readers.clock import Clock
from rmab.traces.samples import DUPLICATES
from rmab.traces.trace import is_one_line

__all__ = ["AUTO", "HOLE", "HOW", "RecordingOptions"]

HOW, HOLE = "first", 10
AUTO = "auto"  # rule for good by the noise floor
_HOWS = (HOW, "any-bad", "mean")
_DECIMAL_COMMA = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class RecordingOptions:
    """Options of `rmab.read_recording`, which explains them."""

    good: str | None = None
    levels: str | None = None
    hysteresis: float = 0.0
    slot: float | None = None
    how: str = HOW
    hole: int = HOLE
    sort: bool = False
    time: str | None = None
    arm: str | None = None
    value: str | None = None
    agent: str | None = None
    bands: str | None = None
    variable: str | None = None
    duplicates: str | None = None
    decimal: str = "."
    missing: tuple[str, ...] = ()
    dates: str | None = None

    def __post_init__(self) -> None:
        if self.slot is not None and not (math.isfinite(self.slot) and self.slot > 0):
            raise TraceError(f"--slot must be a number of seconds above 0, got {self.slot}")
        if not (math.isfinite(self.hysteresis) and self.hysteresis >= 0):
            raise TraceError(f"--hysteresis must be a number of at least 0, got {self.hysteresis}")
        if self.how not in _HOWS:
            raise TraceError(f"--how: unknown {self.how!r}; known are {', '.join(_HOWS)}")
        if self.hole < 0:
            raise TraceError(f"--hole must be a whole number of at least 0, got {self.hole}")
        if self.duplicates is not None and self.duplicates not in DUPLICATES:
            known = ", ".join(DUPLICATES)
            raise TraceError(f"--duplicates: unknown {self.duplicates!r}; known are {known}")
        if self.decimal not in (".", ","):
            raise TraceError(f"--decimal must be . or a comma, got {self.decimal!r}")
        if self.dates is not None:
            _check_dates(self.dates)
        object.__setattr__(self, "missing", tuple(mark.strip() for mark in self.missing))
        if "" in self.missing:
            raise TraceError("--missing must be marks such as NA or -9999, got an empty one")

    @property
    def columns(self) -> tuple[str | None, ...]:
        """Names of the columns time, arm, value and agent, where they are given."""
        return self.time, self.arm, self.value, self.agent

    @property
    def clock(self) -> Clock:
        """A new reader of times."""
        return Clock(self.decimal, self.dates)

    @cached_property
    def missing_numbers(self) -> frozenset[float]:
        """Marks that are numbers, which are compared as such: -9999 is -9999.0, too."""
        numbers = []
        for mark in self.missing:
            with suppress(ValueError):
                numbers.append(float(mark))
        return frozenset(numbers)

    def number(self, text: str) -> float | None:
        """Return the number of a cell, None if it is empty or marked as missing.

        A ValueError has the reason, without the place.
        """
        text = text.strip()
        if not text or text in self.missing:
            return None
        try:
            if "_" not in text and (self.decimal == "." or "." not in text):  # "_": of Python
                value = float(text.replace(self.decimal, "."))
                return None if value in self.missing_numbers else value
        except ValueError:
            pass
        hint = ""
        if self.decimal == "." and _DECIMAL_COMMA.fullmatch(text):
            hint = "; --decimal , reads decimal commas"
        elif not any(map(str.isdigit, text)) and is_one_line(text):
            hint = f"; --missing {text} reads it as missing"
        raise ValueError(f"{shown(text)} is no number{hint}")

    def has(self, name: str) -> bool:
        """Return whether a field differs from its default."""
        return bool(getattr(self, name) != getattr(type(self), name))

    def refuse(self, place: str, *names: str) -> None:
        """Refuse options that a file has no use for, by the names of these fields."""
        for name in names:
            if self.has(name):
                raise TraceError(f"{place}: --{name} is not for files of this kind")


def _check_dates(form: str) -> None:
    """Refuse a form that does not determine the day."""
    day = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    try:
        read = datetime.strptime(day.strftime(form), form)
    except ValueError:
        read = None
    if read is None or read.date() != day.date():
        raise TraceError(
            f"--dates must have a year, a month and a day as in '%d.%m.%Y %H:%M:%S', got {form!r}"
        )
