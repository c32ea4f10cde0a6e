"""The summit of the posterior of a transition matrix, and how sharp it is.

An arm of S states moves by P, played or not, with stationary law pi. Of pairs of looks at it n_g
were g slots apart, n_1 one slot apart and m so far apart that only pi is left. With rows that are
Dirichlet(a) before, the posterior density of the log odds of P is

    prod P(s, s')^(a(s') + n_1(s, s')) prod_g (P^g)(s, s')^n_g(s, s') prod pi(s')^m(s').

Its largest value, the summit, is found by Fisher scoring in `law` coordinates (`matrix_charts`).
Where n_1 is all there is, the summit is the posterior mean (a + n_1) / their sum.

Slope. With A_g = P^g the derivatives of all terms by P are added up in one pass back through the
powers; pi moves by d pi = pi dP (I - P)^#, the deviation matrix.

Information. With D_g the derivative of A_g by log weights and N_g(s) the pairs that began in s,

    I = sum_g sum_ss' N_g(s) D_g D_g^T / A_g,     D_(g+h) = D_g A_h + A_g D_h.

It is taken at gaps 2, 3, 4, 6, 8, 12, ..., between which the pairs at other gaps are shared out:
a few products instead of one for each gap. That costs accuracy of the steps, not of the summit.

Where nearly all looks are multiples of k > 1 slots apart they tell P^k, and P is one of its roots
(`matrix_roots`), some of which are no matrices of probabilities. Then P^k is climbed to first, as
if it were the matrix and k slots were one. Climbs to P begin at its roots, and the highest counts.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.learning.matrix_charts import (
    FLAT,
    LEAST,
    deviation_matrix,
    in_law,
    law_and_trees,
    product,
    tilt_slopes,
    turned,
    with_law,
)
from rmab.learning.matrix_roots import root_of

__all__ = [
    "Looks",
    "Summit",
    "Weights",
    "applied",
    "arrange",
    "as_powers",
    "cholesky",
    "climb",
    "concentration",
    "inverse_of",
]

Weights = Array | npt.NDArray[np.float32]

CLIMB, FARTHEST = 6, 1.5  # steps to the summit, and the longest in any coordinate
FEW, MANY = 0.1, 30.0  # share of looks at other gaps, and looks at all, to tell P^k alone
ROOTS, INSIDE = 8, 0.05  # climbs from roots of P^k, and S times the least entry of a beginning


class Looks(NamedTuple):
    """Counts with arms and trials on one last axis.

    direct: (S, S, items) one slot apart, with the prior; apart: (C - 2, S, S, items) from two slots
    on; settled: (S, items) by the second state; octaves: (R, S, items), pairs from each state,
    shared out between gaps 2, 3, 4, 6, 8, 12, ...; order: (items,), k where nearly all looks are
    multiples of k slots apart, else 1.
    """

    direct: Array
    apart: Array
    settled: Array
    octaves: Array
    order: Array


class Summit(NamedTuple):
    """The largest density at moves (S, S, items), and what is known there, (S S, S S, items).

    information, tilted: in `rows` and in `law` coordinates; power: (S, S, items), the summit of
    P^order, and power_information in `rows` coordinates, where order > 1.
    """

    moves: Array
    information: Array
    tilted: Array
    power: Array
    power_information: Array


def arrange(counts: Array, prior: Weights) -> Looks:
    """Counts (C, S, S, n, trials) and prior weights (1, S, 1, 1), as the summit takes them."""
    n_kinds, n_states = counts.shape[:2]
    flat = counts.reshape(n_kinds, n_states, n_states, -1).astype(jnp.float32)
    apart = flat[1:-1]
    n_octaves = max(1, (n_kinds - 2).bit_length() - 1)
    marks = [gap for power in range(n_octaves) for gap in (2 << power, 3 << power)]
    place = np.interp(np.log(np.arange(2, n_kinds)), np.log(marks), np.arange(len(marks)))
    share = np.maximum(0, 1 - abs(place - np.arange(len(marks))[:, None])).astype(np.float32)
    direct = jnp.asarray(prior).reshape(1, n_states, 1) + flat[0]
    octaves = jnp.tensordot(share, apart.sum(2), 1, precision="highest")
    return Looks(direct, apart, flat[-1].sum(0), octaves, _order(flat[:-1].sum((1, 2))))


def as_powers(counts: Array, order: Array) -> Array:
    """Counts (C, S, S, n, trials) with gaps order, 2 order, ... in the place of 1, 2, ..."""
    last = counts.shape[0] - 1
    wanted = jnp.arange(1, last + 1)[:, None, None] * order.reshape(counts.shape[3:])
    index = (jnp.minimum(wanted, last) - 1)[:, None, None]
    taken = jnp.take_along_axis(counts[:-1], index, 0)
    return jnp.concatenate([jnp.where(wanted[:, None, None] > last, 0, taken), counts[-1:]])


def _order(looks: Array) -> Array:
    """The largest k of which nearly all gaps are multiples, (items,); looks: (C - 1, items)."""
    gaps = np.arange(1, looks.shape[0] + 1)
    multiple = (gaps % gaps[:, None] == 0).astype(np.float32)
    within, whole = jnp.tensordot(multiple, looks, 1, precision="highest"), looks.sum(0)
    told = (whole - within <= FEW * whole) & (whole >= MANY)
    return jnp.where(told, gaps[:, None], 1).max(0)


def climb(looks: Looks, powers: Looks) -> Summit:
    """The summit; powers: the looks at multiples of order, as looks at P^order.

    Fisher scoring; where a step gained little, by shorter ones. Where looks tell P^k alone, that
    is climbed to, then P from many of its roots, and the highest summit is taken.
    """
    n_states, _, items = looks.direct.shape
    again = looks.order > 1
    last = jnp.where(again.any(), ROOTS + 2, 1)

    def step(looks: Looks, goes: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        moves, pace, before, *_ = state
        stationary = law_and_trees(moves)[0]
        tilts = tilt_slopes(moves, stationary)
        information = _information(looks, moves, stationary)
        tilted = in_law(information, tilts)
        slope = _slope(looks, moves, stationary)
        for column, tilt in zip(slope.sum(0), tilts, strict=True):
            slope = slope + column * tilt
        inverse = inverse_of(cholesky(tilted, concentration(tilted, moves), moves))
        white = applied(inverse, slope.reshape(-1, items))
        steep = (white**2).sum(0)
        pace = jnp.where(steep > before / 2, 0.6 * pace, jnp.minimum(1, 1.5 * pace))
        z = applied(jnp.swapaxes(inverse, 0, 1), white)
        z = z * jnp.minimum(pace, FARTHEST / jnp.maximum(abs(z).max(0), LEAST))
        moved = with_law(moves, stationary, z.reshape(moves.shape))
        moved = jnp.where(goes & jnp.isfinite(moved).all((0, 1)), moved, moves)
        return moved, pace, steep, information, tilted

    def ascent(k: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        """First to the summit of P^order, then of P from roots of that, at last no step at all."""
        best, top, power, told, *shapes = state
        ended = (k == last) | ((k > 0) & ~again)
        first = again & (k == 0)
        used = Looks(*(jnp.where(first, *both) for both in zip(powers, looks, strict=True)))
        begin = jnp.where(k == 1, _start(looks), _root(power, looks.order, k))
        begin = jnp.where(ended, best, jnp.where(k == 0, _start(used), begin))
        fresh = (begin, jnp.ones(items), jnp.full(items, jnp.inf), *shapes)
        moves, _, _, *shapes = lax.fori_loop(
            0, jnp.where(k == last, 1, CLIMB), lambda _, state: step(used, ~ended, state), fresh
        )
        now = jnp.where(first, -jnp.inf, _height(used, moves))
        higher = jnp.where(ended, k == last, (now > top) | (k == 0))
        best, top = jnp.where(higher, moves, best), jnp.where(higher, now, top)
        power, told = jnp.where(first, moves, power), jnp.where(first, shapes[0], told)
        return best, top, power, told, *shapes

    none = jnp.zeros((n_states**2,) * 2 + (items,))
    even = jnp.full((n_states, n_states, items), 1 / n_states)
    begin = (even, jnp.full(items, -jnp.inf), even, none, none, none)
    found = lax.fori_loop(0, last + 1, ascent, begin)
    return Summit(found[0], *found[4:], *found[2:4])


def _height(looks: Looks, moves: Array) -> Array:
    """The log density of log odds, (items,), at `moves` (S, S, items)."""

    def add(state: tuple[Array, Array], count: Array) -> tuple[tuple[Array, Array], None]:
        power = product(state[0], moves)
        logs = count * jnp.log(jnp.maximum(power, LEAST))
        return (power, state[1] + logs.sum((0, 1))), None

    logs = jnp.log(jnp.maximum(moves, LEAST))
    start = (looks.direct * logs).sum((0, 1))
    start = start + (looks.settled * jnp.log(law_and_trees(moves)[0])).sum(0)
    whole: Array = lax.scan(add, (moves, start), looks.apart)[0][1]
    return whole


def _start(looks: Looks) -> Array:
    """Where to climb from, (S, S, items): moves as counted, later ones with less weight."""
    nearness = 1 / np.arange(2, looks.apart.shape[0] + 2, dtype=np.float32)
    start = looks.direct + jnp.tensordot(nearness, looks.apart, 1, precision="highest")
    return start / start.sum(1, keepdims=True)


def _root(power: Array, order: Array, k: Array) -> Array:
    """A root of P^order, taken inside where it has entries under 0; k: which of them."""
    n_states, _, items = power.shape
    signs = 1.0 - 2 * ((k >> jnp.arange(n_states - 1)) & 1)[:, None]
    signs = jnp.broadcast_to(signs, (n_states - 1, items)).astype(jnp.float32)
    turns = jnp.broadcast_to((k ^ (k >> 1)) % order, signs.shape)
    root = root_of(power, law_and_trees(power)[0], order, signs, turns)
    root = jnp.where(jnp.isfinite(root).all((0, 1)), root, power)
    root = jnp.maximum(root, INSIDE / n_states)
    return root / root.sum(1, keepdims=True)


def _slope(looks: Looks, moves: Array, stationary: Array) -> Array:
    """Derivatives of the log density by log weights, (S, S, items): back through the powers."""

    def forth(power: Array, _: None) -> tuple[Array, Array]:
        return product(power, moves), power

    def back(
        state: tuple[Array, Array], gap: tuple[Array, Array]
    ) -> tuple[tuple[Array, Array], None]:
        later, whole = state
        power, count = gap
        fit = jnp.maximum(product(power, moves), LEAST)
        later = later + count / fit - count.sum(1, keepdims=True)
        whole = whole + product(turned(power), later)
        return (product(later, turned(moves)), whole), None

    powers = lax.scan(forth, moves, None, length=looks.apart.shape[0])[1]
    none = jnp.zeros_like(moves)
    (later, whole), _ = lax.scan(back, (none, none), (powers, looks.apart), reverse=True)
    value = product(deviation_matrix(moves, stationary), (looks.settled / stationary)[:, None])
    by_moves = whole + later + stationary[:, None] * value[None, :, 0]
    mean = (moves * by_moves).sum(1, keepdims=True)
    return moves * (by_moves - mean) + looks.direct - looks.direct.sum(1, keepdims=True) * moves


# ------------------------------------------------------------------------------------- information


def _information(looks: Looks, moves: Array, stationary: Array) -> Array:
    """Fisher information on the S^2 log weights, (S S, S S, items)."""
    n_states, _, items = moves.shape
    eye = np.eye(n_states, dtype=np.float32)
    # What a log weight moves: its own row alone. (S, S of the weight; S, S of P; items)
    rows = moves[:, :, None] * (eye[None, :, :, None] - moves[:, None])
    turn = jnp.asarray(eye[:, None, :, None, None] * rows[:, :, None])
    deviations = deviation_matrix(moves, stationary)
    law = stationary[:, None, None] * moves[:, :, None]
    law = law * (deviations[None] - product(moves, deviations)[:, None])
    direct = eye[:, None, :, None, None] * (looks.direct.sum(1)[:, None, None] * rows)[:, :, None]
    whole = direct.reshape(n_states**2, n_states**2, items)
    whole = whole + _squares(law, looks.settled.sum(0) / stationary)

    def octave(k: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        one, turn_one, two, turn_two, whole = state
        weight = looks.octaves[2 * k][:, None] / jnp.maximum(two, LEAST)
        whole = whole + _squares(turn_two, weight)
        three = product(two, one)
        turn_three = product(turn_two, one) + product(two, turn_one)
        weight = looks.octaves[2 * k + 1][:, None] / jnp.maximum(three, LEAST)
        whole = whole + _squares(turn_three, weight)
        four, turn_four = product(two, two), product(turn_two, two) + product(two, turn_two)
        return two, turn_two, four, turn_four, whole

    two, turn_two = product(moves, moves), product(turn, moves) + product(moves, turn)
    start = (moves, turn, two, turn_two, whole)
    told: Array = lax.fori_loop(0, looks.octaves.shape[0] // 2, octave, start)[4]
    return told


def _squares(turn: Array, weight: Array) -> Array:
    """sum of turn turn' weight over all axes of weight but items: (S S, S S, items)."""
    size, items = turn.shape[0] * turn.shape[1], turn.shape[-1]
    plain = turn.reshape(size, -1, items)
    weighted = (turn * weight).reshape(size, -1, items)
    whole = weighted[:, None, 0] * plain[None, :, 0]
    for k in range(1, plain.shape[1]):
        whole = whole + weighted[:, None, k] * plain[None, :, k]
    return whole


