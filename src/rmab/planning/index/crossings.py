"""Which lines fall below all later ones in an interval of the walk, and where.

In an interval of `rmab.planning.index.parametric` the lines Q(s, k) are straight in t, and (s, k)
is active as long as its line lies above M(t), the highest of the later ones: beta^(n-k) Q(s, n)
with n > k, and 0 for never seen. M is convex, so the advantage A = Q - M is concave, and of the
two ends

- active at both: active throughout;
- active, then passive: it leaves once, where the first of the later lines crosses its own;
- passive at both: it may be active in between only if M is bent there, that is if the best later
  line is not the same at both ends. The interval is then cut where these two lines cross;
- passive, then active: it comes back.

On NumPy (`part`) whole arrays are compared and the lines of the few states that leave are searched.
Compiled (`part_compiled`) there is one pass over the ages from the last, which keeps two of the
later lines, the best at either end. If a third lies above both in between, a state that leaves asks
for a cut, too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.model.arms import Array

__all__ = [
    "Interval",
    "Later",
    "Span",
    "Tolerances",
    "later",
    "part",
    "part_compiled",
    "tolerances",
]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.intp]

WIDE = 120  # numbers of one age with which it is faster to go from age to age


class Tolerances(NamedTuple):
    """In units of rewards of size 1.

    tied: values of t this close are one; flat: rates below this cross nothing; even: an advantage
    below this is none; forgotten: the chance that a play is forgotten.
    """

    tied: float
    flat: float
    even: float
    forgotten: float


DOUBLE = Tolerances(tied=1e-11, flat=1e-13, even=1e-14, forgotten=1e-14)
SINGLE = Tolerances(tied=1e-6, flat=1e-5, even=1e-6, forgotten=1e-6)


def tolerances(array: Array) -> Tolerances:
    """By the array's precision."""
    return DOUBLE if array.dtype == np.float64 else SINGLE


class Span(NamedTuple):
    """An interval: value, slope: (J, S, B), Q where it begins and its slope in t; end: (B,), how
    far t goes; subsidy, rising: (B,), lambda where it begins and its slope; size: (B,), of
    H per age, or of what its equations make of numbers of size 1."""

    value: Array
    slope: Array
    end: Array
    subsidy: Array
    rising: Array
    size: Array


class Later(NamedTuple):
    """Of the waits after each age the best, beta^(n-k) Q(s, n), its age less 1, by how much a play
    is better, and whether it is; (J, S, B) each."""

    best: Array
    place: Array
    advantage: Array
    plays: Array


class Interval(NamedTuple):
    """What was seen: the best later waits at both ends of a span."""

    before: Later
    after: Later
    span: Span
    beta: float


def later(value: FloatArray, beta: float, even: float) -> Later:
    """The best waits after each age; a play must be better by more than `even`."""
    J = len(value)
    whole: Any = np.int16 if J < 2**15 else np.int32
    best, place = np.zeros_like(value), np.full(value.shape, J, whole)
    if beta == 1:
        _accumulate(np.maximum, value, best)
    else:
        for age in reversed(range(J - 1)):
            best[age] = beta * np.maximum(value[age + 1], best[age + 1])
    advantage = value - best
    ages = np.arange(J, dtype=whole)[:, None, None]
    records = (advantage <= 0) * (J - ages) + ages  # J where the line is not above all later ones
    _accumulate(np.minimum, records, place)
    return Later(best, place, advantage, advantage > even)


def _accumulate(function: np.ufunc, given: Array, out: Array) -> None:
    """out[k] = function of out[k] and all given[n], n > k; out is filled with one value."""
    if given[0].size < WIDE:
        function.accumulate(given[:0:-1], axis=0, out=out[-2::-1])
        function(out[:-1], out[-1], out=out[:-1])
    else:
        for age in reversed(range(len(given) - 1)):
            function(given[age + 1], out[age + 1], out=out[age])


