"""A batch of trials of one policy, as one JAX program.

Arrays have shape (N arms, M agents, R trials), trials last, so that the innermost loop runs over
trials. A slot, for all trials at once:

    1. the index of every arm in its agent's information state, the K largest are played;
    2. every arm's true state moves (played or not), from numbers that depend on the seed, trial,
       agent, arm and slot alone: every policy meets the same channels;
    3. played arms show their state; looks are counted.

A policy that learns runs these slots inside episodes, as Algorithm 1: at the start of an episode
counts are merged, the learner gives dynamics, the planner a plan. Trials keep one slot clock but
end their episodes at different slots, so the server's part runs for those that do: when they are
few, they are gathered, served and scattered back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from rmab.arms import NEVER, Dynamics, InformationStates, information_states, stationary_belief
from rmab.engine.choice import largest
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
from rmab.learning.learners import Evidence
from rmab.learning.randomness import CHANNELS, DRAWS, PLAYS, Draws, Key, stream, threefry, unit
from rmab.planning.joint import joint_code

__all__ = ["Joint", "Outcome", "Setting", "Simulate", "simulator"]

BITS = 24  # transition probabilities are compared as whole numbers of 2^-24
BEFORE = 0xFFFFFFFF  # the counter of the draw of the state before the first slot


@dataclass(frozen=True)
class Setting:
    """What a compiled simulator is made for; all else is an argument."""

    n_agents: int
    n_arms: int
    horizon: int
    shared: bool = False
    schedule: str = "paper"
    weights: tuple[float, ...] | None = None  # None: 1 for every agent


class Joint(NamedTuple):
    """The exact optimum as a lookup: see rmab.planning.joint."""

    actions: Array  # (codes,) row of `subsets` to play
    subsets: Array  # (A, N) bool
    caps: Array  # (N,) largest age told apart
    wraps: Array  # (N,) ages past the cap repeat with this period
    strides: Array  # (N,) of the joint code


class Simulate(Protocol):
    """A compiled batch: seed words, trial numbers, true dynamics, K, joint lookup -> outcome."""

    def __call__(
        self, seed: Array, trials: Array, truth: Dynamics, plays: Array, joint: Joint | None, /
    ) -> Outcome: ...


class Outcome(NamedTuple):
    """What R trials gave; L bounds the number of episodes."""

    rewards: Array  # (T, R) summed over agents
    episodes: Array  # (R,)
    lengths: Array  # (L, R) slots of each episode, 0 past the last
    error: Array  # (L, N, R) squared error of (p01, p11), averaged over the two


class _Looks(NamedTuple):
    """What agents have seen; counts are None where nobody needs them."""

    last_seen: Array  # (N, M, R) bool
    age: Array  # (N, M, R) int32
    transitions: Array | None  # (2, 2, N, M, R) looks in two consecutive slots by state and next
    visits: Array | None  # (2, N, M, R) plays by the state they showed


class _Episode(NamedTuple):
    """Where each trial stands in its episode; arrays end in R."""

    plan: Any  # dynamics (p01, p11), each (N, R), or a table (N, I, R)
    visit_cap: Array | None  # (2, N, M, R) visits that end it when exceeded, if they can
    limit: Array
    length: Array
    number: Array  # episodes begun
    over: Array  # bool: the server is due


class _Run(NamedTuple):
    slot: Array
    good: Array  # (N, M or 1, R) true states
    looks: _Looks
    episode: _Episode
    out: Outcome


@lru_cache(maxsize=64)
def simulator(
    setting: Setting, policy: Policy, n_trials: int, lookup: tuple[int, int] | None = None
) -> Simulate:
    """The compiled program for batches of `n_trials` trials.

    lookup: the numbers of codes and subsets of a policy that decides jointly.
    """

    def kind(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # JAX has none

    row = kind((setting.n_arms,), jnp.float32)
    joint = None
    if lookup is not None:
        joint = Joint(
            kind((lookup[0],), jnp.int32),
            kind((lookup[1], setting.n_arms), bool),
            *(kind((setting.n_arms,), jnp.int32) for _ in range(3)),
        )
    # Batches run side by side in threads of their own, so one batch must not split itself.
    program = jax.jit(
        _Simulator(setting, policy).run, compiler_options={"xla_cpu_multi_thread_eigen": False}
    )
    compiled: Simulate = program.lower(
        kind((2,), jnp.uint32),
        kind((n_trials,), jnp.uint32),
        Dynamics(row, row, row),
        kind((), jnp.int32),
        joint,
    ).compile()
    return compiled


class _Simulator:
    def __init__(self, setting: Setting, policy: Policy) -> None:
        self.setting = setting
        self.policy = policy
        self.learns = policy.learner is not None
        self.estimates = self.learns and policy.estimates
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
                else most_episodes(schedule, setting.n_agents, setting.n_arms, setting.horizon)
            )
        self.weights = jnp.asarray(setting.weights or (1.0,) * setting.n_agents, jnp.float32)

    # ------------------------------------------------------------------ the slot

    def channels(self, key: Key, truth: Dynamics, good: Array, slot: Array) -> Array:
        """The true states one slot later; one Threefry call serves two arms."""
        half = (self.setting.n_arms + 1) // 2
        arm = jnp.arange(half, dtype=jnp.uint32)[:, None, None]
        words = jnp.concatenate(threefry(key, slot, arm))[: self.setting.n_arms]
        level = [(p * 2.0**BITS).astype(jnp.uint32)[:, None, None] for p in (truth.p01, truth.p11)]
        return (words >> (32 - BITS)) < jnp.where(good, level[1], level[0])

    def choose(
        self, plan: Any, reward: Array, looks: _Looks, plays: Array, noise: Callable[[], Array]
    ) -> Array:
        """The arms played, a mask (N, M, R)."""
        if isinstance(plan, Joint):
            return _look_up(plan, looks)
        if self.policy.planner is None:
            return largest(noise(), plays)
        if self.policy.statewise:
            return largest(self.index(plan, reward, looks), plays)
        age = jnp.minimum(looks.age, self.policy.max_age)
        row = jnp.where(age == NEVER, 0, age + self.policy.max_age * looks.last_seen)
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

    def look(self, looks: _Looks, played: Array, good: Array) -> _Looks:
        """Played arms are seen; all else ages."""
        transitions, visits = looks.transitions, looks.visits
        seen = _each_state() == good  # (2, N, M, R)
        if transitions is not None:
            again = played & (looks.age == 1)
            before = _each_state()[:, None] == looks.last_seen  # (2, 1, N, M, R)
            transitions = transitions + (again & before & seen)
        if visits is not None:
            visits = visits + (played & seen)
        age = jnp.where(played, 1, looks.age + (looks.age != NEVER))
        return _Looks(jnp.where(played, good, looks.last_seen), age, transitions, visits)

    # ---------------------------------------------------------------- the server

    def serve(
        self,
        seed: Array,
        trials: Array,
        truth: Dynamics,
        plays: Array,
        looks: _Looks,
        episode: _Episode,
    ) -> tuple[_Episode, Array]:
        """A new episode for the trials whose episode is over: Algorithm 1, lines 4 to 9.

        Returns also the squared error of the new dynamics, (N, R).
        """
        assert self.policy.learner is not None
        due = episode.over
        number = episode.number + 1
        evidence = Evidence(
            transitions=merge(looks.transitions, self.weights),
            visits=merge(looks.visits, self.weights)
            if looks.visits is not None
            else jnp.zeros((2, self.setting.n_arms, due.shape[0])),
            episode=number,
            reward=truth.reward[:, None],
            plays=plays,
            agents=sum(self.setting.weights or (1,) * self.setting.n_agents),
        )
        draws = Draws(stream(seed, trials, jnp.uint32(0), DRAWS), number, due)
        p01, p11 = self.policy.learner(evidence, draws)
        error = ((p01 - truth.p01[:, None]) ** 2 + (p11 - truth.p11[:, None]) ** 2) / 2
        if self.policy.lengths is None:
            length = jnp.where(episode.number == 0, FIRST_LENGTH, episode.length)
            limit = next_limit(self.setting.schedule, length)
        else:
            limit = self.policy.lengths(p11, plays)
        fresh = _Episode(
            plan=self.fill(p01, p11, truth.reward),
            visit_cap=self.cap(looks.visits) if self.watches else None,
            limit=limit,
            length=jnp.zeros_like(episode.length),
            number=number,
            over=jnp.zeros_like(due),
        )
        return jax.tree.map(lambda new, old: jnp.where(due, new, old), fresh, episode), error

    def cap(self, visits: Array | None) -> Array:
        """The visits that end an episode when exceeded, from those at its start."""
        assert visits is not None
        most = visit_limit(visits.astype(jnp.int32), self.setting.n_agents, self.setting.horizon)
        return jnp.asarray(most, self.whole)

    def fill(self, p01: Array, p11: Array, reward: Array) -> Any:
        """The plan an episode is played with: the dynamics, or the planner's table."""
        if self.policy.statewise or self.policy.planner is None:
            return p01, p11
        grid = information_states(self.policy.max_age)
        states = InformationStates(*(jnp.asarray(x, jnp.int32)[None, :, None] for x in grid))
        dynamics = Dynamics(p01[:, None], p11[:, None], reward[:, None, None])
        table = self.policy.planner(dynamics, states)
        shape = (self.setting.n_arms, grid.age.size, p01.shape[-1])
        try:
            return jnp.broadcast_to(jnp.asarray(table, jnp.float32), shape)
        except ValueError:
            raise ModelError(
                f"policy {self.policy.name}: its planner must give an index for (arms, information "
                f"states, trials) = {shape}, got shape {jnp.shape(table)}"
            ) from None

    # ------------------------------------------------------------------- the run

    def run(
        self, seed: Array, trials: Array, truth: Dynamics, plays: Array, joint: Joint | None
    ) -> Outcome:
        """All slots of a batch of trials."""
        setting, n_trials = self.setting, trials.shape[0]
        lanes = jnp.arange(1 if setting.shared else setting.n_agents)[None, :, None]
        key = stream(seed, trials, lanes, CHANNELS)
        play_key = stream(seed, trials, jnp.arange(setting.n_agents)[None, :, None], PLAYS)
        arm = jnp.arange(setting.n_arms, dtype=jnp.uint32)[:, None, None]

        def advance(run: _Run) -> _Run:
            good = self.channels(key, truth, run.good, run.slot.astype(jnp.uint32))

            def noise() -> Array:
                return unit(threefry(play_key, run.slot.astype(jnp.uint32), arm)[0])

            played = self.choose(run.episode.plan, truth.reward, run.looks, plays, noise)
            looks = self.look(run.looks, played, good)
            paid = jnp.where(played & good, truth.reward[:, None, None], 0).sum((0, 1))
            episode = run.episode
            if self.learns:
                length = episode.length + 1
                over = length >= episode.limit
                if looks.visits is not None and episode.visit_cap is not None:
                    over = over | (looks.visits > episode.visit_cap).any((0, 1, 2))
                episode = episode._replace(length=length, over=over)
            rewards = lax.dynamic_update_index_in_dim(run.out.rewards, paid, run.slot, 0)
            out = run.out._replace(rewards=rewards)
            return _Run(run.slot + 1, good, looks, episode, out)

        def begin(run: _Run) -> _Run:
            episode, out = run.episode, run.out
            due = episode.over
            few = max(1, n_trials // 8)

            def some() -> tuple[_Episode, Array]:
                which = jnp.nonzero(due, size=few, fill_value=n_trials)[0]
                looks, part = jax.tree.map(
                    lambda x: x.at[..., which].get(mode="clip"), (run.looks, episode)
                )
                part = part._replace(over=which < n_trials)
                who = trials.at[which].get(mode="clip")
                part, error = self.serve(seed, who, truth, plays, looks, part)
                whole = jax.tree.map(
                    lambda old, new: old.at[..., which].set(new, mode="drop"), episode, part
                )
                record = out.error
                if self.estimates:
                    record = record.at[part.number - 1, :, which].set(error.T, mode="drop")
                return whole, record

            def every() -> tuple[_Episode, Array]:
                whole, error = self.serve(seed, trials, truth, plays, run.looks, episode)
                record = out.error
                if self.estimates:
                    where = jnp.where(due, jnp.arange(n_trials), n_trials)
                    record = record.at[whole.number - 1, :, where].set(error.T, mode="drop")
                return whole, record

            place = jnp.where(due & (episode.number > 0), episode.number - 1, self.most)
            lengths = out.lengths.at[place, jnp.arange(n_trials)].set(episode.length, mode="drop")
            fresh, record = lax.cond(due.sum() <= few, some, every)
            return run._replace(episode=fresh, out=out._replace(lengths=lengths, error=record))

        def one_episode(run: _Run) -> _Run:
            return lax.while_loop(
                lambda r: (r.slot < setting.horizon) & ~r.episode.over.any(), advance, begin(run)
            )

        start = self.start(key, truth, n_trials, joint)
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

    def start(self, key: Key, truth: Dynamics, n_trials: int, joint: Joint | None) -> _Run:
        """Before the first slot: nothing seen, every arm in its stationary law."""
        setting = self.setting
        shape = (setting.n_arms, setting.n_agents, n_trials)
        arm = jnp.arange(setting.n_arms, dtype=jnp.uint32)[:, None, None]
        rest = (stationary_belief(truth) * 2.0**BITS).astype(jnp.uint32)[:, None, None]
        before = threefry(key, jnp.uint32(BEFORE), arm)[0] >> (32 - BITS)
        plan: Any = joint
        if joint is None:
            # A known plan is the same in all trials and keeps one trial's width.
            width = n_trials if self.learns else 1
            ones = jnp.ones((1, width), jnp.float32)
            plan = self.fill(truth.p01[:, None] * ones, truth.p11[:, None] * ones, truth.reward)
        visits = self.watches or (self.learns and self.policy.reads_visits)
        return _Run(
            slot=jnp.int32(0),
            good=before < rest,
            looks=_Looks(
                last_seen=jnp.zeros(shape, bool),
                age=jnp.full(shape, NEVER, jnp.int32),
                transitions=jnp.zeros((2, 2, *shape), self.whole) if self.learns else None,
                visits=jnp.zeros((2, *shape), self.whole) if visits else None,
            ),
            episode=_Episode(
                plan=plan,
                visit_cap=jnp.zeros((2, *shape), self.whole) if self.watches else None,
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


def _each_state() -> Array:
    """False and True along a first axis, to compare states (N, M, R) with."""
    return jnp.array([False, True])[:, None, None, None]


def _look_up(joint: Joint, looks: _Looks) -> Array:
    """The optimum's decision in the joint information state of each agent."""
    code = joint_code(looks.last_seen, looks.age, joint.caps, joint.wraps, joint.strides)  # (M, R)
    return jnp.moveaxis(joint.subsets[joint.actions[code]], -1, 0)
