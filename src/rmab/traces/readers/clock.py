"""Times of recordings: seconds, or dates, as whole nanoseconds.

Whole nanoseconds have a multiple of 0.1 s that is 0.3 s, which binary fractions do not have.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation

__all__ = ["NS", "Clock"]

NS = 1_000_000_000
_LATEST = 9_000_000_000  # seconds; 64 bits of nanoseconds end at 9.2e9
# Of a second: 10:00.5 ends in half a minute, and is refused.
_FRACTION = re.compile(r"(.*[T ](?:\d\d:\d\d:\d\d|\d{6}))[.,](\d+)(.*)", re.ASCII | re.DOTALL)


class Clock:
    """Reader of times: seconds, or dates with times of day by ISO 8601, all of one kind.

    decimal: the mark before a second's fraction; dates: the form of dates, as strptime of Python
    has it, in place of both.
    """

    def __init__(self, decimal: str = ".", dates: str | None = None) -> None:
        self._decimal = decimal
        self._dates = dates
        self._kind = ""
        self._last = "", 0  # rows of one time follow one another

    def read(self, text: str) -> int:
        """Return nanoseconds, or raise a ValueError without the place."""
        if text != self._last[0] or not text:
            self._last = text, self._read(text)
        return self._last[1]

    def _read(self, text: str) -> int:
        if self._dates is not None:
            return self._date_of_form(text, self._dates)
        try:
            plain = "_" not in text  # which Python allows in a number
            plain = plain and (self._decimal == "." or "." not in text)
            seconds = Decimal(text.replace(self._decimal, ".") if plain else "")
        except InvalidOperation:
            return self._date(text)
        if not seconds.is_finite():
            raise ValueError(f"time {text!r} must be a finite number of seconds")
        if abs(seconds) > _LATEST:
            raise ValueError(
                f"time {text!r} must be seconds, below 9e9; milliseconds must be divided by 1000"
            )
        self._same("seconds", text)
        return round(seconds * NS)

    def _date(self, text: str) -> int:
        """Return the nanoseconds of a date; a time without a zone counts as UTC."""
        found = _FRACTION.fullmatch(text)  # which the library cuts off after six digits
        fraction = int(found[2][:9].ljust(9, "0")) if found else 0
        try:
            if not found and not {".", ","}.isdisjoint(text):
                raise ValueError  # which Python takes for a second's
            time = datetime.fromisoformat(found[1] + found[3] if found else text)
        except ValueError:
            raise ValueError(
                f"time {text!r} is neither a number of seconds nor a date by ISO 8601; --dates "
                "says what form dates have, and --decimal , that numbers have decimal commas"
            ) from None
        return self._nanoseconds(time, fraction, text)

    def _date_of_form(self, text: str, form: str) -> int:
        try:
            time = datetime.strptime(text, form)
        except ValueError:
            raise ValueError(f"time {text!r} is no date of the form {form!r}") from None
        return self._nanoseconds(time.replace(microsecond=0), time.microsecond * 1000, text)

    def _nanoseconds(self, time: datetime, fraction: int, text: str) -> int:
        """Return nanoseconds since 1970; fraction: of the second, in nanoseconds."""
        self._same("dates without a zone" if time.tzinfo is None else "dates with a zone", text)
        since = (time if time.tzinfo else time.replace(tzinfo=UTC)) - datetime(
            1970, 1, 1, tzinfo=UTC
        )
        seconds = since.days * 86_400 + since.seconds
        if abs(seconds) > _LATEST:
            raise ValueError(f"time {text!r} must lie within 285 years of 1970")
        return seconds * NS + fraction

    def _same(self, kind: str, text: str) -> None:
        self._kind = self._kind or kind
        if kind != self._kind:
            raise ValueError(
                f"time {text!r}: all times must be of one kind, and these were {self._kind}"
            )
