"""What an agent plays by: tables over information states, and how they choose K arms.

An arm's information state is (last seen state, age); its row in a table up to age J is, as in
`rmab.model.arms.information_states`, 0 for never seen and age + J s for (s, age). Older arms fall
back by `wrap` ages, or become never seen where wrap is 0.

    index      an index for every row of every arm; the K largest are played, ties to the lower arm
    turns      which arms are in play: they take turns
    lookahead  tables of chances and gains; K arms are chosen together, see
               `rmab.policies.lookahead.choose`

A plan is a value: it is made by the server, written as JSON, read and checked by the agent. Numbers
are of single precision and keep all their digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.federation.checks import floats, listed, malformed, take, whole_number
from rmab.federation.config import Shape
from rmab.model.arms import NEVER, Array, InformationStates, array_namespace
from rmab.model.beliefs import table_rows
from rmab.policies.lookahead import DEPTHS, LookaheadTables, choose, state_from_tables
from rmab.policies.settings import shown

__all__ = ["IndexPlan", "LookaheadPlan", "Plan", "TurnsPlan", "parse_plan", "take_turns"]

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]
MOST_AGES = 4096


@dataclass(frozen=True, eq=False)
class IndexPlan:
    """index: (N, 1 + S J), 0 in rows that an arm does not have."""

    max_age: int
    wrap: int
    index: Floats
    states: tuple[int, ...]

    def choose(self, looks: InformationStates, plays: int) -> Places:
        """The K arms to play, in ascending order, from looks (N,) each."""
        row = table_rows(looks, self.max_age, np.int64(self.wrap))
        return _largest(self.index[np.arange(len(row)), row], plays)

    def to_table(self) -> dict[str, Any]:
        """As JSON has it."""
        rows = [
            _written(row[: 1 + s * self.max_age])
            for row, s in zip(self.index, self.states, strict=True)
        ]
        return {"kind": "index", "max_age": self.max_age, "wrap": self.wrap, "index": rows}


@dataclass(frozen=True, eq=False)
class TurnsPlan:
    """in_play: (N,), which arms take turns."""

    in_play: npt.NDArray[np.bool_]

    def choose(self, looks: InformationStates, plays: int) -> Places:
        """The K arms to play, in ascending order, from looks (N,) each."""
        return _largest(take_turns(self.in_play, looks), plays)

    def to_table(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"kind": "turns", "in_play": self.in_play.tolist()}


@dataclass(frozen=True, eq=False)
class LookaheadPlan:
    """tables: (N, 1 + S J) each, for arms observed when played; depth: in slots."""

    depth: int
    max_age: int
    wrap: int
    tables: LookaheadTables

    def choose(self, looks: InformationStates, plays: int) -> Places:
        """The K arms to play, in ascending order, from looks (N,) each."""
        states = InformationStates(*(np.asarray(x)[:, None] for x in looks))
        probs, gains = (tuple(x[:, :, None] for x in tables) for tables in self.tables[:2])
        tables = LookaheadTables(probs, gains, None)
        ahead = state_from_tables(tables, states, self.depth, np.int64(self.wrap))
        return np.flatnonzero(np.asarray(choose(ahead, plays))[:, 0])

    def to_table(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "kind": "lookahead",
            "depth": self.depth,
            "max_age": self.max_age,
            "wrap": self.wrap,
            "shows": [[_written(row) for row in table] for table in self.tables.observation_probs],
            "gains": [[_written(row) for row in table] for table in self.tables.gains],
        }


Plan = IndexPlan | TurnsPlan | LookaheadPlan


def take_turns(in_play: Array, states: InformationStates) -> Array:
    """An index (N, ...) by which arms in play (N, ...) take turns: the longest unplayed first, new
    ones before all, arms out of play last.

    It is fair also where K does not divide the number of arms in play. Arms played in one slot have
    one age. Where they were the last and the first of a round, the last go first again; the lower
    arm, as in other ties, would get ahead of the rest for ever.
    """
    xp = array_namespace(in_play, states.age)
    playing, age = xp.broadcast_arrays(xp.asarray(in_play), xp.asarray(states.age))
    turn = xp.where(playing, xp.where(age == NEVER, xp.inf, age), -1.0)
    first = xp.take_along_axis(age, xp.argmax(playing, axis=0)[None], axis=0)
    with_first = playing & (age == first)
    ends_a_round = with_first & (xp.cumsum(playing & ~with_first, axis=0) > 0)
    return turn + 0.5 * ends_a_round


def _largest(index: Array, plays: int) -> Places:
    """The K largest, ties to the lower arm, in ascending order."""
    return np.sort(np.argsort(-index, kind="stable")[:plays])


def _written(row: Floats) -> list[float]:
    """Numbers of single precision by their shortest digits, which lead back to them."""
    return [float(str(number)) for number in row]


# ---------------------------------------------------------------------------------------- reading


def parse_plan(table: Any, shape: Shape) -> Plan:
    """The plan that a server sent; ProtocolError if it is none for these arms."""
    if not isinstance(table, dict) or table.get("kind") not in _READERS:
        kind = table.get("kind") if isinstance(table, dict) else table
        raise malformed(f"plan.kind must be one of {', '.join(_READERS)}, got {shown(kind)}")
    return _READERS[table["kind"]](table, shape)


def _read_ages(age: Any, wrap: Any) -> tuple[int, int]:
    if whole_number("plan.max_age", age, 1) > MOST_AGES:
        raise malformed(f"plan.max_age must be at most {MOST_AGES}, got {age}")
    if whole_number("plan.wrap", wrap, 0) > age:
        raise malformed(f"plan.wrap must be at most max_age, {age}, got {wrap}")
    return age, wrap


def _read_index(table: dict[str, Any], shape: Shape) -> IndexPlan:
    _, age, wrap, index = take(table, "plan", "kind", "max_age", "wrap", "index")
    max_age, back = _read_ages(age, wrap)
    rows = np.zeros((shape.n_arms, 1 + max(shape.states) * max_age), np.float32)
    for arm, row in enumerate(listed("plan.index", index, shape.n_arms)):
        size = 1 + shape.states[arm] * max_age
        rows[arm, :size] = floats(f"plan.index[{arm}]", row, size)
    return IndexPlan(max_age, back, rows, shape.states)


def _read_turns(table: dict[str, Any], shape: Shape) -> TurnsPlan:
    _, in_play = take(table, "plan", "kind", "in_play")
    for arm, plays in enumerate(listed("plan.in_play", in_play, shape.n_arms)):
        if not isinstance(plays, bool):
            raise malformed(f"plan.in_play[{arm}] must be true or false, got {shown(plays)}")
    return TurnsPlan(np.array(in_play, bool))


def _read_lookahead(table: dict[str, Any], shape: Shape) -> LookaheadPlan:
    keys = ("kind", "depth", "max_age", "wrap", "shows", "gains")
    _, depth, age, wrap, shows, gains = take(table, "plan", *keys)
    if type(depth) is not int or depth not in DEPTHS:
        raise malformed(f"plan.depth must be one of {DEPTHS}, got {shown(depth)}")
    max_age, back = _read_ages(age, wrap)
    S = max(shape.states)

    def tables(place: str, value: Any, length: int) -> tuple[Floats, ...]:
        return tuple(
            np.stack(
                [
                    floats(f"{place}[{i}][{arm}]", row, 1 + S * max_age)
                    for arm, row in enumerate(listed(f"{place}[{i}]", each, shape.n_arms))
                ]
            )
            for i, each in enumerate(listed(place, value, length))
        )

    probs, by_slots = tables("plan.shows", shows, S - 1), tables("plan.gains", gains, depth)
    return LookaheadPlan(depth, max_age, back, LookaheadTables(probs, by_slots, None))


_READERS: dict[str, Callable[[dict[str, Any], Shape], Plan]] = {
    "index": _read_index,
    "turns": _read_turns,
    "lookahead": _read_lookahead,
}
