"""Learners that forget: counts by half-life, and which half-life predicts best.

An expert has a half-life h in slots. After an episode of L slots all its counts are multiplied by
2^(-L / h), and then the episode's are added. There are B experts, one or a bank of them, with one
set of weights for all agents. After an episode an expert's log weight grows by the log-likelihood
of the episode's pairs of observations, of all arms and agents, under the mode of the expert's
posterior before the episode. Weights are normalised, and a small share of the first weights is
mixed in, so that none vanishes (Herbster and Warmuth's fixed share). An episode is played by one
expert, drawn by weight.

Everything here is a function of what was kept, the episode's counts and its length: the engine
carries it from episode to episode, a server stores it with the round. An episode of no slots
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

from rmab.learning.channel.mode import pair_likelihood
from rmab.policies.policy import Forgetting

__all__ = ["Memory", "after_episode", "first_memory", "of_expert", "pick_expert"]

_FIRST_SHARE = 0.01  # of the first weights, mixed in after every episode


class Memory(NamedTuple):
    """What is kept at the start of an episode.

    counts: (C, S, S, N, L, B, R), L = M agents or 1 where they are merged as they count; visits:
    (S, N, M, B, R), None where nobody reads them; log_weights: (B, R); modes: (2, N, E, B, R), p01
    and p11 of each expert's posterior, E = 1 where agents share their evidence, else M; None where
    there is one expert alone.
    """

    counts: Array
    visits: Array | None
    log_weights: Array
    modes: Array | None


def first_memory(
    forgetting: Forgetting,
    counts: tuple[int, ...],
    visits: tuple[int, ...] | None,
    lanes: int,
    n_trials: int,
) -> Memory:
    """Before the first episode; counts, visits: the shapes of an expert's but for the trials;
    lanes: E."""
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
    counts: Array,
    visits: Array | None,
    length: Array,
    forgetting: Forgetting,
    add: Callable[[Array, Array], Array] = operator.add,
) -> Memory:
    """What is kept after an episode; its modes are still those before it.

    counts: (C, S, S, N, L, R) of the episode alone, visits: (S, N, M, R); length: (R,); add: how
    what is new, (..., L, 1, R), is added to what is left of what was kept, (..., L, B, R).
    """
    rates = np.array([1 / half_life for half_life in forgetting.half_lives], np.float32)
    left = jnp.exp2(-length.astype(jnp.float32) * rates[:, None])  # (B, R)

    def added(kept: Array | None, new: Array | None) -> Array | None:
        if kept is None or new is None:
            return None
        return add(kept * left, new[..., None, :])

    weights = memory.log_weights
    if memory.modes is not None:
        weights = _reweighed(weights, _predicted(counts, memory.modes), forgetting)
    counted = added(memory.counts, counts)
    assert counted is not None
    return Memory(counted, added(memory.visits, visits), weights, memory.modes)


def _predicted(counts: Array, modes: Array) -> Array:
    """The log-likelihood (B, R) of the episode's pairs under each expert's modes."""
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


def pick_expert(log_weights: Array, uniform: Array) -> Array:
    """The number (R,) of an expert, by weight; log_weights: (B, R)."""
    passed = jnp.cumsum(jnp.exp(log_softmax(log_weights, 0)), 0)
    return (uniform >= passed[:-1]).sum(0)


def of_expert(values: Array, expert: Array) -> Array:
    """Of values (..., B, R) those of the experts (R,): (..., R)."""
    here = jnp.arange(values.shape[-2])[:, None] == expert
    return jnp.where(here, values, 0).sum(-2)
