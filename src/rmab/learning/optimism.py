"""Dynamics with a confidence radius for each row: what UCWhittle plans by.

Rows of arms that are always observed are learnt apart for both actions, from the shares of the
steps seen, with the radius

    d(s, a) = c sqrt( 2 S ln(2 S A N l^4 / delta) / n(s, a) ),   at most 1, and 1 where n(s, a) = 0,

n the steps seen, A = 2 actions, l the episode, c a scale (1 as published).

Reference: K. Wang, L. Xu, A. Taneja, M. Tambe, "Optimistic Whittle index policy: online learning
for restless bandits", AAAI 2023.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from rmab.learning.learners import Evidence
from rmab.model.arms import Moves, Uncertain
from rmab.random import Draws

__all__ = ["confident_rows"]


def confident_rows(
    evidence: Evidence,
    draws: Draws,  # noqa: ARG001 - every learner takes it; this one is deterministic
    *,
    scale: float = 1.0,
    delta: float = 1e-3,
) -> Uncertain:
    """The shares of steps seen, each next state alike where none were, and radii (S, N, trials)."""
    sizes = np.array([kind.states for kind in evidence.kinds])
    n_arms, S = len(sizes), evidence.visits.shape[0]
    apart = np.array([kind.action_dependent for kind in evidence.kinds])[:, None]
    has = (np.arange(S)[:, None] < sizes)[None, :, :, None]
    level = jnp.log(4.0 * sizes[:, None] * n_arms / delta) + 4 * jnp.log(
        evidence.episode.astype(jnp.float32)
    )

    def rows(steps: Array) -> tuple[Array, Array]:
        total = steps.sum(1)
        share = steps / jnp.maximum(total, 1e-30)[:, None]
        share = jnp.where(total[:, None] > 0, share, has / sizes[:, None])
        width = scale * jnp.sqrt(2.0 * sizes[:, None] * level / jnp.maximum(total, 1e-30))
        return share, jnp.where(total > 0, jnp.minimum(width, 1), 1)

    active, active_width = rows(evidence.counts[0])
    passive, passive_width = active, active_width
    if apart.any():
        idle = rows(evidence.counts[1])
        passive, passive_width = (
            jnp.where(apart, own, alike)
            for own, alike in zip(idle, (active, active_width), strict=True)
        )
    return Uncertain(Moves(passive, active), Moves(passive_width, active_width))
