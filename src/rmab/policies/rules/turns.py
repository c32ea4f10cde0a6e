"""Turns: the learner says which arms are in play, and those take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from rmab.linalg import Array, array_namespace
from rmab.model.information import NEVER, InformationStates
from rmab.policies.constraint import Constraint
from rmab.policies.rules.rule import Cut, Places, Plan, Rule
from rmab.text import shown

__all__ = ["TurnsPlan", "TurnsRule", "WaitingTurnsRule", "take_turns"]


@dataclass(frozen=True)
class TurnsRule(Rule):
    """Arms in play take turns; the learner gives 1 for those and 0 for the others, twice."""

    jax_half: ClassVar[str] = "rmab.policies.rules.turns_jax"
    estimates: ClassVar[bool] = False

    def plan(self, filled: Any, shape: Any, cut: Cut) -> TurnsPlan:  # noqa: ARG002 - no table
        """Return which arms are in play."""
        return TurnsPlan(np.asarray(filled > 0))


@dataclass(frozen=True)
class WaitingTurnsRule(TurnsRule):
    """Take turns as `TurnsRule`; an agent for which no arm is in play plays none."""


@dataclass(frozen=True, eq=False)
class TurnsPlan(Plan):
    """Mask (N,) of the arms that take turns.

    The age of an arm that is always observed is of its last play.
    """

    in_play: npt.NDArray[np.bool_]
    looks: ClassVar[bool] = False

    def choose(self, observed: InformationStates, plays: int) -> Places:
        """Return the K arms to play in ascending order, from information states (N,) each."""
        return np.sort(Constraint(plays).ranked(take_turns(self.in_play, observed)))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON has it."""
        return {"kind": "turns", "in_play": self.in_play.tolist()}

    @classmethod
    def from_json(cls, table: dict[str, Any], shape: Any, checks: Any) -> TurnsPlan:
        """Return the plan that a server sent."""
        _, in_play = checks.take(table, "plan", "kind", "in_play")
        for arm, plays in enumerate(checks.listed("plan.in_play", in_play, shape.n_arms)):
            if not isinstance(plays, bool):
                text = f"plan.in_play[{arm}] must be true or false, got {shown(plays)}"
                raise checks.malformed(text)
        return cls(np.array(in_play, bool))


def take_turns(in_play: Array, observed: InformationStates) -> Array:
    """Return an index (N, ...) by which arms in play (N, ...) take turns, on NumPy and JAX.

    The longest unplayed comes first, new ones before all. It is fair also where K does not divide
    the number of arms in play. Arms played in one slot have one age. Where they were the last and
    the first of a round, the last go first again; the lower arm, as in other ties, would get ahead
    of the rest for ever.
    """
    xp = array_namespace(in_play, observed.age)
    playing, age = xp.broadcast_arrays(xp.asarray(in_play), xp.asarray(observed.age))
    turn = xp.where(playing, xp.where(age == NEVER, xp.inf, age), -1.0)
    first = xp.take_along_axis(age, xp.argmax(playing, axis=0)[None], axis=0)
    with_first = playing & (age == first)
    ends_a_round = with_first & (xp.cumsum(playing & ~with_first, axis=0) > 0)
    return turn + 0.5 * ends_a_round
