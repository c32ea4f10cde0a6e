"""What a look still tells as it ages, and the values that follow from it, for many arms.

With the notation of `rmab.planning.index.parametric`: the news n(s, k) = b(s, k) - mu of all ages,
sums over waits to the end, and the equations of the values H. Arrays have the ages first and the
arms last.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from rmab.linalg import solve
from rmab.model.arms import Array, array_namespace
from rmab.planning.index.crossings import tolerances

__all__ = ["Ages", "ages_of", "along", "fading", "keeps", "to_the_end", "values_of_looks"]


class Ages(NamedTuple):
    """What depends on the ages alone: fade, to_end: (J, 1, 1), beta^(k-1) and to_end(k)."""

    fade: Array
    to_end: Array


@lru_cache(maxsize=64)
def ages_of(J: int, beta: float, number: Any) -> Ages:
    """The ages 1..J in numbers of a type."""
    fade = beta ** np.arange(J)
    to_end = np.cumsum(fade)[::-1] if beta == 1 else (1 - beta * fade[::-1]) / (1 - beta)
    return Ages(*(array.astype(number).reshape(-1, 1, 1) for array in (fade, to_end)))


def keeps(array: Array, beta: float) -> float:
    """The discount times the chance that a play is not forgotten."""
    return beta * (1 - tolerances(array).forgotten)


def fading(passive: Array, news: Array, J: int) -> Array:
    """The news of all ages: n P_0^(k-1), from that of age 1, (S, S, B): [r, s]; (J, S, S, B)."""
    xp = array_namespace(news)
    S = len(passive)
    if xp is np:
        ages, power = news[None], passive
        while len(ages) < J:
            older = np.einsum("krsb,rqb->kqsb", ages[: J - len(ages)], power)
            ages = np.concatenate([ages, older])
            power = np.einsum("rqb,qpb->rpb", power, power)
    else:
        from jax import lax

        def next_age(now: Array, _: None) -> tuple[Array, Array]:
            after = sum(passive[r] * now[r][:, None] for r in range(S))  # (S, S, B): [s, r]
            return xp.swapaxes(after, 0, 1), now

        ages = lax.scan(next_age, news, None, J)[1]
    return xp.where(xp.abs(ages) > 1e-30, ages, 0)  # without denormals


def to_the_end(paid: Array, beta: float) -> Array:
    """sum_{i=k..J} beta^(i-k) paid(i) for every age k; (J, S, B)."""

    def age_before(total: Array, now: Array) -> tuple[Array, Array]:
        total = now + beta * total
        return total, total

    if array_namespace(paid) is not np:
        from jax import lax

        return lax.scan(age_before, 0 * paid[0], paid, reverse=True)[1]
    totals, total = np.empty_like(paid), np.zeros_like(paid[0])
    for age in reversed(range(len(paid))):
        total, totals[age] = age_before(total, paid[age])
    return totals


def along(news: Array, vector: Array) -> Array:
    """n(s, k) . vector: (J, S, S, B) and (S, B) give (J, S, B)."""
    if array_namespace(news) is np:
        return np.einsum("krsb,rb->ksb", news, vector)
    return sum(news[:, r] * vector[r] for r in range(len(vector)))


def values_of_looks(news: Array, first: Array, right: Array, beta: float) -> Array:
    """x with x(s) = right(s) + keep beta^first n(s, first) . x; both (S, C, B).

    Never seen has no news.
    """
    xp = array_namespace(first)
    J, S = news.shape[:2]
    s, b = np.arange(S)[:, None], np.arange(first.shape[1])
    told = news[xp.minimum(first, J - 1), :, s, b]  # (S, B, S)
    weight = xp.where(first == J, 0, keeps(news, beta) * (beta**first if beta != 1 else 1.0))
    matrix = np.eye(S, dtype=right.dtype)[:, :, None] - xp.swapaxes(weight[..., None] * told, 1, 2)
    return solve(matrix, right)
