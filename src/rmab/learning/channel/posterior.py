"""Draws of a channel's (p01, p11) given observations that lie any number of slots apart.

The likelihood of a pair is a g-step transition probability, see `log_odds`. The posterior of p01
and p11 then can take many shapes: the product of two Betas (consecutive observations alone), two
modes or more (even gaps do not distinguish m from -m; observations one slot after 0 and two slots
after 1 do not distinguish p11 from p01 - p11), a thin curve where b0 is known and m is not (long
gaps). In the systems of `coordinates` it is nearly normal around a mode.

In each of RISING, STEEP and FALLING a mode is found by Fisher scoring, from the best of a fixed set
of points; where there may be two modes of m < 0, from the points of `memory_grid`. A point, here a
*place*, is proposed from one of two distributions, its *law*:

    near    a bivariate t around one of the modes, each about as often as its share of the posterior
            is by Laplace's method;
    along   m from the distribution over the cells of `memory_grid`, x along the ridge: roughly the
            posterior itself where that is a thin curve, a plateau, or cut off by an edge.

A Metropolis chain goes from place to place with probability min(1, w(new) / w(now)), w = posterior
/ density of both laws together: the same channel may come from either. Places do not depend on the
chain (`metropolis`), and nothing is kept from one draw to the next.

The chain is short, so it matters where it begins. If the law of its beginning is nowhere more than
c times the posterior, no set of channels is ever drawn more than c times as often as it should be:
a step leaves the posterior as it is, and a bound as well. So a chain begins in a normal law around
a mode, and each mode has exactly its share by Laplace's method. The laws of later places have long
tails and no mode less than a least share, so that the chain finds what the beginning leaves out.

Reference: T. Hesterberg, "Weighted average importance sampling and defensive mixture
distributions", Technometrics 37, 1995.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.nn import sigmoid, softmax
from jax.scipy.special import digamma, polygamma

from rmab.learning.channel.coordinates import (
    FALLING,
    RISING,
    STEEP,
    channel_at,
    places,
    slopes,
)
from rmab.learning.channel.log_odds import Channel, Observations, log_likelihood, score
from rmab.learning.channel.memory_grid import Cells, cells, memory_density, pick_memory, ridge
from rmab.learning.channel.metropolis import chain_end, t2_density, t2_radius, t_density
from rmab.learning.channel.sums import BetaPrior, summed
from rmab.linalg import compute_in_branch
from rmab.rng.variates import Draws, Numbers

__all__ = ["draw_channels", "log_odds_moments", "mean_channels"]

_ALONG = 3  # the law beside those around the modes of three systems
_SYSTEMS = np.array([RISING, STEEP, FALLING])[:, None, None]
_MAX_COORDINATE = 30.0  # e^-60 and its inverse are numbers of single precision
_BLOCK = 64  # channels that are drawn at once on a CPU
_NEVER = -1e30  # the log of a weight that is never taken


@dataclass(frozen=True)
class _Tuning:
    """Constants chosen by trial, for calibrated draws at little cost."""

    places: int = 11  # The chain visits this many places, its beginning among them.
    min_prior: float = 0.1  # A prior below 1, taken as at least this, has 1 / prior times as many.
    wide: float = 0.25  # The law `along` proposes this share of the places.
    wider: float = 0.5  # The law `along` proposes this share where modes may mislead.
    several_pairs: float = 100.0  # Modes may mislead beyond this many pairs, if few are direct.
    direct_share: float = 0.05  # Few pairs are direct (one slot apart) below this share of them.
    even_pairs: float = 20.0  # There may be two modes of m < 0 beyond this many pairs at even gaps.
    concentration: float = 0.5  # No mode misleads where squared shares of cells sum up to this.
    mode: float = 0.08  # The law `near` gives each mode this share or more.
    freedom: int = 4  # The t laws have this many degrees of freedom.
    low_prior_freedom: int = 1  # The t laws have this many under a prior below 1.
    nodes: int = 48  # A mean is taken over this many places for each mode.
    law_nodes: int = 192  # The same of a covariance, of which the tails are a part.
    turns: int = 5  # Fisher scoring takes this many turns.
    more_turns: int = 8  # Fisher scoring takes this many turns more for many pairs.
    many_pairs: float = 5000.0  # Pairs are many beyond this number.
    max_step: float = 3.0  # A turn goes no further than this in a coordinate.
    most_bent: float = 4.0  # A step is shortened by at most this factor where it would overshoot.


_TUNING = _Tuning()


class _Fit(NamedTuple):
    """Normal approximation: its mode and the Cholesky factor of its precision."""

    x: Array
    y: Array
    xx: Array
    xy: Array
    yy: Array


class _Tails(NamedTuple):
    """Lengths of tails, relative to a uniform prior's."""

    x: Array  # (2, n, trials), for m > 0 and for m < 0
    memory: Array | None  # (n, trials); None: all 1


