"""How unlike the others' the counts of each agent are: a score for people, nothing is dropped.

All agents face arms of the same dynamics. So, whatever they chose to play, pairs of observations
of an arm that begin in the same state and are the same number of slots apart follow one law, and
tables of them

                to state 0   1   ...
    agent       a_0     a_1  ...
    the others  b_0     b_1  ...

one for each arm, gap and state that pairs begin in, are tables of homogeneity. Pairs more than G
slots apart are left out: how far apart they are depends on the agent. The statistic of an arm is
the sum of Pearson's chi-square over its tables. Given the margins its mean and variance are known
exactly (Dawson 1954), also where counts are few; a chi-square law with these two is made nearly
normal by the transformation of Wilson and Hilferty, and the score of an agent is that of its
largest arm:

    x = sum of chi-square / its mean,  v = 2 mean^2 / variance,
    score = largest over arms of (x^(1/3) - 1 + 2 / (9 v)) / sqrt(2 / (9 v)).

For an agent that tells the truth that is the largest of N numbers that are nearly standard normal,
whatever the number of its counts: 1 to 4 as N goes from 4 to 4096.

A liar is also one of the others. Were the others all added up, a liar that claims much would make
everybody else look wrong. So agents that are unlike the rest are left out of the rest, for each arm
separately, the worst first, as long as more than half remain; and while that goes on, nobody weighs
more than the median agent. With two agents there is no telling which of them lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.federation.aggregation import capped
from rmab.federation.messages import Shape

__all__ = ["outlier_scores", "scores_by_name"]

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_LEAST_EXPECTED = 1.0  # of a cell; where it is less, its column is left out
_UNLIKE = 4.0  # score from which on an agent is left out of what others are compared with
_STEPS = 10  # in how many all that may be left out are, where they are many


def outlier_scores(counts: Ints, shape: Shape) -> Floats:
    """The score (M,) of each agent, from its counts (M, C, S, S, N).

    NaN where there is nothing to compare: too few counts, or no others.
    """
    M, S = counts.shape[0], counts.shape[2]
    scores = np.full(M, np.nan)
    if M < 2:
        return scores
    for arm, kinds in enumerate(shape.exact_kinds):
        tables = counts[:, :kinds, :, :, arm].reshape(M, -1, S)
        scores = np.fmax(scores, _of_arm(tables))
    return scores


def scores_by_name(counts: Mapping[str, Ints], shape: Shape) -> dict[str, float | None]:
    """The score of each agent by name, to two decimals, from its counts (C, S, S, N); None where
    there is nothing to compare."""
    if not counts:
        return {}
    found = np.round(outlier_scores(np.stack(list(counts.values())), shape), 2)
    return {
        name: None if np.isnan(score) else float(score)
        for name, score in zip(counts, found, strict=True)
    }


def _of_arm(tables: Ints) -> Floats:
    """Scores (M,) by one arm; tables: (M, T, S), counts by table and state that pairs end in."""
    used = tables.any((0, 2))
    own = tables[:, used].astype(np.float64)
    sizes = own.sum((1, 2))
    kept = sizes > 0
    spare = (int(kept.sum()) - 1) // 2  # how many may be left out
    step = max(1, spare // _STEPS)
    even = capped(np.ones(len(own)), sizes, 1.0)
    while spare > 0:
        found = _against(own, even * kept)
        worst = np.where(kept & (found > _UNLIKE), found, -np.inf)
        order = np.argsort(-worst)[: min(step, spare)]
        order = order[worst[order] > -np.inf]
        if not order.size:
            break
        kept[order] = False
        spare -= order.size
    return _against(own, kept.astype(np.float64))


def _against(own: Floats, weights: Floats) -> Floats:
    """Scores (M,) of each agent's counts (M, T, S) against all others', weighed by (M,)."""
    weighed = own * weights[:, None, None]
    others = weighed.sum(0) - weighed
    a, b = own, np.maximum(others, 0.0)
    n, m = a.sum(-1, keepdims=True), b.sum(-1, keepdims=True)  # (M, T, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        expected = np.minimum(n, m) * (a + b) / (n + m)
        seen = expected >= _LEAST_EXPECTED
        a, b = np.where(seen, a, 0.0), np.where(seen, b, 0.0)
        n, m = a.sum(-1), b.sum(-1)
        total, columns, k = n + m, a + b, seen.sum(-1)
        off = np.where(seen, (a - n[..., None] * columns / total[..., None]) ** 2 / columns, 0.0)
        square = off.sum(-1) * total**2 / (n * m)
        mean = total * (k - 1) / (total - 1)
        variance = _variance(total, n, m, np.where(seen, 1 / columns, 0.0).sum(-1), k)
        told = (k > 1) & (total > 3) & (variance > 0)
        x, mu, v = (np.where(told, each, 0.0).sum(-1) for each in (square, mean, variance))
        share = 2 * v / (18 * mu**2)  # 2 / (9 v) of the module's text
        score: Floats = (np.cbrt(x / mu) - 1 + share) / np.sqrt(share)
    return np.where(mu > 0, score, np.nan)


def _variance(total: Any, n: Any, m: Any, inverses: Any, k: Any) -> Any:
    """Of chi-square in a table of two rows n, m and k columns, given its margins (Dawson 1954).

    inverses: the sum over columns of 1 / column.
    """
    rows = (total - 2) / (total - 1)
    columns = (k - 1) * (total - k) / (total - 1)
    uneven_rows = (total / n + total / m - 4) / (total - 2)
    uneven_columns = (total * inverses - k**2) / (total - 2)
    even = 2 * total / (total - 3) * (rows - uneven_rows) * (columns - uneven_columns)
    return even + total**2 / (total - 1) * uneven_rows * uneven_columns
