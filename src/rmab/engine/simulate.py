"""A batch of trials of one policy, as one JAX program.

Arrays have shape (N arms, M agents, R trials), trials last, so that the innermost loop runs over
trials. A slot, for all trials at once:

    1. the index of every arm in its agent's information state, the K largest are played;
    2. played arms show their state, as arms that are always seen do anyway; looks are counted;
    3. every arm's true state moves (played or not), from numbers that depend on the seed, trial,
       agent, arm and slot alone: every policy meets the same channels.

A policy that learns runs these slots inside episodes, as Algorithm 1: at the start of an episode
counts are merged, the learner gives dynamics, the planner a plan. Trials keep one slot clock but
end their episodes at different slots, so the server's part runs for those that do: when they are
few, or what is filled is a table, they are gathered, served and scattered back.

Where all arms are channels, planners are formulas of one information state. Other arms are played
by tables over information states: filled in each episode from the learner's dynamics, or given
where the dynamics are known (`Lookup`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from rmab.arms import NEVER, Arms, Dynamics, InformationStates, Kind, Moves, information_states
from rmab.engine.choice import largest
from rmab.engine.world import Truth, World
from rmab.errors import ModelError
from rmab.federation.policies import Policy
from rmab.federation.rounds import (
    FIRST_LENGTH,
    merge,
    most_episodes,
    next_limit,
    visit_limit,
    visits_can_end,
)
from rmab.learning.learners import Evidence, count_kinds
from rmab.learning.randomness import CHANNELS, DRAWS, PLAYS, Draws, Key, stream, threefry, unit
from rmab.planning.joint_chain import Layout, joint_code
from rmab.planning.tables import Model

__all__ = ["Joint", "Lookup", "Outcome", "Setting", "Simulate", "simulator"]


@dataclass(frozen=True)
class Setting:
    """What a compiled simulator is made for; all else is an argument."""

    n_agents: int
    kinds: tuple[Kind, ...]  # of each arm
    horizon: int
    channels: bool = True  # whether p01, p11 and reward describe all arms
    idle_pay: bool = False  # whether an arm left alone may pay
    shared: bool = False
    schedule: str = "paper"
    weights: tuple[float, ...] | None = None  # None: 1 for every agent
    max_age: int = 32  # ages that tables filled from learnt dynamics tell apart

    @classmethod
    def of(cls, arms: Arms, n_agents: int, horizon: int, **others: Any) -> Setting:
        """The setting for these arms."""
        return cls(
            n_agents,
            arms.kinds,
            horizon,
            channels=arms.are_channels,
            idle_pay=bool(arms.reward_passive.any()),
            **others,
        )

    @property
    def n_arms(self) -> int:
        """N."""
        return len(self.kinds)

    @property
    def n_states(self) -> int:
        """S of the largest arm."""
        return max(kind.states for kind in self.kinds)


class Joint(NamedTuple):
    """The exact optimum as a lookup: see rmab.planning.joint."""

    actions: Array  # (codes,) row of `subsets` to play
    subsets: Array  # (A, N) bool
    layout: Layout  # of the joint code


class Lookup(NamedTuple):
    """A table of indices for known dynamics."""

    table: Array  # (N, 1 + S max_age) indices
    wraps: Array  # (N,) how far ages past max_age fall back; 0: they become never seen


class Simulate(Protocol):
    """A compiled batch: seed words, trial numbers, truth, K, what is looked up -> outcome."""

    def __call__(
        self, seed: Array, trials: Array, truth: Truth, plays: Array, guide: Guide, /
    ) -> Outcome: ...


Guide = Joint | Lookup | None


class Outcome(NamedTuple):
    """What R trials gave; L bounds the number of episodes."""

    rewards: Array  # (T, R) summed over agents
    episodes: Array  # (R,)
    lengths: Array  # (L, R) slots of each episode, 0 past the last
    error: Array  # (L, N, R) squared error of the transition probabilities, see `_error`


class _Looks(NamedTuple):
    """What agents have seen; counts are None where nobody needs them."""

    last_seen: Array  # (N, M, R) state
    age: Array  # (N, M, R) int32, slots since the last play
    counts: Array | None  # (C, S, S, N, M, R) pairs of looks, see rmab.learning.learners
    visits: Array | None  # (S, N, M, R) plays by the state they showed


class _Episode(NamedTuple):
    """Where each trial stands in its episode; arrays end in R."""

    plan: Any  # dynamics (p01, p11), each (N, R), or a table (N, I, R)
    visit_cap: Array | None  # (S, N, M, R) visits that end it when exceeded, if they can
    limit: Array
    length: Array
    number: Array  # episodes begun
    over: Array  # bool: the server is due


class _Run(NamedTuple):
    slot: Array
    state: Array  # (N, M or 1, R) true states
    looks: _Looks
    episode: _Episode
    out: Outcome


@lru_cache(maxsize=64)
def simulator(
    setting: Setting, policy: Policy, n_trials: int, shapes: tuple[int, ...] | None = None
) -> Simulate:
    """The compiled program for batches of `n_trials` trials.

    shapes: the numbers of codes and subsets of a policy that decides jointly, or the rows of one
    that looks up a table; None for others.
    """

    def kind(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # JAX has none

    n_arms = setting.n_arms
    guide: Any = None
    if shapes is not None and policy.joint:
        whole = kind((n_arms,), jnp.int32)
        layout = Layout(whole, whole, whole, kind((n_arms,), bool))
        guide = Joint(kind((shapes[0],), jnp.int32), kind((shapes[1], n_arms), bool), layout)
    elif shapes is not None:
        guide = Lookup(kind((n_arms, shapes[0]), jnp.float32), kind((n_arms,), jnp.int32))
    # Batches run side by side in threads of their own, so one batch must not split itself.
    program = jax.jit(
        _Simulator(setting, policy).run, compiler_options={"xla_cpu_multi_thread_eigen": False}
    )
    S = setting.n_states
    square, row = kind((S, S, n_arms), jnp.float32), kind((S, n_arms), jnp.float32)
    levels, rest = kind((S, S - 1, n_arms), jnp.uint32), kind((S - 1, n_arms), jnp.uint32)
    truth = Truth(Moves(square, square), row, row, levels, levels, rest)
    compiled: Simulate = program.lower(
        kind((2,), jnp.uint32), kind((n_trials,), jnp.uint32), truth, kind((), jnp.int32), guide
    ).compile()
    return compiled


class _Simulator:
    def __init__(self, setting: Setting, policy: Policy) -> None:
        self.setting = setting
        self.policy = policy
        self.world = World(setting.kinds, idle_pay=setting.idle_pay)
        self.learns = policy.learner is not None
        self.estimates = self.learns and policy.estimates
        # Evaluated where the agents are, by a formula of the state; else from a table.
        self.statewise = policy.statewise and (setting.channels or not policy.estimates)
        self.count_kinds = count_kinds(setting.kinds)
        own_lengths = policy.lengths is not None
        schedule = setting.schedule
        self.watches = (
            self.learns
            and not own_lengths
            and visits_can_end(schedule, setting.n_agents, setting.horizon)
        )
        # Counts never pass the horizon; narrow ones halve the memory the slots run through.
        self.whole = jnp.int16 if setting.horizon < 2**15 else jnp.int32
        self.most = 1
        if self.learns:
            self.most = (
                setting.horizon
                if own_lengths
                else most_episodes(
                    schedule, setting.n_agents, setting.n_arms, setting.horizon, setting.n_states
                )
            )
        self.weights = jnp.asarray(setting.weights or (1.0,) * setting.n_agents, jnp.float32)

    # ------------------------------------------------------------------ the slot

    def choose(
        self, run: _Run, reward: Array, wraps: Array, plays: Array, noise: Callable[[], Array]
    ) -> Array:
        """The arms played, a mask (N, M, R)."""
        plan, looks = run.episode.plan, run.looks
        if isinstance(plan, Joint):
            return _look_up(plan, self.world.shown(run.state, looks.last_seen), looks.age)
        if self.policy.planner is None and self.policy.table is None:
            return largest(noise(), plays)
        if self.statewise:
            return largest(self.index(plan, reward, looks), plays)
        max_age = (plan.shape[1] - 1) // self.setting.n_states
        seen = self.world.shown(run.state, looks.last_seen)
        age = jnp.where(self.world.always, 1, looks.age)
        row = _row(seen, age, max_age, wraps)
        return largest(jnp.take_along_axis(plan, row, axis=1), plays)

    def index(self, plan: Any, reward: Array, looks: _Looks) -> Array:
        """A statewise planner's index where the agents are, (N, M, R)."""
        planner = self.policy.planner
        assert planner is not None
        shape = looks.age.shape

        def evaluate() -> Array:
            dynamics = Dynamics(plan[0][:, None], plan[1][:, None], reward[:, None, None])
            states = InformationStates(looks.last_seen, looks.age)
            return jnp.broadcast_to(planner(dynamics, states), shape).astype(jnp.float32)

        # Always taken. XLA would otherwise merge the index into the comparisons that follow and
        # compute it anew for every pair of arms; it does not merge across a branch.
        index: Array = lax.cond(looks.age[0, 0, 0] >= NEVER, evaluate, lambda: jnp.zeros(shape))
        return index

    def look(self, looks: _Looks, played: Array, state: Array, slot: Array) -> _Looks:
        """Played arms are seen, and those that always are; all else ages."""
        counts, visits = looks.counts, looks.visits
        seen = self.world.each_state == state  # (S, N, M, R)
        if counts is not None:
            before = self.world.each_state[:, None] == looks.last_seen  # (S, 1, N, M, R)
            which, counted = self.pairs(looks.age, played, slot)
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
        return _Looks(jnp.where(shows, state, looks.last_seen), age, counts, visits)

    def pairs(self, age: Array, played: Array, slot: Array) -> tuple[Array | None, Array]:
        """Of each arm: the kind of pair that this look completes, None for 0, and whether any."""
        world = self.world
        if self.count_kinds == 1 and not world.any_always:
            return None, played & (age == 1)
        look = jnp.where(world.always, slot > 0, played & (age != NEVER))
        alone = jnp.where(world.always, jnp.where(world.alike | (age == 1), 0, 1), age - 1)
        return alone, look

    # ---------------------------------------------------------------- the server

    def serve(
        self,
        seed: Array,
        trials: Array,
        truth: Truth,
        plays: Array,
        looks: _Looks,
        episode: _Episode,
    ) -> tuple[_Episode, Array]:
        """A new episode for the trials whose episode is over: Algorithm 1, lines 4 to 9.

        Returns also the squared error of the new dynamics, (N, R).
        """
        assert self.policy.learner is not None
        setting = self.setting
        due = episode.over
        number = episode.number + 1
        evidence = Evidence(
            counts=merge(looks.counts, self.weights),
            visits=merge(looks.visits, self.weights)
            if looks.visits is not None
            else jnp.zeros((setting.n_states, setting.n_arms, due.shape[0])),
            episode=number,
            rewards=truth.reward_active[:, :, None],
            idle_rewards=truth.reward_passive[:, :, None],
            plays=plays,
            agents=sum(setting.weights or (1,) * setting.n_agents),
            kinds=setting.kinds,
        )
        draws = Draws(stream(seed, trials, jnp.uint32(0), DRAWS), number, due)
        found = self.policy.learner(evidence, draws)
        if self.policy.lengths is None:
            length = jnp.where(episode.number == 0, FIRST_LENGTH, episode.length)
            limit = next_limit(setting.schedule, length)
        else:
            limit = self.policy.lengths(_pair(found)[1], plays)
        fresh = _Episode(
            plan=self.fill(found, truth),
            visit_cap=self.cap(looks.visits) if self.watches else None,
            limit=limit,
            length=jnp.zeros_like(episode.length),
            number=number,
            over=jnp.zeros_like(due),
        )
        fresh = jax.tree.map(lambda new, old: jnp.where(due, new, old), fresh, episode)
        return fresh, self.error(found, truth)

    def cap(self, visits: Array | None) -> Array:
        """The visits that end an episode when exceeded, from those at its start."""
        assert visits is not None
        most = visit_limit(visits.astype(jnp.int32), self.setting.n_agents, self.setting.horizon)
        return jnp.asarray(most, self.whole)

    def error(self, found: Moves | tuple[Array, Array], truth: Truth) -> Array:
        """Squared error of the dynamics, (N, R): half a row's squared distance, rows averaged.

        For channels this is the mean of the squared errors of p01 and p11.
        """
        if not isinstance(found, Moves):
            off = [x - t[:, None] for x, t in zip(found, _pair(truth.moves), strict=True)]
            return (off[0] ** 2 + off[1] ** 2) / 2
        sizes = jnp.array([kind.states for kind in self.setting.kinds])
        has = (jnp.arange(self.setting.n_states)[:, None] < sizes)[:, None, :, None]
        matrices = zip(found, truth.moves, strict=True)
        errors = [jnp.where(has, (x - t[..., None]) ** 2, 0).sum((0, 1)) for x, t in matrices]
        return (errors[0] + errors[1]) / (4 * sizes[:, None])

    def fill(self, found: Moves | tuple[Array, Array], truth: Truth) -> Any:
        """The plan an episode is played with: the dynamics, or a table (N, I, R)."""
        policy, setting = self.policy, self.setting
        if self.statewise or (policy.planner is None and policy.table is None):
            return _pair(found)
        if setting.channels and policy.planner is not None:
            p01, p11 = _pair(found)
            grid = information_states(policy.max_age)
            states = InformationStates(*(jnp.asarray(x, jnp.int32)[None, :, None] for x in grid))
            reward = truth.reward_active[1][:, None, None]
            table = policy.planner(Dynamics(p01[:, None], p11[:, None], reward), states)
            rows, width = grid.age.size, p01.shape[-1]
        else:
            assert policy.table is not None
            if not isinstance(found, Moves):
                raise ModelError(
                    f"policy {policy.name}: its learner must return rmab.Moves for arms that are "
                    "not channels"
                )
            rewards = truth.reward_passive[:, :, None], truth.reward_active[:, :, None]
            table = policy.table(Model(found, *rewards, setting.kinds), setting.max_age)
            rows, width = 1 + setting.n_states * setting.max_age, found.passive.shape[-1]
        shape = (setting.n_arms, rows, width)
        try:
            return jnp.broadcast_to(jnp.asarray(table, jnp.float32), shape)
        except ValueError:
            raise ModelError(
                f"policy {policy.name}: its planner must give an index for (arms, information "
                f"states, trials) = {shape}, got shape {jnp.shape(table)}"
            ) from None

    # ------------------------------------------------------------------- the run

    def run(self, seed: Array, trials: Array, truth: Truth, plays: Array, guide: Guide) -> Outcome:
        """All slots of a batch of trials."""
        setting, n_trials = self.setting, trials.shape[0]
        lanes = jnp.arange(1 if setting.shared else setting.n_agents)[None, :, None]
        key = stream(seed, trials, lanes, CHANNELS)
        play_key = stream(seed, trials, jnp.arange(setting.n_agents)[None, :, None], PLAYS)
        arm = jnp.arange(setting.n_arms, dtype=jnp.uint32)[:, None, None]
        # A planner's own table stays at its highest age; a filled one goes on as never seen.
        stays = setting.channels and self.policy.planner is not None
        wraps = jnp.full(setting.n_arms, 1 if stays else 0, jnp.int32)
        wraps = guide.wraps if isinstance(guide, Lookup) else wraps

        def advance(run: _Run) -> _Run:
            slot = run.slot.astype(jnp.uint32)

            def noise() -> Array:
                return unit(threefry(play_key, slot, arm)[0])

            played = self.choose(run, truth.reward_active[1], wraps, plays, noise)
            looks = self.look(run.looks, played, run.state, run.slot)
            paid = self.world.paid(truth, run.state, played).sum((0, 1))
            episode = run.episode
            if self.learns:
                length = episode.length + 1
                over = length >= episode.limit
                if looks.visits is not None and episode.visit_cap is not None:
                    over = over | (looks.visits > episode.visit_cap).any((0, 1, 2))
                episode = episode._replace(length=length, over=over)
            rewards = lax.dynamic_update_index_in_dim(run.out.rewards, paid, run.slot, 0)
            out = run.out._replace(rewards=rewards)
            state = self.world.move(key, truth, run.state, played, slot + 1)
            return _Run(run.slot + 1, state, looks, episode, out)

        def begin(run: _Run) -> _Run:
            episode, out = run.episode, run.out
            due = episode.over
            # An accelerator takes as long for many as for few.
            alone = self.statewise or jax.default_backend() == "cpu"
            few = max(1, n_trials // 8) if alone else n_trials

            def some(served: tuple[_Episode, Array]) -> tuple[_Episode, Array]:
                episode, record = served
                which = jnp.nonzero(episode.over, size=few, fill_value=n_trials)[0]
                looks, part = jax.tree.map(
                    lambda x: x.at[..., which].get(mode="clip"), (run.looks, episode)
                )
                part = part._replace(over=which < n_trials)
                who = trials.at[which].get(mode="clip")
                part, error = self.serve(seed, who, truth, plays, looks, part)
                whole = jax.tree.map(
                    lambda old, new: old.at[..., which].set(new, mode="drop"), episode, part
                )
                if self.estimates:
                    record = record.at[part.number - 1, :, which].set(error.T, mode="drop")
                return whole, record

            def every(served: tuple[_Episode, Array]) -> tuple[_Episode, Array]:
                episode, record = served
                whole, error = self.serve(seed, trials, truth, plays, run.looks, episode)
                if self.estimates:
                    where = jnp.where(due, jnp.arange(n_trials), n_trials)
                    record = record.at[whole.number - 1, :, where].set(error.T, mode="drop")
                return whole, record

            place = jnp.where(due & (episode.number > 0), episode.number - 1, self.most)
            lengths = out.lengths.at[place, jnp.arange(n_trials)].set(episode.length, mode="drop")
            served = episode, out.error
            if self.statewise:
                fresh, record = lax.cond(due.sum() <= few, some, every, served)
            else:  # filling tables is a large program: compiled once, run for a few at a time
                fresh, record = lax.while_loop(lambda s: s[0].over.any(), some, served)
            return run._replace(episode=fresh, out=out._replace(lengths=lengths, error=record))

        def one_episode(run: _Run) -> _Run:
            return lax.while_loop(
                lambda r: (r.slot < setting.horizon) & ~r.episode.over.any(), advance, begin(run)
            )

        start = self.start(key, truth, n_trials, guide)
        done: _Run
        if not self.learns:
            done = lax.fori_loop(0, setting.horizon, lambda _, run: advance(run), start)
            out: Outcome = done.out
            return out._replace(
                episodes=jnp.ones(n_trials, jnp.int32),
                lengths=jnp.full((1, n_trials), setting.horizon, jnp.int32),
            )
        done = lax.while_loop(lambda r: r.slot < setting.horizon, one_episode, start)
        out = done.out
        last = done.episode.number - 1
        return out._replace(
            episodes=done.episode.number,
            lengths=out.lengths.at[last, jnp.arange(n_trials)].set(done.episode.length),
        )

    def start(self, key: Key, truth: Truth, n_trials: int, guide: Guide) -> _Run:
        """Before the first slot: nothing seen but arms that always are, all arms at rest."""
        setting, S = self.setting, self.setting.n_states
        shape = (setting.n_arms, setting.n_agents, n_trials)
        visits = self.watches or (self.learns and self.policy.reads_visits)
        pairs = (self.count_kinds, S, S, *shape)
        return _Run(
            slot=jnp.int32(0),
            state=self.world.start(key, truth, n_trials),
            looks=_Looks(
                last_seen=jnp.zeros(shape, self.world.state_type),
                age=jnp.full(shape, NEVER, jnp.int32),
                counts=jnp.zeros(pairs, self.whole) if self.learns else None,
                visits=jnp.zeros((S, *shape), self.whole) if visits else None,
            ),
            episode=_Episode(
                plan=self.first_plan(truth, n_trials, guide),
                visit_cap=jnp.zeros((S, *shape), self.whole) if self.watches else None,
                limit=jnp.zeros(n_trials, jnp.int32),
                length=jnp.zeros(n_trials, jnp.int32),
                number=jnp.zeros(n_trials, jnp.int32),
                over=jnp.ones(n_trials, bool),
            ),
            out=Outcome(
                rewards=jnp.zeros((setting.horizon, n_trials), jnp.float32),
                episodes=jnp.zeros(n_trials, jnp.int32),
                lengths=jnp.zeros((self.most, n_trials), jnp.int32),
                error=jnp.zeros(
                    (self.most if self.estimates else 0, setting.n_arms, n_trials), jnp.float32
                ),
            ),
        )

    def first_plan(self, truth: Truth, n_trials: int, guide: Guide) -> Any:
        """What a policy that knows plays by; for others a plan of the right shape."""
        if isinstance(guide, Lookup):
            return guide.table[:, :, None]
        if guide is not None:
            return guide
        # A known plan is the same in all trials and keeps one trial's width.
        width = n_trials if self.learns else 1
        wide = Moves(*(m[..., None] * jnp.ones(width, jnp.float32) for m in truth.moves))
        if not self.learns:
            return self.fill(wide, truth)
        shape = jax.eval_shape(lambda: self.fill(wide, truth))
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)


def _pair(found: Moves | tuple[Array, Array]) -> tuple[Array, Array]:
    """p01 and p11, each (N, ...)."""
    if isinstance(found, Moves):
        return found.passive[0, 1], found.passive[1, 1]
    return found[0], found[1]


def _look_up(joint: Joint, seen: Array, age: Array) -> Array:
    """The optimum's decision, (N, M, R), in the joint information state of each agent."""
    code = joint_code(seen.astype(jnp.int32), age, joint.layout)  # (M, R)
    return jnp.moveaxis(joint.subsets[joint.actions[code]], -1, 0)


def _row(seen: Array, age: Array, max_age: int, wraps: Array) -> Array:
    """The rows (N, M, R) of information states in a table up to max_age."""
    wrap = wraps[:, None, None]
    past = jnp.where(wrap == 0, NEVER, max_age - (max_age - age) % jnp.maximum(wrap, 1))
    age = jnp.where(age > max_age, past, age)
    return jnp.where(age == NEVER, 0, age + max_age * seen.astype(jnp.int32))