class _Laws(NamedTuple):
    """Shares of the laws, and the degrees of freedom of t distributions."""

    along: Array  # (n, trials)
    modes: Array  # (3, n, trials), of each mode in `near`
    begins: Array  # (3, n, trials), of each mode where a chain begins
    freedom: int


class _Posterior(NamedTuple):
    """Approximation of the posterior, from which places are drawn; fits are (3, n, trials)."""

    observed: Observations
    fit: _Fit
    cells: Array
    tails: _Tails
    laws: _Laws


class _Numbers(NamedTuple):
    """Random numbers of a place, (places, n, trials) or (places, 1, 1)."""

    cell: Array  # uniform, as angle and depth are
    far: Array  # from the middle of a law, in its units
    angle: Array
    depth: Array


def draw_channels(counts: Array, prior: BetaPrior, draws: Draws) -> tuple[Array, Array]:
    """Draw (p01, p11), each (n, trials), from the posterior given observations at any gaps.

    counts: (G + 1, 2, 2, n, trials), the last class further apart; prior: Beta(a, b) of both.
    """
    size = math.ceil(_TUNING.places / max(_TUNING.min_prior, min(1.0, *prior)))
    lead = (size, *counts.shape[3:-1])
    # One by one: in one piece they would be computed anew wherever they are used.
    uniforms = jnp.stack([draws.uniform(*lead) for _ in range(5)])
    if jax.default_backend() != "cpu":  # an accelerator takes as long for many gaps as for few
        return _drawn(counts, prior, uniforms)
    return _drawn_in_blocks(counts, prior, uniforms, draws.wanted)


def _drawn_in_blocks(
    counts: Array, prior: BetaPrior, uniforms: Array, wanted: Array
) -> tuple[Array, Array]:
    """Draw as `_drawn` does, block by block. A likelihood costs as much as the largest gap,
    so channels are sorted by it; channels that are not wanted come first and are left out."""
    shape = counts.shape[3:]
    size = math.prod(shape)
    counts, uniforms = counts.reshape(-1, 4, size), uniforms.reshape(*uniforms.shape[:2], size)
    gaps = np.arange(len(counts) - 1)[:, None]
    largest = jnp.where(counts[:-1].max(1) > 0, gaps, 0).max(0)
    largest = jnp.where(jnp.broadcast_to(wanted, shape).reshape(-1), largest, -1)
    order = largest.argsort()
    beyond = -size % _BLOCK
    padded = jnp.concatenate([jnp.broadcast_to(order[:1], beyond), order])

    def draw(these: Array) -> tuple[Array, Array]:
        some = counts[..., these].reshape(-1, 2, 2, 1, _BLOCK)
        return _drawn(some, prior, uniforms[..., None, these])

    def leave(_: Array) -> tuple[Array, Array]:
        return jnp.zeros((1, _BLOCK)), jnp.zeros((1, _BLOCK))

    def block(these: Array) -> tuple[Array, Array]:
        found: tuple[Array, Array] = lax.cond(largest[these].max() >= 0, draw, leave, these)
        return found

    found = lax.map(block, padded.reshape(-1, _BLOCK))
    p01, p11 = (jnp.zeros(size).at[order].set(x.reshape(-1)[beyond:]).reshape(shape) for x in found)
    return p01, p11


