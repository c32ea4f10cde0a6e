"""TOML files and option values, refused with a StudyError of one line: value, place and rule."""

from __future__ import annotations

import ipaddress
import math
import re
import tomllib
from collections.abc import Collection
from importlib.resources.abc import Traversable
from os import PathLike
from pathlib import Path
from typing import Any

from rmab.errors import StudyError

__all__ = [
    "is_loopback",
    "is_number",
    "is_whole",
    "one_of",
    "option_value",
    "printable",
    "read_toml",
    "shown",
]

# Numbers that are not numbers of TOML: .1 and 1.
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.)(e[-+]?[0-9]+)?", re.IGNORECASE)


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


def is_whole(value: Any) -> bool:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_loopback(host: str) -> bool:
    """Return whether a host is this machine, by its address or its usual name."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def shown(value: Any) -> str:
    """Format a value for a message: on one line and short."""
    try:
        text = " ".join(repr(value).splitlines())
    except (RecursionError, ValueError):  # nested deeply, or more digits than Python prints
        return f"a value of type {type(value).__name__} that is too large to show"
    return text if len(text) <= 80 else f"{text[:60]}... ({len(text)} characters)"


def printable(text: str) -> str:
    """Return the text with ? for bytes that are no text, which names of files may have."""
    return text.encode("utf-8", "replace").decode()


def option_value(text: str) -> Any:
    """Parse an option of the command line: a value of TOML, a number such as .1, or a word."""
    text = text.strip()
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return float(text) if _NUMBER.fullmatch(text) else text


def one_of(key: str, value: Any, allowed: Collection[str]) -> None:
    """Refuse a value that is not among those allowed."""
    if value not in allowed:
        raise StudyError(f"{key}: unknown {shown(value)}; known are {', '.join(allowed)}")


def read_toml(name: str | PathLike[str], file: Path | Traversable | None = None) -> dict[str, Any]:
    """Return the tables of a TOML file; every error names it. `file` is its location, if it differs
    from its name."""
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
