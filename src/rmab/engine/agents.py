"""How the agents of a batch choose K arms, by each kind of rule.

The server fills a *plan* from the learner's dynamics and sends it; the agents read it where they
are. By the policy's rule (`rmab.policies.policy`) a plan is

    IndexRule      dynamics, p01 and p11, (N, A, R) each, where the index is a formula of the
                   information state; else a table (N, I, A, R) with a row for each
    LookaheadRule  the numbers of a formula (N, A, R) each for channels; else tables (N, I, A, R)
    TurnsRule      which arms are in play, (N, A, R)
    OptimumRule    a `Joint`: a decision for every joint information state
    JointRule      the same as one table for each trial, (codes, A, R)
    RandomRule, OwnIndexRule, AgeRule, TrueStateRule   nothing

Arrays end in agents and trials: A = 1 where all agents play by one plan, else A = M. A known plan
is the same in all trials, R = 1. `agents_of` gives the class for a rule.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.engine.setting import Fitted, Guide, Joint, Lookup, Setting
from rmab.engine.world import Truth, World, wide
from rmab.linalg import compute_in_branch
from rmab.model.arms import Dynamics, Intervals, Moves
from rmab.model.information import NEVER, InformationStates, row_of
from rmab.planning.joint.chain import Layout, joint_code
from rmab.planning.joint.joint_plan import JointSpace, bounded_arms, drawn_arms, joint_plan
from rmab.planning.lookahead.channel import channel_state, channel_values
from rmab.policies.filling import Found, Learnt, channel_pair, fill
from rmab.policies.lookahead import choose, state_from_tables, table_entries
from rmab.policies.own_index import Now, index_now, looked
from rmab.policies.plans import take_turns
from rmab.policies.policy import (
    AgeRule,
    IndexRule,
    JointRule,
    LookaheadRule,
    OptimumRule,
    OwnIndexRule,
    Policy,
    RandomRule,
    TrueStateRule,
    TurnsRule,
)

__all__ = ["Agents", "Sight", "agents_of", "largest"]

# Trials served at once by a large program: with fewer each costs more, with more all wait longer.
_MAX_SERVED = 64
_MIN_SERVED = 25_000  # the same for an accelerator, which takes as long for fewer
_PLANNED = 16  # the same for joint plans, of which a few fill a core
_PLANNED_ELEMENTS = 1 << 26  # codes x trials of joint plans made at once on an accelerator
_OLDEST = np.finfo(np.float32).max  # a float above all ages
_TIE = 1e-5  # relative: indices closer than this are equal but for rounding
_TOLD_BITS = 16  # the same of an index that is rounded: bits after the first
_NEVER_PLAYED = 1e4  # the largest rewards that an arm is held to lose which cannot be played
_MAX_PAIRWISE_ARMS = 8  # up to here pairs are cheaper than bisection, and unrolled code stays small


class Sight(NamedTuple):
    """What agents may choose by in a slot.

    plan: see above; observed: information states, (N, M, R) each; state: true states, read where
    arms are fully observed; own: the learner's own state, if any; slot: its number; noise:
    gives uniforms (N, M, R) to those who choose at random, of two kinds, 0 and 1; truth: for what
    plays pay; wraps: (N,) or (N, M), how far ages past a table's highest fall back, 0: to never
    observed; plays: K; playable: which arms can be played, (N, M, 1), None: all. Where fewer than K
    can, all are.
    """

    plan: Any
    observed: InformationStates
    state: Array
    own: Any
    slot: Array
    noise: Callable[[int], Array]
    truth: Truth
    wraps: Array
    plays: Array
    playable: Array | None = None

    def largest(self, index: Array) -> Array:
        """A mask (N, M, R) of the K arms of the largest index that can be played."""
        if self.playable is None:
            return largest(index, self.plays)
        there = jnp.where(self.playable, index, -jnp.inf)
        return largest(there, self.plays) & self.playable


class Agents(ABC):
    """How agents are given plans and choose; what is here holds for rules that need no plan."""

    # Whether filling a plan is quick, so that it is done for all trials at once where many are due.
    light = True

    def __init__(self, setting: Setting, policy: Policy, world: World, plays: int | None) -> None:
        self.setting = setting
        self.policy = policy
        self.rule: Any = policy.rule
        self.world = world
        self.plays = plays  # K, where it is part of the program

    # ---------------------------------------------------------------- the server

    def served_at_once(self, n_trials: int, few: int) -> int:
        """For how many of a batch's trials plans are filled together; few: if that is quick."""
        if jax.default_backend() == "cpu":
            return min(few, _MAX_SERVED)
        return min(n_trials, max(few, _MIN_SERVED))

    def first(self, truth: Truth, n_trials: int, guide: Guide, agents: int) -> Any:
        """What a policy that knows plays by; for others a plan of the right shape, for A agents."""
        if isinstance(guide, Lookup):
            by_agent = guide.wraps.ndim == 2
            return jax.tree.map(
                lambda table: table[..., None] if by_agent else table[:, :, None, None],
                guide.tables,
            )
        if isinstance(guide, Fitted):
            return ()  # every slot looks up its own
        if guide is not None:
            return guide

        def filled(width: int) -> Any:
            some_first = getattr(self.rule, "first", None) is not None
            first = jnp.zeros((self.setting.n_arms, width), bool) if some_first else None
            moves = truth.moves
            if self.setting.laws_differ:
                if not self.policy.learns:
                    return self.fill(moves, truth, agents, first)  # (S, S, N, M): each its own
                moves = Moves(*(m[..., 0] for m in moves))
            wide = Moves(*(m[..., None] * jnp.ones(width, jnp.float32) for m in moves))
            return self.fill(wide, truth, agents, first)

        if not self.policy.learns:
            return filled(agents)
        shape = jax.eval_shape(lambda: filled(agents * n_trials))
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)

    def fill(self, found: Found, truth: Truth, agents: int = 1, first: Array | None = None) -> Any:
        """The plan of an episode, from dynamics of A agents in R trials.

        The dynamics end in A R: all trials of the first agent, then those of the next; so do the
        arms that are played first.
        """
        setting = self.setting
        rewards = truth.reward_passive, truth.reward_active
        if setting.rewards_differ:
            trials = jax.tree.leaves(found)[0].shape[-1] // agents
            rewards = jnp.repeat(rewards[0], trials, -1), jnp.repeat(rewards[1], trials, -1)
        learnt = Learnt(found, *rewards, setting.kinds, setting.channels, first)
        plan = self._filled(learnt)
        return jax.tree.map(lambda x: x.reshape(*x.shape[:-1], agents, -1), plan)

    def _filled(self, learnt: Learnt) -> Any:  # noqa: ARG002 - rules that need a plan read it
        return ()

    # ---------------------------------------------------------------- the agents

    def look(self, sight: Sight) -> Sight:
        """With what an own learner makes of the states that are shown before the choice."""
        return sight

    @abstractmethod
    def choose(self, sight: Sight) -> Array:
        """The arms played, a mask (N, M, R)."""

    def wraps(self, guide: Guide) -> Array:
        """(N,) how far ages past a table's highest fall back; 0: they become never observed."""
        if isinstance(guide, Lookup | Fitted):
            return guide.wraps
        return jnp.zeros(self.setting.n_arms, jnp.int32)

    def _states(self, sight: Sight) -> InformationStates:
        """Where tables are read, (N, M, R) each: a fully observed arm is in (state now, 1)."""
        observed = sight.observed
        seen = self.world.shown(sight.state, observed.last_seen).astype(jnp.int32)
        seen = jnp.broadcast_to(seen, observed.age.shape)
        return InformationStates(seen, jnp.where(self.world.always, 1, observed.age))


