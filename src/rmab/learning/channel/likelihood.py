"""The likelihood of observations of channels, any number of slots apart.

With b0, m and a_g = 1 - m^g, the probabilities that a channel in s is in s' g slots later are

    0 -> 1:  b0 a_g,                1 -> 0:  (1 - b0) a_g,
    0 -> 0:  1 - b0 a_g,            1 -> 1:  1 - (1 - b0) a_g,

and a_g = 1 for pairs so far apart that the channel is stationary: they are called late here. The
Beta prior of p01 and p11 is like more pairs one slot apart, as many as its exponents; they may be
negative. Counts are in the order of `rmab.learning.evidence`; arrays end in (n, trials).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.learning.channel.coordinates import Channel
from rmab.linalg import compute_in_branch

__all__ = [
    "TINY",
    "BetaPrior",
    "Observations",
    "log_likelihood",
    "over_gaps",
    "score",
    "summed",
]

BetaPrior = tuple[float, float]  # Beta(a, b) of p01 and of p11 alike

TINY = 1e-9  # less than a sum that is not 0

_GAP_BLOCK = 8  # gaps that are left out together where no trial has any
_SAFE_ONE = 1 + 1e-6  # 1, and more than rounding may take off a sum that is positive
_ODD_WEIGHT = 50  # pairs at even gaps beside which one at an odd gap counts for little
_STARTS = tuple(  # x and y of points in RISING, STEEP and FALLING
    np.array([(x, y) for x in (-3.5, -1.5, 0.0, 1.5, 3.5) for y in ys]).T
    for ys in ((-2.5, -0.5, 1.0, 2.5, 4.5, 7.0), (-4.5, -2.5, -0.5, 1.0), (-2.5, -0.5, 1.0, 3.0))
)

_Floats = npt.NDArray[np.float64]


class Exponents(NamedTuple):
    """Of the factors of the likelihood, those of the prior included."""

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
    """What likelihoods need of the counts, (G + 1, 2, 2, n, trials); sums are (n, trials)."""

    counts: Array
    blocks: Array  # (blocks, _GAP_BLOCK, 2, 2, n, trials), of gaps 2 to G, and 0 beyond
    used: Array  # how many blocks there are up to the last with a pair
    exponents: Exponents
    totals: Totals


def summed(counts: Array, prior: BetaPrior) -> tuple[Observations, Array, Array]:
    """Sums of the counts, and the best of _STARTS in each system, x and y, (3, n, trials) each.

    The sums and the heights of the posterior at _STARTS are linear in the counts: one product.
    """
    kinds, shape = counts.shape[0], counts.shape[3:]
    rows, before = _linear(kinds, prior)
    # Counts are large: a GPU would otherwise round them to ten bits.
    product = jnp.matmul(rows, counts.reshape(4 * kinds, -1), precision="highest")
    product = (product + before).reshape(-1, *shape)
    ends = np.cumsum([len(Exponents._fields), len(Totals._fields), *(len(x) for x, _ in _STARTS)])
    exponents, totals, *heights = jnp.split(product, ends[:-1])
    best = []
    for (x, y), height in zip(_STARTS, heights, strict=True):
        highest = (height == height.max(0)).astype(jnp.float32)  # faster than argmax
        points = np.array([x, y], np.float32)[:, :, None, None]
        best.append((highest * points).sum(1) / highest.sum(0))
    x, y = jnp.stack(best, 1)
    return Observations(counts, *_in_blocks(counts), Exponents(*exponents), Totals(*totals)), x, y


def _in_blocks(counts: Array) -> tuple[Array, Array]:
    """`blocks` and `used` of Observations."""
    gaps, shape = counts[1:-1], counts.shape[1:]
    n_blocks = max(1, -(-gaps.shape[0] // _GAP_BLOCK))
    beyond = n_blocks * _GAP_BLOCK - gaps.shape[0]
    gaps = jnp.concatenate([gaps, jnp.zeros((beyond, *shape), counts.dtype)])
    some = gaps.reshape(n_blocks, -1).max(1) > 0
    used = (some * np.arange(1, n_blocks + 1)).max()
    return gaps.reshape(n_blocks, _GAP_BLOCK, *shape), used


def _linear(kinds: int, prior: BetaPrior) -> tuple[npt.NDArray[np.float32], ...]:
    """Exponents, Totals and the log densities at _STARTS as functions of the counts:
    (rows, 4 kinds), and what the prior adds to them, (rows, 1)."""
    place, s, t = np.indices((kinds, 2, 2))
    first, last = place == 0, place == kinds - 1
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
    even = np.where(last, 0, np.where(place % 2 == 1, 1, -_ODD_WEIGHT))
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
    by_prior = np.where(first, np.where(t == 1, prior[0] - 1, prior[1] - 1), 0).ravel()
    signed, counted = (np.stack(x).reshape(-1, 4 * kinds) for x in (exponents, totals))
    logs, log_jacobian = _log_laws(kinds)
    before = signed @ by_prior, counted @ np.maximum(by_prior, 0), logs @ by_prior + log_jacobian
    rows = np.concatenate([signed, counted, logs])
    return rows.astype(np.float32), np.concatenate(before)[:, None].astype(np.float32)


def _log_laws(kinds: int) -> tuple[_Floats, _Floats]:
    """At _STARTS, system by system: the logs of all probabilities, (points, 4 kinds), and of the
    Jacobian, (points,)."""

    def sigmoid(x: _Floats) -> _Floats:
        return np.asarray(1 / (1 + np.exp(-x)))

    (x, y), (u, v), (s, t) = _STARTS
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
    jacobian = np.concatenate(
        [
            sigmoid(x) * sigmoid(-x) * sigmoid(y) * sigmoid(-y) ** 2,
            sigmoid(u) * sigmoid(-u) * sigmoid(v) ** 2 * sigmoid(-v),
            sigmoid(s) * sigmoid(-s) * sigmoid(-t) * down * (1 + down),
        ]
    )
    return logs, np.log(jacobian)


def log_likelihood(observed: Observations, channel: Channel) -> Array:
    """(..., n, trials). Counts are large and differences small: one rounding for each factor."""
    p01, p00, p11, p10, memory = channel
    by = observed.exponents
    odds, inverse = p01 / p10, p10 / p01
    total = (
        by.ups * jnp.log(p01)
        + by.downs * jnp.log(p10)
        - by.leaves * jnp.log(p01 + p10)
        + by.stays0 * jnp.log(p00)
        + by.stays1 * jnp.log(p11)
    )

    def add(_: Array, counts: Array, total: Array, *powers: Array) -> tuple[Array, ...]:
        """state: the sum so far, m^g and a_g / a_1."""
        power, apart = powers[0] * memory, 1 + memory * powers[1]
        (stay0, rise), (fall, stay1) = counts
        total = (
            total
            + stay0 * jnp.log(_SAFE_ONE + odds * power)
            + stay1 * jnp.log(_SAFE_ONE + inverse * power)
            + (rise + fall) * jnp.log(apart + TINY)
        )
        return total, power, apart

    return over_gaps(observed, add, total, memory, jnp.ones_like(memory))[0]


def over_gaps(
    observed: Observations, add: Callable[..., tuple[Array, ...]], *state: Array
) -> tuple[Array, ...]:
    """The state after add(g, counts of gap g, *state) for g = 2, 3, ..., G.

    Blocks of gaps are left out where nothing follows that was observed. One program serves all
    blocks: it is traced and compiled once.
    """

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
    used = observed.used if jax.default_backend() == "cpu" else len(observed.blocks)
    found: tuple[Array, ...] = lax.fori_loop(0, used, block, state)
    return found


def score(observed: Observations, channel: Channel) -> tuple[Array, ...]:
    """The gradient of the log-likelihood along b0 and m, and the expected information: b0 b0,
    b0 m, m m."""
    p01, p00, p11, p10, memory = channel
    by, totals = observed.exponents, observed.totals
    leaves = p01 + p10
    b0, q0 = p01 / leaves, p10 / leaves
    odds, inverse = p01 / p10, p10 / p01
    odds_b, odds_q = 1 / b0, 1 / q0

    def sums(
        pairs: tuple[Array, ...], out: tuple[Array, Array], apart: Array, bend: Array
    ) -> tuple[Array, ...]:
        """In the order of the result, before it is divided by b0 and q0.

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

    def add(gap: Array, counts: Array, *state: Array) -> tuple[Array, ...]:
        """state: m^(g-1), a_g / a_1 and the sums, each of the gap before."""
        before, apart, *total = state
        before, apart = before * memory, 1 + memory * apart
        (stay0, rise), (fall, stay1) = counts
        pairs = stay0, stay1, rise + fall, stay0 + rise, fall + stay1
        power = before * memory
        out = 1 / (_SAFE_ONE + odds * power), 1 / (_SAFE_ONE + inverse * power)
        more = sums(pairs, out, leaves * apart + TINY, gap * before)
        return before, apart, *(a + b for a, b in zip(total, more, strict=True))

    one = jnp.ones_like(memory)
    direct = by.stays0, by.stays1, by.crosses, totals.direct0, totals.direct1
    first = sums(direct, (q0 / p00, b0 / p11), leaves, one)
    _, _, by_b0, by_m, bb, bm, mm = over_gaps(observed, add, one, one, *first)
    by_b0 = by_b0 + by.rises / b0 - by.falls / q0
    return by_b0, by_m, (bb + totals.late) / (b0 * q0), bm, mm