def concentration(information: Array, moves: Array) -> Array:
    """(S, items): how many looks in neighbouring slots would tell as much of each row."""
    n_states = moves.shape[0]
    own = jnp.stack([information[k, k] for k in range(n_states**2)]).reshape(moves.shape)
    return (own / jnp.maximum(moves, LEAST)).sum(1) / (n_states - 1)


def cholesky(information: Array, conc: Array, moves: Array) -> Array:
    """L^T of the information with the row numbers' own, (S S, S S, items), by Cholesky."""
    n_states, size = moves.shape[0], information.shape[0]
    eye = np.eye(n_states, dtype=np.float32)
    own = conc[:, None, None] * moves[:, :, None] * moves[:, None]
    spread = eye[:, None, :, None, None] * own[:, :, None]
    matrix = information + jnp.asarray(spread).reshape(information.shape)
    order = np.arange(size)[:, None]

    def row(j: Array, factor: Array) -> Array:
        new, column = matrix[j], factor[:, j]
        least = jnp.maximum(FLAT * new[j], LEAST)
        for k in range(size):
            new = new - column[k] * factor[k]
        new = jnp.where(order < j, 0, new) * lax.rsqrt(jnp.maximum(new[j], least))
        return factor.at[j].set(new)

    found: Array = lax.fori_loop(0, size, row, jnp.zeros_like(matrix))
    return found


def inverse_of(factor: Array) -> Array:
    """L^-1 from L^T, (S S, S S, items)."""
    size = factor.shape[0]
    eye = jnp.eye(size, dtype=jnp.float32)[:, :, None]

    def row(j: Array, inverse: Array) -> Array:
        column, new = factor[:, j], eye[j]
        for k in range(size):
            new = new - column[k] * inverse[k]
        return inverse.at[j].set(new / column[j])

    found: Array = lax.fori_loop(0, size, row, jnp.zeros_like(factor))
    return found


def applied(matrix: Array, vector: Array) -> Array:
    """Products of (d, d, items) and (d, items)."""
    whole = matrix[:, 0] * vector[0]
    for k in range(1, vector.shape[0]):
        whole = whole + matrix[:, k] * vector[k]
    return whole
