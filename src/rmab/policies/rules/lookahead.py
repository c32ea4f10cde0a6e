"""Lookahead rule: K arms are chosen together, by the gains of a few slots ahead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rmab.linalg import Array
from rmab.model.information import InformationStates
from rmab.policies.rules.rule import Cut, Places, Plan, Rule, read_ages, written
from rmab.text import shown

if TYPE_CHECKING:  # an agent loads the search when it plays such a plan
    from rmab.model.arms import ArmKind
    from rmab.policies.lookahead import LookaheadTables

__all__ = ["LookaheadPlan", "LookaheadRule"]


@dataclass(frozen=True)
class LookaheadRule(Rule):
    """Choose K arms together, `depth` slots ahead: `rmab.policies.lookahead`."""

    depth: int

    jax_half: ClassVar[str] = "rmab.policies.rules.lookahead_jax"
    fits: ClassVar[bool] = True
    fixes_plays: ClassVar[bool] = True

    def check_kinds(self, kinds: Sequence[ArmKind], plays: int) -> None:
        """Refuse a depth at which these arms would take too long."""
        from rmab.policies.lookahead import check_depth

        check_depth(kinds, plays, self.depth)

    def plan(self, filled: Any, shape: Any, cut: Cut) -> LookaheadPlan:
        """Return the tables as they are sent."""
        tables, max_age, wrap = cut(filled)
        return LookaheadPlan(self.depth, max_age, wrap, tables, shape.always)


@dataclass(frozen=True, eq=False)
class LookaheadPlan(Plan):
    """Tables of chances and gains, (N, 1 + S max_age) each.

    depth: of the lookahead, in slots; always: the arms that are observed in every slot.
    """

    depth: int
    max_age: int
    wrap: int
    tables: LookaheadTables
    always: tuple[int, ...] = ()

    def choose(self, observed: InformationStates, plays: int) -> Places:
        """Return the K arms to play in ascending order, from information states (N,) each."""
        from rmab.policies.lookahead import LookaheadTables, choose, state_from_tables

        columns = InformationStates(*(np.asarray(x)[:, None] for x in observed))

        def wide(tables: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple(table[:, :, None] for table in tables)

        shows, gains, alone = self.tables
        tables = LookaheadTables(wide(shows), wide(gains), alone and wide(alone))
        always = np.isin(np.arange(len(columns.age)), self.always)
        state = state_from_tables(tables, columns, self.depth, np.int64(self.wrap), always)
        return np.flatnonzero(np.asarray(choose(state, plays))[:, 0])

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON has it."""
        tables = {"shows": self.tables.observation_probs, "gains": self.tables.gains}
        if self.tables.passive_probs is not None:
            tables["passive"] = self.tables.passive_probs
        rows = {
            name: [[written(row) for row in table] for table in each]
            for name, each in tables.items()
        }
        ages = {"max_age": self.max_age, "wrap": self.wrap}
        return {"kind": "lookahead", "depth": self.depth, **ages, **rows}

    @classmethod
    def from_json(cls, table: dict[str, Any], shape: Any, checks: Any) -> LookaheadPlan:
        """Return the plan that a server sent."""
        from rmab.policies.lookahead import DEPTHS, LookaheadTables

        keys = ("kind", "depth", "max_age", "wrap", "shows", "gains")
        _, depth, age, wrap, shows, gains, *passive = checks.take(
            table, "plan", *keys, *(["passive"] if shape.always else [])
        )
        if type(depth) is not int or depth not in DEPTHS:
            raise checks.malformed(f"plan.depth must be one of {DEPTHS}, got {shown(depth)}")
        max_age, back = read_ages(age, wrap, checks)
        S = max(shape.states)

        def tables(place: str, value: Any, length: int) -> tuple[Array, ...]:
            return tuple(
                np.stack(
                    [
                        checks.floats(f"{place}[{i}][{arm}]", row, 1 + S * max_age)
                        for arm, row in enumerate(
                            checks.listed(f"{place}[{i}]", each, shape.n_arms)
                        )
                    ]
                )
                for i, each in enumerate(checks.listed(place, value, length))
            )

        probs, by_slots = tables("plan.shows", shows, S - 1), tables("plan.gains", gains, depth)
        alone = tables("plan.passive", passive[0], S - 1) if passive else None
        found = LookaheadTables(probs, by_slots, alone)
        return cls(depth, max_age, back, found, shape.always)
