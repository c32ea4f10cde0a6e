"""Forgetting: counts that decay by half-lives, and weights of the half-lives by prediction.

An expert has a half-life h in slots. After an episode of L slots all its counts are multiplied by
2^(-L / h), and then the episode's are added. There are B experts, one or a bank of them, with one
set of weights for all agents. After an episode an expert's log weight grows by the log-likelihood
of the episode's pairs of observations, of all arms and agents, under the mode of the expert's
posterior before the episode. Weights are normalised, and a small share of the first weights is
mixed in, so that none vanishes (Herbster and Warmuth's fixed share). An episode is played by one
expert, drawn by weight.

The next memory is a function of the memory, the episode's counts and its length: the engine carries
it from episode to episode, a server stores it with the round. An episode of no slots
changes nothing. Arrays end in (B experts, R trials).

Reference: M. Herbster and M. Warmuth, "Tracking the best expert", Machine Learning 32, 1998.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.nn import log_softmax

from rmab.arrays import Float, Int, Real
from rmab.learning.channel.mode import pair_likelihood
from rmab.policies.policy import Forgetting

__all__ = ["Memory", "after_episode", "first_memory", "of_expert", "pick_expert"]

_FIRST_SHARE = 0.01  # share of the first weights that is mixed in after every episode


class Memory(NamedTuple):
    """Memory of B experts at the start of an episode.

    counts: L = M agents, or 1 where they are merged as they count; visits: None where no learner
    reads them; modes: p01 and p11 of each expert's posterior, E = 1 where agents share their
    evidence, else M; None with only one expert.
    """

    counts: Float[Array, "C S S N L B R"]
    visits: Float[Array, "S N M B R"] | None
    log_weights: Float[Array, "B R"]
    modes: Float[Array, "2 N E B R"] | None


def first_memory(
    forgetting: Forgetting,
    counts: tuple[int, ...],
    visits: tuple[int, ...] | None,
    lanes: int,
    n_trials: int,
) -> Memory:
    """Return the memory before the first episode.

    counts and visits are shapes without the axes of experts and trials; lanes is E.
    """
    B = len(forgetting.half_lives)
    first = jnp.log(jnp.asarray(forgetting.first, jnp.float32))
    several, n_arms = B > 1, counts[3]
    return Memory(
        counts=jnp.zeros((*counts, B, n_trials), jnp.float32),
        visits=None if visits is None else jnp.zeros((*visits, B, n_trials), jnp.float32),
        log_weights=jnp.broadcast_to(first[:, None], (B, n_trials)),
        modes=jnp.full((2, n_arms, lanes, B, n_trials), 0.5, jnp.float32) if several else None,
    )


def after_episode(
    memory: Memory,
    counts: Real[Array, "C S S N L R"],
    visits: Real[Array, "S N M R"] | None,
    length: Int[Array, " R"],
    forgetting: Forgetting,
    add: Callable[[Array, Array], Array] = operator.add,
) -> Memory:
    """Return the memory after an episode of `length` slots; its modes are still those before it.

    add adds the episode's counts or visits (..., L, 1, R) to decayed ones (..., L, B, R).
    """
    rates = np.array([1 / half_life for half_life in forgetting.half_lives], np.float32)
    left = jnp.exp2(-length.astype(jnp.float32) * rates[:, None])  # (B, R)

    def added(before: Array | None, new: Array | None) -> Array | None:
        if before is None or new is None:
            return None
        return add(before * left, new[..., None, :])

    weights = memory.log_weights
    if memory.modes is not None:
        weights = _reweighed(weights, _predicted(counts, memory.modes), forgetting)
    counted = added(memory.counts, counts)
    assert counted is not None
    return Memory(counted, added(memory.visits, visits), weights, memory.modes)


def _predicted(counts: Array, modes: Array) -> Array:
    """Return the log-likelihood (B, R) of the episode's pairs under each expert's modes."""
    n_arms, lanes, n_trials = counts.shape[3:]
    counts = counts.reshape(*counts.shape[:3], n_arms * lanes, n_trials)
    modes = jnp.moveaxis(modes, 3, 1)  # (2, B, N, E, R)
    modes = jnp.broadcast_to(modes, (*modes.shape[:3], lanes, n_trials))
    p01, p11 = modes.reshape(2, modes.shape[1], n_arms * lanes, n_trials)
    return pair_likelihood(counts, p01, p11).sum(1)


def _reweighed(log_weights: Array, more: Array, forgetting: Forgetting) -> Array:
    weights = jnp.exp(log_softmax(log_weights + more, 0))
    first = jnp.asarray(forgetting.first, jnp.float32)[:, None]
    return jnp.log((1 - _FIRST_SHARE) * weights + _FIRST_SHARE * first)


def pick_expert(log_weights: Float[Array, "B R"], uniform: Float[Array, " R"]) -> Int[Array, " R"]:
    """Draw the number of an expert by weight."""
    passed = jnp.cumsum(jnp.exp(log_softmax(log_weights, 0)), 0)
    return (uniform >= passed[:-1]).sum(0)


def of_expert(values: Real[Array, "*A B R"], expert: Int[Array, " R"]) -> Real[Array, "*A R"]:
    """Select the values of each trial's expert."""
    here = jnp.arange(values.shape[-2])[:, None] == expert
    return jnp.where(here, values, 0).sum(-2)
