"""Local draws of many agents at once, from posterior summaries of sums and their own counts.

Summaries are moments of the sums' posteriors (`channel.posterior.log_odds_moments`); an agent draws
as `rmab.learning.channel.local_posterior` says.
"""

from __future__ import annotations

import math

import jax.numpy as jnp
from jax import Array, lax

from rmab.learning.channel.local_posterior import (
    PROPOSALS,
    UNIFORMS,
    LocalDraw,
    PosteriorSummaries,
    draw_local,
)
from rmab.learning.channel.posterior import log_odds_moments
from rmab.policies.policy import Policy
from rmab.rng.variates import Draws

__all__ = ["draw_for_agents", "summaries_of"]

_BLOCK = 256  # channels that are drawn at once: they fit a core's cache


def _beta(policy: Policy) -> tuple[float, float]:
    prior = policy.learner.prior
    assert not isinstance(prior, str)
    return prior if isinstance(prior, tuple) else (float(prior), float(prior))


def summaries_of(policy: Policy, merged: Array) -> PosteriorSummaries:
    """Return one summary of each channel, from counts of all agents (C, 2, 2, N, R)."""
    kinds = merged[: policy.learner.gaps + 1] if policy.learner.gaps else merged[:1]
    mean, covariance = log_odds_moments(
        jnp.asarray(kinds, jnp.float32), _beta(policy), policy.learner.gaps
    )
    return PosteriorSummaries(mean[None], covariance[None])


def _summaries_of_each(policy: Policy, sums: Array) -> PosteriorSummaries:
    """Return J summaries of each channel, from J sums (C, 2, 2, N, J, R), side by side."""
    several, trials = sums.shape[-2:]
    summaries = summaries_of(policy, sums.reshape(*sums.shape[:-2], several * trials))

    def apart(x: Array) -> Array:
        """(1, k, N, J R) -> (J, k, N, R)."""
        return jnp.moveaxis(x[0].reshape(*x.shape[1:-1], several, trials), -2, 0)

    return PosteriorSummaries(*(apart(x) for x in summaries))


def draw_for_agents(
    policy: Policy, sums: Array, own: Array, draws: Draws, doubt: float
) -> LocalDraw:
    """Draw the channels of A agents, (N, A R), agent after agent.

    Parameters
    ----------
    sums
        Counts of all agents, and perhaps of each group, (C, 2, 2, N, J, R).
    own
        Counts of each agent, (C, 2, 2, N, A, R).
    doubt
        Weight of the vague component.
    """
    agents = own.shape[-2]
    own = jnp.asarray(
        own[: policy.learner.gaps + 1] if policy.learner.gaps else own[:1], jnp.float32
    )
    if not policy.learner.gaps:  # no pair is further apart than one slot
        own = jnp.concatenate([own, jnp.zeros_like(own)])
    summaries = _summaries_of_each(policy, sums)
    shape = (own.shape[3], agents * own.shape[-1])  # (N, A R)
    uniforms = jnp.stack([draws.uniform(PROPOSALS, shape[0]) for _ in range(UNIFORMS)])
    size = math.prod(shape)
    beyond = -size % _BLOCK

    def in_blocks(x: Array) -> Array:
        """(..., N, A R) -> (blocks, ..., 1, _BLOCK)."""
        flat = x.reshape(*x.shape[:-2], size)
        flat = jnp.pad(flat, [(0, 0)] * (flat.ndim - 1) + [(0, beyond)], mode="edge")
        return jnp.moveaxis(flat.reshape(*flat.shape[:-1], -1, 1, _BLOCK), -3, 0)

    def draw(block: tuple[Array, Array, Array, Array]) -> LocalDraw:
        counts, mean, covariance, uniforms = block
        return draw_local(
            counts, PosteriorSummaries(mean, covariance), uniforms, prior=_beta(policy), doubt=doubt
        )

    wide = (jnp.tile(x, agents) for x in summaries)
    lanes = own.reshape(*own.shape[:3], *shape), *wide, uniforms
    found: LocalDraw = lax.map(draw, tuple(in_blocks(x) for x in lanes))
    return LocalDraw(*(x.reshape(-1)[:size].reshape(shape) for x in found))
