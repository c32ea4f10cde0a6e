"""Sums of counts, and the best of fixed points from which modes are sought.

The Beta prior of p01 and p11 is like more pairs one slot apart, as many as its exponents; they may
be negative. Sums, and the heights of the posterior at the fixed points, are linear in the counts.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array

from rmab.learning.channel.log_odds import (
    Channel,
    Exponents,
    Observations,
    Totals,
    count_rows,
    exact_product,
    gap_blocks,
    log_probabilities,
)
from rmab.linalg import sigmoid

__all__ = ["BetaPrior", "summed"]

BetaPrior = tuple[float, float]  # Beta(a, b) of p01 and of p11 alike

_STARTS = tuple(  # x and y of points in RISING, STEEP and FALLING
    np.array([(x, y) for x in (-3.5, -1.5, 0.0, 1.5, 3.5) for y in ys]).T
    for ys in ((-2.5, -0.5, 1.0, 2.5, 4.5, 7.0), (-4.5, -2.5, -0.5, 1.0), (-2.5, -0.5, 1.0, 3.0))
)

_Floats = npt.NDArray[np.float64]


def summed(counts: Array, prior: BetaPrior) -> tuple[Observations, Array, Array]:
    """Return sums of the counts, and the best of _STARTS in each system, x and y, (3, n, trials).

    counts: (G + 1, 2, 2, n, trials).
    """
    kinds, shape = counts.shape[0], counts.shape[3:]
    rows, before = _linear(kinds, prior)
    product = exact_product(rows, counts.reshape(4 * kinds, -1))
    product = (product + before).reshape(-1, *shape)
    ends = np.cumsum([len(Exponents._fields), len(Totals._fields), *(len(x) for x, _ in _STARTS)])
    exponents, totals, *heights = jnp.split(product, ends[:-1])
    best = []
    for (x, y), height in zip(_STARTS, heights, strict=True):
        highest = (height == height.max(0)).astype(jnp.float32)  # faster than argmax
        points = np.array([x, y], np.float32)[:, :, None, None]
        best.append((highest * points).sum(1) / highest.sum(0))
    x, y = jnp.stack(best, 1)
    sums = Exponents(*exponents), Totals(*totals)
    return Observations(counts, *sums, *gap_blocks(counts)), x, y


def _linear(kinds: int, prior: BetaPrior) -> tuple[npt.NDArray[np.float32], ...]:
    """Return exponents, totals and the log densities at _STARTS as functions of the counts,
    (rows, 4 kinds), and the prior's part of them, (rows, 1)."""
    exponents, totals = count_rows(kinds)
    by_prior = np.zeros((kinds, 2, 2))
    by_prior[0] = prior[1] - 1, prior[0] - 1
    signed, counted = (np.stack(x).reshape(-1, 4 * kinds) for x in (exponents, totals))
    logs, log_jacobian = _log_densities(kinds)
    exact = by_prior.ravel()
    before = signed @ exact, counted @ np.maximum(exact, 0), logs @ exact + log_jacobian
    rows = np.concatenate([signed, counted, logs])
    return rows.astype(np.float32), np.concatenate(before)[:, None].astype(np.float32)


def _log_densities(kinds: int) -> tuple[_Floats, _Floats]:
    """Return, at _STARTS, the logs of all probabilities, (points, 4 kinds), and of the Jacobian."""
    (x, y), (u, v), (s, t) = _STARTS
    down = np.exp(-abs(s)) * sigmoid(t)  # -m
    memory = np.concatenate([sigmoid(y), -sigmoid(-v), -down])
    steep = (1 - sigmoid(v) * sigmoid(-u)) / (2 - sigmoid(v))  # p01 / (p01 + p10)
    b0 = np.concatenate([sigmoid(x), steep, sigmoid(s)])
    p01 = b0 * (1 - memory)
    p11 = p01 + memory
    logs = log_probabilities(Channel(p01, 1 - p01, p11, 1 - p11, memory), kinds)
    jacobian = np.concatenate(
        [
            sigmoid(x) * sigmoid(-x) * sigmoid(y) * sigmoid(-y) ** 2,
            sigmoid(u) * sigmoid(-u) * sigmoid(v) ** 2 * sigmoid(-v),
            sigmoid(s) * sigmoid(-s) * sigmoid(-t) * down * (1 + down),
        ]
    )
    return logs.reshape(-1, 4 * kinds), np.log(jacobian)
