"""A batch of trials of one policy, as one JAX program.

Arrays have shape (N arms, M agents, R trials), trials last, so that the innermost loop runs over
trials. A slot, for all trials at once:

    1. the index of every arm in its agent's information state, the K largest are played
       (rmab.engine.plans);
    2. played arms show their state, as arms that are always seen do anyway; looks are counted
       (rmab.engine.counting);
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

from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from rmab.engine.counting import Looking, Looks
from rmab.engine.lookahead import LookaheadPlans, ahead_shape
from rmab.engine.plans import Found, Plans, pair
from rmab.engine.setting import Guide, Joint, Lookup, Outcome, Setting, Simulate
from rmab.engine.world import Truth, World
from rmab.federation.rounds import (
    FIRST_LENGTH,
    most_episodes,
    next_limit,
    visit_limit,
    visits_can_end,
)
from rmab.learning.learners import Evidence
from rmab.model.arms import Moves
from rmab.planning.exact.chain import Layout
from rmab.policies.registry import Policy
from rmab.random import CHANNELS, DRAWS, PLAYS, Draws, Key, stream, threefry, unit

__all__ = ["Outcome", "Setting", "Simulate", "simulator"]

FEW_DUE = 64  # trials served at once by a large program: fewer cost more each, more wait for all


class _Episode(NamedTuple):
    """Where each trial stands in its episode; arrays end in R."""

    plan: Any  # see rmab.engine.plans
    visit_cap: Array | None  # (S, N, M, R) visits that end it when exceeded, if they can
    limit: Array
    length: Array
    number: Array  # episodes begun
    over: Array  # bool: the server is due


class _Run(NamedTuple):
    slot: Array
    state: Array  # (N, M or 1, R) true states
    looks: Looks
    episode: _Episode
    out: Outcome


def simulator(
    setting: Setting, policy: Policy, n_trials: int, shapes: tuple[int, ...] | None = None
) -> Simulate:
    """The compiled program for batches of `n_trials` trials.

    shapes: the numbers of codes and subsets of a policy that decides jointly, the rows of one that
    looks up a table, K and the rows, if it looks up any, of one that looks ahead; None for others.
    """
    if _drawers(setting, policy) == 1:
        setting = replace(setting, draws="shared")
    return _compiled(setting, policy, n_trials, shapes)


def _drawers(setting: Setting, policy: Policy) -> int:
    """A, how many agents have dynamics of their own to play by; 1: all have the same."""
    apart = setting.draws == "per-agent" and policy.learner is not None and policy.randomised
    return setting.n_agents if apart else 1


@lru_cache(maxsize=64)
def _compiled(
    setting: Setting, policy: Policy, n_trials: int, shapes: tuple[int, ...] | None
) -> Simulate:
    def kind(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # untyped in JAX

    n_arms = setting.n_arms
    guide: Any = None
    if shapes is not None and policy.joint:
        whole = kind((n_arms,), jnp.int32)
        layout = Layout(whole, whole, whole, kind((n_arms,), bool))
        guide = Joint(kind((shapes[0],), jnp.int32), kind((shapes[1], n_arms), bool), layout)
    elif shapes is not None and policy.depth:
        if len(shapes) > 1:
            guide = ahead_shape(setting, policy.depth, shapes[1], kind)
    elif shapes is not None:
        guide = Lookup(kind((n_arms, shapes[0]), jnp.float32), kind((n_arms,), jnp.int32))
    # Batches run side by side in threads of their own, so one batch must not split itself.
    program = jax.jit(
        _Simulator(setting, policy, shapes).run,
        compiler_options={"xla_cpu_multi_thread_eigen": False},
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
    def __init__(
        self, setting: Setting, policy: Policy, shapes: tuple[int, ...] | None = None
    ) -> None:
        self.setting = setting
        self.policy = policy
        self.world = World(setting.kinds, idle_pay=setting.idle_pay)
        self.learns = policy.learner is not None
        self.estimates = self.learns and policy.estimates
        if policy.depth:
            assert shapes is not None
            self.plans: Plans = LookaheadPlans(setting, policy, self.world, shapes[0])
        else:
            self.plans = Plans(setting, policy, self.world)
        own_lengths = policy.lengths is not None
        schedule = setting.schedule
        self.watches = (
            self.learns
            and not own_lengths
            and visits_can_end(schedule, setting.n_agents, setting.horizon)
        )
        self.drawers = _drawers(setting, policy)
        visits = self.watches or (self.learns and policy.reads_visits)
        self.looking = Looking(setting, policy, self.world, visits=visits)
        self.most = 1
        if self.learns:
            self.most = (
                setting.horizon
                if own_lengths
                else most_episodes(
                    schedule, setting.n_agents, setting.n_arms, setting.horizon, setting.n_states
                )
            )

    # ---------------------------------------------------------------- the server

    def serve(
        self,
        seed: Array,
        trials: Array,
        truth: Truth,
        plays: Array,
        looks: Looks,
        episode: _Episode,
    ) -> tuple[_Episode, Array]:
        """A new episode for the trials whose episode is over: Algorithm 1, lines 4 to 9.

        Returns also the squared error of the new dynamics, (N, R).
        """
        setting = self.setting
        due = episode.over
        number = episode.number + 1
        counts, visits = self.looking.merged(looks)
        evidence = Evidence(
            counts=counts,
            visits=visits,
            episode=number,
            rewards=truth.reward_active[:, :, None],
            idle_rewards=truth.reward_passive[:, :, None],
            plays=plays,
            agents=sum(setting.weights or (1,) * setting.n_agents),
            kinds=setting.kinds,
        )
        found = self.learn(seed, trials, evidence, due)
        if self.policy.lengths is None:
            length = jnp.where(episode.number == 0, FIRST_LENGTH, episode.length)
            limit = next_limit(setting.schedule, length)
        else:
            # One clock for all agents: the first one's.
            limit = self.policy.lengths(pair(found)[1][:, : due.shape[0]], plays)
        fresh = _Episode(
            plan=self.plans.fill(found, truth, self.drawers),
            visit_cap=self.cap(looks.visits) if self.watches else None,
            limit=limit,
            length=jnp.zeros_like(episode.length),
            number=number,
            over=jnp.zeros_like(due),
        )
        fresh = jax.tree.map(lambda new, old: jnp.where(due, new, old), fresh, episode)
        return fresh, self.error(found, truth)

    def learn(self, seed: Array, trials: Array, evidence: Evidence, due: Array) -> Found:
        """Dynamics from what was merged, for A agents: they end in A R, agent after agent.

        All draw from one posterior, each agent from a stream of its own; the first agent's is the
        one that all play by where draws are shared.
        """
        assert self.policy.learner is not None

        def for_each(x: Array) -> Array:
            return jnp.tile(x, self.drawers)

        lane = jnp.repeat(jnp.arange(self.drawers, dtype=jnp.uint32), trials.size)
        evidence = evidence._replace(
            counts=for_each(evidence.counts),
            visits=for_each(evidence.visits),
            episode=for_each(evidence.episode),
        )
        key = stream(seed, for_each(trials), lane, DRAWS)
        drawn = self.policy.learner(evidence, Draws(key, evidence.episode, for_each(due)))
        # A learner may leave what is the same in all trials at a width of one.
        found: Found = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (*x.shape[:-1], lane.size)), drawn
        )
        return found

    def cap(self, visits: Array | None) -> Array:
        """The visits that end an episode when exceeded, from those at its start."""
        assert visits is not None
        factor = 2**self.setting.n_agents
        most = visit_limit(visits.astype(jnp.int32), factor, self.setting.horizon)
        return jnp.asarray(most, self.looking.whole)

    def error(self, found: Found, truth: Truth) -> Array:
        """Squared error of the dynamics, (N, R): half a row's squared distance, rows averaged.

        For channels this is the mean of the squared errors of p01 and p11. Agents with draws of
        their own are averaged.
        """
        each = self.errors(found, truth)
        return each.reshape(each.shape[0], self.drawers, -1).mean(1)

    def errors(self, found: Found, truth: Truth) -> Array:
        """The same for every agent's draw, (N, A R)."""
        if not isinstance(found, Moves):
            off = [x - t[:, None] for x, t in zip(found, pair(truth.moves), strict=True)]
            return (off[0] ** 2 + off[1] ** 2) / 2
        sizes = jnp.array([kind.states for kind in self.setting.kinds])
        has = (jnp.arange(self.setting.n_states)[:, None] < sizes)[:, None, :, None]
        matrices = zip(found, truth.moves, strict=True)
        errors = [jnp.where(has, (x - t[..., None]) ** 2, 0).sum((0, 1)) for x, t in matrices]
        return (errors[0] + errors[1]) / (4 * sizes[:, None])

    # ------------------------------------------------------------------- the run

    def run(self, seed: Array, trials: Array, truth: Truth, plays: Array, guide: Guide) -> Outcome:
        """All slots of a batch of trials."""
        setting, n_trials = self.setting, trials.shape[0]
        lanes = jnp.arange(1 if setting.shared else setting.n_agents)[None, :, None]
        key = stream(seed, trials, lanes, CHANNELS)
        play_key = stream(seed, trials, jnp.arange(setting.n_agents)[None, :, None], PLAYS)
        arm = jnp.arange(setting.n_arms, dtype=jnp.uint32)[:, None, None]
        wraps = self.plans.wraps(guide)

        def advance(run: _Run) -> _Run:
            slot = run.slot.astype(jnp.uint32)

            def noise() -> Array:
                return unit(threefry(play_key, slot, arm)[0])

            played = self.plans.choose(
                run.episode.plan,
                run.looks,
                run.state,
                truth.reward_active[1],
                wraps,
                plays,
                noise,
            )
            looks = self.looking.look(run.looks, played, run.state, run.slot)
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
            # Filling tables and drawing from looks at all gaps are large programs, compiled once
            # and run for a few trials at a time. An accelerator takes as long for many as for few.
            light = self.plans.statewise and not self.policy.gaps
            few = max(1, n_trials // 8)
            if not light:
                few = min(few, FEW_DUE) if jax.default_backend() == "cpu" else n_trials

            def some(served: tuple[_Episode, Array]) -> tuple[_Episode, Array]:
                episode, record = served
                which = jnp.nonzero(episode.over, size=few, fill_value=n_trials)[0]
                looks = self.looking.of_trials(run.looks, which)
                part = jax.tree.map(lambda x: x.at[..., which].get(mode="clip"), episode)
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
            if light:
                fresh, record = lax.cond(due.sum() <= few, some, every, served)
            else:
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
        return _Run(
            slot=jnp.int32(0),
            state=self.world.start(key, truth, n_trials),
            looks=self.looking.start(n_trials),
            episode=_Episode(
                plan=self.plans.first(truth, n_trials, guide, self.drawers),
                visit_cap=jnp.zeros((S, *shape), self.looking.whole) if self.watches else None,
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
