"""Evidence that agents' learners see of all agents' counts: summed, mixed, forgotten, noisy.

Counts are summed as the aggregation says. Where they lose weight, are compared or mixed with those
of neighbours, `rmab.learning.evidence_state` keeps a state (`SharingState`). Where sums are
released with noise (`Setting.budget`), learners see only the last release (`NoisyState`): no sum
without noise leaves this module. Where they are unmasked by group (`Setting.groups`), the sum of
all comes first and each group's after it: agents that draw by themselves are given posterior
summaries of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.engine.environment import Truth
from rmab.engine.setting import Setting
from rmab.learning.channel.local_draws import draw_for_agents
from rmab.learning.evidence import Evidence, count_kinds
from rmab.learning.evidence_state import Shared, recall_of
from rmab.learning.forgetting import Memory
from rmab.policies.aggregation import Gossip, mixes_evidence
from rmab.policies.policy import Policy
from rmab.policies.rules.dynamics import LearnerOutput
from rmab.privacy.accounting import FIRST_SLOTS
from rmab.privacy.denoising import LEAST_FOR_SUMMARIES, denoised
from rmab.privacy.noise import MOST_RELEASES, mixing
from rmab.privacy.survey import scheduled
from rmab.rng.variates import DRAWS, Draws, stream

__all__ = ["EvidenceSharing", "NoisyState", "SharingState"]

# Streams of random numbers that are no agent's.
_EXPERTS_LANE, _LINKS_LANE, _NOISE_LANE = 0, 1, 2


class SharingState(NamedTuple):
    """State of counts that are forgotten or mixed.

    memory: of all episodes before; visits: (S, N, M, R), how many there were at the start of this
    one, None where they are not read.
    """

    memory: Memory
    visits: Array | None


class NoisyState(NamedTuple):
    """State of sums that are released with noise, as `rmab.privacy.noise` has it.

    pairs: (C, S, S, N, G, R), of the agents of each group in all episodes before; released: the
    denoised last release, (C, S, S, N, J, R), J as `EvidenceSharing.sums`; slots: (R,)
    of each agent, and last: those of the last release; releases: (R,), how many there were.
    """

    pairs: Array
    released: Array
    slots: Array
    last: Array
    releases: Array


class EvidenceSharing:
    """Evidence of learners from all agents' counts in a setting."""

    def __init__(self, setting: Setting, policy: Policy) -> None:
        learns, own = policy.learner.function is not None, setting.draws == "own"
        self.setting = setting
        self.policy = policy
        self.local = own  # each agent draws by itself, by what is shared
        # Whether agents draw for themselves.
        per_agent = setting.draws != "shared" and policy.learner.randomised
        self.draws_differ = per_agent or not setting.aggregation.shared
        # A, agents with dynamics of their own to play by; 1: all have the same. Agents whose
        # rewards differ plan by themselves, if from the same dynamics.
        apart = self.draws_differ if policy.learns else setting.laws_differ
        self.drawers = setting.n_agents if apart or setting.rewards_differ else 1
        self.count_kinds = count_kinds(setting.kinds, policy.learner.gaps)
        self.running = setting.aggregation.running
        self.weights = jnp.asarray(setting.weights or (1.0,) * setting.n_agents, jnp.float32)
        self.recall = recall_of(policy, setting.aggregation)
        # Who shares nothing releases nothing.
        self.budget = setting.budget if learns and self.running else None
        # Sums are added up by group where that makes a difference.
        self.groups = setting.groups if learns and (own or self.budget is not None) else 1
        # Sums that learners see: that of all, and for agents' own draws that of each group.
        self.sums = 1 + self.groups if own and self.groups > 1 else 1
        # Whether agents are merged as they count; not where each needs its own counts, too.
        gaps = bool(policy.learner.gaps)
        self.merges = gaps and self.running and not own and self.groups == 1
        # Slots of which pairs are given to others, where agents count all slots for themselves.
        self.survey = setting.survey if own and self.budget is not None else 0
        # Whether what is kept elsewhere is counted anew in every episode.
        self.clears = not own

    def start(self, n_trials: int, whole: Any) -> SharingState | NoisyState | None:
        """Return the state before the first slot, or None; whole: type of visits."""
        setting, S = self.setting, self.setting.n_states
        if self.budget is not None:
            cells = (self.count_kinds, S, S, setting.n_arms)
            zeros, unreleased = (
                jnp.zeros((*cells, size, n_trials), jnp.float32)
                for size in (self.groups, self.sums)
            )
            none = jnp.zeros(n_trials, jnp.int32)
            return NoisyState(zeros, unreleased, none, none, none)
        if self.recall is None:
            return None
        lanes = 1 if self.merges else setting.n_agents
        shape = (self.count_kinds, S, S, setting.n_arms, lanes)
        visits = (S, setting.n_arms, setting.n_agents) if self.policy.learner.reads_visits else None
        memory = self.recall.start(shape, visits, setting.n_agents, n_trials)
        if memory is None:
            return None
        return SharingState(
            memory, None if visits is None else jnp.zeros((*visits, n_trials), whole)
        )

    def after_episode(
        self,
        pairs: Array,
        visits: Array | None,
        kept: SharingState | NoisyState | None,
        length: Array,
        chances: Callable[..., Draws],
        plays: Array | int = 1,
    ) -> tuple[Shared, SharingState | NoisyState | None]:
        """Return the evidence after an episode, and the state from now on.

        pairs: (C, S, S, N, L, R), of sums with noise those that agents give; length: (R,) slots of
        the episode; chances: give the random numbers of a stream, those that pick an expert, those
        by which links fail and those that are noise, of this episode or of another number; plays:
        K, which the noise grows with.
        """
        if isinstance(kept, NoisyState):
            counted = pairs if self.merges else self.by_group(pairs)
            if not self.clears:
                counted = counted - kept.pairs
            noisy = self._released(kept, counted, length, jnp.asarray(plays), chances)
            return Shared(noisy.released, None), noisy
        if self.recall is None and self.sums > 1:
            sums = jnp.concatenate([self.combined(pairs), self.by_group(pairs)], -2)
            return Shared(sums, visits), None
        if self.recall is None:
            return Shared(pairs if self.merges else self.combined(pairs), visits), None
        if kept is None:
            return self.recall.learnt(pairs, visits, self.weights, merged=self.merges), None
        new = None
        if kept.visits is not None and visits is not None:
            new = (visits - kept.visits).astype(jnp.float32)
        links = None
        shares = self.setting.aggregation
        if isinstance(shares, Gossip) and shares.failure:
            ends = shares.links(self.setting.n_agents).ends
            links = chances(_LINKS_LANE).uniform(len(ends))
        memory, shared = self.recall.advanced(
            kept.memory, pairs, new, length, self.weights, merged=self.merges, chances=links
        )
        now = SharingState(memory, None if kept.visits is None else visits)
        return self.recall.picked(memory, shared, chances(_EXPERTS_LANE).uniform()), now

    def evidence(
        self, shared: Shared, truth: Truth, plays: Array, episode: Array, slot: Array | None = None
    ) -> Evidence:
        """Return the evidence of A agents' learners; arrays (..., A R), agent after agent.

        shared: of all agents' counts; episode: (R,) its number; slot: the slots before it.
        """
        setting, S, A = self.setting, self.setting.n_states, self.drawers
        weights = self.weights if shared.weights is None else shared.weights
        pairs = shared.pairs[..., :1, :] if self.sums > 1 else shared.pairs  # of all agents
        agents: Any = sum(setting.weights or (1,) * setting.n_agents)
        if mixes_evidence(setting.aggregation):  # of what all agents see the mean is that of all
            agents = jnp.full((setting.n_agents, episode.size), agents, jnp.float32)
        elif not self.running:
            agents = self.combined(jnp.ones((setting.n_agents, episode.size)), weights)
        if not self.running:
            agents = self.in_line(agents)
        if shared.visits is None:
            visits = jnp.zeros((S, *pairs.shape[-3:]))
        else:
            visits = self.combined(shared.visits, weights)
        rewards: Any = truth.reward_active[:, :, None], truth.reward_passive[:, :, None]
        if setting.rewards_differ:  # (S, N, M) to (S, N, A R)
            rewards = [jnp.repeat(x[:, :, 0], episode.size, -1) for x in rewards]
        return Evidence(
            counts=self.in_line(pairs),
            visits=self.in_line(visits),
            episode=jnp.tile(episode, A),
            rewards=rewards[0],
            idle_rewards=rewards[1],
            plays=plays,
            agents=agents,
            kinds=setting.kinds,
            prior=None if shared.prior is None else self.in_line(shared.prior),
            slot=slot,
            lanes=A,
        )

    def in_line(self, numbers: Array) -> Array:
        """Bring numbers (..., A or 1, R) into (..., A R)."""
        if numbers.shape[-2] == 1:
            return jnp.tile(numbers[..., 0, :], self.drawers)
        return numbers.reshape(*numbers.shape[:-2], -1)

    def combined(self, numbers: Array, weights: Array | None = None) -> Array:
        """Combine all agents' numbers for each agent's learner, (..., M, R) -> (..., A, R).

        weights: (M,), those of agents unless others are given; (M, M, R) where agents are compared.
        """
        weights = self.weights if weights is None else weights
        return jnp.asarray(self.setting.aggregation.combine(numbers, weights))

    def by_group(self, numbers: Array) -> Array:
        """Return the same of each group's agents, (..., M, R) -> (..., G, R)."""
        if self.groups == 1:
            return self.combined(numbers)
        group = jnp.arange(self.setting.n_agents)[:, None] % self.groups
        each = [self.combined(jnp.where(group == g, numbers, 0)) for g in range(self.groups)]
        return jnp.concatenate(each, -2)

    def _released(
        self,
        kept: NoisyState,
        new: Array,
        length: Array,
        plays: Array,
        chances: Callable[..., Draws],
    ) -> NoisyState:
        """Release the sum again if it is due, after an episode whose pairs are `new`.

        z of a release is a function of its number, so that it is not kept. It is a continuous
        Gaussian here, as nothing is to be protected. Groups have as many slots, so they are due
        together.
        """
        budget = self.budget
        assert budget is not None
        pairs, slots = kept.pairs + new, kept.slots + length
        least = jnp.where(kept.releases == 0, FIRST_SLOTS, 2 * kept.last)
        due = (slots >= least) & (kept.releases < MOST_RELEASES)
        mix = np.array([float(b) for b in mixing()], np.float32)
        spread = np.sqrt(np.cumsum(mix**2))

        def released() -> Array:
            def mixed(number: Array, noise: Array) -> Array:
                z = chances(_NOISE_LANE, number).normal(*pairs.shape[:-1])
                back = kept.releases - number
                return noise + jnp.where(back >= 0, jnp.asarray(mix)[back], 0) * z

            sigma = budget.scale(1) * jnp.sqrt(plays.astype(jnp.float32))
            many = jnp.minimum(kept.releases.max() + 1, MOST_RELEASES)
            noise = lax.fori_loop(0, many, mixed, jnp.zeros_like(pairs))
            s = sigma * jnp.asarray(spread)[jnp.minimum(kept.releases, MOST_RELEASES - 1)]
            noisy = jnp.floor(pairs + sigma * noise + 0.5)
            least = LEAST_FOR_SUMMARIES if self.setting.draws == "own" else 1.0
            whole = noisy.sum(-2, keepdims=True)
            seen = denoised(whole, s * math.sqrt(self.groups), least=least)
            if self.sums > 1:
                seen = jnp.concatenate([seen, denoised(noisy, s, least=least)], -2)
            return jnp.where(due, seen, kept.released)

        return NoisyState(
            pairs,
            lax.cond(due.any(), released, lambda: kept.released),
            slots,
            jnp.where(due, slots, kept.last),
            kept.releases + due,
        )

    # ---------------------------------------------------------------- draws and surveys

    def draws(self, seed: Array, trials: Array, number: Array, due: Array) -> Draws:
        """Return the random numbers of A agents in R trials, (A R).

        Each agent draws from its own stream; where all share one draw it is the first's.
        """
        lane = jnp.repeat(jnp.arange(self.drawers, dtype=jnp.uint32), trials.size)
        if not self.draws_differ and self.drawers > 1:
            lane = jnp.zeros_like(lane)
        key = stream(seed, jnp.tile(trials, self.drawers), lane, DRAWS)
        return Draws(key, jnp.tile(number, self.drawers), jnp.tile(due, self.drawers))

    def drawn(self, evidence: Evidence, sums: Array, pairs: Array, draws: Draws) -> LearnerOutput:
        """Return the learner's output, or that of each agent by its own counts and the sums.

        sums: (C, S, S, N, J, R); pairs: (C, S, S, N, M, R), each agent's.
        """
        if self.local:
            p01, p11, _ = draw_for_agents(self.policy, sums, pairs, draws, self.setting.doubt)
            return p01, p11
        assert self.policy.learner.function is not None
        output: LearnerOutput = self.policy.learner.function(evidence, draws)
        return output

    def surveyed(self, slot: Array, played: Array, plays: Array) -> Array:
        """Return the arms that are played: in the first slots of a log those of its survey."""
        if not self.survey:
            return played
        turns = jnp.arange(self.setting.n_agents)[:, None]  # agents begin one block apart
        arms = scheduled(slot, turns, self.setting.n_arms, plays)
        return jnp.where(slot < self.survey, arms, played)
