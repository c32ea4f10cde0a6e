"""Learners: merged counts in, dynamics out, eqs. (16), (17) and (36) to (38).

A learner is a function

    learner(evidence, draws) -> (p01, p11)

of arrays with arms on the second-to-last and trials on the last axis. `evidence` is what the
server has after merging, `draws` gives random variates. Nothing else is remembered between
episodes: the counts are the whole state.

    thompson   one draw from the Beta posterior of every parameter (FedTSWI, FedTS-myopic)
    ucb        posterior mean plus a confidence width (FedUCB-WI, FedUCB-myopic)
    survivors  Fed1-UCB's elimination: 1 for arms still in play, 0 for those dropped
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from rmab.learning.randomness import Draws

__all__ = ["Evidence", "survivors", "thompson", "ucb"]


class Evidence(NamedTuple):
    """What the server knows at the start of an episode, merged over agents.

    transitions: (2, 2, N, trials), looks at an arm in two consecutive slots by (state, next);
    visits: (2, N, trials), plays by state seen; episode: (trials,), counted from 1;
    reward: (N, 1) what each arm pays; plays: how many arms an agent plays in a slot; agents: how
    many there are, each counted by its weight.
    """

    transitions: Array
    visits: Array
    episode: Array
    reward: Array
    plays: Array
    agents: float


def thompson(
    evidence: Evidence, draws: Draws, *, prior: tuple[float, float] = (1.0, 1.0)
) -> tuple[Array, Array]:
    """A draw of (p01, p11) from the Beta posterior, eq. (38): the prior once, plus all counts.

    prior = (a, b): Beta(a, b) on the probability of the good state next.
    """
    seen = evidence.transitions
    good = draws.beta(prior[0] + seen[:, 1], prior[1] + seen[:, 0], least=min(prior))
    return good[0], good[1]


def ucb(
    evidence: Evidence,
    draws: Draws,  # noqa: ARG001 - every learner takes it; this one is deterministic
    *,
    clip: bool = True,
    prior: tuple[float, float] = (1.0, 1.0),
) -> tuple[Array, Array]:
    """The mean plus sqrt(log(|A| |S| l) / plays of the arm), Section VI; clipped to [0, 1]."""
    good = prior[0] + evidence.transitions[:, 1]
    mean = good / (good + prior[1] + evidence.transitions[:, 0])
    plays = jnp.maximum(evidence.visits.sum(0), 1)
    upper = mean + jnp.sqrt(jnp.log(4.0 * evidence.episode) / plays)
    upper = jnp.minimum(upper, 1) if clip else upper
    return upper[0], upper[1]


def survivors(
    evidence: Evidence,
    draws: Draws,  # noqa: ARG001 - every learner takes it; this one is deterministic
    *,
    pulls: int,
    horizon: int,
    sigma: float = 0.5,
) -> tuple[Array, Array]:
    """Fed1-UCB: drop arms whose upper bound lies under the lower bound of the K-th best.

    In each phase every agent pulls every arm in play `pulls` times, so an arm still in play is
    one whose pulls are within half a phase of the most: no other memory is needed.
    """
    pulled = evidence.visits.sum(0)
    playing = pulled >= pulled.max(0) - evidence.agents * pulls / 2
    mean = evidence.reward * evidence.visits[1] / jnp.maximum(pulled, 1)
    width = jnp.sqrt(4 * sigma**2 * jnp.log(float(horizon)) / jnp.maximum(pulled, 1))
    ranked = jnp.sort(jnp.where(playing, mean, -jnp.inf), axis=0)[::-1]
    kth_best = jnp.take(ranked, evidence.plays - 1, axis=0)
    alive = (playing & (mean + width >= kth_best - width)).astype(jnp.float32)
    return alive, alive
