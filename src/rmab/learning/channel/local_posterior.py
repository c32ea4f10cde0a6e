"""An agent's own draw of its channels: its observations in full, and others' as it believes them.

The server tells every agent a few *laws* of each arm: mean and covariance of the log odds (u, v) of
(p01, p11) under the posterior of a sum of counts. The agent's prior of its own arm is

    (1 - doubt) x equal mixture of the laws + doubt x Beta(a, b) of p01 and of p11,

uniform for a = b = 1. So where its own observations agree with the others' it knows what all know,
and where they do not it soon learns alone, whatever the others say. `alike` is the posterior weight
of the laws.

A draw is the last of a chain of Metropolis steps in log odds, for all arms at once. Steps go to
places that do not depend on the chain: near the modes of the agent's own posterior, near each law,
near the product of both, to the cells of a grid by the own posterior's height there, or anywhere by
the prior; all together are the density that a place is weighed by.

Modes are sought in three places: where p11 > p01, where p11 < p01, and at the mirror image of the
latter. Two slots after 1 p11 and p01 - p11 do equally well, two slots after 0 p00 and p10 - p00;
a grid is too coarse to say which of them is right where pairs are many.

Written for NumPy and JAX arrays alike: agents have no JAX, and the engine has many agents. Counts
are in the order of `rmab.learning.evidence`, arrays end in (n, trials).

Reference: L. Tierney, "Markov chains for exploring posterior distributions", Ann. Stat. 22, 1994.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.linalg import Array, array_namespace, compute_once, repeat

__all__ = ["DOUBT", "LEAST_ALIKE", "PLACES", "UNIFORMS", "Laws", "OwnDraw", "draw_own"]

DOUBT = 0.1  # prior probability that an arm is like none of the laws
LEAST_ALIKE = 0.01  # below this weight an arm is unlike what the others have
PLACES = 48  # of a chain
UNIFORMS = 4  # numbers that a place takes

_EDGE, _CELLS = 6.0, 24  # the grid: log odds from -_EDGE to _EDGE in so many cells, both ways
_WIDTH = 2 * _EDGE / _CELLS
_FARTHEST = 14.0  # log odds that are told from 0 and 1 in single precision
_TINY = 1e-9  # less than any chance
_TURNS, _MAX_STEP, _SHORTER = 10, 2.0, 0.8  # of Fisher scoring, in log odds
_LEAST_PRECISION = 0.05  # of a proposal: where nothing is known it is as wide as this allows
_FREEDOM = 4  # of the t distributions that places are drawn from
# How often a place is drawn from each kind of distribution; those of laws are shared by all laws.
_MODE, _PRODUCT, _LAW, _GRID, _PRIOR = 0.35, 0.3, 0.1, 0.2, 0.05
_LEAST_SHARE = 0.05  # of each of three modes; the rest is by their shares of the own posterior


class Laws(NamedTuple):
    """What the server tells of each arm: J laws of the log odds of (p01, p11).

    mean: (J, 2, n, trials); covariance: (J, 3, n, trials), of u and u, u and v, v and v.
    """

    mean: Array
    covariance: Array


class OwnDraw(NamedTuple):
    """A draw of p01 and p11, and the posterior weight of the laws, (n, trials) each."""

    p01: Array
    p11: Array
    alike: Array


class _Normal(NamedTuple):
    """Middle, and Cholesky factor of the precision; modes are (3, n, trials) each."""

    u: Array
    v: Array
    uu: Array
    uv: Array
    vv: Array


def draw_own(
    counts: Array,
    laws: Laws | None,
    uniforms: Array,
    *,
    prior: tuple[float, float] = (1.0, 1.0),
    doubt: float = DOUBT,
) -> OwnDraw:
    """A draw of every channel.

    counts: (G + 1, 2, 2, n, trials), the agent's own, the last class further apart; laws: None
    where nothing is told, and the prior is all; uniforms: (UNIFORMS, places, n, trials) on (0, 1);
    prior: Beta(a, b) of p01 and of p11.
    """
    xp = array_namespace(counts, uniforms)
    # In log odds a Beta prior is as so many pairs more that are one slot apart.
    before = np.array([[prior[1], prior[0]]] * 2, np.float32)[None, :, :, None, None]
    first = np.zeros((len(counts), 1, 1, 1, 1), np.float32)
    first[0] = 1
    counts = xp.asarray(counts, uniforms.dtype) + first * before
    cells = _cells(counts)
    normals = _normals(counts, _modes(counts, *_starts(counts, cells)), laws)
    u, v = (compute_once(x) for x in _places(normals, cells, uniforms))
    # The own posterior, and what the laws make of it.
    own = _log_likelihood(counts, u, v)
    believed, unlike = _believed(laws, u, v, prior, doubt)
    height = own + xp.logaddexp(believed, unlike)
    weight = compute_once(height - _log_density(normals, cells, u, v))
    share = xp.exp(weight - weight.max(0))
    of_laws = 1 / (1 + xp.exp(xp.clip(unlike - believed, -60, 60)))
    alike = (share * of_laws).sum(0) / share.sum(0)
    luck = xp.log(uniforms[3])

    def step(number: Any, now: tuple[Array, ...]) -> tuple[Array, ...]:
        there = xp.take(u, number, 0), xp.take(v, number, 0), xp.take(weight, number, 0)
        takes = xp.take(luck, number, 0) < there[2] - now[2]
        return tuple(xp.where(takes, new, old) for new, old in zip(there, now, strict=True))

    u, v, _ = repeat(len(luck), step, (u[0], v[0], weight[0]))
    return OwnDraw(_sigmoid(u), _sigmoid(v), alike)


# ------------------------------------------------------------------------- the posterior


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + array_namespace(x).exp(-x))


class _Chances(NamedTuple):
    """Of (from, to) at every gap, (..., G + 1, n, trials), and what their slopes are made of."""

    p00: Array
    p01: Array
    p10: Array
    p11: Array
    apart: Array  # a_g = 1 - m^g
    bend: Array  # g m^(g - 1)


def _chances(u: Array, v: Array, kinds: int) -> _Chances:
    """u, v: (..., n, trials); kinds: G + 1, the last is the stationary law.

    As in `rmab.learning.channel.likelihood`; 1 - m^g comes from 1 - |m|, which is a sum of chances.
    """
    xp = array_namespace(u)
    u, v = u[..., None, :, :], v[..., None, :, :]
    p01, p00, p11, p10 = _sigmoid(u), _sigmoid(-u), _sigmoid(v), _sigmoid(-v)
    gap = np.append(np.arange(1, kinds), 1).astype(np.float32)[:, None, None]
    late = (np.arange(kinds) == kinds - 1)[:, None, None]
    leaves, rises = p01 + p10, p11 > p01
    level = xp.log1p(-xp.minimum(xp.where(rises, leaves, p00 + p11), 1 - 1e-6))  # ln |m|
    odd = gap % 2 == 1
    size = xp.where(late, 0, xp.exp(gap * level))
    falls = ~rises & odd
    power = xp.where(falls, -size, size)
    apart = xp.where(falls | late, 1 + xp.where(late, 0, size), -xp.expm1(gap * level))
    before = xp.where(late, 0, gap * xp.exp((gap - 1) * level))
    bend = xp.where(~rises & ~odd, -before, before)
    direct = (gap == 1) & ~late

    def stays(there: Array, back: Array, once: Array) -> Array:
        return xp.where(direct, once, xp.maximum((there + back * power) / leaves, _TINY))

    return _Chances(
        p00=stays(p10, p01, p00),
        p01=xp.maximum(p01 / leaves * apart, _TINY),
        p10=xp.maximum(p10 / leaves * apart, _TINY),
        p11=stays(p01, p10, p11),
        apart=apart,
        bend=bend,
    )


def _log_likelihood(counts: Array, u: Array, v: Array) -> Array:
    """(..., n, trials)."""
    xp = array_namespace(counts, u)
    by = _chances(u, v, len(counts))
    (stay0, rise), (fall, stay1) = xp.moveaxis(counts, 0, 2)
    total = stay0 * xp.log(by.p00) + rise * xp.log(by.p01)
    return (total + fall * xp.log(by.p10) + stay1 * xp.log(by.p11)).sum(-3)


def _slope(counts: Array, u: Array, v: Array) -> tuple[Array, ...]:
    """The gradient along (u, v) and the expected information: uu, uv, vv."""
    xp = array_namespace(counts, u)
    by = _chances(u, v, len(counts))
    (stay0, rise), (fall, stay1) = xp.moveaxis(counts, 0, 2)
    u, v = u[..., None, :, :], v[..., None, :, :]
    p01, p00, p11, p10 = _sigmoid(u), _sigmoid(-u), _sigmoid(v), _sigmoid(-v)
    leaves = p01 + p10
    good, bad = p01 / leaves, p10 / leaves

    def along(settles: Array, remembers: Array) -> tuple[Array, Array]:
        """Slopes of the chances of 1 after 0 and after 1, from those of b0 and m."""
        moves, bends = settles * by.apart, by.bend * remembers
        return moves - good * bends, moves + bad * bends

    by_u = along(p01 * p00 * p10 / leaves**2, -p01 * p00)
    by_v = along(p11 * p10 * p01 / leaves**2, p11 * p10)
    pulls = rise / by.p01 - stay0 / by.p00, stay1 / by.p11 - fall / by.p10
    known = (stay0 + rise) / (by.p01 * by.p00), (stay1 + fall) / (by.p11 * by.p10)

    def over(factors: tuple[Array, Array], *slopes: tuple[Array, Array]) -> Array:
        total = 0
        for row in (0, 1):
            product = factors[row]
            for slope in slopes:
                product = product * slope[row]
            total = total + product.sum(-3)
        return total

    return (
        over(pulls, by_u),
        over(pulls, by_v),
        over(known, by_u, by_u),
        over(known, by_u, by_v),
        over(known, by_v, by_v),
    )


def _modes(counts: Array, u: Array, v: Array) -> _Normal:
    """The modes near starts by Fisher scoring, and the information there."""
    xp = array_namespace(counts, u)

    def turn(number: Any, at: tuple[Array, ...]) -> tuple[Array, ...]:
        u, v = at
        by_u, by_v, uu, uv, vv = _slope(counts, u, v)
        uu, vv = uu + 1e-6, vv + 1e-6
        spread = xp.maximum(uu * vv - uv * uv, 1e-4 * uu * vv)
        du, dv = (vv * by_u - uv * by_v) / spread, (uu * by_v - uv * by_u) / spread
        far = xp.maximum(xp.maximum(abs(du), abs(dv)), 1e-9)
        scale = xp.minimum(1, _MAX_STEP * _SHORTER**number / far)
        return tuple(xp.clip(w + scale * dw, -_FARTHEST, _FARTHEST) for w, dw in ((u, du), (v, dv)))

    u, v = repeat(_TURNS, turn, (u, v))
    uu, uv, vv = _slope(counts, u, v)[2:]
    return _factored(u, v, uu + _LEAST_PRECISION, uv, vv + _LEAST_PRECISION)


def _believed(
    laws: Laws | None, u: Array, v: Array, prior: tuple[float, float], doubt: float
) -> tuple[Array, Array]:
    """Logs of what laws and doubt give a place, as shares of the prior's density there."""
    xp = array_namespace(u)
    unlike = xp.full_like(u, math.log(doubt))
    if laws is None:
        return xp.full_like(u, -1e30), xp.zeros_like(u)
    a, b = prior
    norm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    up, down = (-xp.logaddexp(0, -x) for x in (u, v)), (-xp.logaddexp(0, x) for x in (u, v))
    density = 2 * norm + a * sum(up) + b * sum(down)
    each = []
    for law in _of_laws(laws):
        z, h = _standard(law, u, v)
        each.append(xp.log(law.uu * law.vv / (2 * math.pi)) - (z * z + h * h) / 2)
    mixture = each[0]
    for one in each[1:]:
        mixture = xp.logaddexp(mixture, one)
    share = math.log(max(1 - doubt, 1e-30) / len(each))
    return share + mixture - density, unlike