def part(
    span: Span, index: FloatArray, now: Later, near: Tolerances, beta: float
) -> tuple[FloatArray, FloatArray, Later, Interval]:
    """Q at the end of the interval, (J, S, B), where it must be cut first, (B,), the best later
    waits at its end, and what was seen; the index, (J, S, B), is written in place.

    Where the interval is to be cut it ends where it began.
    """
    value, slope, end = span.value, span.slope, span.end
    last = slope * end
    last += value
    then = later(last, beta, near.even)
    cut = np.full(end.shape, np.inf)
    # States that leave, and those that are passive at both ends below a bent M.
    here = np.flatnonzero(~then.plays & (now.plays | (now.place != then.place)))
    if not here.size:
        return last, cut, then, Interval(now, then, span, beta)
    J, width = len(value), value[0].size
    k, chain = np.divmod(here, width)
    b = chain % end.size
    flat = slope.ravel()

    def best_slope(place: npt.NDArray[np.integer]) -> FloatArray:
        n = place.ravel()[here].astype(np.intp)
        steep = flat[np.minimum(n, J - 1) * width + chain]
        if beta != 1:
            steep *= beta ** (n - k)
        steep[n == J] = 0
        return np.asarray(steep)

    one, two, mine = best_slope(now.place), best_slope(then.place), flat[here]
    leaves, above, far = now.plays.ravel()[here], now.advantage.ravel()[here], end[b]
    bend = now.best.ravel()[here] - then.best.ravel()[here] + two * far
    cross = _over(bend, two - one)
    bent = (cross > near.tied) & (cross < far - near.tied)
    gone = np.flatnonzero(leaves)
    root = np.minimum(
        _over(above[gone], (one - mine)[gone]),
        far[gone] - _over(-then.advantage.ravel()[here[gone]], (two - mine)[gone]),
    )
    several = np.flatnonzero(bent[gone])
    if several.size:
        which = gone[several]
        first = _first_crossing(value, slope, beta, k[which], chain[which])
        root[several] = np.minimum(root[several], first)
    on = b[gone]
    root = np.clip(root, 0, end[on])
    index.ravel()[here[gone]] = span.subsidy[on] + span.rising[on] * root

    comes = np.flatnonzero(bent & ~leaves)
    comes = comes[(above + (mine - one) * np.where(bent, cross, 0))[comes] > near.tied]
    if comes.size:
        np.minimum.at(cut, b[comes], cross[comes])
        void = cut < end
        then = Later(*(np.where(void, old, new) for old, new in zip(now, then, strict=True)))
        last, span = np.where(void, value, last), span._replace(end=np.where(void, 0, end))
    return last, cut, then, Interval(now, then, span, beta)


def _over(top: FloatArray, bottom: FloatArray) -> FloatArray:
    """top / bottom where bottom is positive, else infinity."""
    positive = bottom > 0
    return np.where(positive, top / np.where(positive, bottom, 1), np.inf)


def _first_crossing(
    value: FloatArray, slope: FloatArray, beta: float, k: IntArray, chain: IntArray
) -> FloatArray:
    """How far t goes until the first later line crosses that of each (s, k), (L,).

    chain: the place of (s, b) in (S, B).
    """
    J = len(value)
    lines, slopes = (array.reshape(J, -1).take(chain, 1) for array in (value, slope))  # (J, L)
    own = np.arange(k.size)
    mine, falls = lines[k, own], slopes[k, own]
    ahead = np.arange(J)[:, None] - k
    if beta != 1:
        fade = beta ** np.maximum(ahead, 0)
        lines, slopes = lines * fade, slopes * fade
    # One over how far t goes; lines that never cross are not positive.
    haste = (slopes - falls) / np.maximum(mine - lines, 1e-30)
    haste *= ahead > 0
    soonest = np.maximum(haste.max(0), -falls / np.maximum(mine, 1e-30))
    return _over(np.ones_like(soonest), soonest)


def part_compiled(span: Span, index: Array, near: Tolerances, beta: float) -> tuple[Array, Array]:
    """The index, (J, S, B), and where the interval must be cut first, (B,)."""
    import jax.numpy as jnp
    from jax import lax

    end = span.end
    reached = span.subsidy + span.rising * end

    def over(top: Array, bottom: Array, otherwise: float) -> Array:
        return jnp.where(
            bottom > near.flat, top / jnp.where(bottom > near.flat, bottom, 1), otherwise
        )

    def age(carry: tuple[Array, ...], at: tuple[Array, Array, Array]) -> tuple[Any, Any]:
        best, best_slope, last, last_slope, cross, third, cut = carry
        line, slope, index = at
        line_last = line + slope * end
        before, after = line - best, line_last - last
        plays, stays = before > near.even, after > near.even
        leaves = plays & ~stays
        root = jnp.minimum(
            over(before, best_slope - slope, np.inf), end + over(after, last_slope - slope, 0)
        )
        index = jnp.where(leaves, span.subsidy + span.rising * jnp.clip(root, 0, end), index)
        index = jnp.where(stays, reached, index)
        bent = (cross > near.tied) & (cross < end - near.tied)
        above = line + slope * cross > best + best_slope * cross + near.even
        comes = ~plays & ~stays & bent & above
        cut = jnp.where(comes | (leaves & third), jnp.minimum(cut, cross), cut)

        ahead, ahead_last = before > 0, after > 0
        # Now the best at neither end: this line, or one that it replaces.
        rest = jnp.where(ahead, best, jnp.where(ahead_last, last - last_slope * end, line))
        rest_slope = jnp.where(ahead, best_slope, jnp.where(ahead_last, last_slope, slope))
        best, best_slope = jnp.where(ahead, line, best), jnp.where(ahead, slope, best_slope)
        last = jnp.where(ahead_last, line_last, last)
        last_slope = jnp.where(ahead_last, slope, last_slope)
        cross = over(best - last + last_slope * end, last_slope - best_slope, 0)
        inside = (cross > near.tied) & (cross < end - near.tied)
        above = inside & (rest + rest_slope * cross > best + best_slope * cross + near.even)
        third = ((third & inside) | above) & ~(ahead & ahead_last)
        lines = (best, best_slope, last, last_slope)
        return (*(beta * line for line in lines), cross, third, cut), index

    zero = jnp.zeros_like(span.value[0])
    start = (zero, zero, zero, zero, zero, zero > 0, zero + np.inf)
    carry, index = lax.scan(age, start, (span.value, span.slope, index), reverse=True)
    return index, carry[-1].min(0)
