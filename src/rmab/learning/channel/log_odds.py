"""Likelihood, score and information of channels, for NumPy and JAX arrays.

With b0 the stationary probability of 1, m = p11 - p01 and a_g = 1 - m^g, the probabilities that a
channel in s is in s' g slots later are

    0 -> 1:  b0 a_g,                1 -> 0:  (1 - b0) a_g,
    0 -> 0:  1 - b0 a_g,            1 -> 1:  1 - (1 - b0) a_g,

and a_g = 1 for pairs so far apart that the channel is stationary: they are called late here. Score
and expected information are along b0 and m, and along the log odds (u, v) of (p01, p11). In log
odds a Beta(a, b) prior is p^a (1 - p)^b: pseudo-counts a and b act as pairs one slot apart.

Counts are in the order of `rmab.learning.evidence`; arrays end in (n, trials). The engine, which
has JAX, goes from gap to gap; an agent, which has NumPy only, takes all gaps at once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.linalg import (
    Array,
    array_namespace,
    compute_in_branch,
    on_accelerator,
    repeat,
    sigmoid,
)

__all__ = [
    "FARTHEST",
    "TINY",
    "Channel",
    "Exponents",
    "Observations",
    "Totals",
    "count_rows",
    "exact_product",
    "fisher_step",
    "gap_blocks",
    "log_likelihood",
    "log_odds_channel",
    "log_odds_score",
    "log_probabilities",
    "observe",
    "over_gaps",
    "score",
]

TINY = 1e-9  # less than any sum above 0
FARTHEST = 14.0  # log odds that single precision distinguishes from 0 and 1

_GAP_BLOCK = 8  # gaps that are skipped together where no trial has any
_ODD_WEIGHT = 50  # weight of a pair at an odd gap against pairs at even gaps
_LEAST_INFORMATION = 1e-6

_Floats = npt.NDArray[np.float64]


class Channel(NamedTuple):
    """Probabilities of (from, to), each accurate near 0, and m."""

    p01: Array
    p00: Array
    p11: Array
    p10: Array
    memory: Array


class Exponents(NamedTuple):
    """Exponents of the factors of the likelihood, with the prior's."""

    stays0: Array  # of p00: pairs one slot apart
    stays1: Array  # of p11: pairs one slot apart
    crosses: Array  # pairs one slot apart that do neither
    ups: Array  # of p01; pairs that stay have it too: 1 - b0 a_g = (p10 + p01 m^g) / (p01 + p10)
    downs: Array  # of p10
    leaves: Array  # of 1 / (p01 + p10)
    rises: Array  # of b0: pairs that cross to 1, or are late in 1
    falls: Array  # of 1 - b0


class Totals(NamedTuple):
    """Numbers of pairs, with positive exponents of the prior as pairs one slot apart."""

    direct0: Array  # one slot apart, from 0
    direct1: Array
    late: Array
    pairs: Array  # all
    even0: Array  # at even gaps from 0, less _ODD_WEIGHT for each at an odd gap
    even1: Array
    crossed0: Array  # from 0 to 1
    stayed0: Array
    crossed1: Array
    stayed1: Array


class Observations(NamedTuple):
    """Counts (G + 1, 2, 2, n, trials), and sums of them, (n, trials) each."""

    counts: Array
    exponents: Exponents
    totals: Totals
    blocks: Array = None  # JAX: (blocks, _GAP_BLOCK, 2, 2, n, trials), of gaps 2 to G, 0 beyond
    used: Array = None  # JAX: number of blocks up to the last with a pair


def log_odds_channel(u: Array, v: Array) -> Channel:
    """Return the channel with log odds u of p01 and v of p11."""
    p01, p11 = sigmoid(u), sigmoid(v)
    return Channel(p01, sigmoid(-u), p11, sigmoid(-v), p11 - p01)


# ------------------------------------------------------------------------------------ observations


