"""Coordinates of channels in which posteriors are nearly normal.

The square of (p01, p11) is cut at m = 0, m = p11 - p01 the memory. With p10 = 1 - p11, the
stationary belief b0 = p01 / (p01 + p10) and S(x) = 1 / (1 + e^-x), coordinates (x, y) are

    m > 0:   b0 = S(x), m = S(y)
    m < 0:   p11 / (1 + m) = S(x), 1 + m = S(y)     the first chart, `half`: b0 may be 1/2
             b0 = S(x), m = -e^-|x| S(y)            the second: |x| has a kink where it is

All real numbers are allowed, and looks at long gaps, which tell b0 alone, leave y open and not x;
only the first chart for m < 0 gives that up, where b0 = 1/2 and little is lost.

Arrays are (2, ...): m > 0, then m < 0. Every probability is a sum of positive terms, so that it is
accurate however small it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.nn import sigmoid, softplus

__all__ = ["Channel", "channel_at", "in_chart", "slopes"]


class Channel(NamedTuple):
    """Probabilities of (from, to), each accurate near 0, m, log |m|, and the log of
    |d(p01, p11) / d(x, y)|."""

    p01: Array
    p00: Array
    p11: Array
    p10: Array
    memory: Array
    log_memory: Array
    spread: Array


def channel_at(x: Array, y: Array, half: Array) -> Channel:
    """The channels at coordinates (2, ...): m > 0, then m < 0."""
    share, rest, one, other = sigmoid(x), sigmoid(-x), sigmoid(y), sigmoid(-y)
    log_one, log_other = -softplus(-y), -softplus(y)
    wide = -softplus(x) - softplus(-x)
    near, far = share[0] * other[0], rest[0] * other[0]
    steep = log_one[0] + 2 * log_other[0]
    above = Channel(near, one[0] + far, one[0] + near, far, one[0], log_one[0], steep)
    x, share, rest, one, other = x[1], share[1], rest[1], one[1], other[1]
    near, far = share * one, rest * one
    narrow = 2 * log_one[1] + log_other[1]
    kinked = Channel(other + near, far, near, other + far, -other, log_other[1], narrow)
    # b0 > 1/2, or the states exchanged
    up, large, small = x >= 0, jnp.maximum(share, rest), jnp.minimum(share, rest)
    ratio = jnp.exp(-jnp.abs(x))
    stay = (other * small * small + jnp.tanh(jnp.abs(x) / 2)) / large  # the last: 2 large - 1
    leave, enter = small + small * ratio * one, large + small * one
    smooth = Channel(
        p01=jnp.where(up, enter, leave),
        p00=jnp.where(up, small * other, stay),
        p11=jnp.where(up, stay, small * other),
        p10=jnp.where(up, leave, enter),
        memory=-ratio * one,
        log_memory=log_one[1] - jnp.abs(x),
        spread=jnp.log1p(ratio * one) - jnp.abs(x) + log_one[1] + log_other[1],
    )
    below = (jnp.where(half, k, s) for k, s in zip(kinked, smooth, strict=True))
    both = Channel(*_halves(above, below))
    return both._replace(spread=both.spread + wide)


def slopes(x: Array, y: Array, half: Array) -> tuple[Array, ...]:
    """d b0 / dx, d b0 / dy, dm / dx, dm / dy, and the gradient of `spread`, each (2, ...)."""
    share, one, other = sigmoid(x), sigmoid(y), sigmoid(-y)
    wide, none, tilt = share * (1 - share), jnp.zeros_like(x), 1 - 2 * share
    above = (wide[0], none[0], none[0], (one * other)[0], tilt[0], 1 - 3 * one[0])
    x, wide, none, tilt, one, other = x[1], wide[1], none[1], tilt[1], one[1], other[1]
    sums = 1 + other  # p01 + p10
    kinked = (
        wide * one / sums,
        -tilt * one * other / sums**2,
        none,
        one * other,
        tilt,
        2 - 3 * one,
    )
    side, memory = jnp.sign(x), -jnp.exp(-jnp.abs(x)) * one
    bend = memory / (1 - memory)
    smooth = (
        wide,
        none,
        -side * memory,
        memory * other,
        tilt - side * (1 - bend),
        other - one - bend * other,
    )
    below = (jnp.where(half, k, s) for k, s in zip(kinked, smooth, strict=True))
    return _halves(above, below)


def _halves(above: Iterable[Array], below: Iterable[Array]) -> tuple[Array, ...]:
    """Pairs of arrays (...), as (2, ...); faster than to stack them, which XLA makes a branch."""
    pairs = list(zip(above, below, strict=True))
    first = np.array([True, False]).reshape(2, *(1,) * pairs[0][0].ndim)
    return tuple(jnp.where(first, a, b) for a, b in pairs)


def in_chart(x: Array, y: Array, half: Array) -> tuple[Array, Array]:
    """Coordinates in the charts that serve, from those for b0 = 1/2 where m < 0."""
    kinked = channel_at(x, y, jnp.asarray(True))
    log_odds = jnp.log(kinked.p01[1] / kinked.p10[1])
    reach = jnp.clip(-kinked.memory[1] * jnp.exp(jnp.abs(log_odds)), 1e-3, 1 - 1e-3)
    return (
        jnp.stack([x[0], jnp.where(half, x[1], log_odds)]),
        jnp.stack([y[0], jnp.where(half, y[1], jnp.log(reach / (1 - reach)))]),
    )
