"""Empirical-Bayes prior of channels, and the probability that agents have the same dynamics.

Arms are taken as exchangeable draws from a population. For each row, after bad (s = 0) and after
good (s = 1), a unit i, an arm of an agent or an arm of all agents together, has the rate p_i at the
mode with pseudo-counts 1/2, and n_i effective counts,

    n_i = marginal Fisher information of the log odds of p_i / (p_i (1 - p_i)),

split by p_i: the number of pairs one slot apart that would be as informative, and their number
where all pairs are one slot apart. Effective counts are beta-binomial: ln BB(x) =
ln B(a + good, b + bad) - ln B(a, b) under the prior Beta(a, b), the likelihood of single pairs.

    prior   Empirical Bayes. For kappa = 2, 4, 8, ..., 64 the mean is mu = (1/4 + sum w_i p_i) /
            (1/2 + sum w_i), w_i = n_i / (n_i + kappa); the kappa of the largest likelihood gives
            Beta(kappa mu, kappa (1 - mu)). Before anything is observed it is Beta(1, 1).
    pairs   Agents a and b have the same dynamics with probability 1 / (1 + e^-B), B = sum over arms
            and rows of ln BB(x + y) - ln BB(x) - ln BB(y), x and y their effective counts.

Engine and server call the same functions. Arrays end in (N arms, M agents, R trials). The first
axis of priors and effective counts is the state before, the second the next state, both [bad,
good].
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.nn import sigmoid
from jax.scipy.special import betaln

from rmab.arrays import Float, Real
from rmab.learning.channel.mode import channel_modes
from rmab.learning.evidence import BAD, GOOD, beta_of, state_weights
from rmab.policies.policy import POPULATION

__all__ = [
    "KAPPAS",
    "Population",
    "effective_counts",
    "fit_population",
    "log_beta_binomial",
    "population_prior",
    "pseudo_counts",
    "same_dynamics",
]

Prior = float | tuple[float, float] | str  # a number, Beta's two, or POPULATION
KAPPAS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)  # candidates for the total weight of the prior
_PSEUDO_COUNT = 0.5
_UNIT_WEIGHT = 0.5  # weight of half a unit that is good half of the time
_UNIT_GOOD = 0.25  # its part that is good


class Population(NamedTuple):
    """Prior of all arms, and the probability that two agents have the same dynamics, if asked."""

    prior: Float[Array, "2 2 R"]
    alike: Float[Array, "M M R"] | None


def fit_population(
    counts: Real[Array, "C 2 2 N M R"], prior: Prior, *, compares: bool
) -> Population:
    """Fit the population to each agent's counts.

    A prior of POPULATION is learnt from the counts; compares also compares agents.
    """
    learnt = prior == POPULATION
    width = counts.shape[-1]
    before = jnp.broadcast_to(pseudo_counts(1.0 if learnt else prior)[:, :, None], (2, 2, width))
    if not (learnt or compares):
        return Population(before, None)
    if counts.shape[0] == 1:  # only pairs one slot apart: none are further apart
        counts = jnp.concatenate([counts, jnp.zeros_like(counts)])
    effective = effective_counts(counts)
    before = population_prior(effective) if learnt else before
    return Population(before, same_dynamics(effective, before) if compares else None)


def pseudo_counts(prior: Prior) -> Float[Array, "2 2"]:
    """Return the pseudo-counts of a prior that is not learnt."""
    assert not isinstance(prior, str)
    return jnp.asarray([state_weights(prior)] * 2, jnp.float32)


def effective_counts(counts: Real[Array, "C 2 2 N M R"]) -> Float[Array, "2 2 N M R"]:
    """Return effective counts from counts by gap."""
    shape = counts.shape[3:]
    flat = counts.reshape(*counts.shape[:3], 1, -1)
    p01, p11, information = channel_modes(flat, jnp.float32(_PSEUDO_COUNT))
    rate = jnp.stack([p01, p11])
    number = information / (rate * (1 - rate))
    return jnp.stack([number * (1 - rate), number * rate], 1).reshape(2, 2, *shape)


def log_beta_binomial(
    counts: Float[Array, "2 2 *B"], prior: Float[Array, "2 2 *#B"]
) -> Float[Array, " 2 *B"]:
    """Return ln BB of counts under a prior."""
    a, b = beta_of(prior)
    good, bad = beta_of(counts)
    return betaln(a + good, b + bad) - betaln(a, b)


def population_prior(effective: Float[Array, "2 2 N M R"]) -> Float[Array, "2 2 R"]:
    """Return the prior of the largest likelihood among KAPPAS."""
    bad, good = effective[:, BAD], effective[:, GOOD]
    number = bad + good
    rate = jnp.where(number > 0, good / jnp.where(number > 0, number, 1), 0)
    kappa = jnp.asarray(KAPPAS, jnp.float32).reshape(-1, *[1] * number.ndim)
    weight = number / (number + kappa)  # (kappas, 2, N, M, trials)
    mean = (_UNIT_GOOD + (weight * rate).sum((2, 3))) / (_UNIT_WEIGHT + weight.sum((2, 3)))
    by_kappa = kappa[..., 0, 0, 0][..., None]
    priors = jnp.stack([by_kappa * (1 - mean), by_kappa * mean], 2)  # (kappas, 2, 2, trials)

    def height(prior: Array) -> Array:
        return log_beta_binomial(effective, prior[:, :, None, None]).sum((1, 2))

    best = lax.map(height, priors).argmax(0)  # (2, trials)
    here = np.arange(len(KAPPAS))[:, None, None] == best
    return jnp.where(here[:, :, None], priors, 0).sum(0)


def same_dynamics(
    effective: Float[Array, "2 2 N M R"], prior: Float[Array, "2 2 R"]
) -> Float[Array, "M M R"]:
    """Return the probability that two agents have the same dynamics, 1 on the diagonal.

    One agent after the other is compared with all, so that no array has an entry for every pair of
    agents and arm.
    """
    n_agents = effective.shape[3]
    wide = prior[:, :, None, None]
    alone = log_beta_binomial(effective, wide).sum((0, 1))  # (M, R)

    def row(agent: Array) -> Array:
        pooled = effective + effective[:, :, :, agent, None]
        both = log_beta_binomial(pooled, wide).sum((0, 1))
        return sigmoid(both - alone - alone[agent])

    pairs = lax.map(row, jnp.arange(n_agents))
    return jnp.where(np.eye(n_agents, dtype=bool)[:, :, None], 1.0, pairs)
