"""Numbers, tables and comparisons as text.

Words about two numbers follow from their difference and its standard error: a difference counts
when it exceeds four of them, as in the reports of `rmab reproduce`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Literal

from rmab.experiments.verdict import MIN_SIGMA

__all__ = [
    *("Estimate", "Order", "bare", "compared", "earns", "fixed", "listed", "percent", "plus"),
    *("rounded", "short_numbers", "table", "times"),
]

Order = Literal["more", "less", "undecided"]
Estimate = tuple[float, float]  # a mean and its standard error
UNKNOWN = "–"


def fixed(value: float, places: int) -> str:
    """A number with so many places and no zero before the point.

    >>> fixed(0.9741, 3), fixed(-0.0029, 4), fixed(12.0, 0), fixed(-0.0001, 2), fixed(2048, 0)
    ('.974', '-.0029', '12', '.00', '2,048')
    """
    if math.isnan(value):
        return UNKNOWN
    return _bare(f"{value:z,.{places}f}")


def _bare(text: str) -> str:
    sign, digits = (text[0], text[1:]) if text[:1] in ("-", "+") else ("", text)
    return sign + (digits[1:] if digits.startswith("0.") else digits)


def short_numbers(text: str) -> str:
    """A text whose numbers have no zero before the point.

    >>> short_numbers("0.58 times, -0.2 to 10.5")
    '.58 times, -.2 to 10.5'
    """
    return re.sub(r"(?<![\d.])0\.(?=\d)", ".", text)


def bare(text: str) -> str:
    """The same for a cell of a table: nothing in it ends the cell."""
    return short_numbers(text).replace("|", "\\|")


def plus(value: float, places: int) -> str:
    """The same with its sign, for differences.

    >>> plus(0.02, 3), plus(-0.02, 3)
    ('+.020', '-.020')
    """
    return UNKNOWN if math.isnan(value) else _bare(f"{value:+,.{places}f}")


def percent(share: float, places: int = 0) -> str:
    """A share in per cent.

    >>> percent(0.974), percent(0.0041, 1)
    ('97 %', '.4 %')
    """
    return UNKNOWN if math.isnan(share) else f"{fixed(100 * share, places)} %"


def places_of(error: float) -> int:
    """Decimal places at which an error has one digit, or two if the first is 1."""
    if not (math.isfinite(error) and error > 0):
        return 4
    power = math.floor(math.log10(error))
    first = round(error / 10**power, 6)
    return max(0, -power + (1 if first < 2 else 0))


def rounded(estimate: Sequence[float], sign: bool = False) -> str:
    """A mean ± its standard error, to the digits that the error leaves.

    >>> rounded((0.57881, 0.000071)), rounded((2488.2, 38.1)), rounded((0.5, float("nan")))
    ('.57881 ± .00007', '2,488 ± 38', '.5000')
    """
    mean, error = estimate
    places = places_of(error)
    text = plus(mean, places) if sign else fixed(mean, places)
    return text if math.isnan(error) else f"{text} ± {fixed(error, places)}"


def compared(difference: float, error: float) -> Order:
    """How one stands to another whose difference has this standard error.

    >>> compared(0.5, 0.1), compared(-0.5, 0.1), compared(0.3, 0.1), compared(1.0, float("nan"))
    ('more', 'less', 'undecided', 'undecided')
    """
    if difference > MIN_SIGMA * error:
        return "more"
    return "less" if -difference > MIN_SIGMA * error else "undecided"


def earns(one: str, other: str, difference: Sequence[float], unit: str = "a slot") -> str:
    """A sentence, without its full stop, on what one earns against another.

    >>> earns("`a`", "`b`", (0.003, 0.0004))
    '`a` earns .0030 ± .0004 more a slot than `b`'
    >>> earns("`a`", "`b`", (-0.003, 0.0004))
    '`a` earns .0030 ± .0004 less a slot than `b`'
    >>> earns("`a`", "`b`", (0.003, 0.001))
    'whether `a` earns more than `b` is undecided (+.0030 ± .0010 a slot)'
    """
    mean, error = difference
    word = compared(mean, error)
    if word == "undecided":
        shown = rounded(difference, sign=True)
        return f"whether {one} earns more than {other} is undecided ({shown} {unit})"
    return f"{one} earns {rounded((abs(mean), error))} {word} {unit} than {other}"


def times(ratio: float) -> str:
    """A ratio with two digits.

    >>> times(1.532), times(14.2), times(0.81)
    ('1.5', '14', '.81')
    """
    if math.isnan(ratio):
        return UNKNOWN
    return fixed(ratio, max(0, 1 - math.floor(math.log10(abs(ratio) or 1))))


def listed(words: Sequence[str], last: str = "and") -> str:
    """Words with commas between them.

    >>> listed(["a"]), listed(["a", "b"]), listed(["a", "b", "c"]), listed([])
    ('a', 'a and b', 'a, b and c', 'none')
    """
    if len(words) < 2:
        return "".join(words) or "none"
    return f"{', '.join(words[:-1])} {last} {words[-1]}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    >>> print(table(["a", "b"], [["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    for row in rows:
        assert len(row) == len(head), f"{len(row)} cells under {len(head)} heads: {row}"
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], f"|{'---|' * len(head)}", *lines[1:]])
