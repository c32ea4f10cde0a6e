"""Optimistic Whittle indices: of the best dynamics that confidence radii allow.

Arms are always observed. Of one of two states each chance of the good one lies within the radius of
its row: a box. Two things are known besides, that a play and the good state never harm:

    P(good | s, play) >= P(good | s, no play),   P(good | good, a) >= P(good | bad, a).

    fill_value     the dynamics of the largest value. As the good state is worth more, that is every
                   chance at its upper end, whatever a play costs
    fill_extreme   chances after a play at their upper, without one at their lower ends
    fill_penalty   the largest index of each state on its own: of the 16 corners of the box that
                   obey the inequalities, the one where it is largest

Where ends disobey they are cut to what the others allow. More than two states have no order that is
known. `fill_value` finds one by value iteration in which plays are free and every row has half its
radius moved from the states worth least to the one worth most; `fill_extreme` moves as much in the
other direction without a play; `fill_penalty` is for two states.

The index is that of average reward (`rmab.planning.tables.fill_whittle`).
"""

from __future__ import annotations

from itertools import product

import jax.numpy as jnp
import numpy as np
from jax import Array

from rmab.linalg import repeat
from rmab.model.arms import Moves
from rmab.planning.tables import Model, fill_whittle

__all__ = ["fill_extreme", "fill_penalty", "fill_value"]

_STEPS = 64  # of value iteration
_DAMPING = 0.5  # chains that swing settle


def fill_value(model: Model, max_age: int) -> Array:
    """(N, 1 + S max_age, trials), as all tables."""
    _, high = _box(model)
    active = jnp.stack([jnp.minimum(high[0, 1], high[1, 1]), high[1, 1]])
    passive = jnp.minimum(high[:, 0], active)
    passive = jnp.stack([jnp.minimum(passive[0], passive[1]), passive[1]])
    found = _moves(model, passive, active)
    if _largest(model) > 2:
        worth = _values(model)
        found = _by_size(model, found, Moves(*_shifted(model, worth, worth)))
    return jnp.asarray(fill_whittle(model._replace(moves=found), max_age))


def fill_extreme(model: Model, max_age: int) -> Array:
    """The same where a play does as much as it may."""
    low, high = _box(model)
    active = jnp.stack([jnp.minimum(high[0, 1], high[1, 1]), high[1, 1]])
    passive = jnp.stack([low[0, 0], jnp.maximum(low[0, 0], low[1, 0])])
    found = _moves(model, jnp.minimum(passive, active), active)
    if _largest(model) > 2:
        worth = _values(model)
        found = _by_size(model, found, Moves(*_shifted(model, -worth, worth)))
    return jnp.asarray(fill_whittle(model._replace(moves=found), max_age))


def fill_penalty(model: Model, max_age: int) -> Array:
    """The same with the largest index of each state; arms of two states."""
    low, high = _box(model)
    corners = [
        jnp.where(np.array(ends).reshape(2, 2, 1, 1), high, low)
        for ends in product((False, True), repeat=4)
    ]
    chance = jnp.concatenate(corners, -1)  # of all corners, as more trials
    obeys = (chance[:, 1] >= chance[:, 0]).all(0) & (chance[1] >= chance[0]).all(0)
    moves = _moves(model, chance[:, 0], chance[:, 1])
    found = fill_whittle(model._replace(moves=moves, width=None), max_age)
    found = jnp.where(obeys[:, None], found, -jnp.inf)
    best = found.reshape(*found.shape[:2], len(corners), -1).max(2)
    return jnp.where(jnp.isfinite(best), best, fill_value(model, max_age))


# --------------------------------------------------------------------------------- two states


def _largest(model: Model) -> int:
    return max(kind.states for kind in model.kinds)


def _turned(model: Model) -> Array:
    """The arms whose first state is the good one, (N, 1): the one that may pay more."""
    pays = jnp.maximum(model.reward_active, model.reward_passive)
    return pays[0] > pays[1]


def _radii(model: Model) -> Moves:
    """(S, N, trials) each; of known dynamics 0."""
    return model.width or Moves(*(jnp.zeros_like(rows[:, 0]) for rows in model.moves))


def _box(model: Model) -> tuple[Array, Array]:
    """The least and the largest chance of the good state, (bad or good, action, N, trials)."""
    turned = _turned(model)
    chances, widths = [], []
    for rows, width in zip(model.moves, _radii(model), strict=True):
        chances.append(jnp.where(turned, rows[1::-1, 0], rows[:2, 1]))
        widths.append(jnp.where(turned, width[1::-1], width[:2]))
    chance, width = jnp.stack(chances, 1), jnp.stack(widths, 1)
    return jnp.maximum(chance - width, 0), jnp.minimum(chance + width, 1)


def _moves(model: Model, passive: Array, active: Array) -> Moves:
    """Whole matrices from the chances of the good state, (bad or good, N, trials)."""
    S, turned = model.moves.passive.shape[0], _turned(model)

    def whole(chance: Array) -> Array:
        rows = jnp.stack([1 - chance, chance], 1)
        rows = jnp.where(turned, rows[::-1, ::-1], rows)
        return jnp.pad(rows, [(0, S - 2), (0, S - 2), (0, 0), (0, 0)])

    return Moves(whole(passive), whole(active))


# -------------------------------------------------------------------------------- more states


def _by_size(model: Model, two: Moves, more: Moves) -> Moves:
    small = np.array([kind.states == 2 for kind in model.kinds])[:, None]
    return Moves(*(jnp.where(small, x, y) for x, y in zip(two, more, strict=True)))


def _shifted(model: Model, idle_worth: Array, worth: Array) -> tuple[Array, Array]:
    """Rows without a play and with one, with half their radii moved to the state worth most, from
    those worth least; worth: (S, N, trials), for either."""
    radii = _radii(model)
    sizes = np.array([kind.states for kind in model.kinds])
    state = np.arange(model.moves.passive.shape[0])
    has = (state[:, None] < sizes)[:, :, None]

    def moved(rows: Array, width: Array, worth: Array) -> Array:
        worth = jnp.where(has, worth, -jnp.inf)
        # [r, s]: whether r comes before s, of equal ones the lower.
        before = (worth[:, None] < worth[None]) | (
            (worth[:, None] == worth[None]) & (state[:, None] < state)[:, :, None, None]
        )
        below = sum(rows[:, r, None] * before[r] for r in state)  # (S, S, N, trials)
        taken = width[:, None] / 2
        heaped = jnp.where(before.any(1), jnp.maximum(below + rows - taken, 0), below + rows)
        return heaped - jnp.maximum(below - taken, 0)

    return (
        moved(model.moves.passive, radii.passive, idle_worth),
        moved(model.moves.active, radii.active, worth),
    )


def _values(model: Model) -> Array:
    """Relative values (S, N, trials) of the best dynamics within the radii; plays are free."""

    def step(_: int, state: tuple[Array]) -> tuple[Array]:
        (worth,) = state
        passive, active = _shifted(model, worth, worth)
        idle = model.reward_passive + (passive * worth).sum(1)
        plays = model.reward_active + (active * worth).sum(1)
        best = _DAMPING * worth + (1 - _DAMPING) * jnp.maximum(idle, plays)
        return (best - best[:1],)

    start = jnp.zeros(model.moves.passive.shape[1:], model.moves.passive.dtype)
    found: Array = repeat(_STEPS, step, (start,))[0]
    return found
