"""Tied rows: transition probabilities of an arm that one unknown chance determines.

In every tied row one event, a success say, has the same chance theta. The event is a set of next
states. Given that it happens, or does not, the distribution of the next state is known, so that row
s is theta times its row if the event is certain, plus 1 - theta times its row without the event.
The prior Beta(a, b) of theta becomes Beta(a + h, b + n) if, in all tied rows of all arms with one
tie, the event happened h times and did not happen n times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rmab.arrays import Array, BoolArray, Float, FloatArray, Real
from rmab.errors import ModelError
from rmab.linalg import array_namespace
from rmab.text import shown

if TYPE_CHECKING:
    from rmab.model.arms import ArmKind, Moves
    from rmab.rng.variates import Draws

__all__ = ["Tie", "draw_tied_rows", "tie_of"]

Event = tuple[tuple[int, ...], ...]  # the next states of the event, by state
Rows = tuple[tuple[tuple[float, ...], ...], ...]  # (2, S, S), passive and active

_CHANCE_TOLERANCE = 1e-9  # chances this close to each other count as equal
_TIED_STREAMS = 1 << 17  # number of the first tie's stream of random numbers


class Tie(NamedTuple):
    """Rows that one unknown chance describes.

    passive, active: next states of the event, by state; for_sure, never: rows if the event always
    happened and if it never did, as tuples, so that arms can be grouped by their tie.
    """

    passive: Event
    active: Event
    for_sure: Rows
    never: Rows


def tie_of(
    passive: Float[FloatArray, "S S"],
    active: Float[FloatArray, "S S"],
    tied_passive: Sequence[Sequence[int]] | None,
    tied_active: Sequence[Sequence[int]] | None,
) -> Tie:
    """Return the tie that an arm declares, checked against its matrices."""
    S = len(passive)
    if np.array_equal(passive, active):
        tied_passive = tied_active = tied_active if tied_passive is None else tied_passive
    events = {
        "tied_passive": _event("tied_passive", tied_passive, S),
        "tied_active": _event("tied_active", tied_active, S),
    }
    rows = np.stack([passive, active])
    for_sure, never = rows.copy(), rows.copy()
    first: tuple[str, float] | None = None
    for action, (name, event) in enumerate(events.items()):
        for state, targets in enumerate(event):
            if not targets:
                continue
            row, label = rows[action, state], f"{name} row {state}"
            happens = np.isin(np.arange(S), targets)
            chance = float(row[happens].sum())
            if not 0 < chance < 1:
                raise ModelError(
                    f"{label} must be an event of a chance between 0 and 1, got {chance:g}"
                )
            first = first or (label, chance)
            if abs(chance - first[1]) > _CHANCE_TOLERANCE:
                raise ModelError(
                    f"{label} must have the chance of {first[0]}, {first[1]:g}, as the rows are "
                    f"tied, got {chance:g}"
                )
            for_sure[action, state] = np.where(happens, row, 0) / chance
            never[action, state] = np.where(happens, 0, row) / row[~happens].sum()
    if first is None:
        raise ModelError("tied_passive or tied_active must have a row with an event")
    return Tie(events["tied_passive"], events["tied_active"], _tuples(for_sure), _tuples(never))


def _tuples(rows: FloatArray) -> Rows:
    return tuple(tuple(map(tuple, matrix.tolist())) for matrix in rows)


def _event(name: str, given: Any, S: int) -> Event:
    """Return the next states of an event, by state; no event where nothing is given."""
    if given is None:
        return ((),) * S
    rule = f"{name} must be {S} lists of next states, one for each state"
    try:
        rows = tuple(tuple(row) for row in given)
    except TypeError:
        raise ModelError(rule) from None
    if len(rows) != S:
        raise ModelError(f"{rule}, got {len(rows)}")
    for state, row in enumerate(rows):
        for target in row:
            whole = isinstance(target, int | np.integer) and not isinstance(target, bool)
            if not whole or not 0 <= target < S:
                raise ModelError(
                    f"{name} row {state} must have states from 0 to {S - 1}, got {shown(target)}"
                )
    return tuple(tuple(sorted({int(target) for target in row})) for row in rows)


def draw_tied_rows(
    moves: Moves,
    kinds: tuple[ArmKind, ...],
    counts: Real[Array, "C S S N R"],
    prior: tuple[float, float],
    draws: Draws,
) -> Moves:
    """Replace the rows of tied arms by rows of one drawn chance for each tie, a priori Beta(a, b).

    counts[0] are steps after a play, or all steps of uncontrolled arms, counts[1] those after none.
    """
    by_tie: dict[Tie, list[int]] = {}
    for arm, kind in enumerate(kinds):
        if kind.tie is not None:
            by_tie.setdefault(kind.tie, []).append(arm)
    passive, active = moves
    xp = array_namespace(counts)
    for number, (tie, arms) in enumerate(by_tie.items()):
        for_sure, never = np.array(tie.for_sure, np.float32), np.array(tie.never, np.float32)
        S, group = for_sure.shape[-1], np.array(arms)
        tied = (for_sure != never).any(-1, keepdims=True)
        happened = tied & (for_sure > 0)
        n_kinds = 2 if kinds[arms[0]].action_dependent else 1
        steps = [counts[kind][:S, :S, group] for kind in range(n_kinds)]
        a, b = prior[0] + _count(steps, happened), prior[1] + _count(steps, tied & ~happened)
        chance = draws.again(_TIED_STREAMS + number).beta(a, b, min(prior))
        rows = xp.asarray(never)[..., None, None] + chance * (for_sure - never)[..., None, None]
        passive = passive.at[:S, :S, group].set(rows[0])
        active = active.at[:S, :S, group].set(rows[1])
    return moves._replace(passive=passive, active=active)


def _count(steps: list[Array], targets: BoolArray) -> Array:
    """Count steps (S, S, n, R) to target states (2, S, S) in all rows: active, then passive."""
    xp = array_namespace(steps[0])
    by_action = [
        xp.where(targets[action][:, :, None, None], pairs, 0).sum((0, 1))
        for action, pairs in zip((1, 0), steps, strict=False)
    ]
    return xp.stack(by_action).sum(0)
