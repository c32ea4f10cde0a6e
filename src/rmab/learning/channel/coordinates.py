"""Coordinates of channels in which posteriors are nearly normal.

A channel is known by p01 and p11, m = p11 - p01 the memory. With p10 = 1 - p11, p00 = 1 - p01, the
stationary belief b0 = p01 / (p01 + p10) and S(x) = 1 / (1 + e^-x), there are three systems (x, y):

    RISING   m > 0:   b0 = S(x),             m = S(y)
    STEEP    m < 0:   p11 / (1 + m) = S(x),  1 + m = S(y)
    FALLING  m < 0:   b0 = S(x),             m = -e^-|x| S(y)

All real numbers are allowed. Observations at long gaps determine b0 alone: x but not y in RISING
and FALLING. Where m is near -1, b0 is near 1/2 whatever is known: there FALLING has a
kink, |x|, and STEEP serves. Every probability is a sum of positive terms, so that it is accurate
however small it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jax.nn import sigmoid

from rmab.learning.channel.log_odds import Channel
from rmab.rng.variates import Numbers

__all__ = [
    "FALLING",
    "RISING",
    "STEEP",
    "Place",
    "channel_at",
    "places",
    "slopes",
]

RISING, STEEP, FALLING = 0, 1, 2


class Place(NamedTuple):
    """Coordinates in one system, and log |d(p01, p11) / d(x, y)|."""

    x: Array
    y: Array
    log_jacobian: Array


def channel_at(system: Numbers, x: Array, y: Array) -> Channel:
    """Return the channels at coordinates in systems."""
    return Channel(*_chosen(system, [make(x, y) for make in (_rising, _steep, _falling)]))


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


def places(channel: Channel) -> tuple[Place, Place, Place]:
    """Return the coordinates of channels in all systems; those of RISING are void for m < 0, those
    of STEEP and FALLING for m > 0."""
    p01, p00, p11, p10, memory = channel
    up, down, stay0, stay1 = (jnp.log(p) for p in (p01, p10, p00, p11))
    leaves, depth = jnp.log(p01 + p10), jnp.log(jnp.abs(memory))
    odds = up - down
    # 1 - S(y) = p00 (p01 + p10) / p10 where p01 > p10, or the states exchanged
    other = jnp.where(p01 > p10, stay0 - down, stay1 - up)
    return (
        Place(odds, depth - leaves, depth + up + down),
        Place(stay1 - stay0, jnp.log(p11 + p00) - depth, stay0 + stay1 + depth),
        Place(odds, depth + jnp.abs(odds) - other - leaves, depth + up + down + other),
    )


def slopes(system: Numbers, x: Array, y: Array) -> tuple[Array, ...]:
    """Return d b0 / dx, d b0 / dy, dm / dx, dm / dy, and the gradient of the log Jacobian."""

    def rising(x: Array, y: Array) -> tuple[Array, ...]:
        share, one = sigmoid(x), sigmoid(y)
        none = jnp.zeros_like(x)
        return share * (1 - share), none, none, one * (1 - one), 1 - 2 * share, 1 - 3 * one

    def steep(x: Array, y: Array) -> tuple[Array, ...]:
        share, one, other = sigmoid(x), sigmoid(y), sigmoid(-y)
        wide, tilt, sums = share * (1 - share), 1 - 2 * share, 1 + other  # p01 + p10
        level, none = one * other, jnp.zeros_like(x)
        return wide * one / sums, -tilt * level / sums**2, none, level, tilt, 2 - 3 * one

    def falling(x: Array, y: Array) -> tuple[Array, ...]:
        share, one, other = sigmoid(x), sigmoid(y), sigmoid(-y)
        side = jnp.where(x >= 0, 1.0, -1.0)  # one of the two at the kink, not none
        memory, none = -jnp.exp(-jnp.abs(x)) * one, jnp.zeros_like(x)
        bend = memory / (1 - memory)
        tilts = 1 - 2 * share - side * (1 - bend), other - one - bend * other
        return share * (1 - share), none, -side * memory, memory * other, *tilts

    return _chosen(system, [make(x, y) for make in (rising, steep, falling)])


def _chosen(system: Numbers, found: Sequence[Iterable[Array]]) -> tuple[Array, ...]:
    """Return the values of the system that is asked for."""

    def chosen(values: tuple[Array, ...]) -> Array:
        best = values[-1]
        for number in range(len(values) - 2, -1, -1):
            best = jnp.where(system == number, values[number], best)
        return best

    return tuple(chosen(values) for values in zip(*found, strict=True))