def count_rows(kinds: int) -> tuple[Exponents, Totals]:
    """Return the exponents and totals as sums of counts, (kinds, 2, 2) weights each."""
    gap, s, t = np.indices((kinds, 2, 2))
    first, last = gap == 0, gap == kinds - 1
    exponents = Exponents(
        stays0=first & (s == 0) & (t == 0),
        stays1=first & (s == 1) & (t == 1),
        crosses=first & (s != t),
        ups=(t == 1) & ~(first & (s == 1)),
        downs=(t == 0) & ~(first & (s == 0)),
        leaves=last | ((s == t) & ~first),
        rises=(t == 1) & (last | (s == 0)),
        falls=(t == 0) & (last | (s == 1)),
    )
    even = np.where(last, 0, np.where(gap % 2 == 1, 1, -_ODD_WEIGHT))
    totals = Totals(
        direct0=first & (s == 0),
        direct1=first & (s == 1),
        late=last,
        pairs=t >= 0,
        even0=even * (s == 0),
        even1=even * (s == 1),
        crossed0=(s == 0) & (t == 1),
        stayed0=(s == 0) & (t == 0),
        crossed1=(s == 1) & (t == 0),
        stayed1=(s == 1) & (t == 1),
    )
    return exponents, totals


@lru_cache(maxsize=8)
def _rows(kinds: int) -> npt.NDArray[np.float32]:
    exponents, totals = count_rows(kinds)
    return np.stack([*exponents, *totals]).reshape(-1, 4 * kinds).astype(np.float32)


def observe(counts: Array) -> Observations:
    """Return the sums of counts (G + 1, 2, 2, n, trials) that likelihoods need."""
    kinds = len(counts)
    sums = exact_product(_rows(kinds), counts.reshape(4 * kinds, -1))
    sums = sums.reshape(-1, *counts.shape[3:])
    cut = len(Exponents._fields)
    blocks = () if array_namespace(counts) is np else gap_blocks(counts)
    return Observations(counts, Exponents(*sums[:cut]), Totals(*sums[cut:]), *blocks)


def exact_product(rows: npt.NDArray[Any], counts: Array) -> Array:
    """Return a matrix product with counts, which a GPU would otherwise round to ten bits."""
    xp = array_namespace(counts)
    exact = {} if xp is np else {"precision": "highest"}
    return xp.matmul(xp.asarray(rows, counts.dtype), counts, **exact)


