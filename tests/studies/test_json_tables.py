"""Dataclasses as tables: keys, nesting, and values of other types."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from rmab.studies.json_tables import from_table, keys, to_table


@dataclass(frozen=True)
class Part:
    number: int
    share: float | None = field(metadata={"key": "s"})


@dataclass(frozen=True)
class Whole:
    name: str
    parts: dict[str, Part]
    listed: list[Part]
    is_done: bool
    rest: dict[str, Any]


PART = Part(1, 0.5)
WHOLE = Whole("it", {"a": PART}, [Part(2, None)], True, {"x": [None, "y"]})
TABLE = {
    "name": "it",
    "parts": {"a": {"number": 1, "s": 0.5}},
    "listed": [{"number": 2, "s": None}],
    "is_done": True,
    "rest": {"x": [None, "y"]},
}


def test_a_table_has_the_fields_by_key_and_makes_an_equal_value():
    assert keys(Part) == ["number", "s"]
    assert to_table(WHOLE) == TABLE
    assert from_table(Whole, {**TABLE, "more": 1}) == WHOLE


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"name": None}, "name is None"),
        ({"is_done": 1}, "is_done is 1"),
        ({"listed": {}}, "listed is {}"),
        ({"parts": {"a": []}}, r"a table is \[\]"),
        ({"listed": [{"number": True, "s": 1}]}, "number is True"),
        ({"listed": [{"number": 1, "s": float("nan")}]}, "s is nan"),
    ],
)
def test_a_value_of_another_type_is_refused(change, rule):
    with pytest.raises(TypeError, match=rule):
        from_table(Whole, {**TABLE, **change})


def test_a_missing_key_is_refused():
    with pytest.raises(KeyError, match="rest"):
        from_table(Whole, {key: value for key, value in TABLE.items() if key != "rest"})
