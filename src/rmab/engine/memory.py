"""What agents remember: of each arm the state last observed and its age, and what a learner keeps.

A play shows an arm's state; a fully observed arm shows it in every slot. Two successive
observations of an arm, s and then s', are a pair. Learners read counts: pairs by kind c, as
`rmab.learning.evidence` has them, and visits. They are the state of such a learner, `start`ed
before the first slot and `update`d after each; a learner with its own state has `init` and
`update` instead (`rmab.policies.own_index.OwnLearner`).

A policy reads few kinds of pairs or, where it learns from observations at any gap (`Policy.gaps`),
many:

    few    (C, S, S, N, M, R) whole numbers, each agent's apart. Every entry is compared with the
           slot's pair and gets 0 or 1: for few kinds that costs less than finding the entry.
    many   (C + 1, N, L, R, S S). Every agent's pair is added to its entry; what is no pair goes to
           the slice past the last, which nobody reads. Entries that a slot may reach lie side by
           side, a trial's pairs of one gap together, which costs less than the order of
           `Evidence.counts`. L = M, or L = 1 where the aggregation is a running sum: agents are
           then merged as they count, each pair with its agent's weight.

Where sums are released with noise (`Setting.budget`), learners see the last release alone
(`Noisy`): no sum that has none leaves this module. Where they are opened by group
(`Setting.groups`), the sum of all comes first and each group's after it: they are what agents that
draw for themselves are told laws of.

Counts are whole, and exact up to 2^31, unless they are merged with weights. Those are single
precision: a sum of n equal weights is off by at most a share n 2^-24 of itself, in the worst case,
and by about sqrt(n) 2^-24 as a rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.engine.setting import Setting
from rmab.engine.world import Truth, World
from rmab.errors import ModelError
from rmab.learning.evidence import Evidence, count_kinds
from rmab.learning.evidence_state import Shared, recall_of
from rmab.learning.forgetting import Memory
from rmab.model.information import NEVER, InformationStates
from rmab.policies.aggregation import Gossip, mixes_evidence
from rmab.policies.own_index import Observations
from rmab.policies.policy import Policy
from rmab.privacy.noise import FIRST_SLOTS, LEAST_OF_LAWS, MOST_RELEASES, mended, mixing
from rmab.rng.variates import Draws

__all__ = ["Counting", "Counts", "Kept", "Noisy", "by_colour", "first_states", "next_states"]

_EXPERTS_LANE, _LINKS_LANE, _NOISE_LANE = 0, 1, 2  # of the random numbers that are no agent's
_LARGEST = 2**31 - 1  # of a 32-bit number: a place in an array, or a count


def first_states(setting: Setting, world: World, n_trials: int) -> InformationStates:
    """Before the first slot: (N, M, R) each, nothing observed."""
    shape = (setting.n_arms, setting.n_agents, n_trials)
    return InformationStates(jnp.zeros(shape, world.state_type), jnp.full(shape, NEVER, jnp.int32))


def next_states(
    observed: InformationStates, world: World, played: Array, state: Array
) -> InformationStates:
    """Played arms are observed, and those that always are; all else ages."""
    age = jnp.where(played, 1, observed.age + (observed.age != NEVER))
    shows = played | world.always if world.any_always else played
    return InformationStates(jnp.where(shows, state, observed.last_seen), age)


class Counts(NamedTuple):
    """None where nobody needs them."""

    pairs: Array | None  # (C, S, S, N, M, R), or (C + 1, N, L, R, S S), see above
    visits: Array | None  # (S, N, M, R) plays by the state they showed
    idle: Array | None = None  # (S, N, M, R) slots without a play, of arms that are always observed
    given: Array | None = None  # as pairs, of the slots of a survey; None where there is none

    @property
    def watched(self) -> Array | None:
        """What may end an episode: visits, (S or 2 S, N, M, R)."""
        if self.visits is None or self.idle is None:
            return self.visits
        return jnp.concatenate([self.visits, self.idle])


class Kept(NamedTuple):
    """Of counts that are forgotten or mixed. memory: of all episodes before; visits: (S, N, M, R),
    how many there were at the start of this one, None where nobody reads them."""

    memory: Memory
    visits: Array | None


class Noisy(NamedTuple):
    """Of sums that are released with noise, as `rmab.privacy.noise` has it.

    pairs: (C, S, S, N, G, R), of the agents of each group in all episodes before; told: what
    learners make of the last release, (C, S, S, N, J, R), J as `Counting.sums`; slots: (R,) of each
    agent, and last: those of the last release; releases: (R,), how many there were.
    """

    pairs: Array
    told: Array
    slots: Array
    last: Array
    releases: Array


class Counting:
    """How the agents of a policy count in a setting.

    learns: whether pairs are counted; visits: whether somebody needs them; idle: whether slots
    without a play are watched.
    """

    def __init__(
        self,
        setting: Setting,
        policy: Policy,
        world: World,
        *,
        learns: bool,
        visits: bool,
        idle: bool = False,
    ) -> None:
        self.setting = setting
        self.policy = policy
        self.world = world
        self.learns = learns
        self.visits = visits
        self.idle = idle
        self.gaps = policy.gaps
        self.count_kinds = count_kinds(setting.kinds, policy.gaps)
        self.running = setting.aggregation.running
        # Counts never pass the horizon; narrow ones halve the memory the slots run through.
        self.whole = jnp.int16 if setting.horizon < 2**15 else jnp.int32
        self.weights = jnp.asarray(setting.weights or (1.0,) * setting.n_agents, jnp.float32)
        self.recall = recall_of(policy, setting.kinds, setting.aggregation)
        own = setting.draws == "own"
        # Who shares nothing releases nothing.
        self.budget = setting.budget if learns and self.running else None
        # Sums are added up by group where that makes a difference: to noise, or to laws.
        self.groups = setting.groups if learns and (own or self.budget is not None) else 1
        # Sums that learners are told: that of all, and where agents draw for themselves each
        # group's.
        self.sums = 1 + self.groups if own and self.groups > 1 else 1
        # Whether agents are merged as they count; not where each needs its own counts, too.
        self.merges = bool(self.gaps) and self.running and not own and self.groups == 1
        # Slots of which pairs are given to others, where agents count all slots for themselves.
        self.survey = setting.survey if own and self.budget is not None else 0
        # Whether what is kept elsewhere is counted anew in every episode.
        self.clears = not own

    def start(self, n_trials: int) -> Counts:
        """Before the first slot."""
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
            pairs if self.survey else None,
        )

    def watched(self, counts: Counts) -> Array | None:
        """What may end an episode, (W, N, M or L, R): visits, or pairs by gap and first state."""
        if not self.policy.own_pairs:
            return counts.watched
        return by_colour(self.pairs(counts))

    def unwatched(self, n_trials: int) -> Array:
        """As `watched`, before the first slot."""
        setting = self.setting
        if self.policy.own_pairs:
            lanes = 1 if self.merges else setting.n_agents
            rows = self.count_kinds * setting.n_states
            return jnp.zeros((rows, setting.n_arms, lanes, n_trials), jnp.float32)
        rows = setting.n_states * (2 if self.idle else 1)
        return jnp.zeros((rows, setting.n_arms, setting.n_agents, n_trials), self.whole)

    def _no_gaps(self, n_trials: int) -> Array:
        """Counts by gap before the first observation."""
        setting = self.setting
        lanes = 1 if self.merges else setting.n_agents
        shape = (self.count_kinds + 1, setting.n_arms, lanes, n_trials, setting.n_states**2)
        if math.prod(shape) > _LARGEST:
            apart = "" if self.merges else "agents, "
            sizes = [n for place, n in enumerate(shape) if place != 2 or not self.merges]
            raise ModelError(
                f"policy {self.policy.name}: counts by gap must have at most 2^31 - 1 entries, got "
                f"{' x '.join(str(n) for n in sizes)} for gaps, arms, {apart}trials at once and "
                "pairs of states"
            )
        most = setting.horizon * setting.n_agents
        whole = most <= _LARGEST if setting.weights is None else not self.merges
        return jnp.zeros(shape, jnp.int32 if whole else jnp.float32)

    def update(
        self,
        counts: Counts,
        observed: InformationStates,
        slot: Observations,
        explores: Array | None = None,
    ) -> Counts:
        """After a slot; observed: before it; explores: (M or 1, R), whose plays are visits, None:
        all."""
        pairs, visits, idle, given = counts
        played, state = slot.played, slot.state
        seen = self.world.each_state == state  # (S, N, M, R)
        if pairs is not None and self.gaps:
            pairs = self._count_by_gap(pairs, observed, slot)
        elif pairs is not None:
            before = self.world.each_state[:, None] == observed.last_seen  # (S, 1, N, M, R)
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
            idle = idle + (~played & self.world.always & seen)
        if given is not None and pairs is not None:
            given = jnp.where(slot.slot < self.survey, pairs, given)
        return Counts(pairs, visits, idle, given)

    def _count_by_gap(
        self, counts: Array, observed: InformationStates, slot: Observations
    ) -> Array:
        """Each pair that this slot completes is added to its entry."""
        S, (_, n_arms, lanes, n_trials, pairs) = self.setting.n_states, counts.shape
        world = self.world
        which, counted = self._completed(observed.age, slot.played, slot.slot)
        assert which is not None
        # Ages count up to the horizon, gaps up to G, and those above it together. The waits of an
        # action-dependent arm are counted one by one: one that is too long is no pair.
        kind = jnp.minimum(which, self.gaps)
        if not world.all_alike:
            kind = jnp.where(world.alike, kind, which)
            counted = counted & (kind < self.count_kinds)
        kind = jnp.where(counted, kind, self.count_kinds)
        arm, trial = jnp.arange(n_arms)[:, None, None], jnp.arange(n_trials)
        agent = 0 if lanes == 1 else jnp.arange(lanes)[:, None]
        row = ((arm * lanes + agent) * n_trials + trial) * pairs
        what = observed.last_seen.astype(jnp.int32) * S + slot.state.astype(jnp.int32)
        place = kind * (n_arms * lanes * n_trials * pairs) + row + jnp.where(counted, what, 0)
        weight: Array | int = 1
        if self.merges and self.setting.weights is not None:
            weight = jnp.broadcast_to(self.weights[:, None], place.shape)
        flat = counts.reshape(-1).at[place].add(weight, mode="promise_in_bounds")
        return flat.reshape(counts.shape)

    def _completed(self, age: Array, played: Array, slot: Array) -> tuple[Array | None, Array]:
        """Of each arm: the kind of pair that this slot completes, None for 0, and whether any."""
        world = self.world
        if self.count_kinds == 1 and not world.any_always:
            return None, played & (age == 1)
        if not world.any_always:
            return age - 1, played & (age != NEVER)
        seen = jnp.where(world.always, slot > 0, played & (age != NEVER))
        alone = jnp.where(world.always, jnp.where(world.alike | (age == 1), 0, 1), age - 1)
        return alone, seen

    def of_trials(self, counts: Counts, which: Array) -> Counts:
        """The counts of some trials; a number past the last trial stands for the last."""

        def of(pairs: Array | None) -> Array | None:
            axis = (..., which, slice(None)) if self.gaps else (..., which)
            return None if pairs is None else pairs.at[axis].get(mode="clip")

        _, visits, idle, _ = counts
        return Counts(
            of(counts.pairs), _of_trials(visits, which), _of_trials(idle, which), of(counts.given)
        )

    def cleared(self, counts: Counts, trials: Array) -> Counts:
        """The same without the pairs of some trials, a mask (R,)."""
        assert counts.pairs is not None
        trials = trials[:, None] if self.gaps else trials
        return counts._replace(pairs=jnp.where(trials, 0, counts.pairs))

    def pairs(self, counts: Counts) -> Array:
        """Pairs (C, S, S, N, L, R) as learners have them; L = 1 where they are merged."""
        pairs, S = counts.pairs, self.setting.n_states
        assert pairs is not None
        if self.gaps:  # (C + 1, N, L, R, S S) -> (C, S, S, N, L, R)
            pairs = jnp.moveaxis(pairs[: self.count_kinds], -1, 1).astype(jnp.float32)
            pairs = pairs.reshape(self.count_kinds, S, S, *pairs.shape[2:])
        return pairs

    def kept(self, n_trials: int) -> Kept | Noisy | None:
        """Before the first slot; None where nothing is forgotten, mixed or released with noise."""
        setting, S = self.setting, self.setting.n_states
        if self.budget is not None:
            cells = (self.count_kinds, S, S, setting.n_arms)
            zeros, untold = (
                jnp.zeros((*cells, size, n_trials), jnp.float32)
                for size in (self.groups, self.sums)
            )
            none = jnp.zeros(n_trials, jnp.int32)
            return Noisy(zeros, untold, none, none, none)
        if self.recall is None:
            return None
        lanes = 1 if self.merges else setting.n_agents
        shape = (self.count_kinds, S, S, setting.n_arms, lanes)
        visits = (S, setting.n_arms, setting.n_agents) if self.policy.reads_visits else None
        memory = self.recall.start(shape, visits, setting.n_agents, n_trials)
        if memory is None:
            return None
        return Kept(memory, None if visits is None else jnp.zeros((*visits, n_trials), self.whole))

    def recalled(
        self,
        counts: Counts,
        kept: Kept | Noisy | None,
        length: Array,
        chances: Callable[..., Draws],
        plays: Array | int = 1,
    ) -> tuple[Shared, Kept | Noisy | None]:
        """What learners see after an episode, and what is kept from now on.

        length: (R,) slots of the episode; chances: give the random numbers of a lane, those that
        pick an expert, those by which links fail and those that are noise, of this episode or of
        another number; plays: K, which the noise grows with.
        """
        pairs, visits = self.pairs(counts), counts.visits
        if isinstance(kept, Noisy):
            if counts.given is not None:
                pairs = self.pairs(counts._replace(pairs=counts.given))
            counted = pairs if self.merges else self.by_group(pairs)
            if not self.clears:
                counted = counted - kept.pairs
            noisy = self._released(kept, counted, length, jnp.asarray(plays), chances)
            return Shared(noisy.told, None), noisy
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
        now = Kept(memory, None if kept.visits is None else visits)
        return self.recall.picked(memory, shared, chances(_EXPERTS_LANE).uniform()), now

    def evidence(self, shared: Shared, truth: Truth, plays: Array, episode: Array) -> Evidence:
        """What the learner sees; arrays (..., A, R), A = 1 where agents share it.

        shared: of all agents' counts; episode: (R,) its number.
        """
        setting, S = self.setting, self.setting.n_states
        weights = self.weights if shared.weights is None else shared.weights
        pairs, visits = shared.pairs, shared.visits
        agents: Any = sum(setting.weights or (1,) * setting.n_agents)
        if mixes_evidence(setting.aggregation):  # of what all agents see the mean is that of all
            agents = jnp.full((setting.n_agents, episode.size), agents, jnp.float32)
        elif not self.running:
            agents = self.combined(jnp.ones((setting.n_agents, episode.size)), weights)
        if visits is None:
            plays_by_state = jnp.zeros((S, *pairs.shape[-3:]))
        else:
            plays_by_state = self.combined(visits, weights)
        return Evidence(
            counts=pairs,
            visits=plays_by_state,
            episode=episode,
            rewards=truth.reward_active[:, :, None],
            idle_rewards=truth.reward_passive[:, :, None],
            plays=plays,
            agents=agents,
            kinds=setting.kinds,
            prior=shared.prior,
        )

    def combined(self, numbers: Array, weights: Array | None = None) -> Array:
        """What an agent's learner sees of all agents' numbers: (..., M, R) -> (..., A, R).

        weights: (M,), those of agents unless others are given; (M, M, R) where agents are compared.
        """
        weights = self.weights if weights is None else weights
        return jnp.asarray(self.setting.aggregation.combine(numbers, weights))

    def by_group(self, numbers: Array) -> Array:
        """The same of each group's agents alone: (..., M, R) -> (..., G, R)."""
        if self.groups == 1:
            return self.combined(numbers)
        group = jnp.arange(self.setting.n_agents)[:, None] % self.groups
        each = [self.combined(jnp.where(group == g, numbers, 0)) for g in range(self.groups)]
        return jnp.concatenate(each, -2)

    def _released(
        self, kept: Noisy, new: Array, length: Array, plays: Array, chances: Callable[..., Draws]
    ) -> Noisy:
        """After an episode, whose pairs are `new`: the sum is released again if it is due.

        z of a release is a function of its number, so that it is not kept. It is a continuous
        Gaussian here, where nobody is to be protected. Groups have as many slots, so they are due
        together.
        """
        budget = self.budget
        assert budget is not None
        pairs, slots = kept.pairs + new, kept.slots + length
        least = jnp.where(kept.releases == 0, FIRST_SLOTS, 2 * kept.last)
        due = (slots >= least) & (kept.releases < MOST_RELEASES)
        mix = np.array([float(b) for b in mixing()], np.float32)
        spread = np.sqrt(np.cumsum(mix**2))

        def told() -> Array:
            def mixed(number: Array, noise: Array) -> Array:
                z = chances(_NOISE_LANE, number).normal(*pairs.shape[:-1])
                back = kept.releases - number
                return noise + jnp.where(back >= 0, jnp.asarray(mix)[back], 0) * z

            sigma = budget.scale(1) * jnp.sqrt(plays.astype(jnp.float32))
            many = jnp.minimum(kept.releases.max() + 1, MOST_RELEASES)
            noise = lax.fori_loop(0, many, mixed, jnp.zeros_like(pairs))
            s = sigma * jnp.asarray(spread)[jnp.minimum(kept.releases, MOST_RELEASES - 1)]
            released = jnp.floor(pairs + sigma * noise + 0.5)
            least = LEAST_OF_LAWS if self.setting.draws == "own" else 1.0
            whole = released.sum(-2, keepdims=True)
            seen = mended(whole, s * math.sqrt(self.groups), least=least)
            if self.sums > 1:
                seen = jnp.concatenate([seen, mended(released, s, least=least)], -2)
            return jnp.where(due, seen, kept.told)

        return Noisy(
            pairs,
            lax.cond(due.any(), told, lambda: kept.told),
            slots,
            jnp.where(due, slots, kept.last),
            kept.releases + due,
        )


def by_colour(pairs: Array) -> Array:
    """Pairs (C, S, S, N, ...) by kind and first state, (C S, N, ...)."""
    return pairs.sum(2).reshape(-1, *pairs.shape[3:])


def _of_trials(array: Array | None, which: Array) -> Array | None:
    return None if array is None else array.at[..., which].get(mode="clip")
