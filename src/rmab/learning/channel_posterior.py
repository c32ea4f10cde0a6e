"""Draws of a channel's (p01, p11) given looks that lie any number of slots apart.

The likelihood of a pair of looks is a g-step transition probability, see `channel_likelihood`. The
posterior of p01 and p11 then can take many shapes: the product of two Betas (looks in consecutive
slots alone), two modes or more (looks at even gaps do not tell m from -m; looks one slot after 0
and two slots after 1 do not tell p11 from p01 - p11), a thin curve where b0 is known and m is not
(looks at long gaps). The charts of `channel_charts` make it nearly normal around a mode.

In each of the charts RISING, STEEP and FALLING a mode is found by Fisher scoring, from the best of
a fixed set of points. Where the last two, both of m < 0, come to the same mode and the gaps leave
room for another, one of them goes on from where that would be. A place is drawn from one of three
laws:

    near   a bivariate t around one of the modes, each as likely as its share of the posterior is
           by Laplace's method, and no less than FEWEST;
    wide   x as it is known, y from a logistic law around the mode: tails at least as heavy as
           those of the posterior, as where all small memories are alike to looks at long gaps;
    rows   a bivariate t of the log odds of p01 and p11, as looks one slot apart alone tell them.

A Metropolis chain goes from place to place with probability min(1, w(new) / w(now)), w = posterior
/ density of all laws together: the same channel may come from several. Places do not depend on the
chain, so all are evaluated at once. About half of them are taken, so little is left of where the
chain began, and nothing is remembered from one draw to the next: draws are from the posterior, from
no looks to millions (docs/every-look.md has what was measured, and where a mode is missed).

Why so. A grid of fixed points is one matrix product, but a posterior of a million looks falls
between them; refining it costs more evaluations than the fit does. Filling in unseen paths by
turns (Gibbs) forgets too slowly when most steps are hidden. The weighted likelihood bootstrap of
`paths` is right to first order only.

Reference: L. Tierney, "Markov chains for exploring posterior distributions", Ann. Stat. 22, 1994;
T. Hesterberg, "Weighted average importance sampling and defensive mixture distributions",
Technometrics 37, 1995.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.nn import sigmoid, softmax

from rmab.learning.channel_charts import (
    FALLING,
    RISING,
    ROWS,
    STEEP,
    Channel,
    Coordinates,
    channel_at,
    places,
    slopes,
)
from rmab.learning.channel_likelihood import Looks, log_likelihood, score, survey
from rmab.learning.randomness import Draws, Mask, Numbers

__all__ = ["draw_channels", "mean_channels"]

PLACES = 11  # of the chain: where it begins, and those that it may go to; more by 1 / prior where
LEAST = 0.1  # that is under 1 and tails are long, this or more
WIDE = 0.25  # of them from the laws `wide` and `rows`, half each, unless pairs are SEVERAL or more
SEVERAL, FEW = 100.0, 0.05  # and FEW of all, or fewer, are one slot apart:
SELDOM = 0.1  # of WIDE from the law `rows` then
FEWEST = 0.08  # of the others around each mode
NODES = 48  # places in each chart for a mean
TURNS = 4  # of Fisher scoring with pairs at long gaps shared out; one more without where it matters
MATTERS = 16.0  # moved^2 / total, pairs shared out and all pairs, from which it does
MANY, MORE = 5000.0, 4  # pairs from which there are more such turns, and how many
DOUBTFUL, CLOSE = 20.0, 0.3  # even pairs, and a distance, from which modes of m < 0 may be two
PARTED, AFTER = 3, 3  # turns before such modes are parted, and turns more than TURNS
FARTHEST = 3.0  # of a turn, in a coordinate
EDGE = 30.0  # of coordinates: e^-2 EDGE and its inverse are numbers of single precision
HOPELESS = -1e30  # the log of a weight that is never taken
CHARTS = np.array([RISING, STEEP, FALLING])[:, None, None]


class _Fit(NamedTuple):
    """A normal approximation: its mode and the Cholesky factor of its precision."""

    x: Array
    y: Array
    xx: Array
    xy: Array
    yy: Array


class _Ground(NamedTuple):
    """What is known of the posterior; arrays are by chart or end in (n, trials).

    apart, scale: the spreads of x, by chart, and of y in the wide law; rows: the log odds of p01
    and p11 by looks one slot apart alone, their means and spreads, (2, n, trials) each; direct: the
    share of the law `rows` in WIDE.
    """

    looks: Looks
    fit: _Fit
    apart: Array
    scale: Array
    rows: tuple[Array, Array]
    direct: Array


def draw_channels(counts: Array, prior: tuple[float, float], draws: Draws) -> tuple[Array, Array]:
    """(p01, p11), each (n, trials), from the posterior given looks at any gaps.

    counts: (G + 1, 2, 2, n, trials), the last slice settled; prior: Beta(a, b) of both.
    """
    size = math.ceil(PLACES / max(LEAST, min(1.0, *prior)))
    ground = _survey(counts, prior)
    share = _shares(ground)
    lead = (size, *counts.shape[3:-1])
    which, radius, angle, depth, luck = (draws.uniform(*lead) for _ in range(5))
    wide = which < WIDE
    which = jnp.where(wide, which / WIDE, (which - WIDE) / (1 - WIDE))
    near = jnp.where(which < share[0], RISING, jnp.where(which < 1 - share[2], STEEP, FALLING))
    broad = jnp.where(which > (1 + ground.direct) / 2, RISING, FALLING)
    broad = jnp.where(which < ground.direct, ROWS, broad)
    kind = jnp.where(wide, broad, near)
    numbers = kind, wide, radius, angle, depth, jnp.log(luck)
    # XLA would otherwise draw them anew for each of the arrays that follow.
    numbers = lax.optimization_barrier(numbers)  # type: ignore[no-untyped-call]  # untyped in JAX
    kind, wide, radius, angle, depth, luck = numbers
    found = _evaluated(ground, share, (kind, wide), (radius, angle, depth))
    now = tuple(x[0] for x in found)
    for step in range(1, size):
        takes = luck[step] < found[2][step] - now[2]
        now = tuple(jnp.where(takes, x[step], old) for x, old in zip(found, now, strict=True))
    return now[0], now[1]


def mean_channels(counts: Array, prior: tuple[float, float]) -> tuple[Array, Array]:
    """The posterior means of p01 and p11, each (n, trials), by importance sampling.

    The proposals are those of a draw, at places spread evenly instead of at random. Right to about
    a tenth of a standard deviation.
    """
    node = np.arange(3 * NODES) + 0.5
    steps = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1
    even = [node / node.size, *(node * step % 1 for step in steps)]
    radius, angle, depth = (jnp.asarray(x[:, None, None], jnp.float32) for x in even)
    turn = np.arange(node.size)[:, None, None]
    wide = turn % 4 == 0
    kind = np.where(wide, np.array([ROWS, RISING, ROWS, FALLING])[turn // 4 % 4], turn % 3)
    third = jnp.full((3, 1, 1), 1 / 3)
    ground = _survey(counts, prior)._replace(direct=jnp.float32(0.5))  # as `kind` has it
    p01, p11, weight = _evaluated(ground, third, (kind, wide), (radius, angle, depth))
    weight = jnp.exp(weight - weight.max(0))
    total = weight.sum(0)
    up, stay = ((p * weight).sum(0) / total for p in (p01, p11))
    return jnp.minimum(up, 1), jnp.minimum(stay, 1)  # sums are rounded


def _survey(counts: Array, prior: tuple[float, float]) -> _Ground:
    looks, x, y = survey(jnp.asarray(counts, jnp.float32), prior)
    fit = _fit(looks, prior, x, y)
    spread = jnp.sqrt(1 / fit.xx**2 + (fit.xy / (fit.xx * fit.yy)) ** 2)
    # The tails of the posterior are those of p01^ups and p10^downs, p00^stays0 and p11^stays1.
    apart = jnp.maximum(spread, 1 / (1 + jnp.minimum(looks.ups, looks.downs)))
    scale = jnp.maximum(1, 1 / (1 + jnp.minimum(looks.stays0, looks.stays1)))
    direct = looks.counts[0] + np.array(prior[::-1], np.float32)[:, None, None]  # by next state
    rows = jnp.log(direct[:, 1] / direct[:, 0]), jnp.sqrt((1 / direct).sum(1))
    few = (looks.total > SEVERAL) & (looks.seen0 + looks.seen1 < FEW * looks.total)
    return _Ground(looks, fit, apart, scale, rows, jnp.where(few, SELDOM, 0.5))


def _by_chart(x: Array, y: Array) -> list[tuple[Array, Array]]:
    """Coordinates (3, ...) one by one."""
    return [(x[chart], y[chart]) for chart in range(3)]


def _shares(ground: _Ground) -> Array:
    """The shares of the modes in the posterior, (3, n, trials), by Laplace's method."""
    fit = ground.fit
    channel = channel_at(CHARTS, *_by_chart(fit.x, fit.y))
    spreads = [place[2][chart] for chart, place in enumerate(places(channel)[:3])]
    height = log_likelihood(ground.looks, channel) + jnp.stack(spreads)
    height = height - jnp.log(fit.xx) - jnp.log(fit.yy)
    height = jnp.where(height > HOPELESS, height, HOPELESS)
    return FEWEST + (1 - 3 * FEWEST) * softmax(height, 0)


