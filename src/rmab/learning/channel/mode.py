"""The mode of a channel's posterior, and how much is known there.

The mode is that of the density of the log odds (u, v) of p01 and p11. In them a Beta(a, b) prior is
p^a (1 - p)^b: pseudo-counts a and b act exactly as pairs that were observed one slot apart. So the
mode is the channel of the largest likelihood of the counts with the pseudo-counts added, whatever
coordinates it is found in. From pairs one slot apart alone it is (x + a) / (n + a + b), which is
the posterior's mean too. Where all pseudo-counts are positive there is one, inside (0, 1).

It is found by Fisher scoring in (u, v) from the best of the points that `likelihood.summed` judges
in each of three systems, and is the highest of what is found. A step that is too long is shortened,
every turn's more than the last's, so that none goes back and forth for ever. Every channel stops by
itself: what is found of one does not depend on the others.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.nn import sigmoid

from rmab.learning.channel.coordinates import Channel, channel_at
from rmab.learning.channel.likelihood import Observations, log_likelihood, score, summed

__all__ = ["Mode", "channel_modes", "pair_likelihood"]

_SYSTEMS = np.arange(3)[:, None, None]
_BLOCK = 64  # channels that are fitted at once on a CPU
_MAX_TURNS = 25
_MAX_STEP = 2.0  # of the first turn, in log odds
_SHORTER = 0.85  # of a step after the one before
_SETTLED = 1e-3  # steps shorter than this end the search
_FARTHEST = 14.0  # log odds that are told from 0 and 1 in single precision
_LEAST_INFORMATION = 1e-6
_ROUNDING = 1e-5  # share of an information that may be rounding alone


class Mode(NamedTuple):
    """Of the posterior: p01 and p11, (n, trials) each; and the marginal Fisher information of
    their log odds, (2, n, trials), in what was counted, without pseudo-counts."""

    p01: Array
    p11: Array
    information: Array


def channel_modes(counts: Array, pseudo: Array) -> Mode:
    """The mode given counts (G + 1, 2, 2, n, trials) and pseudo-counts (2, 2, n, trials), or what
    broadcasts to them: by state and next state, all positive."""
    counts = jnp.asarray(counts, jnp.float32)
    pseudo = jnp.broadcast_to(jnp.asarray(pseudo, jnp.float32), counts.shape[1:])
    shape = counts.shape[3:]
    size = math.prod(shape)
    if size <= _BLOCK or jax.default_backend() != "cpu":
        return _modes(counts, pseudo)
    # Block by block, as all wait for the slowest; an accelerator takes as long for many as for few.
    beyond = -size % _BLOCK

    def in_blocks(x: Array) -> Array:
        flat = x.reshape(*x.shape[: -len(shape)], size)
        ends = [(0, 0)] * (flat.ndim - 1) + [(0, beyond)]
        padded = jnp.pad(flat, ends, mode="edge")
        return jnp.moveaxis(padded.reshape(*flat.shape[:-1], -1, 1, _BLOCK), -3, 0)

    p01, p11, known = lax.map(lambda block: _modes(*block), (in_blocks(counts), in_blocks(pseudo)))
    information = jnp.moveaxis(known[:, :, 0], 1, 0).reshape(2, -1)[:, :size]
    p01, p11 = (x.reshape(-1)[:size].reshape(shape) for x in (p01, p11))
    return Mode(p01, p11, information.reshape(2, *shape))


def _modes(counts: Array, pseudo: Array) -> Mode:
    """The same for a few channels at once."""
    observed, x, y = summed(counts.at[0].add(pseudo), (1.0, 1.0))
    starts = channel_at(_SYSTEMS, x, y)
    found, *information = _climb(observed, starts)
    height = log_likelihood(observed, _at(*found))
    best = jnp.where(jnp.isfinite(height), height, -jnp.inf).argmax(0)[None]

    def chosen(values: Array) -> Array:
        return jnp.take_along_axis(values, best, 0)[0]

    channel = _at(*(chosen(value) for value in found))
    uu, uv, vv = (chosen(value) for value in information)
    # Of what was counted: pseudo-counts are pairs one slot apart, which tell of one row each.
    before = (
        pseudo[0].sum(0) * channel.p01 * channel.p00,
        pseudo[1].sum(0) * channel.p11 * channel.p10,
    )
    uu, vv = (
        jnp.where(whole - own > _ROUNDING * whole, whole - own, 0)
        for whole, own in zip((uu, vv), before, strict=True)
    )
    return Mode(channel.p01, channel.p11, _marginal(uu, uv, vv))


def pair_likelihood(counts: Array, p01: Array, p11: Array) -> Array:
    """The log-likelihood (n, trials) of counts (G + 1, 2, 2, n, trials) under channels."""
    observed = summed(jnp.asarray(counts, jnp.float32), (1.0, 1.0))[0]
    return log_likelihood(observed, Channel(p01, 1 - p01, p11, 1 - p11, p11 - p01))


def _at(u: Array, v: Array) -> Channel:
    """The channel of these log odds."""
    p01, p11 = sigmoid(u), sigmoid(v)
    return Channel(p01, sigmoid(-u), p11, sigmoid(-v), p11 - p01)


def _marginal(uu: Array, uv: Array, vv: Array) -> Array:
    """Of each, the other profiled out: Schur's complement; 0 where nothing is known."""

    def profiled(own: Array, other: Array) -> Array:
        lost = jnp.where(other > 0, uv * uv / jnp.where(other > 0, other, 1), 0)
        return jnp.maximum(own - lost, 0)

    return jnp.stack([profiled(uu, vv), profiled(vv, uu)])


