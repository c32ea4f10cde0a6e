"""Laws fitted to all slots of a trace: its chains, and what a policy that knows the dynamics knows.

A law is counted in neighbouring slots of a segment in both of which an arm was measured,

    Pr(s' next, after s) = (n_ss' + 1/2) / (n_s + S/2),

for each agent and arm, or from the counts of all agents, or for each segment by itself. The share
of each state is counted in all slots where the arm was measured; the shares of all agents are
averaged, whatever the number of slots that each measured.

States have shape (T slots, N arms, M agents, R): R traces of one shape, of which most callers have
one. Laws have (S, S, N, G, M or 1, R), where G is 1, or the number of segments.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.traces.trace import MISSING, Trace

__all__ = ["fitted_chains", "pair_counts", "segment_starts", "share_laws", "step_laws"]

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
States = npt.NDArray[Any]


def segment_starts(segment: npt.NDArray[Any]) -> Places:
    """The first slot of each segment, from ids (T,)."""
    return np.flatnonzero(np.r_[True, segment[1:] != segment[:-1]])


def pair_counts(trace: Trace) -> Floats:
    """(S, S, agents, arms): neighbouring measured slots by state and next state."""
    state = np.moveaxis(trace.state, 0, 2)[..., None]
    counts = _step_counts(state, segment_starts(trace.segment), trace.states)
    return np.swapaxes(counts[:, :, 0, :, :, 0], 2, 3)


def fitted_chains(counts: Floats) -> Floats:
    """Transition matrices of counts (S, S, ...), in the same shape."""
    more = counts + 0.5
    return np.asarray(more / more.sum(1, keepdims=True))


def step_laws(
    state: States, starts: Places, n_states: int, *, pooled: bool = False, by_segment: bool = False
) -> Floats:
    """Chances of the next state by the state now, (S, S, N, G, M, R); pooled: (S, S, N, G, 1, R).

    starts: the first slot of each segment.
    """
    counts = _step_counts(state, starts, n_states, by_segment=by_segment)
    return fitted_chains(_by_group(counts, pooled=pooled))


def share_laws(
    state: States, starts: Places, n_states: int, *, pooled: bool = False, by_segment: bool = False
) -> Floats:
    """The share of each state whatever came before, as laws without memory: (S, S, N, G, M, R)."""
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
    """Steps by state and next state, (S, S, G, N, M, R)."""
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
    """How often in each block of slots, (G, N, M, R)."""
    if len(blocks) == 1:
        return np.asarray(true.sum(0, keepdims=True, dtype=np.float64))
    return np.asarray(np.add.reduceat(true, blocks, axis=0, dtype=np.float64))


def _by_group(counts: Floats, *, pooled: bool = False) -> Floats:
    """(..., G, N, M, R) to (..., N, G, M or 1, R)."""
    moved = np.swapaxes(counts, -4, -3)
    return np.asarray(moved.sum(-2, keepdims=True) if pooled else moved)
