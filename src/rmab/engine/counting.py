"""Counts of agents' observations: pairs of successive observations of an arm, and visits.

A play shows an arm's state; a fully observed arm shows it in every slot. Two successive
observations of an arm, s and then s', are a pair. Learners read counts: pairs by kind c, as
`rmab.learning.evidence` has them, and visits. They are the state of such a learner, `start`ed
before the first slot and `update`d after each; a learner with its own state has `init` and
`update` instead (`rmab.policies.own_index.OwnLearner`).

A policy reads few kinds of pairs or, where it learns from observations at any gap (`Learner.gaps`),
many:

    few    (C, S, S, N, M, R) whole numbers, each agent's apart. Every entry is compared with the
           slot's pair and gets 0 or 1: for few kinds that costs less than finding the entry.
    many   (C + 1, N, L, R, S S). Every agent's pair is added to its entry; others go to
           the slice past the last, which is never read. Entries that a slot may reach lie side by
           side, a trial's pairs of one gap together, which costs less than the order of
           `Evidence.counts`. L = M, or L = 1 where agents are merged as they count, each pair with
           its agent's weight (`rmab.engine.sharing`).

Counts are whole, and exact up to 2^31, unless they are merged with weights. Those are single
precision: a sum of n equal weights is off by at most a share n 2^-24 of itself, in the worst case,
and by about sqrt(n) 2^-24 as a rule.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from rmab.engine.environment import SimulatedEnvironment
from rmab.engine.setting import Setting
from rmab.engine.sharing import EvidenceSharing
from rmab.errors import ModelError
from rmab.learning.evidence import count_kinds
from rmab.model.information import NEVER, InformationStates
from rmab.policies.own_index import Observations
from rmab.policies.policy import Policy

__all__ = ["Counting", "Counts"]

_LARGEST = 2**31 - 1  # a 32-bit number: a place in an array, or a count


class Counts(NamedTuple):
    """Counts of a batch; None where they are not needed.

    pairs: (C, S, S, N, M, R) or (C + 1, N, L, R, S S), see the module; visits: (S, N, M, R), plays
    by the state they showed; idle: likewise slots without a play, of arms that are always observed;
    given: as pairs, of the slots of a survey.
    """

    pairs: Array | None
    visits: Array | None
    idle: Array | None = None
    given: Array | None = None


class Counting:
    """Counting of observations by the agents of a policy in a setting.

    visits, idle: whether plays, and slots without one, end episodes.
    """

    def __init__(
        self,
        setting: Setting,
        policy: Policy,
        environment: SimulatedEnvironment,
        sharing: EvidenceSharing,
        *,
        visits: bool = False,
        idle: bool = False,
    ) -> None:
        learner = policy.learner
        self.setting = setting
        self.policy = policy
        self.environment = environment
        self.sharing = sharing
        self.learns = learner.function is not None
        self.visits = visits or (self.learns and learner.reads_visits)
        self.idle = idle
        self.gaps = learner.gaps
        self.count_kinds = count_kinds(setting.kinds, learner.gaps)
        # Counts never pass the horizon; narrow ones halve the memory the slots run through.
        self.whole = jnp.int16 if setting.horizon < 2**15 else jnp.int32

    def start(self, n_trials: int) -> Counts:
        """Return the counts before the first slot."""
        S = self.setting.n_states
        shape = (self.setting.n_arms, self.setting.n_agents, n_trials)
        pairs = None
        if self.learns:
            few = (self.count_kinds, S, S, *shape)
            pairs = self._no_gaps(n_trials) if self.gaps else jnp.zeros(few, self.whole)
        return Counts(
            pairs,
            jnp.zeros((S, *shape), self.whole) if self.visits else None,
            jnp.zeros((S, *shape), self.whole) if self.idle else None,
            pairs if self.sharing.survey else None,
        )

    def watched(self, counts: Counts) -> Array | None:
        """Return the counts that may end an episode, (W, N, M or L, R)."""
        found: Array | None = self.policy.episodes.watch(
            counts.visits, counts.idle, lambda: self.pairs(counts.pairs)
        )
        return found

    def _no_gaps(self, n_trials: int) -> Array:
        """Return counts by gap before the first observation."""
        setting = self.setting
        lanes = 1 if self.sharing.merges else setting.n_agents
        shape = (self.count_kinds + 1, setting.n_arms, lanes, n_trials, setting.n_states**2)
        if math.prod(shape) > _LARGEST:
            apart = "" if self.sharing.merges else "agents, "
            sizes = [n for place, n in enumerate(shape) if place != 2 or not self.sharing.merges]
            raise ModelError(
                f"policy {self.policy.name}: counts by gap must have at most 2^31 - 1 entries, got "
                f"{' x '.join(str(n) for n in sizes)} for gaps, arms, {apart}trials at once and "
                "pairs of states"
            )
        most = setting.horizon * setting.n_agents
        whole = most <= _LARGEST if setting.weights is None else not self.sharing.merges
        return jnp.zeros(shape, jnp.int32 if whole else jnp.float32)

    def update(
        self,
        counts: Counts,
        observed: InformationStates,
        slot: Observations,
        explores: Array | None = None,
    ) -> Counts:
        """Return the counts after a slot.

        observed: information states before it; explores: (M or 1, R), whose plays are visits, None:
        all.
        """
        pairs, visits, idle, given = counts
        played, state = slot.played, slot.state
        seen = self.environment.each_state == state  # (S, N, M, R)
        if pairs is not None and self.gaps:
            pairs = self._count_by_gap(pairs, observed, slot)
        elif pairs is not None:
            before = self.environment.each_state[:, None] == observed.last_seen  # (S, 1, N, M, R)
            which, counted = self._completed(observed.age, played, slot.slot)
            new = counted & before & seen  # (S, S, N, M, R)
            if which is None:
                pairs = pairs + new[None]
            else:
                kinds = jnp.arange(self.count_kinds)[:, None, None, None, None, None]
                pairs = pairs + ((kinds == which) & new)
        if visits is not None:
            visits = visits + (played & seen if explores is None else played & seen & explores)
        if idle is not None:
            idle = idle + (~played & self.environment.always & seen)
        if given is not None and pairs is not None:
            given = jnp.where(slot.slot < self.sharing.survey, pairs, given)
        return Counts(pairs, visits, idle, given)

    def _count_by_gap(
        self, counts: Array, observed: InformationStates, slot: Observations
    ) -> Array:
        """Add each pair that this slot completes to its entry."""
        S, (_, n_arms, lanes, n_trials, pairs) = self.setting.n_states, counts.shape
        environment = self.environment
        which, counted = self._completed(observed.age, slot.played, slot.slot)
        assert which is not None
        # Ages count up to the horizon, gaps up to G, and those above it together. The waits of an
        # action-dependent arm are counted one by one: one that is too long is no pair.
        kind = jnp.minimum(which, self.gaps)
        if not environment.all_alike:
            kind = jnp.where(environment.alike, kind, which)
            counted = counted & (kind < self.count_kinds)
        kind = jnp.where(counted, kind, self.count_kinds)
        arm, trial = jnp.arange(n_arms)[:, None, None], jnp.arange(n_trials)
        agent = 0 if lanes == 1 else jnp.arange(lanes)[:, None]
        row = ((arm * lanes + agent) * n_trials + trial) * pairs
        what = observed.last_seen.astype(jnp.int32) * S + slot.state.astype(jnp.int32)
        place = kind * (n_arms * lanes * n_trials * pairs) + row + jnp.where(counted, what, 0)
        weight: Array | int = 1
        if self.sharing.merges and self.setting.weights is not None:
            weight = jnp.broadcast_to(self.sharing.weights[:, None], place.shape)
        flat = counts.reshape(-1).at[place].add(weight, mode="promise_in_bounds")
        return flat.reshape(counts.shape)

    def _completed(self, age: Array, played: Array, slot: Array) -> tuple[Array | None, Array]:
        """Return the kind of pair that this slot completes of each arm, None for 0, and a mask."""
        environment = self.environment
        if self.count_kinds == 1 and not environment.any_always:
            return None, played & (age == 1)
        if not environment.any_always:
            return age - 1, played & (age != NEVER)
        seen = jnp.where(environment.always, slot > 0, played & (age != NEVER))
        alone = jnp.where(
            environment.always, jnp.where(environment.alike | (age == 1), 0, 1), age - 1
        )
        return alone, seen

    def of_trials(self, counts: Counts, which: Array) -> Counts:
        """Return the counts of some trials; a number past the last trial stands for the last."""

        def of(pairs: Array | None) -> Array | None:
            axis = (..., which, slice(None)) if self.gaps else (..., which)
            return None if pairs is None else pairs.at[axis].get(mode="clip")

        _, visits, idle, _ = counts
        return Counts(
            of(counts.pairs), _of_trials(visits, which), _of_trials(idle, which), of(counts.given)
        )

    def cleared(self, counts: Counts, trials: Array) -> Counts:
        """Return the counts without the pairs of some trials, a mask (R,)."""
        assert counts.pairs is not None
        trials = trials[:, None] if self.gaps else trials
        return counts._replace(pairs=jnp.where(trials, 0, counts.pairs))

    def pairs(self, pairs: Array | None) -> Array:
        """Return pairs (C, S, S, N, L, R) as learners have them; L = 1 where they are merged."""
        S = self.setting.n_states
        assert pairs is not None
        if self.gaps:  # (C + 1, N, L, R, S S) -> (C, S, S, N, L, R)
            pairs = jnp.moveaxis(pairs[: self.count_kinds], -1, 1).astype(jnp.float32)
            pairs = pairs.reshape(self.count_kinds, S, S, *pairs.shape[2:])
        return pairs


def _of_trials(array: Array | None, which: Array) -> Array | None:
    return None if array is None else array.at[..., which].get(mode="clip")