# ----------------------------------------------------------------------- where steps go


class _Cells(NamedTuple):
    """The own posterior on the grid, (cells, n, trials)."""

    logs: Array  # of heights
    shares: Array
    until: Array  # the shares, summed up


@lru_cache(maxsize=8)
def _grid(kinds: int) -> npt.NDArray[np.float64]:
    """Logs of the chances at the middles of cells, (cells, 4 kinds) in the order of counts."""
    middle = (np.arange(_CELLS) + 0.5) * _WIDTH - _EDGE
    u, v = (x.ravel()[:, None] for x in np.meshgrid(middle, middle, indexing="ij"))
    by = _chances(u[None], v[None], kinds)  # (1, G + 1, cells, 1)
    rows = np.stack([by.p00, by.p01, by.p10, by.p11], -1)[0, :, :, 0]  # (G + 1, cells, 4)
    return np.ascontiguousarray(np.log(rows).transpose(1, 0, 2).reshape(_CELLS**2, -1))


def _cells(counts: Array) -> _Cells:
    xp = array_namespace(counts)
    kinds, shape = len(counts), counts.shape[3:]
    rows = xp.asarray(_grid(kinds), counts.dtype)
    exact = {} if xp is np else {"precision": "highest"}
    logs = xp.matmul(rows, counts.reshape(4 * kinds, -1), **exact)
    heights = xp.exp(logs - logs.max(0)).reshape(_CELLS**2, *shape)
    shares = compute_once(heights / heights.sum(0))
    return _Cells(logs.reshape(heights.shape), shares, compute_once(xp.cumsum(shares, axis=0)))


