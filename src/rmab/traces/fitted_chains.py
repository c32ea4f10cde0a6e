"""Transition matrices and state shares fitted to a trace: the dynamics that policies may know.

Transitions are counted in neighbouring slots of a segment in both of which an arm was measured,

    Pr(s' next, after s) = (n_ss' + 1/2) / (n_s + S/2),

for each agent and arm, or from the counts of all agents, or for each segment by itself. The share
of each state is counted in all slots where the arm was measured; the shares of all agents are
averaged, whatever the number of slots that each measured.

States have shape (T slots, N arms, M agents, R): R traces of one shape, of which most callers have
one. Matrices have (S, S, N, G, M or 1, R), where G is 1, or the number of segments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.traces.trace import MISSING, Trace

__all__ = ["fitted_chains", "pair_counts", "segment_starts", "state_shares", "transition_matrices"]

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
States = npt.NDArray[Any]


def segment_starts(segment: npt.NDArray[Any]) -> Places:
    """Return the first slot of each segment, from ids (T,)."""
    return np.flatnonzero(np.r_[True, segment[1:] != segment[:-1]])


def pair_counts(trace: Trace) -> Floats:
    """Return the pairs of neighbouring slots by state and next state, (S, S, agents, arms)."""
    state = np.moveaxis(trace.state, 0, 2)[..., None]
    counts = _step_counts(state, segment_starts(trace.segment), trace.states)
    return np.swapaxes(counts[:, :, 0, :, :, 0], 2, 3)


def fitted_chains(counts: Floats) -> Floats:
    """Return the transition matrices of counts (S, S, ...), in their shape."""
    more = counts + 0.5
    return np.asarray(more / more.sum(1, keepdims=True))


def transition_matrices(
    state: States, starts: Places, n_states: int, *, pooled: bool = False, by_segment: bool = False
) -> Floats:
    """Return the chances of the next state by the state now, (S, S, N, G, M, R).

    Parameters
    ----------
    starts : ndarray
        First slot of each segment.
    pooled : bool
        Count all agents together; M is 1.
    by_segment : bool
        Count each segment by itself.
    """
    counts = _step_counts(state, starts, n_states, by_segment=by_segment)
    return fitted_chains(_by_group(counts, pooled=pooled))


def state_shares(
    state: States, starts: Places, n_states: int, *, pooled: bool = False, by_segment: bool = False
) -> Floats:
    """Return the share of each state as matrices without memory, (S, S, N, G, M, R)."""
    blocks = starts if by_segment else np.array([0])
    counts = np.stack([_summed(state == s, blocks) for s in range(n_states)])
    measured = counts.sum(0)
    share = np.where(measured > 0, counts / np.maximum(measured, 1), 1 / n_states)
    if pooled:
        there = measured > 0
        agents = there.sum(2, keepdims=True)  # of (G, N, M, R)
        mean = np.where(there, share, 0).sum(3, keepdims=True) / np.maximum(agents, 1)
        share = np.where(agents > 0, mean, 1 / n_states)
    return np.broadcast_to(_by_group(share), (n_states, *_by_group(share).shape))


def _step_counts(
    state: States, starts: Places, n_states: int, *, by_segment: bool = False
) -> Floats:
    """Return the pairs by state and next state, (S, S, G, N, M, R)."""
    before, after = state[:-1], state[1:]
    joined = (before != MISSING) & (after != MISSING)
    joined[starts[1:] - 1] = False
    # A pair belongs to the segment of its first slot; a last segment of one slot has none.
    blocks = np.minimum(starts, len(before) - 1) if by_segment else np.array([0])
    counts = np.empty((n_states, n_states, len(blocks), *state.shape[1:]))
    for s in range(n_states):
        left = joined & (before == s)
        for then in range(n_states):
            counts[s, then] = _summed(left & (after == then), blocks)
    return counts


def _summed(true: npt.NDArray[np.bool_], blocks: Places) -> Floats:
    """Return the number of true slots in each block, (G, N, M, R)."""
    if len(blocks) == 1:
        return np.asarray(true.sum(0, keepdims=True, dtype=np.float64))
    return np.asarray(np.add.reduceat(true, blocks, axis=0, dtype=np.float64))


def _by_group(counts: Floats, *, pooled: bool = False) -> Floats:
    """Return (..., G, N, M, R) as (..., N, G, M or 1, R)."""
    moved = np.swapaxes(counts, -4, -3)
    return np.asarray(moved.sum(-2, keepdims=True) if pooled else moved)
