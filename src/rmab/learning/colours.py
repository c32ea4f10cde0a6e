"""Confidence intervals of colours: what coloured UCRL2 plans by.

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

from rmab.learning.learners import Evidence
from rmab.model.arms import Intervals
from rmab.random import Draws

__all__ = ["colours"]

_OUTCOMES = 2


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
