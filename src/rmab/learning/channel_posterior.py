"""Draws of a channel's (p01, p11) given looks that lie any number of slots apart.

The likelihood of a pair of looks is a g-step transition probability, see `channel_likelihood`. The
posterior of p01 and p11 then can take many shapes: the product of two Betas (looks in consecutive
slots alone), two modes (looks at even gaps do not tell m from -m), a thin curve where b0 is known
and m is not (looks at long gaps). The coordinates of `channel_charts` make it nearly normal in each
of the halves m > 0 and m < 0.

In each half the mode is found by Fisher scoring, from the best of a fixed set of points. A
Metropolis chain takes its proposals from bivariate t distributions around the two modes. In a step
it first meets one in the half where it is, then one in the other. With w = posterior / density of
the proposal in its half, the first is taken with probability min(1, w(new) / w(now)), the second
with w(new) / (w(now) + w(new)): an independence step, then a choice of a half, given a place in
each, of which the other one was drawn anew. Proposals do not depend on the chain, so all are
evaluated at once.

In a half that matters two of three proposals are taken or more, so after STEPS steps next to
nothing is left of where the chain began: draws are from the posterior itself, from no looks to
millions, and nothing is remembered from one draw to the next.

Why so. A grid of fixed points is one matrix product, but a posterior of a million looks falls
between them; refining it costs more evaluations than the fit does. Filling in unseen paths by
turns (Gibbs) forgets too slowly when most steps are hidden. The weighted likelihood bootstrap of
`paths` is right to first order only.

Reference: L. Tierney, "Markov chains for exploring posterior distributions", Ann. Stat. 22, 1994.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.nn import sigmoid

from rmab.learning.channel_charts import channel_at, in_chart, slopes
from rmab.learning.channel_likelihood import Looks, log_likelihood, score, survey
from rmab.learning.randomness import Draws

__all__ = ["draw_channels", "mean_channels"]

STEPS = 8  # of the chain, two proposals each
NODES = 32  # places in each half for a mean
TURNS = 6  # of Fisher scoring with pairs at long gaps shared out; one more without where it matters
MATTERS = 16.0  # moved^2 / total, pairs shared out and all pairs, from which it does
FARTHEST = 3.0  # of a turn, in a coordinate
EDGE = 30.0  # of coordinates: e^-2 EDGE and its inverse are numbers of single precision
HOPELESS = -1e30  # the log of a weight that is never taken
SURE = 2.0  # standard errors from 1/2 at which b0 is known not to be 1/2


class _Fit(NamedTuple):
    """A normal approximation: its mode and the Cholesky factor of its precision."""

    x: Array
    y: Array
    xx: Array
    xy: Array
    yy: Array


def draw_channels(counts: Array, prior: tuple[float, float], draws: Draws) -> tuple[Array, Array]:
    """(p01, p11), each (n, trials), from the posterior given looks at any gaps.

    counts: (G + 1, 2, 2, n, trials), the last slice settled; prior: Beta(a, b) of both.
    """
    lead = (2, STEPS, *counts.shape[3:-1])
    radius, angle, luck = (draws.uniform(*lead) for _ in range(3))
    offers = _proposals(counts, prior, radius, angle)  # p01, p11, weight
    patience = jnp.log(luck[0]), jnp.log(luck[1] / (1 - luck[1]))
    below = jnp.zeros(counts.shape[3:], bool)  # whether the chain is where m < 0
    now = tuple(x[0, 0] for x in offers)
    for step in range(STEPS):
        here = tuple(jnp.where(below, x[1, step], x[0, step]) for x in offers)
        there = tuple(jnp.where(below, x[0, step], x[1, step]) for x in offers)
        takes = patience[0][step] < here[2] - now[2]
        now = tuple(jnp.where(takes, new, old) for new, old in zip(here, now, strict=True))
        takes = patience[1][step] < there[2] - now[2]
        now = tuple(jnp.where(takes, new, old) for new, old in zip(there, now, strict=True))
        below = below ^ takes
    return now[0], now[1]


def mean_channels(counts: Array, prior: tuple[float, float]) -> tuple[Array, Array]:
    """The posterior means of p01 and p11, each (n, trials), by importance sampling.

    The proposals are those of a draw, at places spread evenly instead of at random. Right to about
    a tenth of a standard deviation.
    """
    place = (np.arange(NODES) + 0.5) / NODES
    golden = (np.arange(NODES) * (math.sqrt(5) - 1) / 2) % 1
    radius, angle = (jnp.asarray(x[:, None, None], jnp.float32)[None] for x in (place, golden))
    p01, p11, weight = _proposals(counts, prior, radius, angle)
    weight = jnp.exp(weight - weight.max((0, 1)))
    total = weight.sum((0, 1))
    up, stay = ((p * weight).sum((0, 1)) / total for p in (p01, p11))
    return jnp.minimum(up, 1), jnp.minimum(stay, 1)  # sums are rounded


def _proposals(
    counts: Array, prior: tuple[float, float], radius: Array, angle: Array
) -> tuple[Array, Array, Array]:
    """p01, p11 and the log of posterior / proposal density, each (2, STEPS, n, trials).

    radius, angle: uniform on (0, 1), in the halves m > 0 and m < 0.
    """
    looks, x, y = survey(jnp.asarray(counts, jnp.float32), prior)
    # Where m < 0: whether b0 may be 1/2.
    ones = (looks.ones + 0.5) / (looks.total + 1)
    distance = jnp.log(ones / (1 - ones)) ** 2 * ones * (1 - ones) * (looks.total + 1)
    half = distance < SURE**2
    fit = _fit(looks, prior, in_chart(x, y, half), half)
    fit = _Fit(*(v[:, None] for v in fit))
    far = 2 * jnp.sqrt(lax.rsqrt(radius) - 1)  # t with 4 degrees of freedom
    along, across = _direction(angle)
    dy = far * across / fit.yy
    dx = (far * along - fit.xy * dy) / fit.xx
    x, y = (jnp.clip(v, -EDGE, EDGE) for v in (fit.x + dx, fit.y + dy))
    # XLA would otherwise compute them anew for each of the arrays that follow.
    x, y = lax.optimization_barrier((x, y))  # type: ignore[no-untyped-call]  # JAX has none
    channel = channel_at(x, y, half)
    density = jnp.log(fit.xx) + jnp.log(fit.yy) + 1.5 * jnp.log(radius)
    weight = log_likelihood(looks, channel) + channel.spread - density
    # Where rounding took off more than is allowed for, far from the modes, there is no number.
    return channel.p01, channel.p11, jnp.where(weight > HOPELESS, weight, HOPELESS)


def _direction(angle: Array) -> tuple[Array, Array]:
    """cos and sin of 2 pi angle, by Taylor's series to 1e-5; XLA's own do not use SIMD."""
    half = math.pi * (angle - 0.5)
    square = half * half
    sine, cosine = jnp.zeros_like(half), jnp.zeros_like(half)
    for power in range(10, -1, -2):
        cosine = 1 - square / ((power + 1) * (power + 2)) * cosine
        sine = 1 - square / ((power + 2) * (power + 3)) * sine
    sine = half * sine
    return 2 * sine * sine - 1, -2 * sine * cosine


def _fit(looks: Looks, prior: tuple[float, float], start: tuple[Array, Array], half: Array) -> _Fit:
    """The modes of both halves and the precisions there, each (2, n, trials)."""
    weight = min(prior[0], 1) + min(prior[1], 1)

    def turn(fit: _Fit, *, lumped: bool) -> _Fit:
        x, y = fit.x, fit.y
        by_b0, by_m, bb, bm, mm = score(looks, channel_at(x, y, half), lumped=lumped)
        bx, by, mx, my, jx, jy = slopes(x, y, half)
        share, one = sigmoid(x), sigmoid(y)
        gx, gy = by_b0 * bx + by_m * mx + jx, by_b0 * by + by_m * my + jy
        xx = bb * bx * bx + 2 * bm * bx * mx + mm * mx * mx + weight * share * (1 - share)
        yy = bb * by * by + 2 * bm * by * my + mm * my * my + (1 + weight) * one * (1 - one)
        first = jnp.sqrt(xx)
        mixed = (bb * bx * by + bm * (bx * my + by * mx) + mm * mx * my) / first
        second = jnp.sqrt(jnp.maximum(yy - mixed * mixed, 1e-6 * yy))
        dy = (gy - mixed * gx / first) / (second * second)
        dx = (gx / first - mixed * dy) / first
        scale = jnp.minimum(1, FARTHEST / jnp.maximum(jnp.maximum(abs(dx), abs(dy)), 1e-6))
        x, y = (jnp.clip(v + scale * d, -EDGE / 2, EDGE / 2) for v, d in ((x, dx), (y, dy)))
        return _Fit(x, y, first, mixed, second)

    fit = lax.fori_loop(
        0, TURNS, lambda _, fit: turn(fit, lumped=True), _Fit(*start, *start, start[0])
    )
    matters = (looks.moved**2 > MATTERS * looks.total).any()
    exact: _Fit = lax.cond(matters, lambda fit: turn(fit, lumped=False), lambda fit: fit, fit)
    return exact
