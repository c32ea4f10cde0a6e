"""Dynamics with what confidence leaves open: what optimistic learners plan by.

`confident_rows`, for UCWhittle.

Rows of arms that are always observed are learnt apart for both actions, from the shares of the
steps seen, with the radius

    d(s, a) = c sqrt( 2 S ln(2 S A N l^4 / delta) / n(s, a) ),   at most 1, and 1 where n(s, a) = 0,

n the steps seen, A = 2 actions, l the episode, c a scale (1 as published).

Reference: K. Wang, L. Xu, A. Taneja, M. Tambe, "Optimistic Whittle index policy: online learning
for restless bandits", AAAI 2023.

`colours`, for coloured UCRL2.

Playing a channel that was last seen in s, k slots ago, is the same experiment whatever the other
arms are in: a *colour* (arm, s, k), with ages cut at J. Counts by gap are the colours' counts: with
gaps = J - 1 slice k - 1 has the pairs k slots apart, and the last all that are J or more apart. Of
a colour that was seen n times and then good g times, the chance of good is held to lie within

    g / n -+ d / 2,   d = c sqrt( 56 S ln(4 C t / delta) / n ),

S = 2 outcomes, C = 2 J N colours, t - 1 the slots that all agents whose counts are merged have
played, c a scale (1 as published); and anywhere where n = 0. Nothing is made of the fact that all
ages of an arm follow from two numbers.

Reference: R. Ortner, D. Ryabko, P. Auer, R. Munos, "Regret bounds for restless Markov bandits",
Theor. Comp. Sci. 558, 2014.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from rmab.learning.evidence import Evidence
from rmab.model.arms import Intervals, Moves, Uncertain
from rmab.rng.variates import Draws

__all__ = ["colours", "confident_rows"]

_OUTCOMES = 2  # of a channel


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


def colours(
    evidence: Evidence,
    draws: Draws,  # noqa: ARG001 - every learner takes it; this one is deterministic
    *,
    scale: float = 1.0,
    delta: float = 1e-3,
) -> Intervals:
    """The interval of every colour; a channel that was never observed may be anything.

    Plans need be as accurate as the largest reward over sqrt(t).
    """
    assert evidence.slot is not None
    ages, _, _, n_arms, width = evidence.counts.shape
    t = jnp.broadcast_to(evidence.agents * evidence.slot + 1.0, width)
    pairs = jnp.moveaxis(evidence.counts, 0, 1)  # by state, age and next state
    pairs = pairs.reshape(2 * ages, 2, n_arms, width)
    seen = pairs.sum(1)
    share = pairs[:, 1] / jnp.maximum(seen, 1e-30)
    level = jnp.log(4.0 * _OUTCOMES * ages * n_arms / delta * t)
    half = scale / 2 * jnp.sqrt(56.0 * _OUTCOMES * level / jnp.maximum(seen, 1e-30))
    half = jnp.where(seen > 0, half, 1)
    lower, upper = jnp.clip(share - half, 0, 1), jnp.clip(share + half, 0, 1)
    anything = jnp.ones_like(lower[:1])
    most = jnp.maximum(jnp.abs(evidence.rewards).max(), jnp.abs(evidence.idle_rewards).max())
    return Intervals(
        jnp.concatenate([0 * anything, lower]),
        jnp.concatenate([anything, jnp.where(seen > 0, upper, 1)]),
        most / jnp.sqrt(t),
    )
