"""Walkers that go from the prior of a transition matrix to its posterior together.

Rows that are close to certain (prior weights a < 1), seen at multiples of k slots alone: looks tell
P^k, and what may have that power lies in many places at the edges, where some entries range over
powers of ten. One walk does not get from one place to the next. So W walkers begin at draws from
the prior, which is everywhere, and the likelihood L(P) counts with a share that rises to 1. The
density of log odds is then

    e^h(P),     h = sum a log P + share log L.

1. A level has a share: 2 looks' worth, then RATIO times the one before, then all.
2. Walkers are chosen anew at each level, each in proportion to L^(rise of the share), at evenly
   spaced places of the added up weights.
3. They take turns to step by Metropolis steps that keep e^h. Every second step is

       apart     log P' = log P + c (log A - log B), A and B two other walkers: what is uncertain
                 at this level, and how much, is seen from the walkers

   for some or all rows. The others are those of `matrix_walk` but `root`, and two that keep
   volumes:

       over      an eigenvalue changes its sign (`matrix_roots`): P^2 is kept
       exchange  two entries of a row change places

4. At last one of the walkers is taken, each as likely.

That is right in the limit of many walkers. How many steps there are depends on the looks alone.
With too few the walkers lag behind the rising share, and draws are too wide.

References: P. Del Moral, A. Doucet and A. Jasra, "Sequential Monte Carlo samplers", Journal of the
Royal Statistical Society B 68, 2006; C. ter Braak, "A Markov chain Monte Carlo version of the
genetic algorithm differential evolution", Statistics and Computing 16, 2006.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.learning.matrix_charts import LEAST, law_and_trees, product
from rmab.learning.matrix_roots import turned_over
from rmab.learning.matrix_walk import (
    APART,
    FITTING,
    VARIETY,
    Ground,
    Place,
    Proposal,
    kinds_of,
    normal,
    place_at,
    safe_log,
    to_rows,
)
from rmab.random import Draws

__all__ = ["flock"]

WALKERS = 64
CYCLES = 2  # rounds through all kinds of steps, for each walker and level
FIRST, RATIO = 2.0, 1.4  # looks at the first level, and at each against the one before
LEAP = 0.1  # how often c = 1, which takes one walker's place to another's
KEPT = 2e-4  # largest error of P^2 when an eigenvalue changes its sign
FROM = 1024  # keys of arms with S states are numbered from (FROM + S) APART, choices before

Turn = tuple[Array, Array, Place, tuple[Array, Array]]  # its number, uniforms, a place, two others
Kind = Callable[[Turn], Proposal]


def flock(ground: Ground, looks: Array, goes: Array, draws: Draws, lead: tuple[int, ...]) -> Place:
    """Where one of the walkers ends, with parts (..., items); lead: n and trials.

    looks: (items,), how many there are; goes: (items,), where it is wanted. Elsewhere it is a draw
    from the prior.
    """
    n_states, _, items = ground.summit.shape
    kinds = _kinds(ground)
    cycle = jnp.asarray([kind for k in range(1, len(kinds)) for kind in (0, k)])
    turns = CYCLES * cycle.shape[0]
    in_level = WALKERS * turns
    known = jnp.maximum(looks, 2 * FIRST)
    levels = jnp.ceil(jnp.log(known / FIRST) / math.log(RATIO)).astype(jnp.int32) + 1
    levels = jnp.where(goes, levels, 0)
    every = [(a, b) for a in range(1, WALKERS) for b in range(1, WALKERS) if a != b]
    pairs = jnp.asarray(np.random.default_rng(1).permutation(every))

    def share(level: Array) -> Array:
        return jnp.where(level < levels - 1, FIRST * RATIO ** (1.0 * level) / known, 1)

    def by_prior(moves: Array) -> Array:
        return (ground.prior * safe_log(moves)).sum((-3, -2))

    def step(k: Array, walkers: Place) -> Place:
        level, sweep, which = k // in_level, k // WALKERS, k % WALKERS
        fresh = draws.again(k + (FROM + n_states) * APART)
        uniforms = fresh.uniform(2 * n_states**2 + 4, *lead[:-1])
        uniforms = uniforms.reshape(uniforms.shape[0], -1)
        old = Place(*(part[which] for part in walkers))
        one, other = (which + pairs[k % pairs.shape[0]]) % WALKERS
        two = (walkers.moves[one], walkers.moves[other])
        turn = (sweep // cycle.shape[0], uniforms[1:], old, two)
        moves, law, trees, extra = lax.switch(cycle[sweep % cycle.shape[0]], kinds, turn)
        new = Place(moves, law, trees, ground.gain(moves, law))
        now = share(level)
        higher = now * (new.gain - old.gain)
        higher = higher + (1 - now) * (by_prior(moves) - by_prior(old.moves)) + extra
        taken = (jnp.log(uniforms[0]) < higher) & (level < levels)
        taken = taken & (moves > LEAST).all((0, 1))
        stays = (jnp.where(taken, *both) for both in zip(new, old, strict=True))
        return Place(*(part.at[which].set(x) for part, x in zip(walkers, stays, strict=True)))

    def rise(level: Array, walkers: Place) -> Place:
        more = share(level) - jnp.where(level > 0, share(level - 1), 0)
        more = jnp.where(level < levels, more, 0)
        offset = draws.again(level + FROM * APART).uniform(*lead[:-1]).reshape(items)
        walkers = _chosen(walkers, more * (walkers.gain - by_prior(walkers.moves)), offset)
        ends: Place = lax.fori_loop(level * in_level, (level + 1) * in_level, step, walkers)
        return ends

    fresh = draws.again(jnp.uint32((FROM - 1) * APART))
    weights = jnp.broadcast_to(ground.prior[..., None], (WALKERS, n_states, n_states, *lead))
    start = fresh.dirichlet(weights, axis=2).reshape(WALKERS, n_states, n_states, items)
    begun = lax.map(lambda moves: place_at(ground, moves), jnp.maximum(start, 10 * LEAST))
    end = lax.fori_loop(0, levels.max(), rise, begun)
    one = jnp.floor(WALKERS * fresh.uniform(*lead[:-1]).reshape(1, items)).astype(jnp.int32)
    return Place(*(part[0] for part in _taken(end, one)))


def _chosen(walkers: Place, log_weights: Array, offset: Array) -> Place:
    """Walkers in proportion to weights, (WALKERS, items), at even places from an offset (items,).

    With equal weights all stay.
    """
    whole = jnp.cumsum(jax.nn.softmax(log_weights, 0), 0)
    places = (jnp.arange(WALKERS)[:, None] + offset) / WALKERS
    index = (whole[:-1] < places[:, None]).sum(1)
    alike = (log_weights == log_weights[:1]).all(0)
    return _taken(walkers, jnp.where(alike, jnp.arange(WALKERS)[:, None], index))


def _taken(walkers: Place, index: Array) -> Place:
    """Those with the numbers index, (any, items)."""
    shapes = (index.reshape(len(index), *(1,) * (part.ndim - 2), -1) for part in walkers)
    both = zip(walkers, shapes, strict=True)
    return Place(*(jnp.take_along_axis(part, shaped, 0) for part, shaped in both))


# ----------------------------------------------------------------------------------- ways to go


def _kinds(ground: Ground) -> list[Kind]:
    """The kinds of steps: `apart` first. Uniforms: (2 S S + 3, items)."""
    n_states = ground.summit.shape[0]
    triples = [(s, i, j) for s in range(n_states) for i in range(n_states) for j in range(i)]
    exchanges = jnp.asarray(np.random.default_rng(2).permutation(triples))

    def apart(turn: Turn) -> Proposal:
        _, uniforms, old, (one, other) = turn
        scale = FITTING * jnp.exp(VARIETY * normal(uniforms[-1]))
        scale = scale / math.sqrt(2 * n_states * (n_states - 1))
        scale = jnp.where(uniforms[-2] < LEAP, 1, scale)
        some = uniforms[:n_states] < jnp.where(uniforms[-3] < 0.5, 1, 0.5)
        z = jnp.where(some[:, None], scale * (safe_log(one) - safe_log(other)), 0)
        return to_rows(old, jnp.clip(z, -60, 60))

    def exchange(turn: Turn) -> Proposal:
        number, _, old, _ = turn
        s, i, j = exchanges[number % exchanges.shape[0]]
        z = safe_log(old.moves[s, j]) - safe_log(old.moves[s, i])
        return to_rows(old, jnp.zeros_like(old.moves).at[s, i].set(z).at[s, j].set(-z))

    usual = [_alone(kind) for kind in kinds_of(ground)[:-1]]
    return [apart, *usual, _over, exchange]


def _alone(kind: Callable[[tuple[Array, Array, Place]], Proposal]) -> Kind:
    return lambda turn: kind(turn[:3])


def _over(turn: Turn) -> Proposal:
    _, uniforms, old, _ = turn
    moves, log_turn = turned_over(old.moves, old.law, uniforms[0])
    inside = (moves > LEAST).all((0, 1)) & jnp.isfinite(moves).all((0, 1))
    moves = jnp.where(inside, moves, old.moves)
    moves = moves / moves.sum(1, keepdims=True)
    error = abs(product(moves, moves) - product(old.moves, old.moves)).max((0, 1))
    extra = log_turn + (safe_log(old.moves) - safe_log(moves)).sum((0, 1))
    sure = inside & (error < KEPT) & jnp.isfinite(extra)
    return moves, *law_and_trees(moves), jnp.where(sure, extra, -jnp.inf)
