"""Confidence bounds: FedUCB on dynamics, Section VI and eq. (17); Fed1-UCB on mean rewards."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.arrays import Float, Int
from rmab.learning.evidence import Evidence, Prior, next_state_weights, valid_states
from rmab.learning.thompson import dynamics
from rmab.model.arms import WAITS, Moves
from rmab.rng.variates import Draws

__all__ = ["phase_noise", "survivors", "ucb"]

_BETA = 0.1  # probability that noise is larger than the bounds of Fed1-UCB allow for


def ucb(
    evidence: Evidence,
    draws: Draws,  # noqa: ARG001 - every learner takes it; this one is deterministic
    *,
    clip: bool = True,
    prior: Prior = 1.0,
    gaps: int = 0,
    mode: bool = False,
) -> Moves:
    """Return the posterior mean, the best state raised by sqrt(log(|A| |S| l) / plays of the arm).

    The best state has the largest reward; the others share the rest in proportion. With two states
    that is the paper's bound on p01 and p11. The width of the passive rows of an action-dependent
    arm goes by its observations after passivity.

    clip limits the bound to 1; mode starts from the posterior's mode; prior and gaps as for
    `thompson`.
    """
    n_states = evidence.visits.shape[0]
    valid = valid_states(evidence.kinds, n_states)
    sizes = np.array([kind.states for kind in evidence.kinds])[:, None]
    plays = evidence.visits.sum(0)
    after_passivity = evidence.counts[1:WAITS].sum((0, 1, 2))
    uncontrolled = np.array([not kind.action_dependent for kind in evidence.kinds])[:, None]
    unsure = jnp.log(2.0 * sizes * evidence.episode)  # (N, trials)
    active_width, passive_width = (
        jnp.sqrt(unsure / jnp.maximum(observed, 1))
        for observed in (plays, jnp.where(uncontrolled, plays, after_passivity))
    )
    rewards = jnp.maximum(evidence.rewards, evidence.idle_rewards)
    rewards = rewards if valid is None else jnp.where(valid[0], rewards, -jnp.inf)
    highest = n_states - 1 - rewards[::-1].argmax(0)  # the last of equals
    best = (jnp.arange(n_states)[:, None, None] == highest)[None]

    def upper(mean: Array, width: Array) -> Array:
        now = jnp.where(best, mean, 0).sum(1, keepdims=True)
        raised = now + width
        raised = jnp.minimum(raised, 1) if clip else raised
        share = jnp.where(now < 1, (1 - raised) / jnp.where(now < 1, 1 - now, 1), 0)
        return jnp.where(best, raised, mean * share)

    passive, active = dynamics(evidence, next_state_weights(prior, evidence), gaps, None, mode=mode)
    return Moves(upper(passive, passive_width), upper(active, active_width))


def survivors(
    evidence: Evidence,
    draws: Draws,
    *,
    pulls: int,
    horizon: int,
    sigma: float = 0.5,
    epsilon: float | None = None,
) -> tuple[Array, Array]:
    """Drop arms whose upper bound lies under the lower bound of the K-th best arm.

    In each phase every agent pulls every arm in play `pulls` times, so the arms still in play are
    those whose pulls are within half a phase of the most: no other memory is needed.

    With epsilon each of M agents adds Lap(d / (epsilon f)) to its mean of a phase of f pulls, d the
    range of the arm's rewards, and after p phases bounds are wider by
    d ln(4 N p^2 / beta) / (epsilon f sqrt(M)).
    """
    pulled = evidence.visits.sum(0)
    playing = pulled >= pulled.max(0) - evidence.agents * pulls / 2
    mean = (evidence.rewards * evidence.visits).sum(0) / jnp.maximum(pulled, 1)
    width = jnp.sqrt(4 * sigma**2 * jnp.log(float(horizon)) / jnp.maximum(pulled, 1))
    if epsilon is not None:
        shared = isinstance(evidence.agents, int | float)
        agents = round(evidence.agents) if shared else 1  # an agent without others is one
        phases = jnp.maximum(evidence.episode - 1, 1)
        span = (evidence.rewards.max(0) - evidence.rewards.min(0)) / (epsilon * pulls)
        mean = mean + span * phase_noise(draws, phases, agents, mean.shape[0])
        unsure = jnp.log(4 * mean.shape[0] * phases.astype(jnp.float32) ** 2 / _BETA)
        width = width + span * unsure / math.sqrt(agents)
    ranked = jnp.sort(jnp.where(playing, mean, -jnp.inf), axis=0)[::-1]
    kth_best = jnp.take(ranked, evidence.plays - 1, axis=0)
    keeps = mean + width >= kth_best - width
    if epsilon is not None:  # before the first phase there is only noise
        keeps = keeps | (evidence.episode <= 1)
    alive = (playing & keeps).astype(jnp.float32)
    return alive, alive


def phase_noise(
    draws: Draws, phases: Int[Array, " R"], agents: int, n_arms: int
) -> Float[Array, "{n_arms} R"]:
    """Return the mean over phases and agents of Laplace numbers of scale 1.

    Those of a phase are a function of its number, and stay the same in later phases.
    """

    def add(number: Array, total: Array) -> Array:
        uniform = draws.of_episode(number + 1).uniform(agents, n_arms) - 0.5
        laplace = -jnp.sign(uniform) * jnp.log1p(-2 * jnp.abs(uniform))
        return total + jnp.where(number < phases, laplace.mean(0), 0)

    zeros = jnp.zeros((n_arms, phases.shape[-1]), jnp.float32)
    total: Array = lax.fori_loop(0, phases.max(), add, zeros)
    return total / phases