def _slope(observed: Observations, u: Array, v: Array) -> tuple[Array, ...]:
    """The gradient of the log-likelihood along (u, v), and the expected information: uu, uv, vv."""
    channel = _at(u, v)
    p01, p00, p11, p10, _ = channel
    by_b0, by_m, bb, bm, mm = score(observed, channel)
    leaves = p01 + p10
    bu, bv = p01 * p00 * p10 / leaves**2, p11 * p10 * p01 / leaves**2
    mu, mv = -p01 * p00, p11 * p10
    return (
        by_b0 * bu + by_m * mu,
        by_b0 * bv + by_m * mv,
        bb * bu * bu + 2 * bm * bu * mu + mm * mu * mu,
        bb * bu * bv + bm * (bu * mv + bv * mu) + mm * mu * mv,
        bb * bv * bv + 2 * bm * bv * mv + mm * mv * mv,
    )


def _climb(
    observed: Observations, starts: Channel
) -> tuple[tuple[Array, Array], Array, Array, Array]:
    """Log odds of modes from these starts, and the information there."""
    p01, p00, p11, p10, _ = starts
    u, v = (jnp.clip(jnp.log(p / q), -_FARTHEST, _FARTHEST) for p, q in ((p01, p00), (p11, p10)))

    def turn(state: tuple[Array, ...]) -> tuple[Array, ...]:
        number, u, v, done = state
        by_u, by_v, uu, uv, vv = _slope(observed, u, v)
        uu, vv = jnp.maximum(uu, _LEAST_INFORMATION), jnp.maximum(vv, _LEAST_INFORMATION)
        spread = jnp.maximum(uu * vv - uv * uv, 1e-4 * uu * vv)
        du, dv = (vv * by_u - uv * by_v) / spread, (uu * by_v - uv * by_u) / spread
        far = jnp.maximum(abs(du), abs(dv))
        scale = jnp.minimum(1, _MAX_STEP * _SHORTER**number / jnp.maximum(far, 1e-9))
        goes = ~done & jnp.isfinite(far)
        u, v = (
            jnp.where(goes, jnp.clip(w + scale * dw, -_FARTHEST, _FARTHEST), w)
            for w, dw in ((u, du), (v, dv))
        )
        return number + 1, u, v, done | ~(far > _SETTLED)

    def unsettled(state: tuple[Array, ...]) -> Array:
        return (state[0] < _MAX_TURNS) & ~state[3].all()

    start: tuple[Array, ...] = (jnp.int32(0), u, v, jnp.zeros(u.shape, bool))
    _, u, v, _ = lax.while_loop(unsettled, turn, start)
    *_, uu, uv, vv = _slope(observed, u, v)
    return (u, v), uu, uv, vv
