"""What agents have seen of their arms, and what they count.

A play shows an arm's state; an arm always seen shows it in every slot. Of each arm an agent keeps
the last state seen and the slots since its last play. Two successive looks at an arm, s and then
s', are a pair; pairs are counted by kind c, as `rmab.learning.learners` reads them.

A policy reads few kinds or, where it learns from looks however far apart (`Policy.gaps`), many:

    few    (C, S, S, N, M, R) whole numbers, each agent's apart. Every entry is compared with the
           slot's pair and gets 0 or 1: for few kinds that is quicker than finding the entry.
    many   (C + 1, N, R, S S), agents merged. Every agent's pair is added to its entry with the
           agent's weight; what is no pair goes to the slice past the last, which nobody reads.
           Entries that a slot may reach lie side by side, a trial's pairs of one gap together:
           in the order of `Evidence.counts` adding takes thrice the time.

Merged counts are whole while no agent has a weight of its own, and exact up to 2^31. Weighted ones
are single precision: a sum of n equal weights is off by at most a share n 2^-24 of itself, in the
worst case, and by about sqrt(n) 2^-24 as a rule.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array

from rmab.engine.setting import Setting
from rmab.engine.world import World
from rmab.errors import ModelError
from rmab.federation.rounds import merge
from rmab.learning.learners import count_kinds
from rmab.model.arms import NEVER
from rmab.policies.registry import Policy

__all__ = ["Looking", "Looks"]

LARGEST = 2**31 - 1  # of a 32-bit number: a place in an array, or a count


class Looks(NamedTuple):
    """What agents have seen; counts are None where nobody needs them."""

    last_seen: Array  # (N, M, R) state
    age: Array  # (N, M, R) int32, slots since the last play
    counts: Array | None  # pairs of looks: (C, S, S, N, M, R), or (C + 1, N, R, S S), see above
    visits: Array | None  # (S, N, M, R) plays by the state they showed


class Looking:
    """How the agents of a policy look and count in a setting.

    visits: whether somebody needs them; counts are kept for a policy that learns.
    """

    def __init__(self, setting: Setting, policy: Policy, world: World, *, visits: bool) -> None:
        self.setting = setting
        self.policy = policy
        self.world = world
        self.visits = visits
        self.gaps = policy.gaps
        self.count_kinds = count_kinds(setting.kinds, policy.gaps)
        # Counts never pass the horizon; narrow ones halve the memory the slots run through.
        self.whole = jnp.int16 if setting.horizon < 2**15 else jnp.int32
        self.weights = jnp.asarray(setting.weights or (1.0,) * setting.n_agents, jnp.float32)

    def start(self, n_trials: int) -> Looks:
        """Before the first slot."""
        S = self.setting.n_states
        shape = (self.setting.n_arms, self.setting.n_agents, n_trials)
        counts = None
        if self.policy.learner is not None:
            pairs = (self.count_kinds, S, S, *shape)
            counts = self._no_gaps(n_trials) if self.gaps else jnp.zeros(pairs, self.whole)
        return Looks(
            last_seen=jnp.zeros(shape, self.world.state_type),
            age=jnp.full(shape, NEVER, jnp.int32),
            counts=counts,
            visits=jnp.zeros((S, *shape), self.whole) if self.visits else None,
        )

    def _no_gaps(self, n_trials: int) -> Array:
        """Counts by gap before the first look."""
        setting = self.setting
        shape = (self.count_kinds + 1, setting.n_arms, n_trials, setting.n_states**2)
        if math.prod(shape) > LARGEST:
            raise ModelError(
                f"policy {self.policy.name}: counts by gap must have at most 2^31 - 1 entries, got "
                f"{' x '.join(str(n) for n in shape)} for gaps, arms, trials at once and pairs of "
                "states"
            )
        whole = setting.weights is None and setting.horizon * setting.n_agents <= LARGEST
        return jnp.zeros(shape, jnp.int32 if whole else jnp.float32)

    def look(self, looks: Looks, played: Array, state: Array, slot: Array) -> Looks:
        """Played arms are seen, and those that always are; all else ages."""
        counts, visits = looks.counts, looks.visits
        seen = self.world.each_state == state  # (S, N, M, R)
        if counts is not None and self.gaps:
            counts = self._count_by_gap(counts, looks, played, state, slot)
        elif counts is not None:
            before = self.world.each_state[:, None] == looks.last_seen  # (S, 1, N, M, R)
            which, counted = self._pairs(looks.age, played, slot)
            pairs = counted & before & seen  # (S, S, N, M, R)
            if which is None:
                counts = counts + pairs[None]
            else:
                kinds = jnp.arange(self.count_kinds)[:, None, None, None, None, None]
                counts = counts + ((kinds == which) & pairs)
        if visits is not None:
            visits = visits + (played & seen)
        age = jnp.where(played, 1, looks.age + (looks.age != NEVER))
        shows = played | self.world.always if self.world.any_always else played
        return Looks(jnp.where(shows, state, looks.last_seen), age, counts, visits)

    def _count_by_gap(
        self, counts: Array, looks: Looks, played: Array, state: Array, slot: Array
    ) -> Array:
        """Each pair that this slot completes is added to its entry."""
        S, (_, n_arms, n_trials, pairs) = self.setting.n_states, counts.shape
        which, counted = self._pairs(looks.age, played, slot)
        assert which is not None
        # Ages count up to the horizon, gaps up to G; 0 is no age of a pair.
        kind = jnp.where(counted, jnp.minimum(which, self.gaps), self.count_kinds)
        arm, trial = jnp.arange(n_arms)[:, None, None], jnp.arange(n_trials)
        lane = (arm * n_trials + trial) * pairs
        what = looks.last_seen.astype(jnp.int32) * S + state.astype(jnp.int32)
        place = kind * (n_arms * n_trials * pairs) + lane + jnp.where(counted, what, 0)
        weight: Array | int = 1
        if self.setting.weights is not None:
            weight = jnp.broadcast_to(self.weights[:, None], place.shape)
        flat = counts.reshape(-1).at[place].add(weight, mode="promise_in_bounds")
        return flat.reshape(counts.shape)

    def _pairs(self, age: Array, played: Array, slot: Array) -> tuple[Array | None, Array]:
        """Of each arm: the kind of pair that this look completes, None for 0, and whether any."""
        world = self.world
        if self.count_kinds == 1 and not world.any_always:
            return None, played & (age == 1)
        if not world.any_always:
            return age - 1, played & (age != NEVER)
        look = jnp.where(world.always, slot > 0, played & (age != NEVER))
        alone = jnp.where(world.always, jnp.where(world.alike | (age == 1), 0, 1), age - 1)
        return alone, look

    def of_trials(self, looks: Looks, which: Array) -> Looks:
        """The looks in some trials; a number past the last trial stands for the last."""

        def some(array: Array | None) -> Array | None:
            return None if array is None else array.at[..., which].get(mode="clip")

        counts = looks.counts
        if counts is None or not self.gaps:
            counts = some(counts)
        else:
            counts = counts.at[:, :, which].get(mode="clip")
        return Looks(
            looks.last_seen.at[..., which].get(mode="clip"),
            looks.age.at[..., which].get(mode="clip"),
            counts,
            some(looks.visits),
        )

    def merged(self, looks: Looks) -> tuple[Array, Array]:
        """Counts (C, S, S, N, R) and visits (S, N, R) of all agents by their weights; visits are 0
        where nobody needs them."""
        S, counts, visits = self.setting.n_states, looks.counts, looks.visits
        assert counts is not None
        if self.gaps:
            apart = jnp.moveaxis(counts[: self.count_kinds], -1, 1).astype(jnp.float32)
            counts = apart.reshape(self.count_kinds, S, S, *apart.shape[2:])
        else:
            counts = merge(counts, self.weights)
        if visits is None:
            return counts, jnp.zeros((S, *counts.shape[-2:]))
        return counts, merge(visits, self.weights)
