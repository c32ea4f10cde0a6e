"""Constraint on the plays of a slot: K of N arms.

Every choice of arms goes through `Constraint`: of the engine, of an agent, of environments and of
exact values. A budget of costs in place of K would be another class with these methods.

NumPy and JAX arrays are ranked alike: larger entries first, the lower arm of equal ones. On JAX K
may be a traced number. This module loads JAX only when it is given JAX arrays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.linalg import Array, array_namespace

__all__ = ["Constraint"]

# Up to here comparing all pairs is cheaper than bisection, and unrolled code stays small.
_MAX_PAIRWISE_ARMS = 8


@dataclass(frozen=True)
class Constraint:
    """Exactly K = `plays` arms are played in a slot; plays is a traced number in a program."""

    plays: Any

    @property
    def relaxed(self) -> float:
        """Plays per slot that a relaxed policy may use on average."""
        return float(self.plays)

    def select(self, index: Array, axis: int = 0) -> Array:
        """Return the mask of the K largest entries along the axis of arms.

        index has any shape; on JAX the arms are on its first axis.
        """
        if array_namespace(index) is not np:
            return _select(index, self.plays)
        played = np.zeros(index.shape, bool)
        np.put_along_axis(played, self.ranked(index, axis), True, axis)
        return played

    def ranked(self, index: Array, axis: int = 0) -> npt.NDArray[np.intp]:
        """Return the arms of the K largest entries of a NumPy array, best first."""
        order = np.argsort(-index, axis=axis, kind="stable")
        return np.take(order, range(self.plays), axis)

    def n_subsets(self, n_arms: int) -> int:
        """Return the number of sets of K arms."""
        return math.comb(n_arms, self.plays)

    def subsets(self, n_arms: int) -> npt.NDArray[np.intp]:
        """Return the sets of K arms in lexicographic order, (A, K)."""
        return _subsets(n_arms, self.plays)


@lru_cache(maxsize=64)
def _subsets(n_arms: int, plays: int) -> npt.NDArray[np.intp]:
    return np.array(list(combinations(range(n_arms), plays)), np.intp)


def _select(index: Array, k: Array) -> Array:
    """Mask of the k largest entries of a JAX array (N, ...) along its first axis.

    For few arms every pair is compared once; for many a threshold is found by bisection on the bits
    of the floats, which order like unsigned integers after a flip. Both give the same answer.
    """
    return _by_pairs(index, k) if index.shape[0] <= _MAX_PAIRWISE_ARMS else _by_bisection(index, k)


def _by_pairs(index: Array, k: Array) -> Array:
    xp, n_arms = array_namespace(index), index.shape[0]
    rank = [xp.zeros(index.shape[1:], xp.int8) for _ in range(n_arms)]
    for low in range(n_arms):
        for high in range(low + 1, n_arms):
            beaten = (index[high] > index[low]).astype(xp.int8)
            rank[low] = rank[low] + beaten
            rank[high] = rank[high] + (1 - beaten)
    return xp.stack(rank) < k


def _by_bisection(index: Array, k: Array) -> Array:
    import jax.numpy as jnp
    from jax import lax

    bits = lax.bitcast_convert_type(index.astype(jnp.float32), jnp.uint32)
    bits = jnp.where(bits == jnp.uint32(1 << 31), 0, bits)  # -0.0 ties with 0.0
    negative = bits >> 31 == 1
    order = jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))  # (N, ...) sorts as the floats

    def above(level: Array) -> Array:
        """Number of entries above a level; as a product, which is vectorised over trials."""
        ones = jnp.ones(order.shape[0], jnp.float32)
        return jnp.tensordot(ones, (order > level).astype(jnp.float32), 1).astype(jnp.int32)

    def halve(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        low, high, count = state  # count = above(low) >= k > above(high)
        middle = low + (high - low) // 2
        inside = above(middle)
        enough = (inside >= k) & (count > k)
        return (
            jnp.where(enough, middle, low),
            jnp.where(enough | (count == k), high, middle),
            jnp.where(enough, inside, count),
        )

    def unsettled(state: tuple[Array, Array, Array]) -> Array:
        low, high, count = state
        return ((count > k) & (high - low > 1)).any()

    start = order.min(0) - 1, order.max(0), jnp.full(order.shape[1:], order.shape[0], jnp.int32)
    low, high, count = lax.while_loop(unsettled, halve, start)

    # Where count is still above k, `high` is the k-th largest value and several arms share it.
    def by_number() -> Array:
        tied = order == high
        first = tied & (jnp.cumsum(tied, axis=0, dtype=jnp.int32) <= k - above(high))
        return jnp.where(count == k, order > low, (order > high) | first)

    return lax.cond((count > k).any(), by_number, lambda: order > low)
