"""Dataclasses as tables of JSON files, and back.

A field is a key of the table; `field(metadata={"key": "share"})` gives it another one.
"""

from __future__ import annotations

from dataclasses import Field, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from rmab.text import is_number, is_whole, shown

__all__ = ["check_type", "from_table", "keys", "to_table"]

_T = TypeVar("_T")


def _key(field: Field[Any]) -> str:
    return str(field.metadata.get("key", field.name))


def keys(kind: type[Any]) -> list[str]:
    """Keys of a dataclass's table."""
    return [_key(field) for field in fields(kind)]


def to_table(value: Any) -> Any:
    """Table of a dataclass; lists and dicts of dataclasses are followed, other values kept."""
    if is_dataclass(value):
        return {_key(field): to_table(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {key: to_table(each) for key, each in value.items()}
    return [to_table(each) for each in value] if isinstance(value, list) else value


def from_table(kind: type[_T], table: Any) -> _T:
    """Make a dataclass of the table that `to_table` gives; other keys are ignored.

    Raises KeyError for a missing key, TypeError for a value of another type.
    """
    kinds, read = get_type_hints(kind), check_type(dict[str, Any], table, "a table")
    known: Any = kind
    return kind(
        **{
            field.name: check_type(kinds[field.name], read[_key(field)], _key(field))
            for field in fields(known)
        }
    )


def check_type(kind: Any, value: Any, place: str) -> Any:
    """Return the value if it has the type; TypeError names its place otherwise."""
    inside = get_args(kind)
    if kind is Any or (value is None and type(None) in inside):
        return value
    if get_origin(kind) is UnionType:
        return check_type(inside[0], value, place)
    if is_dataclass(kind):
        return from_table(kind, value)  # type: ignore[arg-type]  # a class, as types of fields are
    if get_origin(kind) is list and isinstance(value, list):
        return [check_type(inside[0], each, place) for each in value]
    if get_origin(kind) is dict and isinstance(value, dict):
        return {key: check_type(inside[1], each, f"{place}.{key}") for key, each in value.items()}
    is_one = {float: is_number, int: is_whole}.get(kind)
    plain = kind in (bool, str) and isinstance(value, kind)
    if plain or (is_one is not None and is_one(value)):
        return value
    raise TypeError(f"{place} is {shown(value)}")
