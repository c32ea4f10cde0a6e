"""Draws of a channel's (p01, p11) given looks that lie any number of slots apart.

The likelihood of a pair of looks is a g-step transition probability, see `channel_likelihood`. The
posterior of p01 and p11 then can take many shapes: the product of two Betas (looks in consecutive
slots alone), two modes or more (looks at even gaps do not tell m from -m; looks one slot after 0
and two slots after 1 do not tell p11 from p01 - p11), a thin curve where b0 is known and m is not
(looks at long gaps). The charts of `channel_charts` make it nearly normal around a mode.

In each of the charts RISING, STEEP and FALLING a mode is found by Fisher scoring, from the best of
a fixed set of points; where looks leave room for two modes of m < 0, from where `channel_ridge`
says that they would be. A place is drawn from one of three laws:

    near    a bivariate t around one of the modes, each as likely as its share of the posterior is
            by Laplace's method, and no less than FEWEST;
    ridge   m from the law of the cells of `channel_ridge`, x along the ridge that it knows: roughly
            the posterior itself where that is a thin curve, a plateau, or cut off by an edge;
    rows    a bivariate t of the log odds of p01 and p11, as looks one slot apart alone tell them.

A Metropolis chain goes from place to place with probability min(1, w(new) / w(now)), w = posterior
/ density of all laws together: the same channel may come from several. Places do not depend on the
chain, so all are evaluated at once. Most chains leave the place where they began (99 in 100 and
more), and nothing is remembered from one draw to the next: draws are from the posterior, from no
looks to millions (docs/every-look.md has what was measured).

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
from collections.abc import Sequence
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
from rmab.learning.channel_ridge import Cells, cells, density, pick, ridge
from rmab.random import Draws, Numbers

__all__ = ["draw_channels", "mean_channels"]

PLACES = 11  # of the chain: where it begins, and those that it may go to; more by 1 / prior where
LEAST = 0.1  # that is under 1 and tails are long, this or more
WIDE = 0.25  # of them from the laws `ridge` and `rows`, half each; but where pairs are SEVERAL or
SEVERAL, FEW = 100.0, 0.05  # more and FEW of all, or fewer, are one slot apart, or for m < 0
DOUBTFUL = 20.0  # there may be two modes, as pairs at even gaps are more than that:
WIDER, SHARP = 0.5, 0.5  # so many, unless cells of memories are so unlike, and of them
SELDOM = 0.1  # from the law `rows`; WIDER also with a prior under 1
FEWEST = 0.08  # of the others around each mode
FREEDOM, LITTLE = 4, 1  # degrees of it in t laws, and with a prior under 1
NODES = 48  # places in each chart for a mean
TURNS = 5  # of Fisher scoring with pairs at long gaps shared out; one more without where it matters
MATTERS = 16.0  # moved^2 / total, pairs shared out and all pairs, from which it does
MANY, MORE = 5000.0, 8  # pairs from which there are more such turns, and how many
FARTHEST = 3.0  # of a turn, in a coordinate
EDGE = 30.0  # of coordinates: e^-2 EDGE and its inverse are numbers of single precision
HOPELESS = -1e30  # the log of a weight that is never taken
RIDGE = 4  # the law beside those of the charts
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

    freedom: degrees of it in the t laws; cells: shares of the cells of memories; tails: how much
    longer those of x may be than with a uniform prior, (2, n, trials), for m > 0 and for m < 0;
    longer: those of memories; rows: the log odds of p01 and p11 by looks one slot apart alone,
    their means and spreads, (2, n, trials) each; wide: the share of the laws `ridge` and `rows`;
    direct: that of the second in them.
    """

    looks: Looks
    fit: _Fit
    freedom: int
    cells: Array
    tails: Array
    longer: Array | None
    rows: Coordinates
    wide: Array
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
    wide = which < ground.wide
    which = jnp.where(wide, which / ground.wide, (which - ground.wide) / (1 - ground.wide))
    near = jnp.where(which < share[0], RISING, jnp.where(which < 1 - share[2], STEEP, FALLING))
    broad = jnp.where(which < ground.direct, ROWS, RIDGE)
    kind = jnp.where(wide, broad, near)
    which = (which - ground.direct) / (1 - ground.direct)
    kind, *uniforms, luck = _stored(ground.looks, kind, which, radius, angle, depth, jnp.log(luck))
    found = _evaluated(ground, share, kind, uniforms)
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
    steps = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1, math.sqrt(3) - 1
    even = [node / node.size, *(node * step % 1 for step in steps)]
    radius, angle, depth, which = (jnp.asarray(x[:, None, None], jnp.float32) for x in even)
    turn = np.arange(node.size)[:, None, None]
    kind = np.where(turn % 4 == 0, np.where(turn // 4 % 2 == 0, ROWS, RIDGE), turn % 3)
    third = jnp.full((3, 1, 1), 1 / 3)
    ground = _survey(counts, prior)
    ground = ground._replace(wide=jnp.float32(0.25), direct=jnp.float32(0.5))  # as `kind` has it
    p01, p11, weight = _evaluated(ground, third, kind, [which, radius, angle, depth])
    weight = jnp.exp(weight - weight.max(0))
    total = weight.sum(0)
    up, stay = ((p * weight).sum(0) / total for p in (p01, p11))
    return jnp.minimum(up, 1), jnp.minimum(stay, 1)  # sums are rounded


def _survey(counts: Array, prior: tuple[float, float]) -> _Ground:
    looks, x, y = survey(jnp.asarray(counts, jnp.float32), prior)
    doubtful = jnp.maximum(looks.even0, looks.even1) > DOUBTFUL
    along = cells(looks)
    fit = _fit(looks, prior, *_parted(along, doubtful, x, y))
    # The posterior has tails like those of p01^rises and p10^falls, p00^stays0 and p11^stays1.
    fewest = jnp.minimum(looks.rises, looks.falls), jnp.minimum(looks.stays0, looks.stays1)
    tails = jnp.maximum(1, 1 / (1 + jnp.stack(fewest)))
    direct = looks.counts[0] + np.array(prior[::-1], np.float32)[:, None, None]  # by next state
    few = (looks.total > SEVERAL) & (looks.seen0 + looks.seen1 < FEW * looks.total)
    few = few | doubtful
    long = min(prior) < 1
    return _Ground(
        looks=looks,
        fit=fit,
        freedom=LITTLE if long else FREEDOM,
        cells=along.shares,
        tails=tails,
        longer=jnp.maximum(1, tails.max(0) / 2) if min(prior) < 0.5 else None,
        rows=(jnp.log(direct[:, 1] / direct[:, 0]), jnp.sqrt((1 / direct).sum(1))),
        wide=jnp.where(long | (few & (along.largest < SHARP)), WIDER, WIDE),
        direct=jnp.where(few, SELDOM, 0.5),
    )


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
    ground: _Ground, share: Array, kind: Numbers, uniforms: Sequence[Array]
) -> tuple[Array, Array, Array]:
    """Proposals: p01, p11 and the log of posterior / density, each (places, n, trials).

    share: (3, n, trials), how likely each mode is; kind: the law of each place, a chart's number
    for the mode in it, ROWS or RIDGE; uniforms: four numbers for each.
    """
    fit, (means, spreads) = ground.fit, ground.rows
    which, radius, angle, depth = uniforms

    def of_kind(value: Array) -> Array:
        return jnp.where(kind == RISING, value[0], jnp.where(kind == STEEP, value[1], value[2]))

    mode = _Fit(*(of_kind(value) for value in fit))
    far = _far(radius, ground.freedom)
    along, across = _direction(angle)
    y = mode.y + far * across / mode.yy
    x = mode.x + (far * along - mode.xy * (y - mode.y)) / mode.xx
    by_rows, by_ridge = kind == ROWS, kind == RIDGE
    x = jnp.where(by_rows, means[0] + spreads[0] * far * along, x)
    y = jnp.where(by_rows, means[1] + spreads[1] * far * across, y)
    (place,) = _stored(ground.looks, pick(ground.cells, ground.longer, which, depth))
    level = 2 * jnp.log(jnp.abs(place) / (1 - jnp.abs(place)))  # the log odds of |m|
    y = jnp.where(by_ridge, jnp.where(place > 0, level, -level), y)
    kind = jnp.where(by_ridge, jnp.where(place > 0, RISING, STEEP), kind)
    x, y = (jnp.clip(v, -EDGE, EDGE) for v in (x, y))
    memory = channel_at(kind, *[(x, y)] * 4).memory
    kind, memory, x, y = _stored(ground.looks, kind, memory, x, y)
    tails = jnp.where(memory > 0, ground.tails[0], ground.tails[1])
    middle, spread = ridge(ground.looks, memory, tails)
    x = jnp.where(by_ridge, jnp.clip(middle + spread * far * along, -EDGE, EDGE), x)
    x, middle, spread = _stored(ground.looks, x, middle, spread)
    channel = channel_at(kind, *[(x, y)] * 4)
    weight = log_likelihood(ground.looks, channel)
    weight = weight - _density(ground, share, channel, (middle, spread))
    p01, p11 = jnp.minimum(channel.p01, 1), jnp.minimum(channel.p11, 1)  # sums are rounded
    # Where rounding took off more than is allowed for, far from the modes, there is no number.
    return p01, p11, jnp.where((weight > HOPELESS) & (weight < -HOPELESS), weight, HOPELESS)


def _density(ground: _Ground, share: Array, channel: Channel, along: Coordinates) -> Array:
    """The log density of proposals at channels, with respect to p01 and p11.

    along: x and its spread on the ridge, at their memories.
    """
    fit, (means, spreads) = ground.fit, ground.rows
    *charts, rows = places(channel)
    near, jacobian = [], []
    for chart, (x, y, spread) in enumerate(charts):
        dx, dy = x - fit.x[chart], y - fit.y[chart]
        z, h = fit.xx[chart] * dx + fit.xy[chart] * dy, fit.yy[chart] * dy
        height = share[chart] * fit.xx[chart] * fit.yy[chart]
        near.append((1 - ground.wide) * height * _t2(z, h, ground.freedom))
        jacobian.append(spread)
    z, h = ((value - mean) / wide for value, mean, wide in zip(rows, means, spreads, strict=False))
    by_rows = ground.wide * ground.direct * _t2(z, h, ground.freedom) / (spreads[0] * spreads[1])

    def beside(chart: int, spread: Array) -> Array:
        return jnp.exp(jnp.clip(jacobian[chart] - spread, -80, 80))

    up = channel.memory > 0
    x = jnp.where(up, charts[RISING][0], charts[STEEP][0])
    level = jnp.where(up, charts[RISING][1], -charts[STEEP][1]) / 2
    size, rest = sigmoid(level), sigmoid(-level)
    (level,) = _stored(ground.looks, density(ground.cells, ground.longer, size, rest, up))
    level = level * size * rest / 2  # with respect to y
    by_ridge = (
        ground.wide * (1 - ground.direct) * _t(x - along[0], along[1], ground.freedom) * level
    )
    rising = near[RISING] + by_ridge + by_rows * beside(RISING, rows[2])
    falling = near[FALLING] + by_rows * beside(FALLING, rows[2])
    falling = falling + (near[STEEP] + by_ridge) * beside(FALLING, jacobian[STEEP])
    return jnp.log(jnp.where(up, rising, falling)) - jnp.where(
        up, jacobian[RISING], jacobian[FALLING]
    )


def _stored(looks: Looks, *values: Array) -> tuple[Array, ...]:
    """The values, each computed once: XLA fuses, and would compute them anew for all that follows.

    What goes into a condition is stored, and so is what comes out of it. This one always holds.
    """
    stored: tuple[Array, ...] = lax.cond(
        looks.total.max() >= 0,
        lambda *values: values,
        lambda *values: tuple(jnp.zeros_like(value) for value in values),
        *values,
    )
    return stored


def _far(radius: Array, freedom: int) -> Array:
    """How far draws of a bivariate t law are from its middle, by uniform numbers."""
    if freedom == 4:
        return 2 * jnp.sqrt(lax.rsqrt(radius) - 1)
    return jnp.sqrt(freedom * (radius ** (-2 / freedom) - 1))


def _t2(z: Array, h: Array, freedom: int) -> Array:
    """The density of a bivariate t law."""
    inside = 1 / (1 + (z * z + h * h) / freedom)
    return _power(inside, freedom + 2) / (2 * math.pi)


def _t(distance: Array, spread: Array, freedom: int) -> Array:
    """The density of a t law."""
    inside = 1 / (1 + (distance / spread) ** 2 / freedom)
    height = math.gamma((freedom + 1) / 2) / math.gamma(freedom / 2) / math.sqrt(math.pi * freedom)
    return height / spread * _power(inside, freedom + 1)


def _power(value: Array, twice: int) -> Array:
    """value^(twice / 2)."""
    found = jnp.sqrt(value) if twice % 2 else jnp.ones_like(value)
    for _ in range(twice // 2):
        found = found * value
    return found


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
        gx, gy = by_b0 * bx + by_m * mx, by_b0 * by + by_m * my
        xx = bb * bx * bx + 2 * bm * bx * mx + mm * mx * mx + weight * share * (1 - share)
        yy = bb * by * by + 2 * bm * by * my + mm * my * my + (1 + weight) * one * (1 - one)
        cross = bb * bx * by + bm * (bx * my + by * mx) + mm * mx * my
        # Where looks pull over an edge, S(x) bends more than expected information says.
        told = cross * cross / yy
        xx = told + jnp.maximum(xx - told, gx * (2 * share - 1))
        first = jnp.sqrt(xx)
        mixed = cross / first
        yy = jnp.maximum(yy - mixed * mixed, gy * (2 * one - 1))
        second = jnp.sqrt(jnp.maximum(yy, 1e-6 * mixed * mixed))
        gx, gy = gx + jx, gy + jy
        dy = (gy - mixed * gx / first) / (second * second)
        dx = (gx / first - mixed * dy) / first
        scale = jnp.minimum(1, FARTHEST / jnp.maximum(jnp.maximum(abs(dx), abs(dy)), 1e-6))
        x, y = (jnp.clip(v + scale * d, -EDGE / 2, EDGE / 2) for v, d in ((x, dx), (y, dy)))
        return _Fit(x, y, first, mixed, second)

    fit = lax.fori_loop(0, TURNS, lambda _, fit: turn(fit, lumped=True), _Fit(x, y, x, y, x))
    matters = looks.moved**2 > MATTERS * looks.total
    more = jnp.where(looks.total > MANY, MORE, jnp.where(matters, 1, 0))

    def exact(k: Array, fit: _Fit) -> _Fit:
        new = turn(fit, lumped=False)
        return _Fit(*(jnp.where(k < more, *both) for both in zip(new, fit, strict=True)))

    found: _Fit = lax.fori_loop(0, more.max(), exact, fit)
    return found


def _parted(along: Cells, doubtful: Array, x: Array, y: Array) -> Coordinates:
    """Where fits begin, with STEEP and FALLING where estimates of b0 agree, if there is doubt.

    Where looks come an odd number of slots after 0 and an even number after 1, p01 - p11 does about
    as well as p11, m < 0, and a fit may be drawn to the worse of the two.
    """
    p01, p10 = along.b0 * (1 - along.memory), (1 - along.b0) * (1 - along.memory)
    _, steep, falling, _ = places(Channel(p01, 1 - p01, 1 - p10, p10, along.memory))
    far, near = doubtful & along.agree
    x = jnp.stack([x[0], jnp.where(far, steep[0][0], x[1]), jnp.where(near, falling[0][1], x[2])])
    y = jnp.stack([y[0], jnp.where(far, steep[1][0], y[1]), jnp.where(near, falling[1][1], y[2])])
    return x, y