def _evaluated(
    ground: _Ground,
    share: Array,
    law: tuple[Numbers, Mask],
    uniforms: tuple[Array, Array, Array],
) -> tuple[Array, Array, Array]:
    """Proposals: p01, p11 and the log of posterior / density, each (places, n, trials).

    share: (3, n, trials), how likely each mode is; law: the chart of each place, and whether it is
    from the wide law; uniforms: three numbers for each.
    """
    looks, fit, apart, scale, (means, spreads), _ = ground
    kind, wide = law
    radius, angle, depth = uniforms

    def of_kind(value: Array) -> Array:
        return jnp.where(kind == RISING, value[0], jnp.where(kind == STEEP, value[1], value[2]))

    mode = _Fit(*(of_kind(value) for value in fit))
    far = 2 * jnp.sqrt(lax.rsqrt(radius) - 1)  # t with 4 degrees of freedom
    along, across = _direction(angle)
    y = mode.y + jnp.where(wide, scale * jnp.log(depth / (1 - depth)), far * across / mode.yy)
    aslant = (far * along - mode.xy * (y - mode.y)) / mode.xx
    x = mode.x + jnp.where(wide, of_kind(apart) * far * along, aslant)
    by_rows = kind == ROWS
    x = jnp.where(by_rows, means[0] + spreads[0] * far * along, x)
    y = jnp.where(by_rows, means[1] + spreads[1] * far * across, y)
    x, y = (jnp.clip(v, -EDGE, EDGE) for v in (x, y))
    # XLA would otherwise compute them anew for each of the arrays that follow.
    x, y = lax.optimization_barrier((x, y))  # type: ignore[no-untyped-call]  # untyped in JAX
    channel = channel_at(kind, *[(x, y)] * 4)
    density = _density(ground, share, channel)
    weight = log_likelihood(looks, channel) - density
    # Where rounding took off more than is allowed for, far from the modes, there is no number.
    return channel.p01, channel.p11, jnp.where(weight > HOPELESS, weight, HOPELESS)


