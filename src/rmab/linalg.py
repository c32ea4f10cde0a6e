"""Small matrices of many arms at once, elementwise over the arms, on NumPy and JAX alike.

Matrices are (S, S, *B) and vectors (S, *B): S is small, the arms come last, and every operation
runs along them. Compiled code never calls LAPACK, which would take the arms one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rmab.arrays import Array, Float, Shaped

__all__ = [
    "Array",
    "array_namespace",
    "compute_in_branch",
    "compute_once",
    "inverse_root",
    "on_accelerator",
    "propagate",
    "repeat",
    "rounding",
    "sigmoid",
    "solve",
]


def array_namespace(*arrays: Array) -> Any:
    """Return numpy, or the namespace of the first array that is not NumPy's (jax.numpy)."""
    for array in arrays:
        if not isinstance(array, np.ndarray | np.generic) and hasattr(array, "__array_namespace__"):
            return array.__array_namespace__()
    return np


def rounding(array: Array) -> float:
    """Return the spacing of numbers at 1 in the array's precision."""
    return float(np.finfo(array.dtype).eps)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + e^-x)."""
    if array_namespace(x) is np:
        return 1 / (1 + np.exp(-x))
    from jax import nn

    return nn.sigmoid(x)


def inverse_root(x: Array) -> Array:
    """Return 1 / sqrt(x)."""
    if array_namespace(x) is np:
        return 1 / np.sqrt(x)
    from jax import lax

    return lax.rsqrt(x)


def on_accelerator() -> bool:
    """Return whether JAX runs on a device other than the host's CPU."""
    import jax

    return jax.default_backend() != "cpu"


def compute_once(array: Shaped[Array, "*B"]) -> Shaped[Array, "*B"]:
    """Return the array itself, which XLA is to compute once, not again inside each of its uses.

    A barrier costs nothing, but a compiler may drop it before it fuses; use `compute_in_branch`
    where it does.
    """
    if array_namespace(array) is np:
        return array
    from jax import lax

    return lax.optimization_barrier(array)  # type: ignore[no-untyped-call]  # jax does not say


def compute_in_branch(holds: Shaped[Array, ""], compute: Callable[..., Any], *operands: Any) -> Any:
    """Return compute(*operands), behind a branch that is always taken, on JAX.

    XLA stores the inputs and outputs of a branch, so that later uses compute neither anew. holds
    is always true, but not in a way that XLA can prove. On an accelerator, where a branch would
    wait for the host, a barrier is enough.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    if on_accelerator():
        barrier: Any = lax.optimization_barrier  # which has no types
        return barrier(compute(*barrier(operands)))

    def nothing(*operands: Any) -> Any:
        shapes = jax.eval_shape(compute, *operands)
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    return lax.cond(holds, compute, nothing, *operands)


def solve(matrix: Float[Array, "S S *B"], right: Float[Array, "S C *B"]) -> Float[Array, "S C *B"]:
    """Solve matrix x = right, with C right sides for each of the systems B.

    Gauss and Jordan's elimination with the largest pivot of each column. A pivot of 0 counts as
    less than rounding could have made of it, so that x is finite.
    """
    xp = array_namespace(matrix, right)
    if xp is np:
        axes = (*range(2, matrix.ndim), 0, 1)  # the arms first
        try:
            solution = np.linalg.solve(matrix.transpose(axes), right.transpose(axes))
            return solution.transpose(-2, -1, *range(matrix.ndim - 2))
        except np.linalg.LinAlgError:  # one of the systems has a pivot of 0
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


def repeat(times: int | Array, body: Callable[[Any, Any], Any], state: Any) -> Any:
    """Return the state after state = body(i, state) for i = 0, ..., times - 1, compiled on JAX."""
    if array_namespace(state[0]) is not np:
        from jax import lax

        return lax.fori_loop(0, times, body, state)
    for number in range(times):
        state = body(number, state)
    return state


def propagate(
    rows: Float[Array, "T S B"], matrix: Float[Array, "S S B"], times: int
) -> Float[Array, "{times} S T B"]:
    """Multiply rows by powers of a matrix: r(t), r(t) P, r(t) P^2, ... of many arms B.

    rows has r(t)[s] at [t, s]; the result has r(t) P^k at [k, :, t]. Numbers below 1e-30 become 0,
    because denormal numbers are slow.
    """
    xp = array_namespace(rows)
    start = xp.swapaxes(rows, 0, 1)
    if xp is np:  # every turn doubles the known powers and squares the largest
        known, power = start[None], matrix
        while len(known) < times:
            more = np.einsum("krsb,rqb->kqsb", known[: times - len(known)], power)
            known = np.concatenate([known, more])
            power = np.einsum("rqb,qpb->rpb", power, power)
    else:
        from jax import lax

        def once_more(now: Array, _: None) -> tuple[Array, Array]:
            after = sum(matrix[r] * now[r][:, None] for r in range(len(matrix)))  # [s, q]
            return xp.swapaxes(after, 0, 1), now

        known = lax.scan(once_more, start, None, times)[1]
    return xp.where(xp.abs(known) > 1e-30, known, 0)