def _drawn(counts: Array, prior: BetaPrior, uniforms: Array) -> tuple[Array, Array]:
    """Return p01 and p11; uniforms: (5, places, n, trials)."""
    posterior = _approximated(counts, prior)
    share, modes, begins, freedom = posterior.laws
    which, radius, angle, depth, luck = uniforms
    first = which[:1]
    along = which[1:] < share
    which = jnp.where(along, which[1:] / share, (which[1:] - share) / (1 - share))
    law = jnp.where(along, _ALONG, _near(which, modes))
    law, which = (jnp.concatenate(x) for x in ((_near(first, begins), law), (first, which)))
    far = jnp.concatenate([jnp.sqrt(-2 * jnp.log(radius[:1])), t2_radius(radius[1:], freedom)])
    drawn = law, which, far, angle, depth, jnp.log(luck)
    law, *stored, luck = _computed_once(posterior.observed, *drawn)
    channel, weight = _proposed(posterior, law, _Numbers(*stored))
    p01, p11 = jnp.minimum(channel.p01, 1), jnp.minimum(channel.p11, 1)  # sums are rounded
    up, stay = chain_end((p01, p11), weight, luck)
    return up, stay


def _near(which: Array, shares: Array) -> Array:
    """Return systems by their shares, (3, n, trials); which: uniform numbers."""
    falling = jnp.where(which < 1 - shares[FALLING], STEEP, FALLING)
    return jnp.where(which < shares[RISING], RISING, falling)


def mean_channels(counts: Array, prior: BetaPrior) -> tuple[Array, Array]:
    """Return the posterior means of p01 and p11, each (n, trials)."""
    channel, share = _spread_evenly(counts, prior, _TUNING.nodes)
    up, stay = ((p * share).sum(0) for p in (channel.p01, channel.p11))
    return jnp.minimum(up, 1), jnp.minimum(stay, 1)  # sums are rounded


def log_odds_moments(counts: Array, prior: BetaPrior, gaps: int) -> tuple[Array, Array]:
    """Return mean (2, n, trials) and covariance (3, n, trials), uu, uv, vv, of the posterior's log
    odds (u, v) of p01 and p11.

    gaps: 0 for pairs one slot apart only, from which each has a Beta distribution.
    """
    if not gaps:
        a, b = prior[0] + counts[0, :, 1], prior[1] + counts[0, :, 0]
        apart = polygamma(1, a) + polygamma(1, b)
        zero = jnp.zeros_like(apart[0])
        return digamma(a) - digamma(b), jnp.stack([apart[0], zero, apart[1]])
    channel, share = _spread_evenly(counts, prior, _TUNING.law_nodes)
    odds = jnp.stack([channel.p01 / channel.p00, channel.p11 / channel.p10])
    odds = jnp.log(jnp.clip(odds, 1e-12, 1e12))
    mean = (odds * share).sum(1)
    u, v = odds - mean[:, None]
    return mean, jnp.stack([(each * share).sum(0) for each in (u * u, u * v, v * v)])


