"""Coordinates of channels in which posteriors are nearly normal.

The square of (p01, p11) is cut at m = 0, m = p11 - p01 the memory. With p10 = 1 - p11, p00 = 1 -
p01, the stationary belief b0 = p01 / (p01 + p10) and S(x) = 1 / (1 + e^-x), four charts have
coordinates (x, y):

    RISING   m > 0:   b0 = S(x),             m = S(y)
    STEEP    m < 0:   p11 / (1 + m) = S(x),  1 + m = S(y)
    FALLING  m < 0:   b0 = S(x),             m = -e^-|x| S(y)
    ROWS              p01 = S(x),            p11 = S(y)

All real numbers are allowed. Looks at long gaps tell b0 alone: they leave y open and not x in the
first and the third. Where m is near -1, b0 is near 1/2 whatever is known: there the third has a
kink, |x|, and STEEP serves. Looks one slot apart tell the rows by themselves. Every probability is
a sum of positive terms, so that it is accurate however small it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid

from rmab.random import Numbers

__all__ = [
    "FALLING",
    "RISING",
    "ROWS",
    "STEEP",
    "Channel",
    "Coordinates",
    "channel_at",
    "places",
    "slopes",
]

RISING, STEEP, FALLING, ROWS = 0, 1, 2, 3

Coordinates = tuple[Array, Array]  # x, y


class Channel(NamedTuple):
    """Probabilities of (from, to), each accurate near 0, and m."""

    p01: Array
    p00: Array
    p11: Array
    p10: Array
    memory: Array


def channel_at(kind: Numbers, *at: Coordinates) -> Channel:
    """The channels of each kind of chart at its coordinates; at: for RISING, STEEP, ..."""
    return Channel(*_chosen(kind, [chart(*xy) for chart, xy in zip(_CHARTS, at, strict=False)]))


def _rising(x: Array, y: Array) -> Channel:
    one, other = sigmoid(y), sigmoid(-y)
    near, far = sigmoid(x) * other, sigmoid(-x) * other
    return Channel(near, one + far, one + near, far, one)


def _steep(x: Array, y: Array) -> Channel:
    one, other = sigmoid(y), sigmoid(-y)
    near, far = sigmoid(x) * one, sigmoid(-x) * one
    return Channel(other + near, far, near, other + far, -other)


def _falling(x: Array, y: Array) -> Channel:
    one, other = sigmoid(y), sigmoid(-y)
    size = jnp.abs(x)
    large, small, ratio = sigmoid(size), sigmoid(-size), jnp.exp(-size)
    stay = (other * small * small + jnp.tanh(size / 2)) / large  # the last: 2 large - 1
    leave, enter = small + small * ratio * one, large + small * one
    up = x >= 0  # b0 > 1/2, or the states exchanged
    return Channel(
        p01=jnp.where(up, enter, leave),
        p00=jnp.where(up, small * other, stay),
        p11=jnp.where(up, stay, small * other),
        p10=jnp.where(up, leave, enter),
        memory=-ratio * one,
    )


def _rows(x: Array, y: Array) -> Channel:
    p01, p00, p11, p10 = sigmoid(x), sigmoid(-x), sigmoid(y), sigmoid(-y)
    return Channel(p01, p00, p11, p10, p11 - p01)


_CHARTS = _rising, _steep, _falling, _rows


def places(channel: Channel) -> tuple[tuple[Array, Array, Array], ...]:
    """Of all charts: x, y and log |d(p01, p11) / d(x, y)| of channels.

    RISING is for m > 0, STEEP and FALLING are for m < 0; elsewhere they say nothing.
    """
    p01, p00, p11, p10, memory = channel
    up, down, stay0, stay1 = (jnp.log(p) for p in (p01, p10, p00, p11))
    moves, depth = jnp.log(p01 + p10), jnp.log(jnp.abs(memory))
    odds = up - down
    rising = odds, depth - moves, depth + up + down
    steep = stay1 - stay0, jnp.log(p11 + p00) - depth, stay0 + stay1 + depth
    # 1 - S(y) = p00 (p01 + p10) / p10 where p01 > p10, or the states exchanged
    high = p01 > p10
    other = jnp.where(high, stay0 - down, stay1 - up)
    falling = odds, depth + jnp.abs(odds) - other - moves, depth + up + down + other
    rows = up - stay0, stay1 - down, up + stay0 + down + stay1
    return rising, steep, falling, rows


def slopes(kind: Numbers, *at: Coordinates) -> tuple[Array, ...]:
    """d b0 / dx, d b0 / dy, dm / dx, dm / dy, and the gradient of log |d(p01, p11) / d(x, y)|."""

    def rising(x: Array, y: Array) -> tuple[Array, ...]:
        share, one = sigmoid(x), sigmoid(y)
        none = jnp.zeros_like(x)
        return share * (1 - share), none, none, one * (1 - one), 1 - 2 * share, 1 - 3 * one

    def steep(x: Array, y: Array) -> tuple[Array, ...]:
        share, one, other = sigmoid(x), sigmoid(y), sigmoid(-y)
        wide, tilt, sums = share * (1 - share), 1 - 2 * share, 1 + other  # p01 + p10
        level = one * other
        return (
            wide * one / sums,
            -tilt * level / sums**2,
            jnp.zeros_like(x),
            level,
            tilt,
            2 - 3 * one,
        )

    def falling(x: Array, y: Array) -> tuple[Array, ...]:
        share, one, other = sigmoid(x), sigmoid(y), sigmoid(-y)
        side, memory = jnp.sign(x), -jnp.exp(-jnp.abs(x)) * one
        bend = memory / (1 - memory)
        return (
            share * (1 - share),
            jnp.zeros_like(x),
            -side * memory,
            memory * other,
            1 - 2 * share - side * (1 - bend),
            other - one - bend * other,
        )

    charts = rising, steep, falling
    return _chosen(kind, [chart(*xy) for chart, xy in zip(charts, at, strict=True)])


def _chosen(kind: Numbers, charts: Sequence[Iterable[Array]]) -> tuple[Array, ...]:
    """Of what the charts give, that of the one that is asked for."""

    def chosen(values: tuple[Array, ...]) -> Array:
        found = values[-1]
        for number in range(len(values) - 2, -1, -1):
            found = jnp.where(kind == number, values[number], found)
        return found

    return tuple(chosen(values) for values in zip(*charts, strict=True))