def gap_blocks(counts: Array) -> tuple[Array, Array]:
    """Return `blocks` and `used` of Observations."""
    xp = array_namespace(counts)
    gaps, shape = counts[1:-1], counts.shape[1:]
    n_blocks = max(1, -(-gaps.shape[0] // _GAP_BLOCK))
    beyond = n_blocks * _GAP_BLOCK - gaps.shape[0]
    gaps = xp.concatenate([gaps, xp.zeros((beyond, *shape), counts.dtype)])
    some = gaps.reshape(n_blocks, -1).max(1) > 0
    used = (some * np.arange(1, n_blocks + 1)).max()
    return gaps.reshape(n_blocks, _GAP_BLOCK, *shape), used


def log_probabilities(channel: Channel, kinds: int) -> _Floats:
    """Return ln P(s' | s) of channels (points,) at every gap, the last stationary, in double
    precision: (points, kinds, 2, 2)."""
    p01, p00, p11, p10, memory = (x[:, None] for x in channel)
    leaves = p01 + p10
    power = memory ** np.arange(1, kinds)
    power = np.concatenate([power, np.zeros_like(memory)], 1)
    apart = np.cumsum(memory ** np.arange(kinds - 1), 1)  # a_g / a_1
    apart = np.concatenate([apart, 1 / leaves], 1)
    stay0, stay1 = (p10 + p01 * power) / leaves, (p01 + p10 * power) / leaves
    stay0[:, 0], stay1[:, 0] = p00[:, 0], p11[:, 0]
    chances = np.stack([stay0, p01 * apart, p10 * apart, stay1], -1)
    logs: _Floats = np.log(chances).reshape(-1, kinds, 2, 2)
    return logs


# ------------------------------------------------------------------------ likelihood and its score


def _by_gap(x: Array) -> Array:
    """Give an array (..., n, trials) an axis for gaps, on NumPy."""
    return x[..., None, :, :] if array_namespace(x) is np else x


def _safe_one(x: Array) -> float:
    """Return 1 and more than rounding takes off a positive sum of terms up to 1."""
    return 1 + (1e-15 if x.dtype == np.float64 else 1e-6)


def log_likelihood(observed: Observations, channel: Channel) -> Array:
    """Return the log-likelihood of channels, (..., n, trials).

    Counts are large and differences small: there is one rounding for each factor.
    """
    xp = array_namespace(channel.p01)
    p01, p00, p11, p10, memory = (_by_gap(x) for x in channel)
    by, safe = observed.exponents, _safe_one(memory)
    odds, inverse = p01 / p10, p10 / p01
    total = (
        by.ups * xp.log(p01)
        + by.downs * xp.log(p10)
        - by.leaves * xp.log(p01 + p10)
        + by.stays0 * xp.log(p00)
        + by.stays1 * xp.log(p11)
    )

    def terms(_: Array, counts: Array, before: Array, apart: Array) -> tuple[tuple[Array, ...]]:
        power = before * memory
        (stay0, rise), (fall, stay1) = counts
        return (
            (
                stay0 * xp.log(safe + odds * power),
                stay1 * xp.log(safe + inverse * power),
                (rise + fall) * xp.log(apart + TINY),
            ),
        )

    return over_gaps(observed, memory, terms, total)[0]


def over_gaps(
    observed: Observations,
    memory: Array,
    terms: Callable[[Array, Array, Array, Array], tuple[tuple[Array, ...], ...]],
    *totals: Array,
) -> tuple[Array, ...]:
    """Add the terms of the gaps 2, 3, ..., G to totals.

    On NumPy `memory` and totals have an axis for gaps, (..., 1, n, trials), which is summed over.
    On JAX gaps come in blocks, and blocks after the last pair are skipped. One program serves all
    blocks: it is traced and compiled once.

    Parameters
    ----------
    terms
        Given g, the counts of gap g, m^(g - 1) and a_g / a_1, returns the terms of each total.
    """
    xp = array_namespace(memory)
    if xp is np:
        gaps = np.arange(2, len(observed.counts))[:, None, None]
        if not gaps.size:
            return tuple(total[..., 0, :, :] for total in totals)
        before = np.repeat(memory, len(gaps), -3).cumprod(-3)
        counts = np.moveaxis(observed.counts[1:-1], 0, 2)
        added = zip(totals, terms(gaps, counts, before, 1 + before.cumsum(-3)), strict=True)
        return tuple(total[..., 0, :, :] + sum(x.sum(-3) for x in new) for total, new in added)

    def add(gap: Array, counts: Array, *state: Array) -> tuple[Array, ...]:
        before, apart, *totals = state
        before, apart = before * memory, 1 + memory * apart
        for n, new in enumerate(terms(gap, counts, before, apart)):
            for term in new:
                totals[n] = totals[n] + term
        return before, apart, *totals

    def block(number: Array, state: tuple[Array, ...]) -> tuple[Array, ...]:
        def add_all(counts: Array, *state: Array) -> tuple[Array, ...]:
            for place in range(_GAP_BLOCK):
                state = add(_GAP_BLOCK * number + place + 2, counts[place], *state)
            return state

        # XLA would otherwise look up every count where it is used.
        added: tuple[Array, ...] = compute_in_branch(
            number >= 0, add_all, observed.blocks[number], *state
        )
        return added

    # An accelerator would wait for the host to know how many there are.
    used = len(observed.blocks) if on_accelerator() else observed.used
    one = xp.ones_like(memory)
    _, _, *sums = repeat(used, block, (one, one, *totals))
    return tuple(sums)


def score(observed: Observations, channel: Channel) -> tuple[Array, ...]:
    """Return the gradient of the log-likelihood along b0 and m, and the expected information:
    b0 b0, b0 m, m m."""
    xp = array_namespace(channel.p01)
    p01, p00, p11, p10, memory = (_by_gap(x) for x in channel)
    by, totals, safe = observed.exponents, observed.totals, _safe_one(memory)
    leaves = p01 + p10
    b0, q0 = p01 / leaves, p10 / leaves
    odds, inverse = p01 / p10, p10 / p01
    odds_b, odds_q = 1 / b0, 1 / q0

    def sums(
        pairs: tuple[Array, ...], out: tuple[Array, Array], apart: Array, bend: Array
    ) -> tuple[Array, ...]:
        """Return the terms of one gap in the order of the result, before the division by b0 and q0.

        pairs: that stay in 0, stay in 1, cross, begin in 0, begin in 1; out: b0's and q0's share of
        staying over its chance; apart: a_g; bend: -d a_g / dm.
        """
        stay0, stay1, cross, from0, from1 = pairs
        lost0, lost1, sure0, sure1 = stay0 * out[0], stay1 * out[1], from0 * out[0], from1 * out[1]
        inside = 1 / apart
        return (
            apart * (lost1 * odds_b - lost0 * odds_q),
            bend * (odds * lost0 + inverse * lost1 - cross * inside),
            apart * (sure0 + sure1),
            bend * (sure1 * odds_b - sure0 * odds_q),
            bend * bend * inside * (odds * sure0 + inverse * sure1),
        )

    def terms(
        gap: Array, counts: Array, before: Array, apart: Array
    ) -> tuple[tuple[Array, ...], ...]:
        (stay0, rise), (fall, stay1) = counts
        pairs = stay0, stay1, rise + fall, stay0 + rise, fall + stay1
        power = before * memory
        out = 1 / (safe + odds * power), 1 / (safe + inverse * power)
        return tuple((x,) for x in sums(pairs, out, leaves * apart + TINY, gap * before))

    direct = by.stays0, by.stays1, by.crosses, totals.direct0, totals.direct1
    first = sums(direct, (q0 / p00, b0 / p11), leaves, xp.ones_like(memory))
    by_b0, by_m, bb, bm, mm = over_gaps(observed, memory, terms, *first)
    if xp is np:
        b0, q0 = b0[..., 0, :, :], q0[..., 0, :, :]
    by_b0 = by_b0 + by.rises / b0 - by.falls / q0
    return by_b0, by_m, (bb + totals.late) / (b0 * q0), bm, mm


def log_odds_score(observed: Observations, u: Array, v: Array) -> tuple[Array, ...]:
    """Return the gradient of the log-likelihood along (u, v), and the expected information: uu, uv,
    vv."""
    channel = log_odds_channel(u, v)
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


def fisher_step(
    observed: Observations, u: Array, v: Array, longest: Array | float
) -> tuple[Array, Array, Array]:
    """Return (u, v) after a step of Fisher scoring, and the length that the step should have had.

    longest: in log odds; a longer step is shortened to it.
    """
    xp = array_namespace(u)
    by_u, by_v, uu, uv, vv = log_odds_score(observed, u, v)
    uu, vv = xp.maximum(uu, _LEAST_INFORMATION), xp.maximum(vv, _LEAST_INFORMATION)
    spread = xp.maximum(uu * vv - uv * uv, 1e-4 * uu * vv)
    du, dv = (vv * by_u - uv * by_v) / spread, (uu * by_v - uv * by_u) / spread
    far = xp.maximum(abs(du), abs(dv))
    scale = xp.minimum(1, longest / xp.maximum(far, 1e-9))
    u, v = (xp.clip(w + scale * dw, -FARTHEST, FARTHEST) for w, dw in ((u, du), (v, dv)))
    return u, v, far
