"""Checks of JSON from the other side: every value is checked once, and refused in one line."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.errors import ProtocolError
from rmab.text import is_number, shown

__all__ = [
    "MAX_WHOLE",
    "floats",
    "hexadecimal",
    "listed",
    "malformed",
    "read_object",
    "take",
    "whole_number",
]

MAX_WHOLE = 2**53  # beyond it JSON numbers of other languages are not exact


def malformed(detail: str) -> ProtocolError:
    """Return the error for a message that is malformed."""
    return ProtocolError(422, "malformed", detail)


def read_object(body: bytes) -> Mapping[str, Any]:
    """Read the JSON object in a body, without repeated keys and numbers that are not finite."""
    try:
        table = _DECODER.decode(body.decode())
    except (ValueError, RecursionError) as error:
        raise malformed(f"the body must be JSON in UTF-8: {type(error).__name__}") from None
    if not isinstance(table, dict):
        raise malformed(f"the body must be a JSON object, got {shown(table)}")
    return table


def _pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(items)
    if len(table) < len(items):
        raise malformed("the JSON object must not have a key twice")
    return table


def _constant(text: str) -> Any:
    raise malformed(f"the JSON must have finite numbers alone, got {text}")


_DECODER = json.JSONDecoder(object_pairs_hook=_pairs, parse_constant=_constant)


def whole_number(place: str, value: Any, least: int) -> int:
    """Read a whole number from `least` to 2^53."""
    if type(value) is not int or not least <= value <= MAX_WHOLE:
        raise malformed(f"{place} must be a whole number from {least} to 2^53, got {shown(value)}")
    return value


def hexadecimal(place: str, text: Any, size: int) -> bytes:
    """Read `size` bytes in lower-case hexadecimal digits."""
    if not isinstance(text, str) or not re.fullmatch(f"[0-9a-f]{{{2 * size}}}", text):
        raise malformed(f"{place} must be {2 * size} digits from 0-9 and a-f, got {shown(text)}")
    return bytes.fromhex(text)


def listed(place: str, value: Any, length: int) -> list[Any]:
    """Read a list of `length` values."""
    if type(value) is not list or len(value) != length:
        got = f"{len(value)}" if isinstance(value, list) else shown(value)
        raise malformed(f"{place} must be a list of {length}, got {got}")
    return value


def floats(place: str, value: Any, length: int) -> npt.NDArray[np.float32]:
    """Read a list of `length` numbers, in single precision."""
    for number, entry in enumerate(listed(place, value, length)):
        if not is_number(entry):
            raise malformed(f"{place}[{number}] must be a number, got {shown(entry)}")
    with np.errstate(over="ignore"):
        return np.array(value, np.float64).astype(np.float32)


def take(table: Any, place: str, *keys: str) -> list[Any]:
    """Return the values of exactly these keys."""
    if not isinstance(table, dict):
        raise malformed(f"{place} must be an object, got {shown(table)}")
    for key in keys:
        if key not in table:
            raise malformed(f"{place}: {key} is missing; it has {', '.join(keys)}")
    for key in table:
        if key not in keys:
            raise malformed(f"{place}: unknown key {shown(key)}; it has {', '.join(keys)}")
    return [table[key] for key in keys]
