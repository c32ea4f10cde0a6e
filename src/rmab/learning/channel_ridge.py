"""Where a posterior of channels lies along the memory m: roughly, everywhere, and at little cost.

Given m, pairs of looks that begin in 0 cross as often as the sum of b0 a_g says, a_g = 1 - m^g, and
those that begin in 1 as often as the sum of (1 - b0) a_g. So either kind has an estimate of b0, by
moments: the ridge of the posterior lies where their mean is, and is high where they agree. For
m < 0 they may agree twice, on a long stretch, or nowhere.

    balance   the two estimates, for any memories
    ridge     x of the charts RISING (m > 0) and STEEP (m < 0) along the ridge, and its spread: both
              charts have m as a function of y alone
    cells     how likely each of a fixed set of intervals of m is, and where the estimates agree
    pick      a place on the scale of memories, from the law of the cells
    density   of that law

The scale of memories goes from -1 to 1: s has the sign of m and the log odds of |s| are half those
of |m|, so it is fine near -1, 0 and 1. Cells are of one length on it.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax
from jax.nn import softmax

from rmab.learning.channel_likelihood import BLOCK, TINY, Looks

__all__ = ["Cells", "balance", "cells", "density", "pick", "ridge"]

HALF = 16  # cells on each side of m = 0
EVEN = 0.2  # of the law of the cells is alike for all
NEAREST = 1e-4  # to memories of -1 and 1 that cells are judged by
BROADEST = 1.5  # spread of x
SMALLEST = 1e-6  # share of the room for b0 at its ends
APART = 1.0  # standard errors by which estimates of b0 may differ where they are said to agree
SMALL = 5  # the cell from m = 0 on in which a second summit would be if there is one far off
INSIDE = 0.02  # of the room for b0, from its ends on


class Balance(NamedTuple):
    """Estimates of b0 and of 1 - b0, and how much is known of each: 1 / variance."""

    b0: Array
    q0: Array
    told0: Array
    told1: Array


class Cells(NamedTuple):
    """shares: (2 HALF, n, trials), from m = -1 on; largest: the sum of their squares, before EVEN.

    Where estimates agree for m < 0, (2, n, trials) each: far from 0 and near, at most; b0 and m
    there, and whether they do at all.
    """

    shares: Array
    largest: Array
    b0: Array
    memory: Array
    agree: Array


def balance(looks: Looks, memory: Array) -> Balance:
    """(..., n, trials), as memory is. A pair more of each kind, one slot apart, crosses by half."""
    apart = jnp.ones_like(memory)  # a_g / a_1
    state = apart, (looks.seen0 + 1) * apart, (looks.seen1 + 1) * apart
    kinds = looks.counts.shape[0]
    for start in range(0, kinds - 1, BLOCK):
        gaps = range(max(start, 1), min(start + BLOCK, kinds - 1))

        def add(apart: Array, far0: Array, far1: Array, gaps: range = gaps) -> tuple[Array, ...]:
            for gap in gaps:
                (stay0, rise), (fall, stay1) = looks.counts[gap]
                apart = 1 + memory * apart
                far0, far1 = far0 + (stay0 + rise) * apart, far1 + (fall + stay1) * apart
            return apart, far0, far1

        some = looks.counts[gaps.start : -1].max() > 0
        state = lax.cond(some, add, lambda *state: state, *state)

    def estimate(far: Array, late: Array, crossed: Array, stayed: Array) -> tuple[Array, Array]:
        due = (1 - memory) * far + late + TINY
        crossed, stayed = crossed + 0.5, stayed + 0.5
        return crossed / due, due / crossed * (due / stayed) * (crossed + stayed)

    _, far0, far1 = state
    late0, late1 = looks.counts[-1].sum(1)
    b0, told0 = estimate(far0, late0, looks.crossed0, looks.stayed0)
    q0, told1 = estimate(far1, late1, looks.crossed1, looks.stayed1)
    return Balance(b0, q0, told0, told1)


def ridge(looks: Looks, memory: Array, tails: Array) -> tuple[Array, Array]:
    """x and its spread for given memories; tails: how much longer than those of b0 x's may be."""
    place, spread, _ = _position(balance(looks, memory), memory)
    edge = jnp.clip(spread * spread / (spread + _outside(place)), SMALLEST, 0.5)
    place = jnp.clip(place, edge, 1 - edge)
    wide = spread / (place * (1 - place))
    longer = 1 + (tails - 1) * jnp.minimum(1, wide)
    return jnp.log(place / (1 - place)), jnp.minimum(wide, BROADEST) * longer


def _position(at: Balance, memory: Array) -> tuple[Array, Array, Array]:
    """The share of the room for b0 below the ridge, its spread, and the room itself.

    p01 and p10 are at most 1, so b0 is u / (1 + u) or more, and 1 / (1 + u) or less, u = -m > 0.
    """
    told = at.told0 + at.told1
    middle = at.b0 * (at.told0 / told) + (1 - at.q0) * (at.told1 / told)
    down = jnp.maximum(-memory, 0)
    room = (1 - down) / (1 + down)
    return (middle - down / (1 + down)) / room, lax.rsqrt(told) / room, room


