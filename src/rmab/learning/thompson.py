"""Thompson sampling: one posterior draw of every arm's dynamics, eqs. (16), (36) to (38).

A learner is a function

    learner(evidence, draws) -> Moves, or for channels a pair (p01, p11)

of arrays with arms on the second-to-last and trials on the last axis. `evidence` has the counts
merged over agents, `draws` gives random variates. Learners keep no other state between episodes.
`dynamics` gives the posterior draws or best estimates that `thompson` and `ucb` start from.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from rmab.arrays import Float, Real
from rmab.learning.channel.mode import channel_modes
from rmab.learning.channel.posterior import draw_channels, mean_channels
from rmab.learning.evidence import (
    Evidence,
    Prior,
    Weights,
    beta_of,
    next_state_weights,
    valid_states,
)
from rmab.learning.hidden_steps import both_matrices, one_matrix
from rmab.model.arms import WAITS, Moves
from rmab.model.tied_rows import draw_tied_rows
from rmab.policies.capabilities import Capabilities, capable
from rmab.rng.variates import Draws, Mask

__all__ = ["dynamics", "thompson"]

_WAIT_STREAMS = 1 << 16  # number of the stream of random numbers for arms of 0 states


@capable(Capabilities(local_draws=True))
def thompson(
    evidence: Evidence,
    draws: Draws,
    *,
    prior: Prior = 1.0,
    gaps: int = 0,
    mode: bool = False,
    tied: bool = False,
) -> Moves:
    """Draw every row from its posterior, eq. (38): the prior once, and all counts.

    Parameters
    ----------
    prior : weight a of Dirichlet(a, ..., a), or (a, b) of Beta(a, b) on the probability of state 1
        next, for two states.
    gaps : largest gap G that is counted by itself, in slots; 0 for the paper's, observations in two
        consecutive slots only.
    mode : return the posterior's mode (`channel.mode`), and of arms of more states the best
        estimate, in place of a draw.
    tied : draw one chance for all arms with the same tie.
    """
    weights = next_state_weights(prior, evidence)
    moves = dynamics(evidence, weights, gaps, None if mode else draws, mode=mode)
    if not tied:
        return moves
    a, b = prior if isinstance(prior, tuple) else (prior, prior)
    return draw_tied_rows(moves, evidence.kinds, evidence.counts, (a, b), draws)


def dynamics(
    evidence: Evidence, before: Weights, gaps: int, draws: Draws | None, *, mode: bool
) -> Moves:
    """Return the matrices of every arm by its kind: drawn, or the best estimates without draws.

    mode: of channels learnt from all gaps use the posterior's mode, not its draw or mean.
    """
    kinds, counts, n_states = evidence.kinds, evidence.counts, evidence.visits.shape[0]
    sizes = np.array([kind.states for kind in kinds])
    controlled = np.array([kind.action_dependent for kind in kinds])
    always = np.array([kind.fully_observed for kind in kinds])
    by_gap = ~controlled & ~always & (gaps > 0)
    if by_gap.all() and (sizes == n_states).all():
        matrix = _from_gaps(counts[: gaps + 1], before, draws, mode=mode)
        return Moves(matrix, matrix)
    valid = valid_states(kinds, n_states)
    active = _rows(counts[0], before, valid, draws)
    for size in np.unique(sizes[by_gap]).tolist():
        group = np.flatnonzero(by_gap & (sizes == size))
        pairs = counts[: gaps + 1, :size, :size, group]
        matrix = _from_gaps(pairs, before[:, :size], draws, mode=mode)
        active = active.at[:size, :size, group].set(matrix)
    passive = active
    if (controlled & always).any():
        unplayed = _rows(counts[1], before, valid, draws)
        passive = jnp.where((controlled & always)[:, None], unplayed, passive)
    hidden = controlled & ~always
    for size in np.unique(sizes[hidden]).tolist():
        group = np.flatnonzero(hidden & (sizes == size))
        waits = counts[:WAITS, :size, :size, group]
        group_draws = draws and draws.again(_WAIT_STREAMS + size)
        both = both_matrices(waits, before[:, :size], group_draws)
        passive = passive.at[:size, :size, group].set(both[0])
        active = active.at[:size, :size, group].set(both[1])
    return Moves(passive, active)


def _rows(
    counts: Real[Array, "S S N R"], before: Weights, valid: Mask | None, draws: Draws | None
) -> Float[Array, "S S N R"]:
    """Return rows from observed steps: Dirichlet draws, or their means."""
    weights = jnp.asarray(before + counts)
    if draws is not None:
        least = float(before.min()) if isinstance(before, np.ndarray) else 0.0
        return draws.dirichlet(weights, least, axis=1, valid=valid)
    weights = weights if valid is None else jnp.where(valid, weights, 0)
    return jnp.asarray(weights / weights.sum(1, keepdims=True))


def _from_gaps(
    counts: Real[Array, "C S S n R"], before: Weights, draws: Draws | None, *, mode: bool
) -> Float[Array, "S S n R"]:
    """Return P of uncontrolled arms of exactly S states from counts by gap."""
    n_states = counts.shape[1]
    if n_states > 2:
        return one_matrix(counts, before, draws and draws.again(n_states))
    if mode:
        p01, p11, _ = channel_modes(counts, jnp.asarray(before))
    elif isinstance(before, np.ndarray):
        good, bad = beta_of(before)
        beta = good.item(), bad.item()
        p01, p11 = draw_channels(counts, beta, draws) if draws else mean_channels(counts, beta)
    else:  # a prior that is learnt
        counts = counts.at[0].add(before)  # pseudo-counts are pairs one slot apart
        flat = (1.0, 1.0)
        p01, p11 = draw_channels(counts, flat, draws) if draws else mean_channels(counts, flat)
    return jnp.stack([jnp.stack([1 - p01, p01]), jnp.stack([1 - p11, p11])])
