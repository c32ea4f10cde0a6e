"""Whittle indices of small fully observed arms by the adaptive greedy rule, many arms at once.

Average reward, on NumPy and JAX.

As in `rmab.planning.index.fast_pivoting`: under a policy the advantage of active over passive in
each state is affine in the subsidy lambda. Start with all states active; S times the state leaves
whose advantage falls to 0 first, and its index is the lambda there. Let D = P_1 - P_0 with the
column of a reference state set to 0, M = I - P of the policy with that column all ones, and
F = D M^-1. Letting state j become passive changes

    F <- F - F(:, j) F(j, :) / (1 + F(j, j)),     A <- A - F(:, j) A(j) / (1 + F(j, j)).

A state that has left stays passive, so of an arm that is not indexable these are the indices of
nested policies, not of optimal ones. A slot restarts at a uniformly drawn state with a probability
of the order of rounding: where classes never meet, indices are large instead of infinite.

It serves drawn dynamics, many arms at once and under JAX; the other methods for fully observed arms
take one arm, on NumPy, and give a verdict.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rmab.arrays import Array, Float
from rmab.linalg import array_namespace, repeat, rounding, solve

__all__ = ["state_table"]

_RESTART_FACTOR = 8  # chance of a restart in a slot, in units of rounding


def state_table(
    passive: Float[Array, "S S *#B"],
    active: Float[Array, "S S *#B"],
    reward_passive: Float[Array, " S *#B"],
    reward_active: Float[Array, " S *#B"],
) -> Float[Array, "S ..."]:
    """Compute the index of each state; arguments broadcast in B.

    Runs on NumPy and, also under `jax.jit`, on JAX; never NaN or infinite.

    >>> two = np.array([[0.5, 0.5], [0.25, 0.75]])[:, :, None]
    >>> paid, unpaid = np.array([[2.0], [1.0]]), np.array([[0.5], [0.5]])
    >>> played = np.array([[1.0, 0.0], [0.5, 0.5]])[:, :, None]
    >>> state_table(two, played, unpaid, paid).ravel().round(6).tolist()
    [1.5, 1.0]
    """
    xp = array_namespace(passive, active, reward_passive, reward_active)
    S = passive.shape[0]
    width = np.broadcast_shapes(
        passive.shape[2:], active.shape[2:], reward_passive.shape[1:], reward_active.shape[1:]
    )
    passive, active = (xp.broadcast_to(m, (S, S, *width)) for m in (passive, active))
    gain = xp.broadcast_to(reward_active - reward_passive, (S, *width))
    pays = xp.broadcast_to(reward_active, (S, *width))
    centre, shift = pays.mean(0), gain.mean(0)
    pays, gain = pays - centre, gain - shift
    scale = xp.maximum(xp.abs(pays).max(0), xp.abs(gain).max(0))
    scale = xp.where(scale > 0, scale, 1)
    pays, gain = pays / scale, gain / scale

    restart = _RESTART_FACTOR * rounding(passive)
    keep = 1 - restart
    ones = [1] * len(width)
    is_base = (np.arange(S) == 0).reshape(1, S, *ones)
    difference = xp.where(is_base, 0, keep * (active - passive))
    identity = np.eye(S, dtype=passive.dtype).reshape(S, S, *ones)
    matrix = xp.where(is_base, 1, identity - keep * active - restart / S)
    turned = solve(xp.swapaxes(matrix, 0, 1), xp.swapaxes(difference, 0, 1))
    F = xp.swapaxes(turned, 0, 1)
    level = gain + (F * pays).sum(1)
    slope = -xp.ones_like(level)
    states = np.arange(S, dtype=np.int32).reshape(-1, *ones)

    def leave(_: Any, now: tuple[Array, ...]) -> tuple[Array, ...]:
        F, level, slope, plays, index, subsidy = now
        falls = plays & (slope < -rounding(passive))
        crossing = xp.where(falls, -level / xp.where(falls, slope, 1), np.inf)
        # Where none falls the arm is not indexable: the state that gains least is next.
        score = xp.where(plays, xp.where(falls.any(0), crossing, level), np.inf)
        leaves = states == xp.where(score == score.min(0), states, S).min(0)
        subsidy = xp.maximum(subsidy, xp.where(leaves & falls, crossing, -np.inf).max(0))
        row, column = xp.where(leaves[:, None], F, 0).sum(0), xp.where(leaves, F, 0).sum(1)
        pivot = 1 + xp.where(leaves, column, 0).sum(0)
        column = column / xp.where(xp.abs(pivot) > restart, pivot, restart)
        return (
            F - column[:, None] * row,
            level - column * xp.where(leaves, level, 0).sum(0),
            slope - column * xp.where(leaves, slope, 0).sum(0),
            plays & ~leaves,
            xp.where(leaves, subsidy, index),
            subsidy,
        )

    start = (F, level, slope, slope < 0, xp.zeros_like(level), xp.full_like(level[0], -np.inf))
    index = repeat(S, leave, start)[4]
    return xp.where(xp.isfinite(index), index, 0) * scale + shift  # single precision may overflow
