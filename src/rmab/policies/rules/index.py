"""Index rules: the K arms of the largest index are played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from rmab.model.information import InformationStates, row_of
from rmab.policies.constraint import Constraint
from rmab.policies.rules.rule import Cut, Floats, Places, Plan, Rule, read_ages, written

if TYPE_CHECKING:
    from rmab.model.arms import Arms

__all__ = ["IndexPlan", "IndexRule"]


@dataclass(frozen=True, eq=False)
class IndexRule(Rule):
    """Play the K arms of the largest index.

    Parameters
    ----------
    planner
        Channels: (dynamics, information states) -> index. None: there is only a table.
    table
        Any arms: (model, max_age) -> index of every row, (N, 1 + S max_age, trials).
    known
        Any arms with known dynamics: (arms, max_age) -> the same, (N, 1 + S max_age).
    statewise
        The planner works state by state, so that it need not fill a table first.
    max_age
        Ages that a planner's table distinguishes; older arms count as that old.
    name
        Name of an index that agents can compute themselves, else "".
    """

    planner: Callable[[Any, Any], Any] | None = None
    table: Callable[[Any, int], Any] | None = None
    known: Callable[[Any, int], Any] | None = None
    statewise: bool = False
    max_age: int = 64
    name: str = ""

    jax_half: ClassVar[str] = "rmab.policies.rules.index_jax"
    by_arm: ClassVar[bool] = True
    fits: ClassVar[bool] = True

    def check(self, name: str, arms: Arms) -> None:
        """Refuse a planner whose index is not a number."""
        import_module(self.jax_half).check(self, name, arms)

    def plan(self, filled: Any, shape: Any, cut: Cut) -> IndexPlan:
        """Return the table as it is sent."""
        tables, max_age, wrap = cut(filled)
        return IndexPlan(max_age, wrap, tables, shape.states)


@dataclass(frozen=True, eq=False)
class IndexPlan(Plan):
    """An index for every information state.

    index is (N, 1 + S max_age), 0 in rows that an arm does not have; states: S of each arm.
    """

    max_age: int
    wrap: int
    index: Floats
    states: tuple[int, ...]

    def choose(self, observed: InformationStates, plays: int) -> Places:
        """Return the K arms to play in ascending order, from information states (N,) each."""
        row = row_of(observed, self.max_age, np.int64(self.wrap))
        return np.sort(Constraint(plays).ranked(self.index[np.arange(len(row)), row]))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON has it, with the rows that each arm has."""
        rows = [
            written(row[: 1 + s * self.max_age])
            for row, s in zip(self.index, self.states, strict=True)
        ]
        return {"kind": "index", "max_age": self.max_age, "wrap": self.wrap, "index": rows}

    @classmethod
    def from_json(cls, table: dict[str, Any], shape: Any, checks: Any) -> IndexPlan:
        """Return the plan that a server sent."""
        keys = ("kind", "max_age", "wrap", "index")
        _, age, wrap, index = checks.take(table, "plan", *keys)
        max_age, back = read_ages(age, wrap, checks)
        rows = np.zeros((shape.n_arms, 1 + max(shape.states) * max_age), np.float32)
        for arm, row in enumerate(checks.listed("plan.index", index, shape.n_arms)):
            size = 1 + shape.states[arm] * max_age
            rows[arm, :size] = checks.floats(f"plan.index[{arm}]", row, size)
        return cls(max_age, back, rows, shape.states)
