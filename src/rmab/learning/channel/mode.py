"""Mode of a channel's posterior, and the information there.

The mode is that of the density of the log odds (u, v) of p01 and p11. In them a Beta(a, b) prior is
p^a (1 - p)^b: pseudo-counts a and b act exactly as pairs that were observed one slot apart. So the
mode is the channel of the largest likelihood of the counts with the pseudo-counts added, whatever
coordinates it is found in. From pairs one slot apart it is (x + a) / (n + a + b), which is
the posterior's mean too. Where all pseudo-counts are positive there is one, inside (0, 1).

It is found by Fisher scoring in (u, v) from the best of the points that `sums.summed` judges
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

from rmab.learning.channel.coordinates import channel_at
from rmab.learning.channel.log_odds import (
    FARTHEST,
    Channel,
    Observations,
    fisher_step,
    log_likelihood,
    log_odds_channel,
    log_odds_score,
)
from rmab.learning.channel.sums import summed

__all__ = ["Mode", "channel_modes", "pair_likelihood"]

_SYSTEMS = np.arange(3)[:, None, None]
_BLOCK = 64  # channels that are fitted at once on a CPU
_MAX_TURNS = 25
_MAX_STEP = 2.0  # of the first turn, in log odds
_SHORTER = 0.85  # of a step after the one before
_SETTLED = 1e-3  # steps shorter than this end the search
_ROUNDING = 1e-5  # share of an information that may be rounding


class Mode(NamedTuple):
    """Mode (p01, p11), (n, trials) each, and the marginal Fisher information of their log odds in
    the counts without pseudo-counts, (2, n, trials)."""

    p01: Array
    p11: Array
    information: Array


def channel_modes(counts: Array, pseudo: Array) -> Mode:
    """Return the mode given counts (G + 1, 2, 2, n, trials) and pseudo-counts, which broadcast to
    (2, 2, n, trials): by state and next state, all positive."""
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
    """Return the modes of a few channels at once."""
    observed, x, y = summed(counts.at[0].add(pseudo), (1.0, 1.0))
    starts = channel_at(_SYSTEMS, x, y)
    found, *information = _climb(observed, starts)
    height = log_likelihood(observed, log_odds_channel(*found))
    best = jnp.where(jnp.isfinite(height), height, -jnp.inf).argmax(0)[None]

    def chosen(values: Array) -> Array:
        return jnp.take_along_axis(values, best, 0)[0]

    channel = log_odds_channel(*(chosen(value) for value in found))
    uu, uv, vv = (chosen(value) for value in information)
    # Pseudo-counts are pairs one slot apart, each with information on one row.
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
    """Return the log-likelihood (n, trials) of counts (G + 1, 2, 2, n, trials) under channels."""
    observed = summed(jnp.asarray(counts, jnp.float32), (1.0, 1.0))[0]
    height: Array = log_likelihood(observed, Channel(p01, 1 - p01, p11, 1 - p11, p11 - p01))
    return height


def _marginal(uu: Array, uv: Array, vv: Array) -> Array:
    """Return the information on each with the other profiled out (Schur's complement)."""

    def profiled(own: Array, other: Array) -> Array:
        lost = jnp.where(other > 0, uv * uv / jnp.where(other > 0, other, 1), 0)
        return jnp.maximum(own - lost, 0)

    return jnp.stack([profiled(uu, vv), profiled(vv, uu)])


def _climb(
    observed: Observations, starts: Channel
) -> tuple[tuple[Array, Array], Array, Array, Array]:
    """Return the log odds of modes from these starts, and the information there."""
    p01, p00, p11, p10, _ = starts
    u, v = (jnp.clip(jnp.log(p / q), -FARTHEST, FARTHEST) for p, q in ((p01, p00), (p11, p10)))

    def turn(state: tuple[Array, ...]) -> tuple[Array, ...]:
        number, u, v, done = state
        *there, far = fisher_step(observed, u, v, _MAX_STEP * _SHORTER**number)
        goes = ~done & jnp.isfinite(far)
        u, v = (jnp.where(goes, new, old) for new, old in zip(there, (u, v), strict=True))
        return number + 1, u, v, done | ~(far > _SETTLED)

    def unsettled(state: tuple[Array, ...]) -> Array:
        return (state[0] < _MAX_TURNS) & ~state[3].all()

    start: tuple[Array, ...] = (jnp.int32(0), u, v, jnp.zeros(u.shape, bool))
    _, u, v, _ = lax.while_loop(unsettled, turn, start)
    *_, uu, uv, vv = log_odds_score(observed, u, v)
    return (u, v), uu, uv, vv