class _AtRandom(Agents):
    def choose(self, sight: Sight) -> Array:
        return sight.largest(sight.noise(0))


class _ByOwnIndex(Agents):
    def look(self, sight: Sight) -> Sight:
        return sight._replace(own=looked(self.rule.own, sight.own, partial(self._now, sight)))

    def choose(self, sight: Sight) -> Array:
        now = partial(self._now, sight)
        index = _computed_once(sight, lambda: index_now(self.rule.own, sight.own, sight.slot, now))
        return sight.largest(index)

    def _now(self, sight: Sight) -> Now:
        state, age = self._states(sight)
        stepped = jnp.broadcast_to(self.world.always & (sight.slot > 0), age.shape)
        return Now(state, age, stepped, sight.slot, jnp.stack([sight.noise(0), sight.noise(1)]))


class _ByAge(Agents):
    """Those never observed, then those observed longest ago; before them, where the rule stays,
    those that are good, as far as was observed one slot ago or is now."""

    def choose(self, sight: Sight) -> Array:
        age = sight.observed.age
        index = jnp.where(age == NEVER, _OLDEST, age.astype(jnp.float32))
        if self.rule.stays:
            seen = self.world.shown(sight.state, sight.observed.last_seen)
            recent = (age == 1) | self.world.always if self.world.any_always else age == 1
            index = jnp.where(recent & (seen == self._good(sight.truth)), jnp.inf, index)
        return sight.largest(index)

    def _good(self, truth: Truth) -> Array:
        """The state of each arm that pays most, (N, M or 1, 1); of those that pay alike the
        highest."""
        sizes = jnp.array([kind.states for kind in self.setting.kinds])
        state = jnp.arange(self.setting.n_states)[:, None]
        there = state < sizes
        there = there[..., None] if self.setting.rewards_differ else there
        pays = jnp.where(there, truth.reward_active, -jnp.inf)
        best = self.setting.n_states - 1 - pays[::-1].argmax(0)
        return wide(best).astype(self.world.state_type)