def _spread_evenly(counts: Array, prior: BetaPrior, nodes: int) -> tuple[Channel, Array]:
    """Return channels, (3 nodes, n, trials) each, and their shares of the posterior, by importance
    sampling: the proposals are those of a draw, at places spread evenly instead of at random."""
    node = np.arange(3 * nodes) + 0.5
    steps = (math.sqrt(5) - 1) / 2, math.sqrt(2) - 1, math.sqrt(3) - 1
    even = [node / node.size, *(node * step % 1 for step in steps)]
    radius, angle, depth, which = (jnp.asarray(x[:, None, None], jnp.float32) for x in even)
    turn = np.arange(node.size)[:, None, None]
    law = np.where(turn % 4 == 0, _ALONG, turn % 3)
    posterior = _approximated(counts, prior)
    along, modes = jnp.float32(1 / 4), jnp.full((3, 1, 1), 1 / 3)  # those of `law`
    laws = posterior.laws._replace(along=along, modes=modes)
    numbers = _Numbers(which, t2_radius(radius, laws.freedom), angle, depth)
    channel, weight = _proposed(posterior._replace(laws=laws), law, numbers)
    weight = jnp.exp(weight - weight.max(0))
    return channel, weight / weight.sum(0)


def _approximated(counts: Array, prior: BetaPrior) -> _Posterior:
    observed, x, y = summed(jnp.asarray(counts, jnp.float32), prior)
    by, totals = observed.exponents, observed.totals
    low_prior = min(prior) < 1
    two_modes = jnp.maximum(totals.even0, totals.even1) > _TUNING.even_pairs
    along = cells(observed)
    weight = min(prior[0], 1) + min(prior[1], 1)
    fit = _fit(observed, weight, *_starts(along, two_modes, x, y))
    # The posterior has tails like those of p01^rises and p10^falls, p00^stays0 and p11^stays1.
    fewest = jnp.minimum(by.rises, by.falls), jnp.minimum(by.stays0, by.stays1)
    tails = jnp.maximum(1, 1 / (1 + jnp.stack(fewest)))
    few = totals.direct0 + totals.direct1 < _TUNING.direct_share * totals.pairs
    few = ((totals.pairs > _TUNING.several_pairs) & few) | two_modes
    longer = min(prior) < 0.5
    misled = low_prior | (few & (along.concentration < _TUNING.concentration))
    shares = _mode_shares(observed, fit)
    return _Posterior(
        observed=observed,
        fit=fit,
        cells=along.shares,
        tails=_Tails(tails, jnp.maximum(1, tails.max(0) / 2) if longer else None),
        laws=_Laws(
            along=jnp.where(misled, _TUNING.wider, _TUNING.wide),
            modes=_TUNING.mode + (1 - 3 * _TUNING.mode) * shares,
            begins=shares,
            freedom=_TUNING.low_prior_freedom if low_prior else _TUNING.freedom,
        ),
    )


def _starts(along: Cells, two_modes: Array, x: Array, y: Array) -> tuple[Array, Array]:
    """Return starts of fits: in STEEP and FALLING where estimates agree, if two modes may exist.

    Where observations come an odd number of slots after 0 and an even number after 1, p01 - p11
    does about as well as p11, m < 0, and a fit may be drawn to the worse of the two.
    """
    b0, memory, found = along.agreement
    p01, p10 = b0 * (1 - memory), (1 - b0) * (1 - memory)
    _, steep, falling = places(Channel(p01, 1 - p01, 1 - p10, p10, memory))
    far, near = two_modes & found
    x = jnp.stack([x[0], jnp.where(far, steep.x[0], x[1]), jnp.where(near, falling.x[1], x[2])])
    y = jnp.stack([y[0], jnp.where(far, steep.y[0], y[1]), jnp.where(near, falling.y[1], y[2])])
    return x, y


