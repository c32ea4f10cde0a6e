"""What learners see of counts that are not simply added up: counts that are forgotten, a prior that
is learnt from all arms, agents that take of each other's counts as much as they are alike, and
agents that mix what they know with their neighbours'.

It joins `forgetting` and `population`, for the engine's trials and for a server's one alike. Where
a policy forgets or agents gossip, pairs are counted for an episode alone. At its end they are added
to what is kept of the episodes before, (..., B experts, R trials); to all that follows experts are
so many more trials. Without forgetting there is one expert whose half-life has no end.
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from rmab.errors import ModelError
from rmab.learning.channel.mode import channel_modes
from rmab.learning.forgetting import Memory, after_episode, first_memory, of_expert, pick_expert
from rmab.learning.population import common_law, pseudo_counts
from rmab.model.arms import CHANNEL, ArmKind
from rmab.policies.aggregation import Aggregation, Gossip, compares_agents, mixes_evidence
from rmab.policies.policy import POPULATION, Forgetting, Policy

__all__ = ["Recall", "Shared", "recall_of"]

_NOTHING_FORGOTTEN = Forgetting((math.inf,))


class Shared(NamedTuple):
    """What the learners of A agents see of all agents' counts.

    pairs: (C, S, S, N, A, R); visits: (S, N, M, R), each agent's, None where nobody reads them;
    weights: what an agent takes of each one's counts, (M, M, R), None: the agents' own; prior:
    (2, 2, 1, 1, R) where it is learnt, else None.
    """

    pairs: Array
    visits: Array | None
    weights: Array | None = None
    prior: Array | None = None


def recall_of(
    policy: Policy, kinds: tuple[ArmKind, ...], aggregation: Aggregation
) -> Recall | None:
    """What a policy needs of it; None where counts are added up, and that is all."""
    forget, learnt = policy.learner.forget, policy.learner.prior == POPULATION
    compares = compares_agents(aggregation)
    mixes = mixes_evidence(aggregation)
    if not policy.learns or not (learnt or compares or mixes or forget is not None):
        return None
    if policy.learner.function is None:
        raise ModelError(
            f"policy {policy.name}: a learner with its own state must not have a prior that is "
            "learnt, forget, or have agents that gossip or are compared by their counts"
        )
    several = forget is not None and len(forget.half_lives) > 1
    if (learnt or compares or several) and any(kind != CHANNEL for kind in kinds):
        raise ModelError(
            f"policy {policy.name}: a prior that is learnt, agents compared by their counts and "
            "several half-lives are for arms of two states, observed when played, that move alike"
        )
    return Recall(policy, aggregation)


class Recall:
    """What the learners of one policy see."""

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
        """Before the first slot; None where nothing is kept beside the counts.

        counts, visits: the shapes of an expert's but for the trials.
        """
        if self.forgetting is None:
            return None
        lanes = 1 if self.aggregation.shared else n_agents
        return first_memory(self.forgetting, counts, visits, lanes, n_trials)

    def learnt(
        self, pairs: Array, visits: Array | None, weights: Array, *, merged: bool = False
    ) -> Shared:
        """What learners see of pairs (C, S, S, N, L, R); weights: (M,), of agents; merged: whether
        their pairs are added up already."""
        alike = prior = None
        if self.aggregation.shared and not merged:  # units are the arms of all agents together
            pairs, merged = self.aggregation.combine(pairs, weights), True
        if self.learns_prior or self.compares:
            law = common_law(pairs, self.policy.learner.prior, compares=self.compares)
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
        """What is kept after an episode, and what learners see by every expert, B R trials.

        pairs: (C, S, S, N, L, R) and visits: (S, N, M, R) of the episode alone; length: (R,);
        chances: (links, R) uniform numbers, by which links of agents that gossip fail.
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
        """What learners see by the expert that plays; chance: (R,) uniform numbers."""
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
        """Those of the learners' posteriors, (2, N, A, trials)."""
        pairs = shared.pairs
        if shared.prior is not None:
            prior = shared.prior[:, :, 0]
        else:
            prior = pseudo_counts(self.policy.learner.prior)[:, :, None, None]
        lanes, width = pairs.shape[-2:]
        p01, p11, _ = channel_modes(pairs.reshape(*pairs.shape[:3], -1, width), prior)
        return jnp.stack([p01, p11]).reshape(2, -1, lanes, width)
