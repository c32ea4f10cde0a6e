"""A walk over transition matrices that leaves their posterior as it is.

P moves an arm of S states and has the stationary law pi; F(s, s') = pi(s) P(s, s') is its flow.
`gain` is the log density of the log odds of P (`matrix_posterior`). No one kind of step does
everywhere: long gaps pin pi and leave the rest as wide as the prior, many looks pin all, weights
under 1 leave entries that range over powers of ten. So steps of several kinds take turns. Each
proposes P' and is kept with probability min(1, e^(gain' - gain + extra)); `extra` is what the
proposal's way there and back and its coordinates add.

    kind     what it draws anew
    sheet    normal steps, along the information at the summit, in `law` coordinates
    swap     F(s, i), F(t, j) grow by x as F(s, j), F(t, i) shrink by x: pi is kept
    rows     log weights of some entries, from a law around the summit; the rows make room
    entry    the log weight of one entry of a row; the others of the row make room
    pace     P' = I + t (P - I), t > 0: pi is kept
    root     a normal step of the log odds of P^k, and one of its roots at random

`root` is for looks that tell P^k alone, with prior weights of 1 or more (else: `matrix_flock`).
Such a walk begins with steps of which three of four are of this kind; all others have none. The
posterior of P^k has one summit and is nearly normal; that of P has many summits and lies along
curves between (`matrix_roots`).

Steps come in many sizes, drawn anew each time, so that some fit. Measures, each up to a constant:

    log odds          e^gain
    `law`             e^(gain - log_bend)                                 (`matrix_charts`)
    flow at one pi    e^gain trees / prod P,  trees: prod of the eigenvalues of I - P but 0
    P                 e^gain / prod P;  |dP' / dP| = t^(S (S - 1)) for pace
    log odds of P^k   e^gain prod P^k / prod P / |dP^k / dP|

A step in `law` coordinates is found by rounds that may not end. It counts only if the step back
would be found, too: else the walk would drift to where it is found from, and rows that are close to
certain came out a tenth too narrow. From a root the way back takes one of the roots of the old
power, of which there may be more or fewer.

Rows: with v = log(P / summit) an entry's new v has density ~ e^(a v) for v < 0 and e^(-b v) for
v > 0, a the entry's weight alpha as in a Dirichlet, b = alpha / 2 + sqrt(alpha). What the way back
would have drawn is then known, too. alpha lies between what looks one slot apart tell and what all
looks do, at random. As likely as not few or many entries are drawn, and in three of ten steps those
alone that have hardly been seen.

How many steps there are depends on the counts and the prior alone (`roots`, `lengths`). A walk that
went on until it looked settled would be biased.

Reference: L. Tierney, "Markov chains for exploring posterior distributions", Annals of Statistics
22, 1994.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.learning.matrix_charts import LEAST, law_and_trees, log_bend, scaled_to
from rmab.learning.matrix_roots import log_slope_per_root, power_of, root_of
from rmab.learning.matrix_summit import applied
from rmab.random import Draws

__all__ = [
    "APART",
    "FITTING",
    "VARIETY",
    "Ground",
    "Place",
    "Proposal",
    "kinds_of",
    "normal",
    "place_at",
    "safe_log",
    "to_law",
    "to_rows",
    "walk",
]

SIZES = (0.2, 8.0)  # least and largest step of one log weight
FITTING, VARIETY = 2.4, 0.9  # size of a normal step times sqrt(dimensions), and its log's spread
OFF = 3e-4  # largest error of a log stationary law that was asked for
SOLVED = 5  # rounds to reach a stationary law
AMONG = 3  # steps among roots for each other one
NEAR = 0.4, 0.3  # how often a step among roots is short, and how much
ROOTED = 2e-4  # largest error of a power of a root
APART = 1 << 20  # keys of arms with S states are numbered from 2 S times this


class Ground(NamedTuple):
    """What the walk knows of the posterior.

    gain: of matrices (S, S, items) and their laws (S, items) -> (items,); summit: (S, S, items),
    its law: (S, items); spread: (S S, S S, items), L^-T of the information in `law` coordinates;
    direct, told: (S, items), looks from each state one slot apart with the prior's, and how many
    would tell as much as all do; prior: (1, S, 1); order: (items,), of the power that looks tell;
    power_spread: L^-T of the information on that power in `rows` coordinates.
    """

    gain: Callable[[Array, Array], Array]
    summit: Array
    law: Array
    spread: Array
    direct: Array
    told: Array
    prior: Array
    order: Array
    power_spread: Array


class Place(NamedTuple):
    """A matrix (S, S, items), its law (S, items), log trees and gain, each (items,)."""

    moves: Array
    law: Array
    trees: Array
    gain: Array


Proposal = tuple[Array, Array, Array, Array]  # moves, law, trees, extra
Move = Callable[[tuple[Array, Array, Place]], Proposal]  # from the turn, uniforms and a place


def place_at(ground: Ground, moves: Array) -> Place:
    law, trees = law_and_trees(moves)
    return Place(moves, law, trees, ground.gain(moves, law))


def walk(
    ground: Ground, start: Place, roots: Array, lengths: Array, draws: Draws, lead: tuple[int, ...]
) -> Array:
    """Where the walk ends, (S, S, items); lead: n and trials.

    roots: (items,), steps among the roots of a power; lengths: (items,), steps after those.
    """
    n_states = start.moves.shape[0]
    kinds = kinds_of(ground)
    n_usual = len(kinds) - 1
    among = jnp.asarray([kind for k in range(n_usual) for kind in (*[n_usual] * AMONG, k)])
    first = roots.max()

    def step(k: Array, old: Place) -> Place:
        later = k >= first
        k = jnp.where(later, k - first, k)
        kind = jnp.where(later, k % n_usual, among[k % among.shape[0]])
        turn_number = jnp.where(later, k // n_usual, k // among.shape[0])
        fresh = draws.again(k + (2 * n_states + ~later) * APART)
        uniforms = fresh.uniform(2 * n_states**2 + 4, *lead[:-1])
        uniforms = uniforms.reshape(uniforms.shape[0], -1)
        turn = (turn_number, uniforms[1:], old)
        moves, law, trees, extra = lax.switch(kind, kinds, turn)
        new = Place(moves, law, trees, ground.gain(moves, law))
        taken = jnp.log(uniforms[0]) < new.gain - old.gain + extra
        taken = taken & (k < jnp.where(later, lengths, roots)) & (moves > LEAST).all((0, 1))
        return Place(*(jnp.where(taken, *both) for both in zip(new, old, strict=True)))

    end: Place = lax.fori_loop(0, first + lengths.max(), step, start)
    return end.moves


def kinds_of(ground: Ground) -> list[Move]:
    """The kinds of steps, in their order, `root` last. Uniforms: (2 S S + 3, items)."""
    n_states = ground.summit.shape[0]
    size = n_states**2
    pairs = [*itertools.combinations(range(n_states), 2)]
    order = np.random.default_rng(0)
    swaps = jnp.asarray(order.permutation([(*a, *b) for a in pairs for b in pairs]))
    entries = jnp.asarray(order.permutation([*np.ndindex(n_states, n_states)]))

    def along(
        spread: Array, uniforms: Array, kept: Array | bool, dimensions: Array | float
    ) -> Array:
        """A normal step of some random size, (S, S, items)."""
        scale = FITTING * jnp.exp(VARIETY * normal(uniforms[-1])) / jnp.sqrt(dimensions)
        z = applied(spread, jnp.where(kept, normal(uniforms[:size]), 0) * scale)
        return jnp.clip(z, -60, 60).reshape(ground.summit.shape)

    def sheet(turn: tuple[Array, Array, Place]) -> Proposal:
        _, uniforms, old = turn
        kept = uniforms[size : 2 * size] < jnp.where(uniforms[-2] < 0.5, 1, uniforms[-3])
        some = jnp.clip(kept.sum(0), 1, size - n_states).astype(jnp.float32)
        z = along(ground.spread, uniforms, kept, some)
        return to_law(old, z, (ground.law[:, None] * z).sum(0))

    def entry(turn: tuple[Array, Array, Place]) -> Proposal:
        k, uniforms, old = turn
        s, t = entries[k % entries.shape[0]]
        z = jnp.zeros_like(old.moves).at[s, t].set(_of_any_size(uniforms))
        return to_rows(old, z)

    def swap(turn: tuple[Array, Array, Place]) -> Proposal:
        k, uniforms, old = turn
        return _swapped(old, swaps[k % swaps.shape[0]], _of_any_size(uniforms))

    def rows(turn: tuple[Array, Array, Place]) -> Proposal:
        _, uniforms, old = turn
        return _anew(ground, old, uniforms)

    def pace(turn: tuple[Array, Array, Place]) -> Proposal:
        _, uniforms, old = turn
        step = _of_any_size(uniforms)
        apart = np.eye(n_states)[:, :, None] == 0
        leaving = jnp.where(apart, old.moves * jnp.exp(step), 0)
        staying = 1 - leaving.sum(1, keepdims=True)
        inside = (staying > 0).all((0, 1))
        moves = jnp.where(inside, jnp.where(apart, leaving, staying), old.moves)
        extra = (size - n_states) * step - (safe_log(moves) - safe_log(old.moves)).sum((0, 1))
        return moves, *law_and_trees(moves), jnp.where(inside, extra, -jnp.inf)

    def root(turn: tuple[Array, Array, Place]) -> Proposal:
        _, uniforms, old = turn
        order = ground.order
        near = jnp.where(uniforms[-2] < NEAR[0], NEAR[1], 1)
        z = near * along(ground.power_spread, uniforms, True, size - n_states + 0.0)
        power = power_of(old.moves, order)
        new_power = _rescaled(power, z)
        signs = jnp.where(uniforms[size : size + n_states - 1] < 0.5, 1.0, -1.0)
        turns = jnp.floor(order * uniforms[size + n_states : size + 2 * n_states - 1])
        moves = root_of(new_power, law_and_trees(new_power)[0], order, signs, turns)
        inside = (moves > LEAST).all((0, 1)) & jnp.isfinite(moves).all((0, 1))
        moves = jnp.where(inside, moves, old.moves)
        moves = moves / moves.sum(1, keepdims=True)
        law, trees = law_and_trees(moves)
        inside = inside & (abs(power_of(moves, order) - new_power) < ROOTED).all((0, 1))
        extra = (safe_log(new_power) - safe_log(power) - safe_log(moves) + safe_log(old.moves)).sum(
            (0, 1)
        )
        both = ((old.moves, moves), (old.law, law), (order, order))
        height, sure = log_slope_per_root(*(jnp.concatenate(two, -1) for two in both))
        before, after = jnp.split(height, 2)
        extra, inside = extra + before - after, inside & sure.reshape(2, -1).all(0)
        return moves, law, trees, jnp.where(inside & jnp.isfinite(extra), extra, -jnp.inf)

    return [sheet, swap, rows, entry, pace, root]


def normal(uniforms: Array) -> Array:
    """Normal numbers from uniforms, of any shape."""
    return math.sqrt(2) * lax.erf_inv(2 * uniforms - 1)


def _of_any_size(uniforms: Array) -> Array:
    """A normal step, (items,), of a size that is drawn evenly in its logarithm."""
    least, largest = SIZES
    return least * (largest / least) ** uniforms[1] * normal(uniforms[0])


def safe_log(number: Array) -> Array:
    """The logarithm, of LEAST for what is less."""
    return jnp.log(jnp.maximum(number, LEAST))


# ----------------------------------------------------------------------------------- ways to go


def to_rows(old: Place, z: Array) -> Proposal:
    """Log weights changed by z (S, S, items), each row by itself."""
    moves = _rescaled(old.moves, z)
    return moves, *law_and_trees(moves), jnp.zeros_like(old.gain)


def _rescaled(moves: Array, z: Array) -> Array:
    moves = moves * jnp.exp(z - z.max(1, keepdims=True))
    return moves / jnp.maximum(moves.sum(1, keepdims=True), LEAST)


def to_law(old: Place, z: Array, tilt: Array) -> Proposal:
    """Odds ratios changed by z (S, S, items), and the log stationary law by tilt (S, items).

    extra is -inf where the rounds do not end there, or would not end here from there.
    """
    asked = old.law * jnp.exp(tilt - tilt.max(0))
    asked = asked / asked.sum(0)
    moves = scaled_to(old.moves, z, asked, SOLVED)
    law, trees = law_and_trees(moves)
    back = law_and_trees(scaled_to(moves, -z, old.law, SOLVED))[0]
    reached = ((abs(jnp.log(law / asked)) < OFF) & (abs(jnp.log(back / old.law)) < OFF)).all(0)
    extra = log_bend(old.moves, old.law) - log_bend(moves, law)
    return moves, law, trees, jnp.where(reached, extra, -jnp.inf)


def _swapped(old: Place, corners: Array, step: Array) -> Proposal:
    """Flow moved around the corners (s, t, i, j); step: of the log odds of how far it is."""
    s, t, i, j = corners
    flow = old.law[:, None] * old.moves
    rising, falling = (
        jnp.stack(two) for two in ((flow[s, i], flow[t, j]), (flow[s, j], flow[t, i]))
    )
    low, high = rising.min(0), falling.min(0)  # how much can come back, how much can go
    place = safe_log(low) - safe_log(high) + step
    new_low, new_high = ((low + high) * jax.nn.sigmoid(x) for x in (place, -place))
    risen, fallen = rising - low + new_low, falling - high + new_high
    flow = flow.at[s, i].set(risen[0]).at[t, j].set(risen[1])
    flow = flow.at[s, j].set(fallen[0]).at[t, i].set(fallen[1])
    moves = flow / jnp.maximum(flow.sum(1, keepdims=True), LEAST)
    law, trees = law_and_trees(moves)
    corner_logs = (safe_log(risen) + safe_log(fallen) - safe_log(rising) - safe_log(falling)).sum(0)
    coordinate = safe_log(new_low) + safe_log(new_high) - safe_log(low) - safe_log(high)
    return moves, law, trees, trees - old.trees - corner_logs + coordinate


def _anew(ground: Ground, old: Place, uniforms: Array) -> Proposal:
    """Some entries' log(P / summit) drawn from a law of their own, two exponentials."""
    shape = old.moves.shape
    size = shape[0] ** 2
    mix, share, which = uniforms[2 * size :]
    looks = ground.direct * (ground.told / ground.direct) ** mix
    left = jnp.maximum(looks[:, None] * ground.summit, ground.prior)
    right = left / 2 + jnp.sqrt(left)
    unseen = which < 0.3
    some = uniforms[size : 2 * size].reshape(shape) < jnp.where(unseen, 1, share)
    some = some & ((left < 2 * jnp.exp(3 * share)) | ~unseen)
    below, place = right / (left + right), uniforms[:size].reshape(shape)
    value = jnp.where(
        place < below, jnp.log(place / below) / left, -jnp.log((1 - place) / (1 - below)) / right
    )
    now = safe_log(old.moves) - jnp.log(ground.summit)
    z = jnp.where(some, value - now, 0)
    moves, law, trees, extra = to_rows(old, z)
    back = safe_log(moves) - jnp.log(ground.summit) - z
    there, back = (jnp.where(v < 0, left * v, -right * v) for v in (now + z, back))
    return moves, law, trees, extra + jnp.where(some, back - there, 0).sum((0, 1))
