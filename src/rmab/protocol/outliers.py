"""Outlier scores: how far the counts of each agent are from the others'. Nothing is dropped.

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

For an honest agent that is the largest of N numbers that are nearly standard normal, whatever the
number of its counts: 1 to 4 as N goes from 4 to 4096.

A liar is also one of the others. If all others were summed, a liar with many counts would make
everybody else an outlier. So outliers are left out of the reference, for each arm separately, the
worst first, as long as more than half remain; meanwhile no agent weighs more than the median agent.
With two agents it cannot be known which of them lies.

Counts of one owner are summed first, so that an owner of ten names has one score. Where as many
were left out as may be, and some of the rest are still outliers, there are *two camps*: no majority
is clear, and scores do not say who is right.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.policies.aggregation import capped
from rmab.protocol.shape import Ints, Shape

__all__ = ["STANDS_OUT", "OutlierScores", "compared", "outlier_scores"]

Floats = npt.NDArray[np.float64]

_LEAST_EXPECTED = 1.0  # expected count of a cell below which its column is left out
STANDS_OUT = 6.0  # score above which an agent is shown as an outlier
_UNLIKE = 4.0  # score above which an agent is left out of the reference
_STEPS = 10  # steps in which many agents are left out


class OutlierScores(NamedTuple):
    """Outlier scores of agents.

    scores: by name, to two decimals, None without anything to compare; divided: the arms, from 0,
    with two camps.
    """

    scores: dict[str, float | None]
    divided: tuple[int, ...]


def outlier_scores(counts: Ints, shape: Shape) -> Floats:
    """Return the score (M,) of each agent, from its counts (M, C, S, S, N); NaN without anything to
    compare: too few counts, or no others."""
    return _scored(counts, shape)[0]


def compared(
    counts: Mapping[str, Ints], shape: Shape, owners: Mapping[str, str] | None = None
) -> OutlierScores:
    """Compare agents with one another.

    Parameters
    ----------
    counts
        Counts (C, S, S, N) by name of the agent.
    owners
        Owner by name of the agent, whose agents have one score; None: each has its own.
    """
    if not counts:
        return OutlierScores({}, ())
    of = {name: (owners or {}).get(name, name) for name in counts}
    place = {owner: n for n, owner in enumerate(dict.fromkeys(of.values()))}
    summed = np.zeros((len(place), *next(iter(counts.values())).shape), np.int64)
    for name, of_agent in counts.items():
        summed[place[of[name]]] += of_agent
    scores, divided = _scored(summed, shape)
    rounded = [None if np.isnan(score) else float(score) for score in np.round(scores, 2)]
    return OutlierScores({name: rounded[place[of[name]]] for name in counts}, divided)


def _scored(counts: Ints, shape: Shape) -> tuple[Floats, tuple[int, ...]]:
    """Return scores (M,), and the arms with two camps."""
    M, S = counts.shape[0], counts.shape[2]
    scores = np.full(M, np.nan)
    divided = []
    if M < 2:
        return scores, ()
    for arm, kinds in enumerate(shape.exact_kinds):
        tables = counts[:, :kinds, :, :, arm].reshape(M, -1, S)
        found, kept = _of_arm(tables)
        scores = np.fmax(scores, found)
        if (found[kept] > STANDS_OUT).any():
            divided.append(arm)
    return scores, tuple(divided)


def _of_arm(tables: Ints) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return scores (M,) by one arm, and the agents (M,) in the reference.

    tables: counts by table and state at the end of pairs, (M, T, S).
    """
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
    return _against(own, kept.astype(np.float64)), kept


def _against(own: Floats, weights: Floats) -> Floats:
    """Return scores (M,) of each agent's counts (M, T, S) against all others', weighed by (M,)."""
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
    """Return the variance of chi-square in a table of rows n, m and k columns, given its margins.

    inverses: the sum over columns of 1 / column.
    """
    rows = (total - 2) / (total - 1)
    columns = (k - 1) * (total - k) / (total - 1)
    uneven_rows = (total / n + total / m - 4) / (total - 2)
    uneven_columns = (total * inverses - k**2) / (total - 2)
    even = 2 * total / (total - 3) * (rows - uneven_rows) * (columns - uneven_columns)
    return even + total**2 / (total - 1) * uneven_rows * uneven_columns
