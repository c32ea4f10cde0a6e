"""Counts that lose weight and experts that are weighed: against plain loops over episodes."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.learning.forgetting import (
    Memory,
    after_episode,
    first_memory,
    of_expert,
    pick_expert,
)
from rmab.policies.builtin import BANK
from rmab.policies.policy import Forgetting
from tests.learning.observations import powers

GAPS, ARMS, AGENTS, TRIALS = 3, 2, 2, 2
SHAPE = (GAPS + 1, 2, 2, ARMS, AGENTS)


def episodes(rng, number=4):
    """Counts (..., TRIALS) and lengths of so many."""
    for _ in range(number):
        yield (
            rng.poisson(3, (*SHAPE, TRIALS)).astype(np.float32),
            rng.integers(1, 60, TRIALS).astype(np.int32),
        )


@cache
def compiled():
    return jax.jit(after_episode, static_argnames="forgetting")


def kept(forgetting, rng, number=4):
    memory = first_memory(forgetting, SHAPE, None, AGENTS, TRIALS)
    for counts, length in episodes(rng, number):
        memory = compiled()(memory, counts, None, length, forgetting=forgetting)
    return memory


def test_counts_lose_half_their_weight_in_a_half_life():
    memory = kept(Forgetting((20.0,)), np.random.default_rng(0))
    exact = np.zeros((*SHAPE, TRIALS))
    for counts, length in episodes(np.random.default_rng(0)):
        exact = exact * 2.0 ** (-length / 20.0) + counts
    np.testing.assert_allclose(memory.counts[..., 0, :], exact, rtol=1e-5)


@pytest.mark.parametrize("half_life", [math.inf, 1e12])
def test_a_half_life_without_end_forgets_nothing(half_life):
    memory = kept(Forgetting((half_life,)), np.random.default_rng(0))
    whole = sum(counts for counts, _ in episodes(np.random.default_rng(0)))
    np.testing.assert_array_equal(memory.counts[..., 0, :], whole)


def test_the_experts_of_a_bank_count_as_each_alone():
    bank = kept(BANK, np.random.default_rng(0))
    for place, half_life in enumerate(BANK.half_lives):
        alone = kept(Forgetting((half_life,)), np.random.default_rng(0))
        np.testing.assert_array_equal(bank.counts[..., place, :], alone.counts[..., 0, :])


def test_weights_follow_what_experts_predicted():
    """By loops over pairs, in double precision."""
    rng = np.random.default_rng(4)
    modes = rng.uniform(0.1, 0.9, (2, ARMS, AGENTS, 4, TRIALS)).astype(np.float32)
    counts = rng.poisson(1, (*SHAPE, TRIALS)).astype(np.float32)
    first = first_memory(BANK, SHAPE, None, AGENTS, TRIALS)
    memory = Memory(first.counts, None, first.log_weights, jnp.asarray(modes))
    length = np.full(TRIALS, 9, np.int32)
    found = compiled()(memory, counts, None, length, forgetting=BANK)
    for r in range(TRIALS):
        weights = np.array(BANK.first)
        for b in range(4):
            for n, m in np.ndindex(ARMS, AGENTS):
                p01, p11 = modes[:, n, m, b, r].astype(float)
                chances = powers(np.array([[1 - p01, p01], [1 - p11, p11]]), GAPS)
                weights[b] *= np.exp((counts[..., n, m, r] * np.log(chances)).sum() + 10)
        weights = weights / weights.sum()
        weights = 0.99 * weights + 0.01 * np.array(BANK.first)
        np.testing.assert_allclose(np.exp(found.log_weights[:, r]), weights, rtol=1e-3)


def test_an_episode_of_no_slots_changes_nothing():
    memory = first_memory(BANK, SHAPE, None, AGENTS, TRIALS)
    none = np.zeros((*SHAPE, TRIALS), np.float32)
    after = compiled()(memory, none, None, np.zeros(TRIALS, np.int32), forgetting=BANK)
    leaves = jax.tree.leaves(after), jax.tree.leaves(memory)
    for one, other in zip(*leaves, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_experts_are_picked_by_weight():
    weights = np.array([0.7, 0.1, 0.15, 0.05])
    uniform = (np.arange(2000) + 0.5) / 2000
    logs = np.repeat(np.log(weights)[:, None], 2000, 1).astype(np.float32)
    picked = pick_expert(jnp.asarray(logs), jnp.asarray(uniform, jnp.float32))
    often = np.bincount(np.asarray(picked), minlength=4) / 2000
    np.testing.assert_allclose(often, weights, atol=1e-3)
    values = np.arange(4.0)[:, None] * np.ones(2000)
    np.testing.assert_array_equal(of_expert(jnp.asarray(values), picked), picked)
