"""What channels have in common: a prior that is learnt, and which agents have the same law.

Arms are taken as exchangeable draws of a law. For each row, after bad (s = 0) and after good
(s = 1), a unit i, an arm of an agent or an arm of all agents together, has the rate p_i at the mode
with pseudo-counts 1/2, and n_i effective counts,

    n_i = marginal Fisher information of the log odds of p_i / (p_i (1 - p_i)),

split by p_i: as many pairs one slot apart would tell as much. Where all pairs are one slot apart
n_i is their number. Effective counts are beta-binomial: ln BB(x) = ln B(a + good, b + bad) -
ln B(a, b) under the prior Beta(a, b), the likelihood of the pairs one by one.

    prior   Empirical Bayes. For kappa = 2, 4, 8, ..., 64 the mean is mu = (1/4 + sum w_i p_i) /
            (1/2 + sum w_i), w_i = n_i / (n_i + kappa); the kappa of the largest likelihood gives
            Beta(kappa mu, kappa (1 - mu)). Before anything is observed it is Beta(1, 1).
    pairs   Agents a and b have the same law with probability 1 / (1 + e^-B), B = sum over arms and
            rows of ln BB(x + y) - ln BB(x) - ln BB(y), x and y their effective counts.

Engine and server call the same functions. Arrays end in (N arms, M agents, trials).
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.nn import sigmoid
from jax.scipy.special import betaln

from rmab.learning.channel.mode import channel_modes
from rmab.policies.policy import POPULATION

__all__ = [
    "KAPPAS",
    "Law",
    "common_law",
    "effective_counts",
    "log_beta_binomial",
    "population_prior",
    "pseudo_counts",
    "same_law",
]

Prior = float | tuple[float, float] | str  # a number, Beta's two, or POPULATION
KAPPAS = (2.0, 4.0, 8.0, 16.0, 32.0, 64.0)
_PSEUDO_COUNT = 0.5
_NOTHING_MEAN, _NOTHING_WEIGHT = 0.25, 0.5  # half a unit that is good half of the time


class Law(NamedTuple):
    """prior: (2, 2, trials), of bad and good after each; alike: (M, M, trials), how likely agents
    have the same law, None where nobody asks."""

    prior: Array
    alike: Array | None


def common_law(counts: Array, prior: Prior, *, compares: bool) -> Law:
    """What agents have in common by what each has counted, (C, 2, 2, N, M, trials).

    prior: that of the learner; compares: whether agents are.
    """
    learnt = prior == POPULATION
    width = counts.shape[-1]
    before = jnp.broadcast_to(pseudo_counts(1.0 if learnt else prior)[:, :, None], (2, 2, width))
    if not (learnt or compares):
        return Law(before, None)
    if counts.shape[0] == 1:  # pairs one slot apart alone: none are further apart
        counts = jnp.concatenate([counts, jnp.zeros_like(counts)])
    effective = effective_counts(counts)
    before = population_prior(effective) if learnt else before
    return Law(before, same_law(effective, before) if compares else None)


def pseudo_counts(prior: Prior) -> Array:
    """(2, 2): of bad and good after each, by Beta's numbers."""
    good, bad = prior if isinstance(prior, tuple) else (prior, prior)
    return jnp.asarray([[bad, good]] * 2, jnp.float32)


def effective_counts(counts: Array) -> Array:
    """(2, 2, N, M, trials), after bad and good, of bad and good next, from counts (G + 1, 2, 2, N,
    M, trials)."""
    shape = counts.shape[3:]
    flat = counts.reshape(*counts.shape[:3], 1, -1)
    p01, p11, information = channel_modes(flat, jnp.float32(_PSEUDO_COUNT))
    rate = jnp.stack([p01, p11])
    number = information / (rate * (1 - rate))
    return jnp.stack([number * (1 - rate), number * rate], 1).reshape(2, 2, *shape)


def log_beta_binomial(counts: Array, prior: Array) -> Array:
    """ln BB: of bad and good along the second axis, counts (2, 2, ...), under a prior of the same
    axes; (2, ...)."""
    return betaln(prior[:, 1] + counts[:, 1], prior[:, 0] + counts[:, 0]) - betaln(
        prior[:, 1], prior[:, 0]
    )


def population_prior(effective: Array) -> Array:
    """The law of the units, (2, 2, trials): after bad and good, of bad and good next, the numbers
    of a Beta. effective: (2, 2, N, M, trials)."""
    bad, good = effective[:, 0], effective[:, 1]
    number = bad + good
    rate = jnp.where(number > 0, good / jnp.where(number > 0, number, 1), 0)
    kappa = jnp.asarray(KAPPAS, jnp.float32).reshape(-1, *[1] * number.ndim)
    weight = number / (number + kappa)  # (kappas, 2, N, M, trials)
    mean = (_NOTHING_MEAN + (weight * rate).sum((2, 3))) / (_NOTHING_WEIGHT + weight.sum((2, 3)))
    by_kappa = kappa[..., 0, 0, 0][..., None]
    priors = jnp.stack([by_kappa * (1 - mean), by_kappa * mean], 2)  # (kappas, 2, 2, trials)

    def height(prior: Array) -> Array:
        return log_beta_binomial(effective, prior[:, :, None, None]).sum((1, 2))

    best = lax.map(height, priors).argmax(0)  # (2, trials)
    here = np.arange(len(KAPPAS))[:, None, None] == best
    return jnp.where(here[:, :, None], priors, 0).sum(0)


def same_law(effective: Array, prior: Array) -> Array:
    """(M, M, trials): the probability that agents have the same law, 1 for each and itself.

    effective: (2, 2, N, M, trials); prior: (2, 2, trials). One agent after the other is compared
    with all: nothing has an entry for every pair of agents and arm.
    """
    n_agents = effective.shape[3]
    wide = prior[:, :, None, None]
    alone = log_beta_binomial(effective, wide).sum((0, 1))  # (M, trials)

    def row(agent: Array) -> Array:
        own = effective[:, :, :, agent, None]
        both = log_beta_binomial(effective + own, wide).sum((0, 1))
        return sigmoid(both - alone - alone[agent])

    found = lax.map(row, jnp.arange(n_agents))
    return jnp.where(np.eye(n_agents, dtype=bool)[:, :, None], 1.0, found)
