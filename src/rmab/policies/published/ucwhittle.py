"""UCWhittle: Whittle indices of the best dynamics that confidence radii allow.

Arms are always observed. Their rows are learnt apart for both actions, from the shares of the steps
seen, with the radius

    d(s, a) = c sqrt( 2 S ln(2 S A N l^4 / delta) / n(s, a) ),   at most 1, and 1 where n(s, a) = 0,

n the steps seen, A = 2 actions, l the episode, c a scale (1 as published). Of two states each
chance of the good one lies within the radius of its row: a box. Two things are known besides, that
a play and the good state never harm:

    P(good | s, play) >= P(good | s, no play),   P(good | good, a) >= P(good | bad, a).

    fill_value     the dynamics of the largest value. As the good state is worth more, that is every
                   chance at its upper end, whatever a play costs
    fill_extreme   chances after a play at their upper, without one at their lower ends
    fill_penalty   the largest index of each state on its own: of the 16 corners of the box that
                   obey the inequalities, the one where it is largest

Ends that disobey are cut to the bounds that the others allow. More than two states have no known
order. `fill_value` finds one by value iteration in which plays are free and every row has half its
radius moved from the states worth least to the one worth most; `fill_extreme` moves as much in the
other direction without a play; `fill_penalty` is for two states. The index is that of average
reward (`rmab.planning.tables.fill_whittle`).

Reference: K. Wang, L. Xu, A. Taneja, M. Tambe, "Optimistic Whittle index policy: online learning
for restless bandits", AAAI 2023.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from rmab.linalg import Array, array_namespace, repeat
from rmab.model.arms import Moves, Uncertain
from rmab.policies.capabilities import Capabilities, always_observed, two_states
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.options import shared
from rmab.policies.policy import IndexRule, Lengths, Policy

if TYPE_CHECKING:
    from rmab.learning.evidence import Evidence
    from rmab.planning.tables import Model
    from rmab.rng.variates import Draws

__all__ = ["ENTRIES", "confident_rows", "fill_extreme", "fill_penalty", "fill_value"]

_EPISODE_SLOTS = 20  # of an episode, as in the published experiments
_STEPS = 64  # of value iteration
_DAMPING = 0.5  # chains that swing settle


def confident_rows(
    evidence: Evidence, _draws: Draws, *, scale: float = 1.0, delta: float = 1e-3
) -> Uncertain:
    """Return the shares of steps seen, uniform where there were none, and radii (S, N, trials)."""
    xp = array_namespace(evidence.counts)
    sizes = np.array([kind.states for kind in evidence.kinds])
    n_arms, S = len(sizes), evidence.visits.shape[0]
    apart = np.array([kind.action_dependent for kind in evidence.kinds])[:, None]
    has = (np.arange(S)[:, None] < sizes)[None, :, :, None]
    level = xp.log(4.0 * sizes[:, None] * n_arms / delta) + 4 * xp.log(
        evidence.episode.astype(np.float32)
    )

    def rows(steps: Array) -> tuple[Array, Array]:
        total = steps.sum(1)
        share = steps / xp.maximum(total, 1e-30)[:, None]
        share = xp.where(total[:, None] > 0, share, has / sizes[:, None])
        width = scale * xp.sqrt(2.0 * sizes[:, None] * level / xp.maximum(total, 1e-30))
        return share, xp.where(total > 0, xp.minimum(width, 1), 1)

    played = left_alone = rows(evidence.counts[0])
    if apart.any():
        idle = rows(evidence.counts[1])
        left_alone = tuple(xp.where(apart, x, y) for x, y in zip(idle, played, strict=True))
    return Uncertain(*(Moves(*pair) for pair in zip(left_alone, played, strict=True)))


# ------------------------------------------------------------------------------------ indices


def fill_value(model: Model, max_age: int) -> Array:
    """Return the indices of the dynamics with the largest value, (N, 1 + S max_age, trials)."""
    xp, (_, high) = _namespace(model), _box(model)
    active = xp.stack([xp.minimum(high[0, 1], high[1, 1]), high[1, 1]])
    passive = xp.minimum(high[:, 0], active)
    passive = xp.stack([xp.minimum(passive[0], passive[1]), passive[1]])
    return _indices(model, max_age, _moves(model, passive, active), 1)


def fill_extreme(model: Model, max_age: int) -> Array:
    """Return the indices where a play does as much as it may, (N, 1 + S max_age, trials)."""
    xp, (low, high) = _namespace(model), _box(model)
    active = xp.stack([xp.minimum(high[0, 1], high[1, 1]), high[1, 1]])
    passive = xp.stack([low[0, 0], xp.maximum(low[0, 0], low[1, 0])])
    return _indices(model, max_age, _moves(model, xp.minimum(passive, active), active), -1)


def fill_penalty(model: Model, max_age: int) -> Array:
    """Return the largest index of each state, (N, 1 + S max_age, trials); arms of two states."""
    from rmab.planning.tables import fill_whittle

    xp, (low, high) = _namespace(model), _box(model)
    corners = [
        xp.where(np.array(ends).reshape(2, 2, 1, 1), high, low)
        for ends in product((False, True), repeat=4)
    ]
    chance = xp.concatenate(corners, -1)  # of all corners, as more trials
    obeys = (chance[:, 1] >= chance[:, 0]).all(0) & (chance[1] >= chance[0]).all(0)
    moves = _moves(model, chance[:, 0], chance[:, 1])
    index = fill_whittle(model._replace(moves=moves, width=None), max_age)
    index = xp.where(obeys[:, None], index, -xp.inf)
    best = index.reshape(*index.shape[:2], len(corners), -1).max(2)
    return xp.where(xp.isfinite(best), best, fill_value(model, max_age))


def _indices(model: Model, max_age: int, moves: Moves, passive_sign: int) -> Array:
    """Return Whittle indices of `moves` for arms of two states, of rows with shifted mass for more;
    passive_sign: 1 or -1, whether mass moves without a play to the states worth most or least."""
    from rmab.planning.tables import fill_whittle

    sizes = np.array([kind.states for kind in model.kinds])[:, None]
    if sizes.max() > 2:
        worth = _values(model)
        more = _shifted(model, passive_sign * worth, worth)
        xp = _namespace(model)
        moves = Moves(*(xp.where(sizes == 2, x, y) for x, y in zip(moves, more, strict=True)))
    return fill_whittle(model._replace(moves=moves), max_age)


def _namespace(model: Model) -> Any:
    return array_namespace(model.moves.active)


# --------------------------------------------------------------------------------- two states


def _turned(model: Model) -> Array:
    """Return the arms whose first state is the good one, which may pay more, (N, 1)."""
    pays = _namespace(model).maximum(model.reward_active, model.reward_passive)
    return pays[0] > pays[1]


def _radii(model: Model) -> Moves:
    """Return the radii, (S, N, trials) each; 0 for known dynamics."""
    return model.width or Moves(*(_namespace(model).zeros_like(rows[:, 0]) for rows in model.moves))


def _box(model: Model) -> tuple[Array, Array]:
    """Return the bounds on the chance of the good state, (bad or good, action, N, trials) each."""
    xp, turned = _namespace(model), _turned(model)
    chances, widths = [], []
    for rows, width in zip(model.moves, _radii(model), strict=True):
        chances.append(xp.where(turned, rows[1::-1, 0], rows[:2, 1]))
        widths.append(xp.where(turned, width[1::-1], width[:2]))
    chance, width = xp.stack(chances, 1), xp.stack(widths, 1)
    return xp.maximum(chance - width, 0), xp.minimum(chance + width, 1)


def _moves(model: Model, passive: Array, active: Array) -> Moves:
    """Return whole matrices from the chances of the good state, (bad or good, N, trials)."""
    xp, S, turned = _namespace(model), model.moves.passive.shape[0], _turned(model)

    def whole(chance: Array) -> Array:
        rows = xp.stack([1 - chance, chance], 1)
        rows = xp.where(turned, rows[::-1, ::-1], rows)
        return xp.pad(rows, [(0, S - 2), (0, S - 2), (0, 0), (0, 0)])

    return Moves(whole(passive), whole(active))


# -------------------------------------------------------------------------------- more states


def _shifted(model: Model, idle_worth: Array, worth: Array) -> tuple[Array, Array]:
    """Return rows without a play and with one, half their radii moved to the state worth most from
    the states worth least; idle_worth, worth: (S, N, trials)."""
    xp, radii = _namespace(model), _radii(model)
    sizes = np.array([kind.states for kind in model.kinds])
    state = np.arange(model.moves.passive.shape[0])
    has = (state[:, None] < sizes)[:, :, None]

    def moved(rows: Array, width: Array, worth: Array) -> Array:
        worth = xp.where(has, worth, -xp.inf)
        # [r, s]: whether r comes before s, of equal ones the lower.
        before = (worth[:, None] < worth[None]) | (
            (worth[:, None] == worth[None]) & (state[:, None] < state)[:, :, None, None]
        )
        below = sum(rows[:, r, None] * before[r] for r in state)  # (S, S, N, trials)
        taken = width[:, None] / 2
        heaped = xp.where(before.any(1), xp.maximum(below + rows - taken, 0), below + rows)
        return heaped - xp.maximum(below - taken, 0)

    return (
        moved(model.moves.passive, radii.passive, idle_worth),
        moved(model.moves.active, radii.active, worth),
    )


def _values(model: Model) -> Array:
    """Return relative values (S, N, trials) of the best dynamics within the radii, plays free."""
    xp = _namespace(model)

    def step(_: int, state: tuple[Array]) -> tuple[Array]:
        (worth,) = state
        passive, active = _shifted(model, worth, worth)
        idle = model.reward_passive + (passive * worth).sum(1)
        plays = model.reward_active + (active * worth).sum(1)
        best = _DAMPING * worth + (1 - _DAMPING) * xp.maximum(idle, plays)
        return (best - best[:1],)

    start = xp.zeros(model.moves.passive.shape[1:], model.moves.passive.dtype)
    return repeat(_STEPS, step, (start,))[0]


# ------------------------------------------------------------------------------------ policies


def _ucwhittle(
    table: Callable[[Model, int], Array],
    name: str,
    _horizon: int,
    *,
    scale: float = 1.0,
    delta: float = 1e-3,
) -> Policy:
    """Return UCWhittle by a table of indices."""
    from rmab.policies.rules.random_ties import RandomTiesRule

    return Policy(
        name,
        rule=RandomTiesRule(IndexRule(table=table)),
        learner=partial(confident_rows, scale=scale, delta=delta),
        randomised=False,
        reads_visits=False,
        lengths=Lengths(lambda _evidence, _rows: _EPISODE_SLOTS, least=_EPISODE_SLOTS),
    )


ucw_value = partial(_ucwhittle, fill_value)
ucw_penalty = partial(_ucwhittle, fill_penalty)
ucw_extreme = partial(_ucwhittle, fill_extreme)


_OPTIONS = shared("aggregation", "delta", "scale")
_ALWAYS = Capabilities(arms=(always_observed,), served=False)
ENTRIES = {
    "ucw-value": Entry(
        "published", f"{__name__}:ucw_value", _OPTIONS,
        "UCWhittle: Whittle indices of the dynamics with the largest value",
        "UCW-value", "#ee8866", BROKEN, "^", capabilities=_ALWAYS,
    ),
    "ucw-penalty": Entry(
        "published", f"{__name__}:ucw_penalty", _OPTIONS,
        "UCWhittle: the largest Whittle index of each state",
        "UCW-penalty", "#bbcc33", BROKEN, "s",
        capabilities=Capabilities(arms=(always_observed, two_states), served=False),
    ),
    "ucw-extreme": Entry(
        "published", f"{__name__}:ucw_extreme", _OPTIONS,
        "UCWhittle: Whittle indices where plays do as much as they may",
        "UCW-extreme", "#99ddff", BROKEN, "D", capabilities=_ALWAYS,
    ),
}  # fmt: skip
