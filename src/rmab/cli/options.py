"""Commands and their options: the table `options.toml`, and the values that options have."""

from __future__ import annotations

import argparse
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from rmab.errors import FederationError, StudyError

__all__ = ["Command", "add_options", "commands", "read_values"]

_MAX_SECONDS = 1e6
_OWN_KEYS = ("name", "least", "most", "read")  # of an option, beside those of argparse


class Command(NamedTuple):
    """A command.

    Parameters
    ----------
    module : str
        Module of `rmab.cli` with the function that runs it.
    about : str
        Its line in the list of commands.
    options : list of dict
        Options in the order of the help; `one_of` lists those that exclude one another.
    kinds : mapping
        Commands below this one, by name.
    """

    module: str
    about: str
    options: list[dict[str, Any]]
    kinds: Mapping[str, Command]


@cache
def commands() -> dict[str, Command]:
    """Return the commands by name, in the order of the help."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    shared = table.pop("shared")
    return {name: _command(rest, shared) for name, rest in table.items()}


def _command(table: dict[str, Any], shared: dict[str, Any]) -> Command:
    listed = table.get("options", [])
    groups = (shared[option] if isinstance(option, str) else [option] for option in listed)
    kinds = {name: _command(rest, shared) for name, rest in table.get("kinds", {}).items()}
    return Command(table["module"], table["about"], [o for group in groups for o in group], kinds)


def add_options(parser: argparse._ActionsContainer, options: Iterable[dict[str, Any]]) -> None:
    """Add options to a parser, or to a group of it."""
    for option in options:
        if "one_of" in option:
            group = parser.add_mutually_exclusive_group(required=option.get("required", False))
            add_options(group, option["one_of"])
        else:
            keywords = {key: value for key, value in option.items() if key not in _OWN_KEYS}
            if "metavar" not in option:
                keywords["action"] = "store_true"
            parser.add_argument(option["name"], **keywords)


def read_values(options: Iterable[dict[str, Any]], given: argparse.Namespace) -> None:
    """Replace the texts of options that are numbers by their values."""
    for option in _single(options):
        place = option["name"].lstrip("-").replace("-", "_")
        text = getattr(given, place)
        if isinstance(text, str) and not {"least", "read"}.isdisjoint(option):
            setattr(given, place, _value(option, text))


def _single(options: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for option in options:
        yield from option.get("one_of", [option])


def _value(option: dict[str, Any], text: str) -> float:
    """Return the number that an option has, or raise an error of one line."""
    name = option["name"]
    read = option.get("read")
    if read is None:
        return _whole(name, text, option["least"], option.get("most"))
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if read == "seconds" and not 0 <= number <= _MAX_SECONDS:
        raise FederationError(f"{name} must be a number of seconds from 0 to 1e6, got {text!r}")
    if read == "discount" and not 0 < number < 1:
        raise StudyError(f"{name} must be a number above 0 and below 1, got {text!r}")
    if not math.isfinite(number):
        raise StudyError(f"{name} must be a number, got {text!r}")
    return number


def _whole(name: str, text: str, least: int, most: int | None) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least or (most is not None and number > most):
        rule = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise StudyError(f"{name} must be a whole number {rule}, got {text!r}")
    return number