def _density(ground: _Ground, share: Array, channel: Channel) -> Array:
    """The log density of proposals at channels, with respect to p01 and p11."""
    _, fit, apart, scale, (means, spreads), direct = ground
    *charts, rows = places(channel)
    near, broad, jacobian = [], [], []
    for chart, (x, y, spread) in enumerate(charts):
        dx, dy = x - fit.x[chart], y - fit.y[chart]
        z, h = fit.xx[chart] * dx + fit.xy[chart] * dy, fit.yy[chart] * dy
        height = share[chart] * fit.xx[chart] * fit.yy[chart]
        near.append((1 - WIDE) * height * _t2(z, h))
        beyond = dy / scale
        logistic = sigmoid(beyond) * sigmoid(-beyond) / scale
        broad.append(0.5 * WIDE * (1 - direct) * _t(dx, apart[chart]) * logistic)
        jacobian.append(spread)
    z, h = ((value - mean) / wide for value, mean, wide in zip(rows, means, spreads, strict=False))
    by_rows = WIDE * direct * _t2(z, h) / (spreads[0] * spreads[1])

    def beside(chart: int, spread: Array) -> Array:
        return jnp.exp(jnp.clip(jacobian[chart] - spread, -80, 80))

    rising = near[RISING] + broad[RISING] + by_rows * beside(RISING, rows[2])
    falling = near[FALLING] + broad[FALLING] + by_rows * beside(FALLING, rows[2])
    falling = falling + near[STEEP] * beside(FALLING, jacobian[STEEP])
    up = channel.memory > 0
    return jnp.log(jnp.where(up, rising, falling)) - jnp.where(
        up, jacobian[RISING], jacobian[FALLING]
    )


