"""An agent's local draw of its channels, from its own counts and posterior summaries of others.

The server sends every agent a few *posterior summaries* of each arm: mean and covariance of the log
odds (u, v) of (p01, p11) under the posterior of a sum of counts. The agent's prior of its arm is a
robust mixture,

    (1 - w) x equal mixture of the normal summaries + w x Beta(a, b) of p01 and of p11

with w the weight of the vague component, uniform for a = b = 1. Where the agent's counts agree with
the others' it uses both, and where they do not it soon learns from its own counts only. The
posterior weight of the summaries is the *borrowing weight*.

A draw is the last state of a Metropolis chain in log odds, for all arms at once. Proposals come
from t distributions around the modes of the agent's own posterior, around each summary and around
the product of both, from the cells of a grid by the own posterior's height there, and from the
prior; the density of a proposal is that of the whole mixture.

Modes are sought from three points: where p11 > p01, where p11 < p01, and at the mirror image of the
latter. Two slots after 1 p11 and p01 - p11 do equally well, two slots after 0 p00 and p10 - p00;
a grid is too coarse to decide between them where pairs are many.

Written for NumPy and JAX arrays alike: agents have no JAX, and the engine has many agents. Counts
are in the order of `rmab.learning.evidence`, arrays end in (n, trials).

Reference: H. Schmidli et al., "Robust meta-analytic-predictive priors in clinical trials with
historical control information", Biometrics 70, 2014.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.learning.channel.log_odds import (
    FARTHEST,
    Observations,
    exact_product,
    fisher_step,
    log_likelihood,
    log_odds_channel,
    log_odds_score,
    log_probabilities,
    observe,
)
from rmab.learning.channel.metropolis import chain_end, t2_density, t2_radius
from rmab.linalg import Array, array_namespace, compute_once, repeat, sigmoid

__all__ = [
    "LEAST_BORROWING",
    "PROPOSALS",
    "UNIFORMS",
    "VAGUE_WEIGHT",
    "LocalDraw",
    "PosteriorSummaries",
    "draw_local",
]

VAGUE_WEIGHT = 0.1  # weight of the vague component in an agent's mixture prior
LEAST_BORROWING = 0.01  # borrowing weight below which an arm differs from the others'
PROPOSALS = 48  # proposals of a chain
UNIFORMS = 4  # uniform numbers of a proposal

_EDGE, _CELLS = 6.0, 24  # the grid: log odds from -_EDGE to _EDGE in _CELLS cells, both ways
_WIDTH = 2 * _EDGE / _CELLS
_TURNS, _MAX_STEP, _SHORTER = 10, 2.0, 0.8  # of Fisher scoring, in log odds
_LEAST_PRECISION = 0.05  # precision of a proposal where the agent has no counts
_FREEDOM = 4  # degrees of freedom of the t distributions
# Shares of the proposals by kind; all summaries together have _PRODUCT and _SUMMARY.
_MODE, _PRODUCT, _SUMMARY, _GRID, _PRIOR = 0.35, 0.3, 0.1, 0.2, 0.05
_LEAST_SHARE = 0.05  # least share of each of three modes; the rest is by Laplace's method


class PosteriorSummaries(NamedTuple):
    """Normal summaries of J posteriors of the log odds (u, v) of (p01, p11), from the server.

    mean: (J, 2, n, trials); covariance: (J, 3, n, trials), uu, uv, vv.
    """

    mean: Array
    covariance: Array


class LocalDraw(NamedTuple):
    """A draw of p01 and p11, and the borrowing weight, (n, trials) each."""

    p01: Array
    p11: Array
    borrowing: Array


class _Normal(NamedTuple):
    """Mean, and Cholesky factor of the precision; modes are (3, n, trials) each."""

    u: Array
    v: Array
    uu: Array
    uv: Array
    vv: Array


def draw_local(
    counts: Array,
    summaries: PosteriorSummaries | None,
    uniforms: Array,
    *,
    prior: tuple[float, float] = (1.0, 1.0),
    doubt: float = VAGUE_WEIGHT,
) -> LocalDraw:
    """Draw every channel of an agent.

    Parameters
    ----------
    counts
        The agent's own, (G + 1, 2, 2, n, trials), the last class further apart than G slots.
    summaries
        None without any: the prior is then the Beta distribution.
    uniforms
        (UNIFORMS, proposals, n, trials) on (0, 1).
    prior
        (a, b) of Beta(a, b), for p01 and for p11.
    doubt
        w, the weight of the vague component, above 0 and at most 1.
    """
    xp = array_namespace(counts, uniforms)
    before = np.array([[prior[1], prior[0]]] * 2, np.float32)[None, :, :, None, None]
    first = np.zeros((len(counts), 1, 1, 1, 1), np.float32)
    first[0] = 1
    observed = observe(xp.asarray(counts, uniforms.dtype) + first * before)
    cells = _cells(observed.counts)
    normals = _normals(observed, _modes(observed, *_starts(observed, cells)), summaries)
    u, v = (compute_once(x) for x in _proposals(normals, cells, uniforms))
    own = log_likelihood(observed, log_odds_channel(u, v))
    informative, vague = _mixture_prior(summaries, u, v, prior, doubt)
    height = own + xp.logaddexp(informative, vague)
    weight = compute_once(height - _log_density(normals, cells, u, v))
    share = xp.exp(weight - weight.max(0))
    informed = 1 / (1 + xp.exp(xp.clip(vague - informative, -60, 60)))
    borrowing = (share * informed).sum(0) / share.sum(0)
    u, v = chain_end((u, v), weight, xp.log(uniforms[3]))
    return LocalDraw(sigmoid(u), sigmoid(v), borrowing)


def _modes(observed: Observations, u: Array, v: Array) -> _Normal:
    """Return the modes near starts by Fisher scoring, and the information there."""

    def turn(number: Any, at: tuple[Array, ...]) -> tuple[Array, ...]:
        return fisher_step(observed, at[0], at[1], _MAX_STEP * _SHORTER**number)[:2]

    u, v = repeat(_TURNS, turn, (u, v))
    uu, uv, vv = log_odds_score(observed, u, v)[2:]
    return _factored(u, v, uu + _LEAST_PRECISION, uv, vv + _LEAST_PRECISION)


def _mixture_prior(
    summaries: PosteriorSummaries | None,
    u: Array,
    v: Array,
    prior: tuple[float, float],
    doubt: float,
) -> tuple[Array, Array]:
    """Return the logs of the informative and the vague component over the Beta density."""
    xp = array_namespace(u)
    vague = xp.full_like(u, math.log(doubt))
    if summaries is None:
        return xp.full_like(u, -1e30), xp.zeros_like(u)
    a, b = prior
    norm = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    up, down = (-xp.logaddexp(0, -x) for x in (u, v)), (-xp.logaddexp(0, x) for x in (u, v))
    density = 2 * norm + a * sum(up) + b * sum(down)
    logs = []
    for normal in _normals_of(summaries):
        z, h = _standard(normal, u, v)
        logs.append(xp.log(normal.uu * normal.vv / (2 * math.pi)) - (z * z + h * h) / 2)
    mixture = reduce(xp.logaddexp, logs)
    share = math.log(max(1 - doubt, 1e-30) / len(logs))
    return share + mixture - density, vague


# ------------------------------------------------------------------------------- proposals


class _Cells(NamedTuple):
    """The agent's own posterior on the grid, (cells, n, trials)."""

    logs: Array  # log heights
    shares: Array
    until: Array  # cumulative shares


