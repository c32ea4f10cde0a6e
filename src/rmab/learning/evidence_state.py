"""Evidence that is more than a sum of counts: forgetting, learnt priors, similarity, gossip.

Counts may lose weight, a prior may be learnt from all arms, and agents may use each other's counts
as far as they have the same dynamics, or mix counts with their neighbours'. This module joins
`forgetting` and `population`, for the engine's trials and for a server's one trial. Where a policy
forgets or agents gossip, pairs are counted for one episode and then added to the memory,
(..., B experts, R trials); later steps take experts as further trials. Without forgetting there is
one expert with an infinite half-life.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from rmab.learning.channel.mode import channel_modes
from rmab.learning.forgetting import Memory, after_episode, first_memory, of_expert, pick_expert
from rmab.learning.population import fit_population, pseudo_counts
from rmab.policies.aggregation import Aggregation, Gossip, compares_agents, mixes_evidence
from rmab.policies.policy import POPULATION, Forgetting, Policy

__all__ = ["Recall", "Shared", "recall_of"]

_NOTHING_FORGOTTEN = Forgetting((math.inf,))


class Shared(NamedTuple):
    """Evidence of the learners of A agents.

    pairs: (C, S, S, N, A, R); visits: (S, N, M, R), each agent's, None where no learner reads them;
    weights: (M, M, R) weights of all agents' counts for each agent, None for its own counts; prior:
    (2, 2, 1, 1, R) where it is learnt, else None.
    """

    pairs: Array
    visits: Array | None
    weights: Array | None = None
    prior: Array | None = None


def recall_of(policy: Policy, aggregation: Aggregation) -> Recall | None:
    """Return the evidence state of a policy, None where counts are only added up."""
    forget, learnt = policy.learner.forget, policy.learner.prior == POPULATION
    compares = compares_agents(aggregation)
    mixes = mixes_evidence(aggregation)
    if not policy.learns or not (learnt or compares or mixes or forget is not None):
        return None
    return Recall(policy, aggregation)


class Recall:
    """Evidence of the learners of one policy, from episode to episode."""

    def __init__(self, policy: Policy, aggregation: Aggregation) -> None:
        self.policy = policy
        self.mixes = mixes_evidence(aggregation)
        self.forgetting = policy.learner.forget or (_NOTHING_FORGOTTEN if self.mixes else None)
        self.aggregation = aggregation
        self.compares = compares_agents(aggregation)
        self.learns_prior = policy.learner.prior == POPULATION

    def start(
        self, counts: tuple[int, ...], visits: tuple[int, ...] | None, n_agents: int, n_trials: int
    ) -> Memory | None:
        """Return the memory before the first slot, None where the counts are the whole state.

        counts, visits: shapes without the axes of experts and trials.
        """
        if self.forgetting is None:
            return None
        lanes = 1 if self.aggregation.shared else n_agents
        return first_memory(self.forgetting, counts, visits, lanes, n_trials)

    def learnt(
        self, pairs: Array, visits: Array | None, weights: Array, *, merged: bool = False
    ) -> Shared:
        """Return the evidence from pairs (C, S, S, N, L, R), with weights (M,) of agents.

        merged: whether the agents' pairs are summed already.
        """
        alike = prior = None
        if self.aggregation.shared and not merged:  # units are the arms of all agents together
            pairs, merged = self.aggregation.combine(pairs, weights), True
        if self.learns_prior or self.compares:
            law = fit_population(pairs, self.policy.learner.prior, compares=self.compares)
            prior = law.prior[:, :, None, None] if self.learns_prior else None
            alike = None if law.alike is None else law.alike * weights[:, None]
        if not merged:
            pairs = self.aggregation.combine(pairs, weights if alike is None else alike)
        return Shared(jnp.asarray(pairs), visits, alike, prior)

    def advanced(
        self,
        memory: Memory,
        pairs: Array,
        visits: Array | None,
        length: Array,
        weights: Array,
        *,
        merged: bool = False,
        chances: Array | None = None,
    ) -> tuple[Memory, Shared]:
        """Return the memory after an episode, and the evidence of all experts, as B R trials.

        pairs: (C, S, S, N, L, R) and visits: (S, N, M, R) of the episode; length: (R,) slots;
        chances: (links, R) uniform numbers that decide which links of gossiping agents fail.
        """
        assert self.forgetting is not None
        if isinstance(self.aggregation, Gossip):
            mix = partial(self.aggregation.mixed, weights=weights, chances=chances)
            memory = after_episode(memory, pairs, visits, length, self.forgetting, mix)
        else:
            memory = after_episode(memory, pairs, visits, length, self.forgetting)
        counts = memory.counts
        shared = self.learnt(counts.reshape(*counts.shape[:-2], -1), None, weights, merged=merged)
        if memory.modes is not None:
            modes = self._modes(shared)
            memory = memory._replace(modes=modes.reshape(*modes.shape[:-1], *counts.shape[-2:]))
        return memory, shared

    def picked(self, memory: Memory, shared: Shared, chance: Array) -> Shared:
        """Return the evidence of the expert that plays; chance: (R,) uniform numbers."""
        expert = pick_expert(memory.log_weights, chance)
        shape = memory.log_weights.shape

        def chosen(values: Array) -> Array:
            return of_expert(values.reshape(*values.shape[:-1], *shape), expert)

        return Shared(
            pairs=chosen(shared.pairs),
            visits=None if memory.visits is None else of_expert(memory.visits, expert),
            weights=None if shared.weights is None else chosen(shared.weights),
            prior=None if shared.prior is None else chosen(shared.prior),
        )

    def _modes(self, shared: Shared) -> Array:
        """Return the modes of the learners' posteriors, (2, N, A, R)."""
        pairs = shared.pairs
        if shared.prior is not None:
            prior = shared.prior[:, :, 0]
        else:
            prior = pseudo_counts(self.policy.learner.prior)[:, :, None, None]
        lanes, width = pairs.shape[-2:]
        p01, p11, _ = channel_modes(pairs.reshape(*pairs.shape[:3], -1, width), prior)
        return jnp.stack([p01, p11]).reshape(2, -1, lanes, width)
