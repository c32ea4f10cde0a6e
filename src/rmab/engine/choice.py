"""The K largest of N along the first axis, ties to the lower arm.

For few arms every pair is compared once; for many a threshold is found by bisection on the bits of
the floats, which order like unsigned integers after a flip. Both give the same answer.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array, lax

__all__ = ["largest"]

FEW = 8  # up to here pairs are cheaper than bisection, and the unrolled code stays small


def largest(index: Array, k: Array) -> Array:
    """A mask of the k largest entries of `index` (N, ...) along its first axis."""
    return _by_pairs(index, k) if index.shape[0] <= FEW else _by_bisection(index, k)


def _by_pairs(index: Array, k: Array) -> Array:
    n_arms = index.shape[0]
    rank = [jnp.zeros(index.shape[1:], jnp.int8) for _ in range(n_arms)]
    for low in range(n_arms):
        for high in range(low + 1, n_arms):
            beaten = (index[high] > index[low]).astype(jnp.int8)
            rank[low] = rank[low] + beaten
            rank[high] = rank[high] + (1 - beaten)
    return jnp.stack(rank) < k


def _by_bisection(index: Array, k: Array) -> Array:
    bits = lax.bitcast_convert_type(index.astype(jnp.float32), jnp.uint32)
    bits = jnp.where(bits == jnp.uint32(1 << 31), 0, bits)  # -0.0 ties with 0.0
    negative = bits >> 31 == 1
    order = jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))  # (N, ...) sorts as the floats

    def above(level: Array) -> Array:
        return (order > level).sum(0, dtype=jnp.int32)

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
    tied = order == high
    places = k - above(high)
    first = tied & (jnp.cumsum(tied, axis=0, dtype=jnp.int32) <= places)
    return jnp.where(count == k, order > low, (order > high) | first)