def _fit(observed: Observations, weight: float, x: Array, y: Array) -> _Fit:
    """Return the modes in three systems and the precisions there, (3, n, trials), from a start.

    weight: the prior's numbers up to 1, summed. Where the posterior bends more than expected
    information says, as where no channel fits well, whole steps may go back and forth for ever: a
    step is as long as the change of the one before says that it should be, and no longer.
    """

    def turn(state: tuple[Array, ...]) -> tuple[Array, ...]:
        """state: the fit, and of the turn before where the whole step led and what was done."""
        x, y, *_, wished_x, wished_y, went_x, went_y = state
        by_b0, by_m, bb, bm, mm = score(observed, channel_at(_SYSTEMS, x, y))
        bx, by, mx, my, jx, jy = slopes(_SYSTEMS, x, y)
        share, one = sigmoid(x), sigmoid(y)
        gx, gy = by_b0 * bx + by_m * mx, by_b0 * by + by_m * my
        xx = bb * bx * bx + 2 * bm * bx * mx + mm * mx * mx + weight * share * (1 - share)
        yy = bb * by * by + 2 * bm * by * my + mm * my * my + (1 + weight) * one * (1 - one)
        cross = bb * bx * by + bm * (bx * my + by * mx) + mm * mx * my
        # Where the data pull over an edge, S(x) bends more than expected information says.
        known = cross * cross / yy
        xx = known + jnp.maximum(xx - known, gx * (2 * share - 1))
        first = jnp.sqrt(xx)
        mixed = cross / first
        yy = jnp.maximum(yy - mixed * mixed, gy * (2 * one - 1))
        second = jnp.sqrt(jnp.maximum(yy, 1e-6 * mixed * mixed))
        gx, gy = gx + jx, gy + jy
        dy = (gy - mixed * gx / first) / (second * second)
        dx = (gx / first - mixed * dy) / first
        far = jnp.maximum(jnp.maximum(abs(dx), abs(dy)), 1e-6)
        scale, edge = jnp.minimum(1, _TUNING.max_step / far), _MAX_COORDINATE / 2
        change = (wished_x - dx) * went_x + (wished_y - dy) * went_y
        bend = change / jnp.maximum(went_x * went_x + went_y * went_y, 1e-12)
        scale = scale / jnp.clip(bend, 1, _TUNING.most_bent)
        xs, ys = (jnp.clip(v + scale * d, -edge, edge) for v, d in ((x, dx), (y, dy)))
        return xs, ys, first, mixed, second, dx, dy, xs - x, ys - y

    many = observed.totals.pairs > _TUNING.many_pairs

    def one_more(number: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        goes_on = (number < _TUNING.turns) | many
        return tuple(jnp.where(goes_on, *both) for both in zip(turn(state), state, strict=True))

    turns = _TUNING.turns + jnp.where(many.any(), _TUNING.more_turns, 0)
    none = jnp.zeros_like(x)
    found = lax.fori_loop(0, turns, one_more, (x, y, x, y, x, none, none, none, none))
    return _Fit(*found[:5])


def _mode_shares(observed: Observations, fit: _Fit) -> Array:
    """Return the shares of the modes in the posterior, (3, n, trials), by Laplace's method."""
    channel = channel_at(_SYSTEMS, fit.x, fit.y)
    spreads = [place.log_jacobian[system] for system, place in enumerate(places(channel))]
    height = log_likelihood(observed, channel) + jnp.stack(spreads)
    height = height - jnp.log(fit.xx) - jnp.log(fit.yy)
    height = jnp.where(height > _NEVER, height, _NEVER)
    return softmax(height, 0)


def _proposed(posterior: _Posterior, law: Numbers, numbers: _Numbers) -> tuple[Channel, Array]:
    """Return channels and the log of posterior / density, each (places, n, trials).

    law: that of each place, a system's number for the mode in it, or _ALONG.
    """
    observed = posterior.observed

    def of_mode(value: Array) -> Array:
        return jnp.where(law == RISING, value[0], jnp.where(law == STEEP, value[1], value[2]))

    mode = _Fit(*(of_mode(value) for value in posterior.fit))
    far = numbers.far
    along, across = _direction(numbers.angle)
    y = mode.y + far * across / mode.yy
    x = mode.x + (far * along - mode.xy * (y - mode.y)) / mode.xx
    by_ridge = law == _ALONG
    place = pick_memory(posterior.cells, posterior.tails.memory, numbers.cell, numbers.depth)
    (place,) = _computed_once(observed, place)
    level = 2 * jnp.log(jnp.abs(place) / (1 - jnp.abs(place)))  # the log odds of |m|
    y = jnp.where(by_ridge, jnp.where(place > 0, level, -level), y)
    system = jnp.where(by_ridge, jnp.where(place > 0, RISING, STEEP), law)
    x, y = (jnp.clip(v, -_MAX_COORDINATE, _MAX_COORDINATE) for v in (x, y))
    memory = channel_at(system, x, y).memory
    system, memory, x, y = _computed_once(observed, system, memory, x, y)
    tails = jnp.where(memory > 0, posterior.tails.x[0], posterior.tails.x[1])
    middle, spread = ridge(observed, memory, tails)
    on_ridge = jnp.clip(middle + spread * far * along, -_MAX_COORDINATE, _MAX_COORDINATE)
    x = jnp.where(by_ridge, on_ridge, x)
    x, middle, spread = _computed_once(observed, x, middle, spread)
    channel = channel_at(system, x, y)
    weight = log_likelihood(observed, channel) - _log_density(posterior, channel, middle, spread)
    # Where rounding took off more than is allowed for, far from the modes, there is no number.
    return channel, jnp.where((weight > _NEVER) & (weight < -_NEVER), weight, _NEVER)


def _log_density(posterior: _Posterior, channel: Channel, middle: Array, spread: Array) -> Array:
    """Return the log density of proposals along p01 and p11; middle, spread: x on the ridge."""
    fit, laws = posterior.fit, posterior.laws
    systems = places(channel)
    near = []
    for system, (x, y, _) in enumerate(systems):
        dx, dy = x - fit.x[system], y - fit.y[system]
        z, h = fit.xx[system] * dx + fit.xy[system] * dy, fit.yy[system] * dy
        height = laws.modes[system] * fit.xx[system] * fit.yy[system]
        near.append((1 - laws.along) * height * t2_density(z, h, laws.freedom))
    up = channel.memory > 0
    x = jnp.where(up, systems[RISING].x, systems[STEEP].x)
    level = jnp.where(up, systems[RISING].y, -systems[STEEP].y) / 2
    size, rest = sigmoid(level), sigmoid(-level)
    level = memory_density(posterior.cells, posterior.tails.memory, size, rest, up)
    (level,) = _computed_once(posterior.observed, level)
    level = level * size * rest / 2  # with respect to y
    along = laws.along * t_density(x - middle, spread, laws.freedom) * level
    jacobian = [place.log_jacobian for place in systems]
    relative = jnp.exp(jnp.clip(jacobian[FALLING] - jacobian[STEEP], -80, 80))
    falling = near[FALLING] + (near[STEEP] + along) * relative
    density = jnp.log(jnp.where(up, near[RISING] + along, falling))
    return density - jnp.where(up, jacobian[RISING], jacobian[FALLING])


def _computed_once(observed: Observations, *values: Array) -> tuple[Array, ...]:
    """Return the values, each computed once: XLA would compute them anew for every use."""
    holds = observed.totals.pairs.max() >= 0
    stored: tuple[Array, ...] = compute_in_branch(holds, lambda *values: values, *values)
    return stored


def _direction(angle: Array) -> tuple[Array, Array]:
    """Return cos and sin of 2 pi angle, by Taylor's series to 1e-5; XLA's own do not use SIMD."""
    half = math.pi * (angle - 0.5)
    square = half * half
    sine, cosine = jnp.zeros_like(half), jnp.zeros_like(half)
    for power in range(10, -1, -2):
        cosine = 1 - square / ((power + 1) * (power + 2)) * cosine
        sine = 1 - square / ((power + 2) * (power + 3)) * sine
    sine = half * sine
    return 2 * sine * sine - 1, -2 * sine * cosine