def _outside(place: Array) -> Array:
    return jnp.maximum(jnp.maximum(-place, place - 1), 0)


def cells(looks: Looks) -> Cells:
    """A cell is as high as the better of its ends, and as the ridge where estimates agree in it."""
    scale = np.arange(2 * HALF + 1) / HALF - 1
    size, rest = scale**2, (1 - abs(scale)) ** 2
    levels = np.sign(scale) * np.minimum(size / (size + rest), 1 - NEAREST)
    memory = jnp.broadcast_to(
        jnp.asarray(levels[:, None, None], jnp.float32), (levels.size, *looks.total.shape)
    )
    at = balance(looks, memory)
    place, spread, room = _position(at, memory)
    outside = _outside(place) / spread
    excess = (at.b0 + at.q0 - 1) * lax.rsqrt(1 / at.told0 + 1 / at.told1)
    both = jnp.abs(excess)
    apart = jnp.where(excess[1:] * excess[:-1] < 0, 0, jnp.minimum(both[1:], both[:-1]))
    width = spread / (1 + 2 * spread) * room  # of b0
    height = jnp.log(width[1:] + width[:-1])
    height = height - (apart**2 + jnp.minimum(outside[1:], outside[:-1]) ** 2) / 2
    area = (2 - levels[1:] - levels[:-1]) * np.diff(levels)
    height = height + np.log(area)[:, None, None]
    share = softmax(jnp.where(height > -1e30, height, -1e30), 0)
    shares = EVEN / (2 * HALF) + (1 - EVEN) * share
    return Cells(shares, (share * share).sum(0), *_agreements(levels, at, excess - APART))


def _agreements(
    levels: npt.NDArray[np.float64], at: Balance, excess: Array
) -> tuple[Array, Array, Array]:
    """b0, m and whether there is such a place, far from m = 0 and near.

    The estimates of b0 and 1 - b0 sum up to more than 1 where the excess is positive: from m = 0
    down it falls through 0 at most once, and rises through it at most once after that.
    """
    none = jnp.zeros_like(excess[0])
    memory, b0, agree = [none, none], [none, none], [none > 0, none > 0]
    for k in range(HALF, 0, -1):
        high, low = excess[k], excess[k - 1]
        falls, rises = (high > 0) & (low <= 0) & ~agree[1], (high <= 0) & (low > 0)
        share = high / jnp.where(high == low, 1, high - low)
        m = levels[k] + share * (levels[k - 1] - levels[k])
        b = at.b0[k] + share * (at.b0[k - 1] - at.b0[k])
        for which, here in enumerate((rises, falls)):
            memory[which] = jnp.where(here, m, memory[which])
            b0[which] = jnp.where(here, b, b0[which])
            agree[which] = agree[which] | here
    # The second of two may be a slope that goes on where m > 0.
    alone, small = agree[0] & ~agree[1], HALF - SMALL
    memory[1] = jnp.where(alone, levels[small], memory[1])
    b0[1] = jnp.where(alone, at.b0[small] / (at.b0[small] + at.q0[small]), b0[1])
    down = -jnp.stack(memory)
    low, room = down / (1 + down), (1 - down) / (1 + down)
    found = jnp.clip(jnp.stack(b0), low + INSIDE * room, low + (1 - INSIDE) * room)
    return found, -down, jnp.stack([agree[0], agree[1] | alone])


def pick(shares: Array, tails: Array | None, which: Array, depth: Array) -> Array:
    """Places on the scale of memories; which, depth: uniform numbers, (..., n, trials).

    tails: how much longer they are than even ones towards m = 0, -1 and 1; None for no longer.
    """
    cell, passed = jnp.zeros_like(depth), jnp.zeros_like(shares[0])
    for share in shares[:-1]:
        passed = passed + share
        cell = cell + (which > passed)
    if tails is not None:
        closer = depth**tails
        up, down = _ends(cell)
        depth = jnp.where(up, closer, jnp.where(down, 1 - closer, depth))
    return (cell + depth) / HALF - 1


def density(shares: Array, tails: Array | None, size: Array, rest: Array, up: Array) -> Array:
    """Of the law of `pick` on the scale of memories; size, rest: of places, how far they are from 0
    and from -1 or 1; up: whether they are above 0."""
    place = jnp.where(up, size, -size)
    share = jnp.broadcast_to(shares[0], place.shape)
    for cell in range(1, 2 * HALF):
        share = jnp.where(place > cell / HALF - 1, shares[cell], share)
    if tails is not None:
        close = HALF * jnp.minimum(size, rest)
        steep = jnp.maximum(close, TINY) ** (1 / tails - 1) / tails
        share = share * jnp.where(close < 1, steep, 1)
    return HALF * share


def _ends(cell: Array) -> tuple[Array, Array]:
    """Whether a cell begins, or ends, at m = 0, -1 or 1."""
    up, down = (cell == 0) | (cell == HALF), (cell == HALF - 1) | (cell == 2 * HALF - 1)
    return up, down