def _t2(z: Array, h: Array) -> Array:
    """The density of a bivariate t law with 4 degrees of freedom."""
    inside = 1 / (1 + (z * z + h * h) / 4)
    return inside * inside * inside / (2 * math.pi)


def _t(distance: Array, spread: Array) -> Array:
    """The density of a t law with 4 degrees of freedom."""
    inside = 1 / (1 + (distance / spread) ** 2 / 4)
    return 0.375 / spread * inside * inside * jnp.sqrt(inside)


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


def _fit(looks: Looks, prior: tuple[float, float], x: Array, y: Array) -> _Fit:
    """The modes in all charts and the precisions there, each (3, n, trials), from a start."""
    weight = min(prior[0], 1) + min(prior[1], 1)

    def turn(fit: _Fit, *, lumped: bool) -> _Fit:
        x, y = fit.x, fit.y
        at = _by_chart(x, y)
        by_b0, by_m, bb, bm, mm = score(looks, channel_at(CHARTS, *at), lumped=lumped)
        bx, by, mx, my, jx, jy = slopes(CHARTS, *at)
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

    doubtful = jnp.maximum(looks.even0, looks.even1) > DOUBTFUL
    some = doubtful.any()

    def first(k: Array, fit: _Fit) -> _Fit:
        x, y = lax.cond(
            (k == PARTED) & some,
            lambda x, y: _parted(x, y, looks.even1 > looks.even0, doubtful),
            lambda x, y: (x, y),
            fit.x,
            fit.y,
        )
        new = turn(fit._replace(x=x, y=y), lumped=True)
        useful = (k < TURNS) | doubtful
        return _Fit(*(jnp.where(useful, *both) for both in zip(new, fit, strict=True)))

    turns = TURNS + jnp.where(some, AFTER, 0)
    fit = lax.fori_loop(0, turns, first, _Fit(x, y, x, y, x))
    matters = looks.moved**2 > MATTERS * looks.total
    more = jnp.where(looks.total > MANY, MORE, jnp.where(matters, 1, 0))

    def exact(k: Array, fit: _Fit) -> _Fit:
        new = turn(fit, lumped=False)
        return _Fit(*(jnp.where(k < more, *both) for both in zip(new, fit, strict=True)))

    found: _Fit = lax.fori_loop(0, more.max(), exact, fit)
    return found


def _parted(x: Array, y: Array, by_one: Array, doubtful: Array) -> Coordinates:
    """x and y with STEEP and FALLING apart where it is doubtful whether there is only one mode.

    Where looks come an odd number of slots after 0 and an even number after 1, p01 - p11 does about
    as well as p11, m < 0; `by_one` says whether that is so, or the same with the states exchanged.
    Where both are at one mode, the one of them that serves smaller m goes to it, and the other to
    the larger.
    """
    channel = channel_at(CHARTS, *_by_chart(x, y))
    p01, p00, p11, p10, memory = (value[FALLING] for value in channel)
    same = abs(channel.p01[STEEP] - p01) + abs(channel.p11[STEEP] - p11) < CLOSE
    other = Channel(
        p01=jnp.where(by_one, p01, p00 + p11),
        p00=jnp.where(by_one, p00, -memory),
        p11=jnp.where(by_one, -memory, p11),
        p10=jnp.where(by_one, p00 + p11, p10),
        memory=-jnp.where(by_one, p11, p00),
    )
    lower = other.memory < memory
    goes = doubtful & same & jnp.stack([jnp.zeros_like(lower), lower, ~lower])
    there = zip(*(place[:2] for place in places(other)[:3]), strict=True)
    x, y = (jnp.where(goes, jnp.stack(new), old) for new, old in zip(there, (x, y), strict=True))
    return x, y
