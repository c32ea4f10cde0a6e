"""Small linear systems of many arms at once, elementwise over the arms, on NumPy and JAX alike.

Matrices are (S, S, *B) and vectors (S, *B): S is small, the arms come last, and every operation
runs along them. Compiled, nothing calls LAPACK, which would take the arms one by one.

Reference: W. K. Grassmann, M. I. Taksar, D. P. Heyman, "Regenerative analysis and steady state
distributions for Markov chains", Oper. Res. 33(5), 1985.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["Array", "array_namespace", "computed", "repeat", "resting", "rounding", "solve"]


Array = Any  # a NumPy or JAX array: both follow the array API, no common static type exists


def array_namespace(*arrays: Array) -> Any:
    """numpy, or the namespace of the first array that is not NumPy's (jax.numpy)."""
    for array in arrays:
        if not isinstance(array, np.ndarray | np.generic) and hasattr(array, "__array_namespace__"):
            return array.__array_namespace__()
    return np


def rounding(array: Array) -> float:
    """The spacing of numbers at 1 in the array's precision."""
    return float(np.finfo(array.dtype).eps)


def computed(array: Array) -> Array:
    """The array itself: XLA is to compute it once, not again inside each of its uses."""
    if array_namespace(array) is np:
        return array
    from jax import lax

    return lax.optimization_barrier(array)  # type: ignore[no-untyped-call]  # jax does not say


def solve(matrix: Array, right: Array) -> Array:
    """x with matrix x = right: (S, S, *B) and (S, C, *B) give (S, C, *B).

    Gauss and Jordan's elimination with the largest pivot of each column. A pivot of 0 counts as
    less than rounding could have made of it, so that x is finite.
    """
    xp = array_namespace(matrix, right)
    if xp is np:
        axes = (*range(2, matrix.ndim), 0, 1)  # the arms first
        try:
            found = np.linalg.solve(matrix.transpose(axes), right.transpose(axes))
            return found.transpose(-2, -1, *range(matrix.ndim - 2))
        except np.linalg.LinAlgError:  # one of them has a pivot of 0
            pass
    S, least = matrix.shape[0], rounding(matrix) ** 2
    rows = np.arange(S, dtype=np.int32).reshape(S, *[1] * (matrix.ndim - 2))

    def eliminate(column: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        table, free, order = state
        here = xp.take(table, column, 1)
        size = xp.where(free, xp.abs(here), -1)
        chosen = xp.where(size == size.max(0), rows, S).min(0)  # the first of equal ones
        place = rows == chosen
        line = xp.where(place[:, None], table, 0).sum(0)
        pivot = xp.take(line, column, 0)
        line = line / xp.where(xp.abs(pivot) > least, pivot, least)
        table = xp.where(place[:, None], line, table - here[:, None] * line)
        return table, free & ~place, xp.where(rows == column, chosen, order)

    state = (
        xp.concatenate([matrix, right], 1),
        xp.ones_like(matrix[0], bool),
        xp.zeros_like(matrix[0], np.int32),
    )
    table, _, order = repeat(S, eliminate, state)
    return xp.take_along_axis(table[:, S:], order[:, None], 0)


def repeat(times: int, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """state = body(i, state) for i = 0, 1, ...; one compiled loop if the state is JAX's."""
    if array_namespace(state[0]) is not np:
        from jax import lax

        return lax.fori_loop(0, times, body, state)
    for number in range(times):
        state = body(number, state)
    return state


def resting(passive: Array) -> Array:
    """The law of chains that were left alone for ever: (S, S, *B) gives (S, *B).

    A slot restarts at any state alike with a vanishing chance, which makes the law unique, and the
    mean over all starts where a chain has several recurrent classes. States are eliminated without
    subtractions, so that small chances stay accurate.
    """
    xp = array_namespace(passive)
    S = passive.shape[0]
    restart = 1e-9 if rounding(passive) > 1e-9 else 1e-30
    chance = [[passive[s, r] + restart for r in range(S)] for s in range(S)]
    for last in reversed(range(1, S)):
        away = sum(chance[last][:last])
        for s in range(last):
            chance[s][last] = chance[s][last] / away
            for r in range(last):
                chance[s][r] = chance[s][r] + chance[s][last] * chance[last][r]
    weight = [xp.ones_like(passive[0, 0])]
    for s in range(1, S):
        weight.append(sum(weight[r] * chance[r][s] for r in range(s)))
    law = xp.stack(weight)
    return law / law.sum(0)