class _ByTrueState(Agents):
    def choose(self, sight: Sight) -> Array:
        shape = sight.observed.age.shape
        pays = self.world.select(sight.truth.reward_active, sight.state)
        return sight.largest(jnp.broadcast_to(pays, shape))


class _ByOptimum(Agents):
    def choose(self, sight: Sight) -> Array:
        """The optimum's decision in the joint information state of each agent."""
        seen = self.world.shown(sight.state, sight.observed.last_seen)
        if isinstance(sight.plan, Joint):
            return self._decided(sight.plan, seen, sight.observed.age)
        age = sight.observed.age
        seen = jnp.broadcast_to(seen, age.shape)
        by_agent = [
            self._decided(plan, seen[:, m : m + 1], age[:, m : m + 1])
            for m, plan in enumerate(sight.plan)
        ]
        return jnp.concatenate(by_agent, 1)

    def _decided(self, plan: Joint, seen: Array, age: Array) -> Array:
        code = joint_code(seen.astype(jnp.int32), age, plan.layout)  # (M, R)
        return jnp.moveaxis(plan.subsets[plan.actions[code]], -1, 0)


class _ByJointPlan(Agents):
    """The joint optimum of what was learnt; K is part of the program, as the sets of K arms are."""

    light = False

    def __init__(self, setting: Setting, policy: Policy, world: World, plays: int | None) -> None:
        super().__init__(setting, policy, world, plays)
        assert plays is not None
        self.space = JointSpace(setting.kinds, plays, self.rule.ages)

    def served_at_once(self, n_trials: int, few: int) -> int:  # noqa: ARG002 - a plan is never quick
        if jax.default_backend() == "cpu":
            return min(n_trials, _PLANNED)
        return min(n_trials, max(1, _PLANNED_ELEMENTS // self.space.size))

    def _filled(self, learnt: Learnt) -> Any:
        idle, pays = learnt.idle_pays, learnt.pays
        if isinstance(learnt.found, Intervals):
            arms, accuracy = bounded_arms(learnt.found, idle, pays), learnt.found.accuracy
        else:
            arms = drawn_arms(learnt.model(self.policy.name), self.space)
            accuracy = self.rule.accuracy * jnp.maximum(jnp.abs(idle).max(), jnp.abs(pays).max())
        return joint_plan(arms, self.space, accuracy).actions

    def choose(self, sight: Sight) -> Array:
        """The decision in the joint information state of each agent."""
        layout = Layout(*(jnp.asarray(x) for x in self.space.layout))
        seen = self.world.shown(sight.state, sight.observed.last_seen)
        code = joint_code(seen.astype(jnp.int32), sight.observed.age, layout)  # (M, R)
        drawers, n_trials = sight.plan.shape[1:]
        agent = jnp.arange(code.shape[0])[:, None] if drawers > 1 else 0
        action = sight.plan[code, agent, jnp.arange(n_trials)]
        played = jnp.moveaxis(jnp.asarray(self.space.subsets)[action], -1, 0)
        return played if sight.playable is None else played & sight.playable


class _ByIndex(Agents):
    """An index for each arm."""

    def _told_apart(self, sight: Sight, index: Array) -> Array:
        """The index; to five digits where laws are fitted to a recording. There arms of other laws
        are often worth the same but for rounding, and ties go to the lower one."""
        if sight.playable is None or self.policy.learns:
            return index
        return lax.reduce_precision(index.astype(jnp.float32), 8, _TOLD_BITS)


class _ByFormula(_ByIndex):
    """An index that is a formula of the information state, evaluated where the agents are."""

    def _filled(self, learnt: Learnt) -> Any:
        pair = channel_pair(learnt.found)
        return pair if learnt.first is None else (*pair, learnt.first)

    def choose(self, sight: Sight) -> Array:
        shape = sight.observed.age.shape
        rewards = wide(sight.truth.reward_active[1])  # taken once, outside the branch

        def index() -> Array:
            found = self._index(sight, rewards)
            return jnp.broadcast_to(found, shape).astype(jnp.float32)

        return sight.largest(self._told_apart(sight, _computed_once(sight, index)))

    def _index(self, sight: Sight, rewards: Array) -> Array:
        p01, p11, *first = sight.plan
        index: Array = self.rule.planner(Dynamics(p01, p11, rewards), sight.observed)
        return jnp.where(first[0], jnp.inf, index) if first else index


class _ByTurns(_ByFormula):
    def _filled(self, learnt: Learnt) -> Any:
        return channel_pair(learnt.found)[1]

    def _index(self, sight: Sight, rewards: Array) -> Array:  # noqa: ARG002 - turns, not rewards
        index: Array = take_turns(sight.plan > 0, sight.observed)
        return index

    def choose(self, sight: Sight) -> Array:
        played = super().choose(sight)
        return played & (sight.plan > 0).any(0) if self.rule.waits else played


class _ByTable(_ByIndex):
    """An index from a table, filled anew in every episode or known."""

    light = False

    def _filled(self, learnt: Learnt) -> Any:
        planned = self.setting.channels and self.rule.planner is not None
        max_age = self.rule.max_age if planned else self.setting.max_age
        return fill(self.policy, learnt, None, max_age)

    def wraps(self, guide: Guide) -> Array:
        """As in Agents; a planner's own table stays at its highest age."""
        stays = self.setting.channels and self.rule.planner is not None
        if stays and not isinstance(guide, Lookup):
            return jnp.ones(self.setting.n_arms, jnp.int32)
        return super().wraps(guide)

    def choose(self, sight: Sight) -> Array:
        max_age = (sight.plan.shape[1] - 1) // self.setting.n_states
        rows = row_of(self._states(sight), max_age, wide(sight.wraps))
        index = table_entries(sight.plan, rows)
        if self.rule.by_chance:
            index = index + _TIE * jnp.maximum(jnp.abs(index), 1) * sight.noise(0)
        return sight.largest(self._told_apart(sight, index))


class _ByLookahead(Agents):
    """K arms chosen together, from tables or, for channels, a formula; K is part of the program, as
    the sets of K arms are."""

    def __init__(self, setting: Setting, policy: Policy, world: World, plays: int | None) -> None:
        super().__init__(setting, policy, world, plays)
        self.light = setting.channels
        self.always = np.array([kind.fully_observed for kind in setting.kinds])

    def _filled(self, learnt: Learnt) -> Any:
        assert self.plays is not None
        if not self.setting.channels:
            return fill(self.policy, learnt, self.plays, self.setting.max_age)
        rewards = learnt.reward_active[1]
        rewards = rewards if rewards.ndim == 2 else rewards[:, None]
        return channel_values(Dynamics(*channel_pair(learnt.found), rewards), self.plays)

    def choose(self, sight: Sight) -> Array:
        assert self.plays is not None
        depth, once = self.rule.depth, partial(_computed_once, sight)
        if self.setting.channels:
            state = once(partial(channel_state, sight.plan, sight.observed, depth))
        else:
            states = self._states(sight)
            state = state_from_tables(sight.plan, states, depth, sight.wraps, self.always)
        if depth == 1:
            return sight.largest(state.now.gains[0])
        if sight.playable is None:
            played: Array = choose(state, self.plays, once)
            return played
        # No gain makes up for an arm that cannot be played: of sets with such arms, where there are
        # too few others, any with all others will do.
        now, *later = state.now.gains
        loss = _NEVER_PLAYED * (1 + jnp.abs(sight.truth.reward_active).max())
        gains = (jnp.where(sight.playable, now, -loss), *later)
        played = choose(state._replace(now=state.now._replace(gains=gains)), self.plays, once)
        return played & sight.playable


def agents_of(setting: Setting, policy: Policy, world: World, plays: int | None) -> Agents:
    """How the agents of a policy play; plays: K, where it is part of the program."""
    rule = policy.rule
    kinds: dict[type[Any], type[Agents]] = {
        LookaheadRule: _ByLookahead,
        OptimumRule: _ByOptimum,
        JointRule: _ByJointPlan,
        OwnIndexRule: _ByOwnIndex,
        RandomRule: _AtRandom,
        TurnsRule: _ByTurns,
        AgeRule: _ByAge,
        TrueStateRule: _ByTrueState,
    }
    if isinstance(rule, IndexRule):
        formula = rule.statewise and setting.channels and rule.planner is not None
        return (_ByFormula if formula else _ByTable)(setting, policy, world, plays)
    return kinds[type(rule)](setting, policy, world, plays)


def _computed_once(sight: Sight, compute: Callable[[], Any]) -> Any:
    """What is computed: XLA would otherwise compute it anew for every pair of arms compared."""
    return compute_in_branch(sight.observed.age[0, 0, 0] >= NEVER, compute)


# -------------------------------------------------------------------- the K largest of N


def largest(index: Array, k: Array) -> Array:
    """A mask of the k largest entries of `index` (N, ...) along its first axis, ties to the lower
    arm.

    For few arms every pair is compared once; for many a threshold is found by bisection on the bits
    of the floats, which order like unsigned integers after a flip. Both give the same answer.
    """
    return _by_pairs(index, k) if index.shape[0] <= _MAX_PAIRWISE_ARMS else _by_bisection(index, k)


def _by_pairs(index: Array, k: Array) -> Array:
    n_arms = index.shape[0]
    rank = [jnp.zeros(index.shape[1:], jnp.int8) for _ in range(n_arms)]
    for low in range(n_arms):
        for high in range(low + 1, n_arms):
            beaten = (index[high] > index[low]).astype(jnp.int8)
            rank[low] = rank[low] + beaten
            rank[high] = rank[high] + (1 - beaten)
    return jnp.stack(rank) < k


def _by_bisection(index: Array, k: Array) -> Array:
    bits = lax.bitcast_convert_type(index.astype(jnp.float32), jnp.uint32)
    bits = jnp.where(bits == jnp.uint32(1 << 31), 0, bits)  # -0.0 ties with 0.0
    negative = bits >> 31 == 1
    order = jnp.where(negative, ~bits, bits | jnp.uint32(1 << 31))  # (N, ...) sorts as the floats

    def above(level: Array) -> Array:
        """How many are above it; as a product, which is vectorised over trials."""
        ones = jnp.ones(order.shape[0], jnp.float32)
        return jnp.tensordot(ones, (order > level).astype(jnp.float32), 1).astype(jnp.int32)

    def halve(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        low, high, count = state  # count = above(low) >= k > above(high)
        middle = low + (high - low) // 2
        inside = above(middle)
        enough = (inside >= k) & (count > k)
        return (
            jnp.where(enough, middle, low),
            jnp.where(enough | (count == k), high, middle),
            jnp.where(enough, inside, count),
        )

    def unsettled(state: tuple[Array, Array, Array]) -> Array:
        low, high, count = state
        return ((count > k) & (high - low > 1)).any()

    start = order.min(0) - 1, order.max(0), jnp.full(order.shape[1:], order.shape[0], jnp.int32)
    low, high, count = lax.while_loop(unsettled, halve, start)

    # Where count is still above k, `high` is the k-th largest value and several arms share it.
    def by_number() -> Array:
        tied = order == high
        first = tied & (jnp.cumsum(tied, axis=0, dtype=jnp.int32) <= k - above(high))
        return jnp.where(count == k, order > low, (order > high) | first)

    found: Array = lax.cond((count > k).any(), by_number, lambda: order > low)
    return found
