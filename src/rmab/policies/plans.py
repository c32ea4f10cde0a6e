"""What an agent plays by, and how it chooses K arms from it.

A plan is a value that a server makes and an agent reads. Agents choose from their *information
states*: of each arm the state last observed and the slots since, its age. One that is always
observed is in (state now, 1), except in a TurnsPlan: there its age is of its last play.

    IndexPlan      an index for every information state; the K largest are played
    TurnsPlan      which arms are in play: they take turns
    LookaheadPlan  tables of probabilities and gains; K arms are chosen together
    OwnPlan        the agent's own learner gives an index from a state that the agent keeps

Tables have the rows of `rmab.model.information.information_states`; older arms fall back by `wrap`
ages, or become never observed where wrap is 0. Ties go to the lower arm. This module imports NumPy
alone and no solver: it is what an agent needs. What the last two need is loaded with such a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rmab.linalg import Array, array_namespace
from rmab.model.information import NEVER, InformationStates, row_of

if TYPE_CHECKING:  # loaded when a plan of their kind is played
    from rmab.policies.lookahead import LookaheadTables

__all__ = ["IndexPlan", "LookaheadPlan", "OwnPlan", "Plan", "TurnsPlan", "largest", "take_turns"]

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class IndexPlan:
    """index: (N, 1 + S max_age), 0 in rows that an arm does not have; states: S of each arm."""

    max_age: int
    wrap: int
    index: Floats
    states: tuple[int, ...]

    def choose(self, observed: InformationStates, plays: int) -> Places:
        """The K arms to play, in ascending order, from information states (N,) each."""
        row = row_of(observed, self.max_age, np.int64(self.wrap))
        return largest(self.index[np.arange(len(row)), row], plays)


@dataclass(frozen=True, eq=False)
class TurnsPlan:
    """in_play: (N,), which arms take turns."""

    in_play: npt.NDArray[np.bool_]

    def choose(self, observed: InformationStates, plays: int) -> Places:
        """The K arms to play, in ascending order, from information states (N,) each."""
        return largest(take_turns(self.in_play, observed), plays)


@dataclass(frozen=True, eq=False)
class LookaheadPlan:
    """tables: (N, 1 + S max_age) each; depth: of the lookahead, in slots; always: the arms that are
    observed in every slot."""

    depth: int
    max_age: int
    wrap: int
    tables: LookaheadTables
    always: tuple[int, ...] = ()

    def choose(self, observed: InformationStates, plays: int) -> Places:
        """The K arms to play, in ascending order, from information states (N,) each."""
        from rmab.policies.lookahead import LookaheadTables, choose, state_from_tables

        columns = InformationStates(*(np.asarray(x)[:, None] for x in observed))

        def wide(tables: tuple[Array, ...]) -> tuple[Array, ...]:
            return tuple(table[:, :, None] for table in tables)

        shows, gains, alone = self.tables
        tables = LookaheadTables(wide(shows), wide(gains), alone and wide(alone))
        always = np.isin(np.arange(len(columns.age)), self.always)
        state = state_from_tables(tables, columns, self.depth, np.int64(self.wrap), always)
        return np.flatnonzero(np.asarray(choose(state, plays))[:, 0])


@dataclass(frozen=True)
class OwnPlan:
    """learner: one of OWN_INDICES, made with these options; the agent keeps its state."""

    learner: str
    options: Mapping[str, Any]

    @cached_property
    def own(self) -> Any:
        """The learner."""
        from rmab.policies.own_index import OWN_INDICES

        return OWN_INDICES[self.learner](**self.options)


Plan = IndexPlan | TurnsPlan | LookaheadPlan | OwnPlan


def largest(index: Array, plays: int) -> Places:
    """The K largest, ties to the lower arm, in ascending order."""
    return np.sort(np.argsort(-index, kind="stable")[:plays])


def take_turns(in_play: Array, observed: InformationStates) -> Array:
    """An index (N, ...) by which arms in play (N, ...) take turns: the longest unplayed first, new
    ones before all, on NumPy and JAX alike.

    It is fair also where K does not divide the number of arms in play. Arms played in one slot have
    one age. Where they were the last and the first of a round, the last go first again; the lower
    arm, as in other ties, would get ahead of the rest for ever.
    """
    xp = array_namespace(in_play, observed.age)
    playing, age = xp.broadcast_arrays(xp.asarray(in_play), xp.asarray(observed.age))
    turn = xp.where(playing, xp.where(age == NEVER, xp.inf, age), -1.0)
    first = xp.take_along_axis(age, xp.argmax(playing, axis=0)[None], axis=0)
    with_first = playing & (age == first)
    ends_a_round = with_first & (xp.cumsum(playing & ~with_first, axis=0) > 0)
    return turn + 0.5 * ends_a_round