def _corner(cell: Array, like: Array) -> tuple[Array, Array]:
    """The least u and v of a cell, in the precision of another array."""
    row, column = (cell // _CELLS).astype(like.dtype), (cell % _CELLS).astype(like.dtype)
    return row * _WIDTH - _EDGE, column * _WIDTH - _EDGE


def _starts(counts: Array, cells: _Cells) -> tuple[Array, Array]:
    """Where modes are sought, (3, n, trials)."""
    xp = array_namespace(counts)
    row, column = np.indices((_CELLS, _CELLS)).reshape(2, -1, 1, 1)
    zones = column >= row, column < row
    best = xp.stack([xp.where(zone, cells.logs, -np.inf).argmax(0) for zone in zones])
    u, v = (corner + _WIDTH / 2 for corner in _corner(best, cells.shares))
    p01, p11 = _sigmoid(u[1]), _sigmoid(v[1])
    # Half a cell is left at the edges: a start has to have log odds.
    mirrored = xp.clip(xp.stack([p01 - p11, 1 + p11 - p01]), _sigmoid(-_EDGE), _sigmoid(_EDGE))
    odds = xp.log(mirrored / (1 - mirrored))
    u2, v2 = xp.stack([u[1], odds[1]]), xp.stack([odds[0], v[1]])
    height = _log_likelihood(counts, u2, v2)
    first = height[0] > height[1]
    other = (xp.where(first, x[0], x[1])[None] for x in (u2, v2))
    return tuple(xp.concatenate(x) for x in zip((u, v), other, strict=True))


def _of_laws(laws: Laws) -> list[_Normal]:
    xp = array_namespace(laws.mean)
    found = []
    for (u, v), (uu, uv, vv) in zip(laws.mean, laws.covariance, strict=True):
        spread = xp.maximum(uu * vv - uv * uv, 1e-9 * uu * vv)
        found.append(_factored(u, v, vv / spread, -uv / spread, uu / spread))
    return found


def _factored(u: Array, v: Array, uu: Array, uv: Array, vv: Array) -> _Normal:
    """A normal distribution by its precision."""
    xp = array_namespace(u, uu)
    first = xp.sqrt(xp.maximum(uu, 1e-12))
    mixed = uv / first
    second = xp.sqrt(xp.maximum(vv - mixed * mixed, 1e-6 * vv + 1e-12))
    return _Normal(u, v, first, mixed, second)


def _normals(counts: Array, modes: _Normal, laws: Laws | None) -> list[tuple[Array, _Normal]]:
    """The normal shapes that places are drawn near, each with its share."""
    xp = array_namespace(counts, modes.u)
    height = _log_likelihood(counts, modes.u, modes.v) - xp.log(modes.uu * modes.vv)
    share = xp.exp(height - height.max(0))
    share = _LEAST_SHARE + (1 - 3 * _LEAST_SHARE) * share / share.sum(0)
    each = [_Normal(*(x[number] for x in modes)) for number in range(3)]
    all_own = _MODE if laws is not None else _MODE + _PRODUCT + _LAW
    found = [(all_own * share[number], mode) for number, mode in enumerate(each)]
    if laws is None:
        return found
    told = _of_laws(laws)
    for law in told:
        both, overlap = zip(*(_product(mode, law) for mode in each), strict=True)
        best = (height + xp.stack(overlap)).argmax(0)
        chosen = (
            xp.where(best == 0, a, xp.where(best == 1, b, c)) for a, b, c in zip(*both, strict=True)
        )
        found += [(_PRODUCT / len(told), _Normal(*chosen)), (_LAW / len(told), law)]
    return found


def _product(one: _Normal, other: _Normal) -> tuple[_Normal, Array]:
    """The product of two normal densities, and the log of its height, up to a constant, where both
    are 1 at their middles."""
    (a, b, c), (d, e, f) = (
        (normal.uu**2, normal.uu * normal.uv, normal.uv**2 + normal.vv**2)
        for normal in (one, other)
    )
    xx, xy, yy = a + d, b + e, c + f
    spread = xx * yy - xy * xy
    du, dv = other.u - one.u, other.v - one.v
    pull_u, pull_v = d * du + e * dv, e * du + f * dv
    u, v = (yy * pull_u - xy * pull_v) / spread, (xx * pull_v - xy * pull_u) / spread
    both = _factored(one.u + u, one.v + v, xx, xy, yy)
    height = sum(
        z * z + h * h for z, h in (_standard(normal, both.u, both.v) for normal in (one, other))
    )
    return both, -height / 2


def _standard(normal: _Normal, u: Array, v: Array) -> tuple[Array, Array]:
    """Places as numbers of a standard normal distribution."""
    du, dv = u - normal.u, v - normal.v
    return normal.uu * du + normal.uv * dv, normal.vv * dv


def _places(
    normals: list[tuple[Array, _Normal]], cells: _Cells, uniforms: Array
) -> tuple[Array, Array]:
    """u and v, (places, n, trials)."""
    xp = array_namespace(uniforms, cells.shares)
    which, first, second = uniforms[0], uniforms[1], uniforms[2]
    # By the prior; then others take their shares of `which`.
    u, v = xp.log(first / (1 - first)), xp.log(second / (1 - second))
    at = _bisected(cells.until, first)
    over = xp.take_along_axis(cells.until, at, 0)
    inside = 1 - (over - first) / xp.maximum(xp.take_along_axis(cells.shares, at, 0), 1e-30)
    low_u, low_v = _corner(at, first)
    begin = _PRIOR + _GRID
    by_grid = which < begin
    u = xp.where(by_grid & (which > _PRIOR), low_u + _WIDTH * second, u)
    v = xp.where(by_grid & (which > _PRIOR), low_v + _WIDTH * xp.clip(inside, 0, 1), v)
    # t with 4 degrees of freedom: the radius by its inverse.
    far = 2 * xp.sqrt(xp.maximum(1 / xp.sqrt(first) - 1, 0))
    angle = 2 * math.pi * second
    along, across = far * xp.cos(angle), far * xp.sin(angle)
    for share, normal in normals:
        dv = across / normal.vv
        du = (along - normal.uv * dv) / normal.uu
        here = which >= begin
        u, v = xp.where(here, normal.u + du, u), xp.where(here, normal.v + dv, v)
        begin = begin + share
    return xp.clip(u, -_FARTHEST, _FARTHEST), xp.clip(v, -_FARTHEST, _FARTHEST)


def _bisected(until: Array, chance: Array) -> Array:
    """The first cell up to which the shares exceed a chance, (places, n, trials)."""
    xp = array_namespace(until, chance)
    low = xp.zeros(chance.shape, np.int32)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) // 2
        above = xp.take_along_axis(until, middle, 0) > chance
        return xp.where(above, low, middle + 1), xp.where(above, middle, high)

    turns = math.ceil(math.log2(len(until)))
    low, _ = repeat(turns, halve, (low, xp.full_like(low, len(until) - 1)))
    return xp.minimum(low, len(until) - 1)


def _log_density(normals: list[tuple[Array, _Normal]], cells: _Cells, u: Array, v: Array) -> Array:
    """Of all distributions that places come from, with respect to (u, v)."""
    xp = array_namespace(u, cells.shares)
    inside = (abs(u) < _EDGE) & (abs(v) < _EDGE)
    row, column = (xp.clip((x + _EDGE) // _WIDTH, 0, _CELLS - 1) for x in (u, v))
    cell = (row * _CELLS + column).astype(np.int32)
    density = xp.where(inside, xp.take_along_axis(cells.shares, cell, 0), 0) * (_GRID / _WIDTH**2)
    density = density + _PRIOR * _sigmoid(u) * _sigmoid(-u) * _sigmoid(v) * _sigmoid(-v)
    for share, normal in normals:
        z, h = _standard(normal, u, v)
        bell = (1 + (z * z + h * h) / _FREEDOM) ** -(_FREEDOM / 2 + 1)
        density = density + share * normal.uu * normal.vv / (2 * math.pi) * bell
    return xp.log(xp.maximum(density, 1e-30))
