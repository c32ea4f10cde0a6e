"""A rough posterior of channels along the memory m, everywhere and at little cost.

Given m, pairs that begin in 0 cross as often as the sum of b0 a_g says, a_g = 1 - m^g, and those
that begin in 1 as often as the sum of (1 - b0) a_g. So either kind has an estimate of b0, by the
method of moments: given m the posterior lies where their mean is (its ridge), and is high where
they agree. For m < 0 they may agree twice, on a long stretch, or nowhere.

The scale of memories goes from -1 to 1: s has the sign of m and the log odds of |s| are half those
of |m|, so it is fine near -1, 0 and 1. It is cut into cells of one length.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax
from jax.nn import softmax

from rmab.learning.channel.log_odds import TINY, Observations, over_gaps

__all__ = ["CELLS", "Cells", "balance", "cells", "memory_density", "pick_memory", "ridge"]

_HALF = 16  # cells on each side of m = 0
CELLS = 2 * _HALF

_EVEN_SHARE = 0.2  # of the distribution over cells that is the same for all
_EXTREME = 1e-4  # distance to memories of -1 and 1 at which the outermost cells are judged
_MAX_SPREAD = 1.5  # of x
_MIN_EDGE = 1e-6  # share of the room for b0 at its ends
_AGREEMENT = 1.0  # standard errors by which estimates of b0 may differ where they agree
_NEAR_CELL = _HALF - 5  # in which a second mode would be if there is one far from m = 0
_INSIDE = 0.02  # of the room for b0, from its ends on


class Balance(NamedTuple):
    """Estimates of b0 and of 1 - b0, and their precisions."""

    b0: Array
    q0: Array
    known0: Array
    known1: Array


class Agreement(NamedTuple):
    """Points of m < 0 at which estimates agree, (2, n, trials) each: far from 0, and near."""

    b0: Array
    memory: Array
    found: Array  # whether they agree anywhere


class Cells(NamedTuple):
    """shares: (CELLS, n, trials), how likely cells are, from m = -1 on; concentration: the sum of
    their squares, before _EVEN_SHARE."""

    shares: Array
    concentration: Array
    agreement: Agreement


def balance(observed: Observations, memory: Array) -> Balance:
    """Return estimates (..., n, trials) at memories, with half a crossing more from each state."""
    totals = observed.totals
    one = jnp.ones_like(memory)

    def terms(_: Array, counts: Array, __: Array, apart: Array) -> tuple[tuple[Array], ...]:
        """Return a_g / a_1, summed over pairs from 0 and over pairs from 1."""
        (stay0, rise), (fall, stay1) = counts
        return ((stay0 + rise) * apart,), ((fall + stay1) * apart,)

    def estimate(far: Array, late: Array, crossed: Array, stayed: Array) -> tuple[Array, Array]:
        due = (1 - memory) * far + late + TINY
        crossed, stayed = crossed + 0.5, stayed + 0.5
        return crossed / due, due / crossed * (due / stayed) * (crossed + stayed)

    direct = (totals.direct0 + 1) * one, (totals.direct1 + 1) * one
    far0, far1 = over_gaps(observed, memory, terms, *direct)
    late0, late1 = observed.counts[-1].sum(1)
    b0, known0 = estimate(far0, late0, totals.crossed0, totals.stayed0)
    q0, known1 = estimate(far1, late1, totals.crossed1, totals.stayed1)
    return Balance(b0, q0, known0, known1)


def ridge(observed: Observations, memory: Array, tails: Array) -> tuple[Array, Array]:
    """Return x in RISING or STEEP along the ridge, and its spread, for given memories.

    Both systems have m as a function of y alone. tails: how much longer than those of b0 x's are.
    """
    place, spread, _ = _position(balance(observed, memory), memory)
    edge = jnp.clip(spread * spread / (spread + _outside(place)), _MIN_EDGE, 0.5)
    place = jnp.clip(place, edge, 1 - edge)
    wide = spread / (place * (1 - place))
    longer = 1 + (tails - 1) * jnp.minimum(1, wide)
    return jnp.log(place / (1 - place)), jnp.minimum(wide, _MAX_SPREAD) * longer


def _position(at: Balance, memory: Array) -> tuple[Array, Array, Array]:
    """Return the share of the room for b0 below the ridge, its spread, and the room itself.

    p01 and p10 are at most 1, so b0 is u / (1 + u) or more, and 1 / (1 + u) or less, u = -m > 0.
    """
    known = at.known0 + at.known1
    middle = at.b0 * (at.known0 / known) + (1 - at.q0) * (at.known1 / known)
    down = jnp.maximum(-memory, 0)
    room = (1 - down) / (1 + down)
    return (middle - down / (1 + down)) / room, lax.rsqrt(known) / room, room


def _outside(place: Array) -> Array:
    return jnp.maximum(jnp.maximum(-place, place - 1), 0)


def cells(observed: Observations) -> Cells:
    """Return the cells, as high as the better of their ends, or as the ridge inside."""
    scale = np.arange(CELLS + 1) / _HALF - 1
    size, rest = scale**2, (1 - abs(scale)) ** 2
    levels = np.sign(scale) * np.minimum(size / (size + rest), 1 - _EXTREME)
    memory = jnp.broadcast_to(
        jnp.asarray(levels[:, None, None], jnp.float32),
        (levels.size, *observed.totals.pairs.shape),
    )
    at = balance(observed, memory)
    place, spread, room = _position(at, memory)
    outside = _outside(place) / spread
    excess = (at.b0 + at.q0 - 1) * lax.rsqrt(1 / at.known0 + 1 / at.known1)
    both = jnp.abs(excess)
    apart = jnp.where(excess[1:] * excess[:-1] < 0, 0, jnp.minimum(both[1:], both[:-1]))
    width = spread / (1 + 2 * spread) * room  # of b0
    height = jnp.log(width[1:] + width[:-1])
    height = height - (apart**2 + jnp.minimum(outside[1:], outside[:-1]) ** 2) / 2
    area = (2 - levels[1:] - levels[:-1]) * np.diff(levels)
    height = height + np.log(area)[:, None, None]
    share = softmax(jnp.where(height > -1e30, height, -1e30), 0)
    shares = _EVEN_SHARE / CELLS + (1 - _EVEN_SHARE) * share
    return Cells(shares, (share * share).sum(0), _agreement(levels, at, excess - _AGREEMENT))


def _agreement(levels: npt.NDArray[np.float64], at: Balance, excess: Array) -> Agreement:
    """Find where estimates agree for m < 0. Those of b0 and 1 - b0 sum up to more than 1 where the
    excess is positive: from m = 0 down it falls through 0 at most once, and rises through it at
    most once after that."""
    places = np.arange(1, _HALF + 1)[:, None, None]
    high, low = excess[1 : _HALF + 1], excess[:_HALF]
    share = high / jnp.where(high == low, 1, high - low)
    edges = jnp.asarray(levels[: _HALF + 1, None, None], jnp.float32)
    crossings = (x[1:] + share * (x[:-1] - x[1:]) for x in (edges, at.b0[: _HALF + 1]))
    falls = jnp.where((high > 0) & (low <= 0), places, 0).max(0)
    rises = jnp.where((high <= 0) & (low > 0), places, CELLS).min(0)
    found = jnp.stack([rises < CELLS, falls > 0])
    here = places == jnp.stack([rises, falls])[:, None]  # (2, _HALF, n, trials)
    memory, b0 = (jnp.where(here, x, 0).sum(1) for x in crossings)
    # The second of two may be a slope that goes on where m > 0.
    alone = found[0] & ~found[1]
    second = jnp.stack([jnp.zeros_like(alone), alone])
    memory = jnp.where(second, levels[_NEAR_CELL], memory)
    b0 = jnp.where(second, at.b0[_NEAR_CELL] / (at.b0[_NEAR_CELL] + at.q0[_NEAR_CELL]), b0)
    least, room = -memory / (1 - memory), (1 + memory) / (1 - memory)
    inside = jnp.clip(b0, least + _INSIDE * room, least + (1 - _INSIDE) * room)
    return Agreement(inside, memory, found | second)


def pick_memory(shares: Array, tails: Array | None, which: Array, depth: Array) -> Array:
    """Draw points on the scale of memories by the shares of cells; which, depth: uniform numbers.

    tails: how much longer they are than even ones towards m = 0, -1 and 1; None for no longer.
    """
    cell, passed = jnp.zeros_like(depth), jnp.zeros_like(shares[0])
    for share in shares[:-1]:
        passed = passed + share
        cell = cell + (which > passed)
    if tails is not None:
        closer = depth**tails
        begins = (cell == 0) | (cell == _HALF)  # at m = -1 or 0
        ends = (cell == _HALF - 1) | (cell == CELLS - 1)  # at m = 0 or 1
        depth = jnp.where(begins, closer, jnp.where(ends, 1 - closer, depth))
    return (cell + depth) / _HALF - 1


def memory_density(
    shares: Array, tails: Array | None, size: Array, rest: Array, up: Array
) -> Array:
    """Return the density of `pick_memory`, on the scale of memories.

    size, rest: distances of points from 0 and from -1 or 1; up: whether they are above 0.
    """
    place = jnp.where(up, size, -size)
    share = jnp.broadcast_to(shares[0], place.shape)
    for cell in range(1, CELLS):
        share = jnp.where(place > cell / _HALF - 1, shares[cell], share)
    if tails is not None:
        close = _HALF * jnp.minimum(size, rest)
        steep = jnp.maximum(close, TINY) ** (1 / tails - 1) / tails
        share = share * jnp.where(close < 1, steep, 1)
    return _HALF * share
