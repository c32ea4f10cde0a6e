"""The likelihood of looks at channels, any number of slots apart.

With b0, m and a_g = 1 - m^g, the probabilities that a channel seen in s is in s' g slots later are

    0 -> 1:  b0 a_g,                1 -> 0:  (1 - b0) a_g,
    0 -> 0:  1 - b0 a_g,            1 -> 1:  1 - (1 - b0) a_g,

and a_g = 1 for pairs of looks so far apart that the channel has settled. The Beta prior of p01 and
p11 is like more pairs one slot apart, as many as its exponents; they may be negative.

    survey          sums over the counts, and the best of a few channels: one matrix product
    log_likelihood  of channels, exact
    score           its gradient and the expected information along b0 and m; `lumped` with the few
                    pairs at long gaps shared out among fewer gaps

Gaps are in the order of `rmab.learning.learners`; arrays end in arms and trials, (n, trials).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.learning.channel_charts import Channel

__all__ = ["Looks", "log_likelihood", "score", "survey"]

SHORT, LUMPS = 8, (11, 12, 19, 20)  # gaps up to SHORT are kept apart, longer ones shared out
BLOCK = 8  # gaps that are left out together where no trial has any
STARTS = [(x, y) for x in (-3.5, -1.5, 0.0, 1.5, 3.5) for y in (-2.5, -0.5, 1.0, 2.5, 4.5, 7.0)]
SAFE = 1 + 1e-6  # 1, and more than rounding may take off a sum that is positive
TINY = 1e-9  # less than a sum that is not 0

Floats = npt.NDArray[np.float32]
_Sums = tuple[Array, Array, Array, Array, Array]


class Looks(NamedTuple):
    """What likelihoods need of the counts; all (n, trials) but the first.

    counts: (G + 1, 2, 2, n, trials). With the exponents of the prior:

        stays0, stays1, crosses   pairs one slot apart that stay in 0, stay in 1, do neither
        ups, downs                pairs with a factor p01 or p10; those that stay have one, since
                                  1 - b0 a_g = (p10 + p01 m^g) / (p01 + p10)
        settled                   pairs with a factor 1 / (p01 + p10)
        rises, falls              pairs that cross, or have settled in 1 and in 0

    Never negative: seen0, seen1, pairs one slot apart that begin in 0 and 1; late, pairs that have
    settled; ones, all that end in 1, of total. With long gaps shared out: lumps, (LUMPS, 2, 2, n,
    trials), and lumped rises, falls and late; moved, how many pairs that concerns.
    """

    counts: Array
    stays0: Array
    stays1: Array
    crosses: Array
    ups: Array
    downs: Array
    settled: Array
    rises: Array
    falls: Array
    seen0: Array
    seen1: Array
    late: Array
    ones: Array
    total: Array
    lumped_rises: Array
    lumped_falls: Array
    lumped_late: Array
    moved: Array
    lumps: Array


def survey(counts: Array, prior: tuple[float, float]) -> tuple[Looks, Array, Array]:
    """Sums of the counts, and the best of STARTS in both halves, x and y, (2, n, trials) each.

    The sums and the heights of the posterior at STARTS are linear in the counts: one product.
    """
    kinds, shape = counts.shape[0], counts.shape[3:]
    rows, before = _rows(kinds, prior)
    product = (jnp.asarray(rows) @ counts.reshape(4 * kinds, -1) + jnp.asarray(before)).reshape(
        -1, *shape
    )
    points, lumps = 2 * len(STARTS), 4 * len(LUMPS)
    lumped = product[-points - lumps : -points].reshape(len(LUMPS), 2, 2, *shape)
    looks = Looks(counts, *(*product[: -points - lumps], lumped))
    heights = product[-points:].reshape(2, len(STARTS), *shape)
    best = (heights == heights.max(1, keepdims=True)).astype(jnp.float32)  # faster than argmax
    number = best.sum(1)
    x, y = (
        (best * np.array(places, np.float32)[:, None, None]).sum(1) / number
        for places in zip(*STARTS, strict=True)
    )
    return looks, x, y


def _rows(kinds: int, prior: tuple[float, float]) -> tuple[Floats, Floats]:
    """The sums of `Looks`, then the logs of probabilities at STARTS, as functions of the counts:
    (rows, 4 kinds), and what the prior adds to them, (rows, 1)."""
    place, s, t = np.indices((kinds, 2, 2))
    first, last = place == 0, place == kinds - 1
    exponents = np.where(first, np.where(t == 1, prior[0] - 1, prior[1] - 1), 0).ravel()
    signed = np.stack(
        [
            first & (s == 0) & (t == 0),
            first & (s == 1) & (t == 1),
            first & (s != t),
            (t == 1) & ~(first & (s == 1)),
            (t == 0) & ~(first & (s == 0)),
            last | ((s == t) & ~first),
            (t == 1) & (last | (s == 0)),
            (t == 0) & (last | (s == 1)),
        ]
    ).reshape(-1, 4 * kinds)
    counted = np.stack([first & (s == 0), first & (s == 1), last, t == 1, t >= 0])
    counted = counted.reshape(-1, 4 * kinds)
    shares = _shares(kinds)[:, place]  # (LUMPS + 1, kinds, 2, 2)
    lumped = np.stack(
        [
            (t == 1) * np.where(s == 0, 1, shares[-1]),
            (t == 0) * np.where(s == 1, 1, shares[-1]),
            shares[-1],
            np.where(last, 0, shares.sum(0)),
            *(share * (s == i) * (t == j) for share in shares[:-1] for i in (0, 1) for j in (0, 1)),
        ]
    ).reshape(-1, 4 * kinds)
    lumped_before = lumped @ exponents  # crossings alone
    logs, spread = _heights(kinds)
    before = (
        signed @ exponents,
        counted @ np.maximum(exponents, 0),
        lumped_before,
        logs @ exponents + spread,
    )
    rows = np.concatenate([signed, counted, lumped, logs])
    return rows.astype(np.float32), np.concatenate(before)[:, None].astype(np.float32)


def _shares(kinds: int) -> npt.NDArray[np.float64]:
    """Of pairs by kind, the shares that go to each of LUMPS and to the settled, (LUMPS + 1, kinds).

    A gap goes to the nearest of its own parity on both sides, for m^g may alternate.
    """
    shares = np.zeros((len(LUMPS) + 1, kinds))
    shares[-1, -1] = 1
    for gap in range(SHORT + 1, kinds):
        own = [lump for lump in (SHORT - 1, SHORT, *LUMPS) if lump % 2 == gap % 2]
        low = max(lump for lump in own if lump <= gap)
        high = min((lump for lump in own if lump > gap), default=0)
        share = math.log(high / gap) / math.log(high / low) if high else max(0.0, 2 - gap / low)
        if low not in LUMPS:  # no gap so short takes any more
            low, share = high, 1.0
        shares[LUMPS.index(low), gap - 1] += share
        shares[LUMPS.index(high) if high else -1, gap - 1] += 1 - share
    return shares


def _heights(kinds: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """At STARTS in both halves: the logs of all probabilities, (points, 4 kinds), and of the
    Jacobian, (points,)."""
    x, y = np.array(STARTS).T
    share, one = 1 / (1 + np.exp(-x)), 1 / (1 + np.exp(-y))
    other = 1 - one
    p01 = np.concatenate([share * other, other + share * one])
    p11 = np.concatenate([one + share * other, share * one])
    step = np.stack([1 - p01, p01, 1 - p11, p11], -1).reshape(-1, 2, 2)
    powers = [step]
    for _ in range(kinds - 2):
        powers.append(powers[-1] @ step)
    b0 = p01 / (1 - p11 + p01)
    powers.append(np.stack([1 - b0, b0, 1 - b0, b0], -1).reshape(-1, 2, 2))
    logs = np.log(np.maximum(np.stack(powers, 1), 1e-30)).reshape(len(p01), -1)
    wide = np.log(share * (1 - share) * one * other)
    return logs, np.concatenate([wide + np.log(other), wide + np.log(one)])


def log_likelihood(looks: Looks, channel: Channel) -> Array:
    """(..., n, trials). Counts are large and differences small: one rounding for each factor."""
    p01, p00, p11, p10, memory, _, _ = channel
    odds, inverse = p01 / p10, p10 / p01
    total = (
        looks.ups * jnp.log(p01)
        + looks.downs * jnp.log(p10)
        - looks.settled * jnp.log(p01 + p10)
        + looks.stays0 * jnp.log(p00)
        + looks.stays1 * jnp.log(p11)
    )
    power, apart = memory, jnp.ones_like(memory)  # m^g, a_g / a_1
    for start in range(0, looks.counts.shape[0] - 1, BLOCK):
        gaps = range(max(start, 1), min(start + BLOCK, looks.counts.shape[0] - 1))

        def add(total: Array, power: Array, apart: Array, gaps: range = gaps) -> tuple[Array, ...]:
            for gap in gaps:
                power, apart = power * memory, 1 + memory * apart
                (stay0, rise), (fall, stay1) = looks.counts[gap]
                total = (
                    total
                    + stay0 * jnp.log(SAFE + odds * power)
                    + stay1 * jnp.log(SAFE + inverse * power)
                    + (rise + fall) * jnp.log(apart + TINY)
                )
            return total, power, apart

        # Later blocks need what this one leaves, unless they have no pairs either.
        some = looks.counts[gaps.start : -1].max() > 0
        total, power, apart = lax.cond(some, add, lambda *state: state, total, power, apart)
    return total


def score(looks: Looks, channel: Channel, *, lumped: bool) -> tuple[Array, ...]:
    """The gradient of the log-likelihood along b0 and m, and the expected information: b0 b0,
    b0 m, m m."""
    p01, p00, p11, p10, memory, log_memory, _ = channel
    moves = p01 + p10
    b0, q0 = p01 / moves, p10 / moves
    odds, inverse = p01 / p10, p10 / p01

    def sums(pairs: tuple[Array, ...], out: tuple[Array, ...], apart: Array, bend: Array) -> _Sums:
        """Of pairs that stay in 0, stay in 1, cross, begin in 0, begin in 1; b0's share of staying
        over its chance; a_g; d a_g / dm."""
        stay0, stay1, cross, seen0, seen1 = pairs
        lost0, lost1, sure0, sure1 = stay0 * out[0], stay1 * out[1], seen0 * out[0], seen1 * out[1]
        return (
            apart * (lost1 / b0 - lost0 / q0),
            bend * (cross / apart - odds * lost0 - inverse * lost1),
            apart * (sure0 + sure1),
            bend * (sure0 / q0 - sure1 / b0),
            bend * bend / apart * (odds * sure0 + inverse * sure1),
        )

    pairs = looks.stays0, looks.stays1, looks.crosses, looks.seen0, looks.seen1
    first = sums(pairs, (q0 / p00, b0 / p11), moves, -jnp.ones_like(p01))
    counts, rises, falls, late = looks.counts[1:-1], looks.rises, looks.falls, looks.late
    gaps = np.arange(2, looks.counts.shape[0])
    if lumped:
        counts = jnp.concatenate([counts[: SHORT - 1], looks.lumps])
        gaps = np.array([*range(2, SHORT + 1), *LUMPS])
        rises, falls, late = looks.lumped_rises, looks.lumped_falls, looks.lumped_late
    counts = counts[:, :, :, None]  # by gap, s, s', half, arm, trial
    gap = jnp.asarray(gaps.reshape(-1, *(1,) * p01.ndim), jnp.float32)
    alternates = (gap % 2 == 1) & (memory < 0)
    size = jnp.exp(gap * log_memory)
    power = jnp.where(alternates, -size, size)
    apart = jnp.where(alternates, 1 + size, -jnp.expm1(gap * log_memory))
    pairs = (
        counts[:, 0, 0],
        counts[:, 1, 1],
        counts[:, 0, 1] + counts[:, 1, 0],
        counts[:, 0, 0] + counts[:, 0, 1],
        counts[:, 1, 0] + counts[:, 1, 1],
    )
    out = 1 / (SAFE + odds * power), 1 / (SAFE + inverse * power)
    rest = sums(pairs, out, apart + TINY, -gap * power / memory)
    by_b0, by_m, bb, bm, mm = (a + b.sum(0) for a, b in zip(first, rest, strict=True))
    by_b0 = by_b0 + rises / b0 - falls / q0
    return by_b0, by_m, (bb + late) / (b0 * q0), bm, mm
