"""Denoised counts: released sums as counts that a learner may read."""

from __future__ import annotations

import math

from rmab.linalg import Array, array_namespace

__all__ = ["LEAST_FOR_SUMMARIES", "denoised"]

# `least` of `denoised` for posterior summaries, which agents use beside their own observations.
# There are many rows of long gaps; where little was counted, rows that noise lifts over a lower bar
# mislead agents more than the others help.
LEAST_FOR_SUMMARIES = 2.5


def denoised(counts: Array, s: Array | float, *, least: float = 1.0) -> Array:
    """Turn sums with noise into counts that a learner may read, (C, S, S, ...).

    Rows counts[c, a, :] with a total n below `least` sqrt(2) s, so many standard deviations of its
    noise, become 0. In others, cells below 0 become 0, and a row of two states is multiplied by

        n p q / (n p q + s^2 (p^2 + q^2))

    with p and q its shares: so many observations without noise would determine p as well. Shares
    are taken with s more counts in each cell, as a cell below 0 may have had some.

    Parameters
    ----------
    counts
        Released counts, (C, S, S, ...).
    s
        Standard deviation of the noise in a count, above 0.
    least
        Smallest total of a row, in standard deviations of its noise.
    """
    xp = array_namespace(counts)
    total = counts.sum(2, keepdims=True)
    cut = xp.maximum(counts, 0)
    n = cut.sum(2, keepdims=True)
    shares = (cut + s) / (n + counts.shape[2] * s)
    known = n * shares.prod(2, keepdims=True)
    weight = known / (known + s * s * (shares**2).sum(2, keepdims=True))
    return xp.where(total >= least * math.sqrt(counts.shape[2]) * s, cut * weight, 0)