@lru_cache(maxsize=8)
def _grid(kinds: int) -> npt.NDArray[np.float64]:
    """Return log probabilities at the middles of cells, (cells, 4 kinds) in the order of counts."""
    middle = (np.arange(_CELLS) + 0.5) * _WIDTH - _EDGE
    u, v = (x.ravel() for x in np.meshgrid(middle, middle, indexing="ij"))
    return log_probabilities(log_odds_channel(u, v), kinds).reshape(_CELLS**2, -1)


def _cells(counts: Array) -> _Cells:
    xp = array_namespace(counts)
    kinds, shape = len(counts), counts.shape[3:]
    logs = exact_product(_grid(kinds), counts.reshape(4 * kinds, -1))
    heights = xp.exp(logs - logs.max(0)).reshape(_CELLS**2, *shape)
    shares = compute_once(heights / heights.sum(0))
    return _Cells(logs.reshape(heights.shape), shares, compute_once(xp.cumsum(shares, axis=0)))


def _corner(cell: Array, like: Array) -> tuple[Array, Array]:
    """Return the least u and v of a cell, in the precision of another array."""
    row, column = (cell // _CELLS).astype(like.dtype), (cell % _CELLS).astype(like.dtype)
    return row * _WIDTH - _EDGE, column * _WIDTH - _EDGE


def _starts(observed: Observations, cells: _Cells) -> tuple[Array, Array]:
    """Return the points from which modes are sought, (3, n, trials)."""
    xp = array_namespace(cells.logs)
    row, column = np.indices((_CELLS, _CELLS)).reshape(2, -1, 1, 1)
    zones = column >= row, column < row
    best = xp.stack([xp.where(zone, cells.logs, -np.inf).argmax(0) for zone in zones])
    u, v = (corner + _WIDTH / 2 for corner in _corner(best, cells.shares))
    p01, p11 = sigmoid(u[1]), sigmoid(v[1])
    # Half a cell is left at the edges: a start has to have log odds.
    mirrored = xp.clip(xp.stack([p01 - p11, 1 + p11 - p01]), sigmoid(-_EDGE), sigmoid(_EDGE))
    odds = xp.log(mirrored / (1 - mirrored))
    u2, v2 = xp.stack([u[1], odds[1]]), xp.stack([odds[0], v[1]])
    height = log_likelihood(observed, log_odds_channel(u2, v2))
    first = height[0] > height[1]
    other = (xp.where(first, x[0], x[1])[None] for x in (u2, v2))
    return tuple(xp.concatenate(x) for x in zip((u, v), other, strict=True))


def _normals_of(summaries: PosteriorSummaries) -> list[_Normal]:
    xp = array_namespace(summaries.mean)
    normals = []
    for (u, v), (uu, uv, vv) in zip(summaries.mean, summaries.covariance, strict=True):
        spread = xp.maximum(uu * vv - uv * uv, 1e-9 * uu * vv)
        normals.append(_factored(u, v, vv / spread, -uv / spread, uu / spread))
    return normals


def _factored(u: Array, v: Array, uu: Array, uv: Array, vv: Array) -> _Normal:
    """Return a normal distribution by its precision."""
    xp = array_namespace(u, uu)
    first = xp.sqrt(xp.maximum(uu, 1e-12))
    mixed = uv / first
    second = xp.sqrt(xp.maximum(vv - mixed * mixed, 1e-6 * vv + 1e-12))
    return _Normal(u, v, first, mixed, second)


def _normals(
    observed: Observations, modes: _Normal, summaries: PosteriorSummaries | None
) -> list[tuple[Array, _Normal]]:
    """Return the normal shapes that proposals are drawn around, each with its share."""
    xp = array_namespace(modes.u)
    channel = log_odds_channel(modes.u, modes.v)
    height = log_likelihood(observed, channel) - xp.log(modes.uu * modes.vv)
    share = xp.exp(height - height.max(0))
    share = _LEAST_SHARE + (1 - 3 * _LEAST_SHARE) * share / share.sum(0)
    each = [_Normal(*(x[number] for x in modes)) for number in range(3)]
    all_own = _MODE if summaries is not None else _MODE + _PRODUCT + _SUMMARY
    shapes = [(all_own * share[number], mode) for number, mode in enumerate(each)]
    if summaries is None:
        return shapes
    others = _normals_of(summaries)
    for other in others:
        both, overlap = zip(*(_product(mode, other) for mode in each), strict=True)
        best = (height + xp.stack(overlap)).argmax(0)
        chosen = (
            xp.where(best == 0, a, xp.where(best == 1, b, c)) for a, b, c in zip(*both, strict=True)
        )
        shapes += [(_PRODUCT / len(others), _Normal(*chosen)), (_SUMMARY / len(others), other)]
    return shapes


def _product(one: _Normal, other: _Normal) -> tuple[_Normal, Array]:
    """Return the product of two normal densities, and the log of its height, up to a constant,
    where both are 1 at their means."""
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
    """Return points as numbers of a standard normal distribution."""
    du, dv = u - normal.u, v - normal.v
    return normal.uu * du + normal.uv * dv, normal.vv * dv


def _proposals(
    normals: list[tuple[Array, _Normal]], cells: _Cells, uniforms: Array
) -> tuple[Array, Array]:
    """Return u and v of the proposals, (proposals, n, trials)."""
    xp = array_namespace(uniforms, cells.shares)
    which, first, second = uniforms[0], uniforms[1], uniforms[2]
    # From the prior; then others take their shares of `which`.
    u, v = xp.log(first / (1 - first)), xp.log(second / (1 - second))
    at = _bisected(cells.until, first)
    over = xp.take_along_axis(cells.until, at, 0)
    inside = 1 - (over - first) / xp.maximum(xp.take_along_axis(cells.shares, at, 0), 1e-30)
    low_u, low_v = _corner(at, first)
    begin = _PRIOR + _GRID
    by_grid = which < begin
    u = xp.where(by_grid & (which > _PRIOR), low_u + _WIDTH * second, u)
    v = xp.where(by_grid & (which > _PRIOR), low_v + _WIDTH * xp.clip(inside, 0, 1), v)
    far = t2_radius(first, _FREEDOM)
    angle = 2 * math.pi * second
    along, across = far * xp.cos(angle), far * xp.sin(angle)
    for share, normal in normals:
        dv = across / normal.vv
        du = (along - normal.uv * dv) / normal.uu
        here = which >= begin
        u, v = xp.where(here, normal.u + du, u), xp.where(here, normal.v + dv, v)
        begin = begin + share
    return xp.clip(u, -FARTHEST, FARTHEST), xp.clip(v, -FARTHEST, FARTHEST)


def _bisected(until: Array, chance: Array) -> Array:
    """Return the first cell up to which the shares exceed a number, (proposals, n, trials)."""
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
    """Return the log density of proposals along (u, v)."""
    xp = array_namespace(u, cells.shares)
    inside = (abs(u) < _EDGE) & (abs(v) < _EDGE)
    row, column = (xp.clip((x + _EDGE) // _WIDTH, 0, _CELLS - 1) for x in (u, v))
    cell = (row * _CELLS + column).astype(np.int32)
    density = xp.where(inside, xp.take_along_axis(cells.shares, cell, 0), 0) * (_GRID / _WIDTH**2)
    density = density + _PRIOR * sigmoid(u) * sigmoid(-u) * sigmoid(v) * sigmoid(-v)
    for share, normal in normals:
        z, h = _standard(normal, u, v)
        density = density + share * normal.uu * normal.vv * t2_density(z, h, _FREEDOM)
    return xp.log(xp.maximum(density, 1e-30))
