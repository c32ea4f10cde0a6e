"""What files may say: the policies by name, their options, and how a value is checked.

Used for studies and for federations. Whatever is wrong is a StudyError of one line: the value, the
place and the rule.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from importlib.resources.abc import Traversable
from os import PathLike
from pathlib import Path
from typing import Any

from rmab.errors import StudyError
from rmab.policies.lookahead import DEPTHS

__all__ = [
    "GAPS",
    "KNOWN",
    "LEARNERS",
    "OPTIONS",
    "check_options",
    "is_number",
    "one_of",
    "read_toml",
    "shown",
]

LEARNERS = (
    "fedtswi",
    "fedts-myopic",
    "feducb-wi",
    "feducb-myopic",
    "fedtswi-gap",
    "fedts-myopic-gap",
    "feducb-wi-gap",
    "fedts-lookahead-gap",
    "fed1-ucb",
)
KNOWN = ("whittle", "myopic", "lookahead", "optimal", "fixed", "fixed-best", "random")

_PRIORS = (1e-6, 1e6)
_MOST_SIGMA = 1e6
GAPS = 32  # G of the policies that learn from every look, unless told otherwise
_GAPS = (8, 128)  # fewer cannot tell hidden arms' two matrices apart; more compile for minutes


def is_number(value: Any) -> bool:
    """Whether it is a finite number."""
    try:
        return (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and math.isfinite(float(value))
        )
    except OverflowError:  # a whole number that no float can hold
        return False


def _prior(value: Any) -> bool:
    """Whether it is one number or two, as a prior may be."""
    pair = isinstance(value, list | tuple) and len(value) == 2
    return all(is_number(x) and _PRIORS[0] <= x <= _PRIORS[1] for x in (value if pair else [value]))


def shown(value: Any) -> str:
    """A value as a message shows it: on one line and not long, whatever it is."""
    try:
        text = " ".join(repr(value).splitlines())
    except (RecursionError, ValueError):  # nested deeply, or more digits than Python prints
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


# option: (test, rule)
_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "clip": (lambda v: isinstance(v, bool), "true or false"),
    "depth": (
        lambda v: isinstance(v, int) and not isinstance(v, bool) and v in DEPTHS,
        f"one of {', '.join(map(str, DEPTHS))}",
    ),
    "gaps": (
        lambda v: isinstance(v, int) and not isinstance(v, bool) and _GAPS[0] <= v <= _GAPS[1],
        f"a whole number from {_GAPS[0]} to {_GAPS[1]}",
    ),
    "prior": (_prior, "a number, or two numbers for arms of two states, from 1e-6 to 1e6"),
    "sigma": (lambda v: is_number(v) and 0 < v <= _MOST_SIGMA, "a positive number of at most 1e6"),
}
OPTIONS = {
    "fedtswi": ("prior",),
    "fedts-myopic": ("prior",),
    "feducb-wi": ("clip", "prior"),
    "feducb-myopic": ("clip", "prior"),
    "fedtswi-gap": ("gaps", "prior"),
    "fedts-myopic-gap": ("gaps", "prior"),
    "feducb-wi-gap": ("clip", "gaps", "prior"),
    "fedts-lookahead-gap": ("depth", "gaps", "prior"),
    "fed1-ucb": ("sigma",),
    "lookahead": ("depth",),
}


def check_options(name: str, settings: Any, place: str) -> None:
    """Refuse options that the policy of that name does not take, or not with these values."""
    if not isinstance(settings, Mapping):
        raise StudyError(f"{place} must be a table, got {shown(settings)}")
    known = OPTIONS.get(name, ())
    for key, value in settings.items():
        if key not in known:
            has = f"has {', '.join(known)}" if known else "takes no options"
            raise StudyError(f"{place}: unknown key {shown(key)}; {name} {has}")
        test, rule = _CHECKS[key]
        if not test(value):
            raise StudyError(f"{place}.{key} must be {rule}, got {shown(value)}")


def one_of(key: str, value: Any, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise StudyError(f"{key}: unknown {shown(value)}; known are {', '.join(allowed)}")


def read_toml(name: str | PathLike[str], file: Path | Traversable | None = None) -> dict[str, Any]:
    """The tables of a TOML file; every way it can fail names it. file: where to find it, if not
    under its name."""
    try:
        return tomllib.loads((file or Path(name)).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StudyError(f"{name}: no such file") from None
    except RecursionError:
        raise StudyError(f"{name}: not valid TOML: values are nested too deeply") from None
    except ValueError as error:  # not TOML, not UTF-8, or a number of thousands of digits
        raise StudyError(f"{name}: not valid TOML: {error}") from None
    except OSError as error:
        raise StudyError(f"{name}: cannot be read: {error.strerror}") from None
