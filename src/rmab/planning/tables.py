"""Index tables of arms of any kind, filled from dynamics on NumPy or JAX arrays, trials last.

A table has a row for every information state up to an age, in the order of
`rmab.model.beliefs.information_states` with S the largest number of states: never observed, (0, 1),
..., (0, max_age), (1, 1), ... A fully observed arm has the index of state s in the row of (s, 1).
Rows that an arm does not have are 0 and never read.

    fill_whittle  Whittle indices, average reward, by `rmab.planning.index.hidden`
    fill_myopic   what a play pays now, less what leaving the arm alone pays: b . (r_1 - r_0)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rmab.linalg import Array, array_namespace
from rmab.markov import limiting_distributions
from rmab.model.arms import ArmKind, Arms, Moves
from rmab.planning.index.hidden import information_table
from rmab.planning.index.nested import state_table

__all__ = ["Model", "Table", "fill_myopic", "fill_whittle"]


class Model(NamedTuple):
    """Arms as a table planner sees them, true, estimated or drawn.

    moves: (S, S, N, trials) each; reward_passive, reward_active: (S, N, 1); kinds: (N,).
    """

    moves: Moves
    reward_passive: Array
    reward_active: Array
    kinds: tuple[ArmKind, ...]

    @classmethod
    def of(cls, arms: Arms) -> Model:
        """Known arms, as one trial."""
        passive, active = (np.moveaxis(x, 0, -1)[..., None] for x in (arms.passive, arms.active))
        idle, pays = (x.T[..., None] for x in (arms.reward_passive, arms.reward_active))
        return cls(Moves(passive, active), idle, pays, arms.kinds)


Table = Callable[[Model, int], Array]
# passive, active, reward_passive, reward_active of arms of one kind -> rows, arms, trials
_Rows = Callable[[Array, Array, Array, Array], Array]


def fill_whittle(model: Model, max_age: int) -> Array:
    """The Whittle index in every row, (N, 1 + S max_age, trials)."""

    def when_played(passive: Array, active: Array, idle: Array, pays: Array) -> Array:
        return information_table(passive, active, idle, pays, max_age)

    return _fill(model, max_age, when_played, state_table)


def fill_myopic(model: Model, max_age: int) -> Array:
    """The expected reward of a play now, less that of no play, (N, 1 + S max_age, trials)."""

    def when_played(passive: Array, active: Array, idle: Array, pays: Array) -> Array:
        xp = array_namespace(passive)
        # P_0^(k-1) (r_1 - r_0) for every age; a look at s then weighs it by row s of P_1.
        worth = xp.broadcast_to(pays - idle, passive.shape[1:])
        rest = (limiting_distributions(passive) * worth).sum(0)
        by_age = []
        for _ in range(max_age):
            by_age.append((active * worth[None]).sum(1))
            worth = (passive * worth[None]).sum(1)
        seen = xp.stack(by_age, 1)  # (S, max_age, n, trials)
        return xp.concatenate([rest[None], seen.reshape(-1, *rest.shape)])

    def always(passive: Array, active: Array, idle: Array, pays: Array) -> Array:  # noqa: ARG001 - as state_table
        return array_namespace(passive).broadcast_to(pays - idle, passive.shape[1:])

    return _fill(model, max_age, when_played, always)


def _fill(model: Model, max_age: int, when_played: _Rows, always: _Rows) -> Array:
    """Arms of one kind together, then all in their order."""
    passive, active = model.moves
    xp: Any = array_namespace(passive, active)
    S, _, _, width = passive.shape
    rows = 1 + S * max_age
    groups: dict[tuple[int, bool], list[int]] = {}
    for arm, kind in enumerate(model.kinds):
        groups.setdefault((kind.states, kind.fully_observed), []).append(arm)
    parts = []
    for (states, seen), members in groups.items():
        arms = np.array(members)
        matrices = (m[:states, :states][:, :, arms] for m in (passive, active))
        rewards = (r[:states, arms] for r in (model.reward_passive, model.reward_active))
        index = (always if seen else when_played)(*matrices, *rewards)
        if seen:  # (s, 1) stands max_age rows after (s - 1, 1)
            gap = xp.zeros((states, max_age - 1, len(members), width), index.dtype)
            index = xp.concatenate([index[:, None], gap], 1).reshape(-1, len(members), width)
            index = xp.concatenate([xp.zeros((1, len(members), width), index.dtype), index])
        missing = xp.zeros((rows - index.shape[0], len(members), width), index.dtype)
        parts.append(xp.concatenate([index, missing]))
    order = np.argsort(np.concatenate([np.array(members) for members in groups.values()]))
    return xp.moveaxis(xp.concatenate(parts, 1)[:, order], 0, 1)
