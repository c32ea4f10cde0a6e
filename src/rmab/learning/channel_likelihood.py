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
GRID = (-3.5, -1.5, 0.0, 1.5, 3.5)
STARTS = (  # x and y by chart
    np.array([(x, y) for x in GRID for y in (-2.5, -0.5, 1.0, 2.5, 4.5, 7.0)]).T,
    np.array([(x, y) for x in GRID for y in (-4.5, -2.5, -0.5, 1.0)]).T,
    np.array([(x, y) for x in GRID for y in (-2.5, -0.5, 1.0, 3.0)]).T,
)
RARE = 50  # pairs at even gaps beside which one at an odd gap counts for little
SAFE = 1 + 1e-6  # 1, and more than rounding may take off a sum that is positive
TINY = 1e-9  # less than a sum that is not 0

Floats = npt.NDArray[np.float32]
_Sums = tuple[Array, ...]
_State = tuple[Array, Array, _Sums]


class Looks(NamedTuple):
    """What likelihoods need of the counts; all (n, trials) but the first.

    counts: (G + 1, 2, 2, n, trials). With the exponents of the prior:

        stays0, stays1, crosses   pairs one slot apart that stay in 0, stay in 1, do neither
        ups, downs                pairs with a factor p01 or p10; those that stay have one, since
                                  1 - b0 a_g = (p10 + p01 m^g) / (p01 + p10)
        settled                   pairs with a factor 1 / (p01 + p10)
        rises, falls              pairs that cross, or have settled in 1 and in 0

    Never negative: seen0, seen1, pairs one slot apart that begin in 0 and 1; late, pairs that have
    settled; total, all; crossed0, stayed0, crossed1, stayed1, pairs that begin in 0 and 1 and cross
    or do not. even0, even1: pairs at even gaps that begin in 0 and 1, less RARE for each at an odd
    gap. With long gaps shared out: lumps, (LUMPS, 2, 2, n, trials), and lumped rises,
    falls and late; moved, how many pairs that concerns.
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
    total: Array
    even0: Array
    even1: Array
    crossed0: Array
    stayed0: Array
    crossed1: Array
    stayed1: Array
    lumped_rises: Array
    lumped_falls: Array
    lumped_late: Array
    moved: Array
    lumps: Array


def survey(counts: Array, prior: tuple[float, float]) -> tuple[Looks, Array, Array]:
    """Sums of the counts, and the best of STARTS in each chart, x and y, (3, n, trials) each.

    The sums and the heights of the posterior at STARTS are linear in the counts: one product.
    """
    kinds, shape = counts.shape[0], counts.shape[3:]
    rows, before = _rows(kinds, prior)
    # Counts are large: a GPU would otherwise round them to ten bits.
    product = jnp.matmul(rows, counts.reshape(4 * kinds, -1), precision="highest")
    product = (product + before).reshape(-1, *shape)
    points, lumps = sum(len(x) for x, _ in STARTS), 4 * len(LUMPS)
    lumped = product[-points - lumps : -points].reshape(len(LUMPS), 2, 2, *shape)
    looks = Looks(counts, *(*product[: -points - lumps], lumped))
    best = []
    for (x, y), heights in zip(
        STARTS,
        jnp.split(product[-points:], np.cumsum([len(x) for x, _ in STARTS])[:-1]),
        strict=True,
    ):
        highest = (heights == heights.max(0)).astype(jnp.float32)  # faster than argmax
        places = np.array([x, y], np.float32)[:, :, None, None]
        best.append((highest * places).sum(1) / highest.sum(0))
    x, y = jnp.stack(best, 1)
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
    even = np.where(last, 0, np.where(place % 2 == 1, 1, -RARE))
    counted = np.stack(
        [
            first & (s == 0),
            first & (s == 1),
            last,
            t >= 0,
            even * (s == 0),
            even * (s == 1),
            *((s == i) & (t == j) for i, j in ((0, 1), (0, 0), (1, 0), (1, 1))),
        ]
    ).reshape(-1, 4 * kinds)
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
    """At STARTS, chart by chart: the logs of all probabilities, (points, 4 kinds), and of the
    Jacobian, (points,)."""

    def sigmoid(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        return np.asarray(1 / (1 + np.exp(-x)))

    (x, y), (u, v), (s, t) = STARTS
    down = np.exp(-abs(s)) * sigmoid(t)  # -m
    memory = np.concatenate([sigmoid(y), -sigmoid(-v), -down])
    steep = (1 - sigmoid(v) * sigmoid(-u)) / (2 - sigmoid(v))  # p01 / (p01 + p10)
    b0 = np.concatenate([sigmoid(x), steep, sigmoid(s)])
    p01 = b0 * (1 - memory)
    p11 = p01 + memory
    step = np.stack([1 - p01, p01, 1 - p11, p11], -1).reshape(-1, 2, 2)
    powers = [step]
    for _ in range(kinds - 2):
        powers.append(powers[-1] @ step)
    powers.append(np.stack([1 - b0, b0, 1 - b0, b0], -1).reshape(-1, 2, 2))
    logs = np.log(np.maximum(np.stack(powers, 1), 1e-30)).reshape(len(p01), -1)
    spread = np.concatenate(
        [
            sigmoid(x) * sigmoid(-x) * sigmoid(y) * sigmoid(-y) ** 2,
            sigmoid(u) * sigmoid(-u) * sigmoid(v) ** 2 * sigmoid(-v),
            sigmoid(s) * sigmoid(-s) * sigmoid(-t) * down * (1 + down),
        ]
    )
    return logs, np.log(spread)


def log_likelihood(looks: Looks, channel: Channel) -> Array:
    """(..., n, trials). Counts are large and differences small: one rounding for each factor."""
    p01, p00, p11, p10, memory = channel
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
    p01, p00, p11, p10, memory = channel
    moves = p01 + p10
    b0, q0 = p01 / moves, p10 / moves
    odds, inverse = p01 / p10, p10 / p01

    def sums(pairs: tuple[Array, ...], out: tuple[Array, ...], apart: Array, bend: Array) -> _Sums:
        """Of pairs that stay in 0, stay in 1, cross, begin in 0, begin in 1; b0's share of staying
        over its chance; a_g; -d a_g / dm. In the order of the result, what b0 and q0 divide last:
        """
        stay0, stay1, cross, seen0, seen1 = pairs
        lost0, lost1, sure0, sure1 = stay0 * out[0], stay1 * out[1], seen0 * out[0], seen1 * out[1]
        inside = 1 / apart
        return (
            apart * (lost1 * odds_b - lost0 * odds_q),
            bend * (odds * lost0 + inverse * lost1 - cross * inside),
            apart * (sure0 + sure1),
            bend * (sure1 * odds_b - sure0 * odds_q),
            bend * bend * inside * (odds * sure0 + inverse * sure1),
        )

    odds_b, odds_q = 1 / b0, 1 / q0
    pairs = looks.stays0, looks.stays1, looks.crosses, looks.seen0, looks.seen1
    first = sums(pairs, (q0 / p00, b0 / p11), moves, jnp.ones_like(p01))

    def add(gap: int | Array, counts: Array, state: _State) -> _State:
        """The pairs so many slots apart; state: m^(g-1), a_g / a_1 and the sums so far."""
        before, apart, total = state
        (stay0, rise), (fall, stay1) = counts
        pairs = stay0, stay1, rise + fall, stay0 + rise, fall + stay1
        power = before * memory
        out = 1 / (SAFE + odds * power), 1 / (SAFE + inverse * power)
        more = sums(pairs, out, moves * apart + TINY, gap * before)
        return before, apart, tuple(a + b for a, b in zip(total, more, strict=True))

    def later(state: _State) -> _State:
        before, apart, total = state
        return before * memory, 1 + memory * apart, total

    state: _State = jnp.ones_like(memory), jnp.ones_like(memory), first
    if lumped:
        now = 1
        for gap, counts in zip(
            (*range(2, SHORT + 1), *LUMPS), (*looks.counts[1:SHORT], *looks.lumps), strict=True
        ):
            for _ in range(gap - now):
                state = later(state)
            state, now = add(gap, counts, state), gap
        rises, falls, late = looks.lumped_rises, looks.lumped_falls, looks.lumped_late
    else:
        state = lax.fori_loop(
            2,
            looks.counts.shape[0],
            lambda gap, state: add(gap, looks.counts[gap - 1], later(state)),
            state,
        )
        rises, falls, late = looks.rises, looks.falls, looks.late
    by_b0, by_m, bb, bm, mm = state[2]
    by_b0 = by_b0 + rises / b0 - falls / q0
    return by_b0, by_m, (bb + late) / (b0 * q0), bm, mm
