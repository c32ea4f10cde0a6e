"""Programs: a batch of trials of one policy, as one JAX program.

Arrays have shape (N arms, M agents, R trials), trials last, so that the innermost loop runs over
trials. A slot, for all trials at once:

    1. the agents choose K arms each by their knowledge (rmab.policies.rules);
    2. played arms show their state, as fully observed arms do anyway; agents remember it and count
       (rmab.engine.counting);
    3. every arm's true state moves (played or not), from numbers that depend on the seed, trial,
       agent, arm and slot: every policy faces the same realisations (rmab.engine.environment).

A policy that learns runs these slots inside episodes, as Algorithm 1: at the start of an episode
the agents' counts are shared (rmab.engine.sharing), the learner gives dynamics, and the rule a
plan. Trials keep one slot clock but end their episodes at different slots, so the server's part
runs for those that do: when they are few, or filling a plan is a large program, they are gathered,
served and scattered back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from rmab.engine.counting import Counting, Counts
from rmab.engine.environment import SimulatedEnvironment, Truth
from rmab.engine.setting import Outcome, Setting, Simulate
from rmab.engine.sharing import EvidenceSharing
from rmab.errors import ModelError
from rmab.learning.evidence import Evidence
from rmab.model.arms import Moves
from rmab.model.information import InformationStates
from rmab.policies.capabilities import Conditions
from rmab.policies.constraint import Constraint
from rmab.policies.own_index import Observations
from rmab.policies.policy import Policy
from rmab.policies.refusal import refusal
from rmab.policies.rules.compiled import CompiledRule, Scene, SlotInputs
from rmab.policies.rules.dynamics import LearnerOutput, channel_pair, matrices
from rmab.rng.variates import CHANNELS, EXPERTS, PLAYS, Draws, Key, stream

__all__ = ["BatchProgram", "BatchStart", "compiled_rule", "simulator"]


class _Episode(NamedTuple):
    """State of each trial in its episode; arrays end in R."""

    plan: Any  # see rmab.policies.rules.compiled
    explores: Array | None  # (A, R) bool: whether its plays are visits; None: all are
    cap: Array | None  # as Counting.watched: what ends it when exceeded, if it can
    limit: Array
    length: Array
    number: Array  # episodes begun
    over: Array  # bool: the server is due


class _Memory(NamedTuple):
    """State from which learners learn: counts, a learner's own state, and the shared evidence's."""

    counts: Counts
    own: Any
    kept: Any


class BatchStart(NamedTuple):
    """Trials at the start of their next episodes."""

    seed: Array
    trials: Array
    truth: Truth
    constraint: Constraint
    memory: _Memory
    episode: _Episode  # the last one of each
    slot: Array


class _Run(NamedTuple):
    slot: Array
    state: Array  # (N, M or 1, R) true states
    observed: InformationStates  # (N, M, R) each
    rule: Any  # the rule's own state
    memory: _Memory
    episode: _Episode
    out: Outcome


# Batches run side by side in threads of their own, so one batch must not split itself: neither
# Eigen nor XLA's own kernels, which a pass splits that has no other switch. Two more passes find
# nothing to do for a processor, and copy each loop again and again to look: a third of the time
# to compile.
_CPU_OPTIONS = {
    "xla_cpu_multi_thread_eigen": False,
    "xla_disable_hlo_passes": ",".join(
        ["cpu-parallel-task-assigner", "simplify-while-loops", "while-loop-invariant-code-motion"]
    ),
}
_Served = tuple[_Episode, Array, Any]  # the error of all episodes is the second, then what is kept


def simulator(
    setting: Setting,
    policy: Policy,
    n_trials: int,
    known: Any = None,
    plays: int | None = None,
    environment: SimulatedEnvironment | None = None,
    truth: Any = None,
) -> Simulate:
    """Return the compiled program for batches of `n_trials` trials.

    known, truth: arrays that it will be given, or the like; plays: K where it is part of the
    program; environment: simulated arms unless another is given.
    """
    setting = _as_needed(setting, policy)
    environment = environment or SimulatedEnvironment(setting.kinds, setting.idle_pay)
    data = environment.like(setting) if truth is None else truth
    leaves, tree = jax.tree.flatten((known, data))
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    return _compiled(setting, policy, n_trials, plays, environment, tree, shapes)


def compiled_rule(
    setting: Setting,
    policy: Policy,
    plays: int | None,
    environment: SimulatedEnvironment | None = None,
) -> CompiledRule:
    """Return how the agents of a policy play; plays: K, where it is part of the program."""
    environment = environment or SimulatedEnvironment(setting.kinds, setting.idle_pay)
    constraint = None if plays is None else Constraint(plays)
    scene = Scene(policy.name, policy.learns, setting, environment, constraint)
    return policy.rule.compiled(scene)


def _as_needed(setting: Setting, policy: Policy) -> Setting:
    """Return the setting without fields that make no difference to this policy."""
    learner, draws = policy.learner, policy.sharing.draws
    if not learner.ties and any(kind.tie for kind in setting.kinds):
        setting = replace(setting, kinds=tuple(kind._replace(tie=None) for kind in setting.kinds))
    if not learner.learns or not learner.randomised:
        return replace(setting, draws="shared")
    return setting if draws is None else replace(setting, draws=draws)


@lru_cache(maxsize=64)
def _compiled(
    setting: Setting,
    policy: Policy,
    n_trials: int,
    plays: int | None,
    environment: SimulatedEnvironment,
    tree: Any,
    shapes: Any,
) -> Simulate:
    def kind(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # untyped in JAX

    program = jax.jit(
        BatchProgram(setting, policy, plays, environment).run,
        compiler_options=_CPU_OPTIONS if jax.default_backend() == "cpu" else None,
    )
    known, truth = jax.tree.unflatten(tree, [kind(*shape) for shape in shapes])
    seed, trials = kind((2,), jnp.uint32), kind((n_trials,), jnp.uint32)
    compiled: Simulate = program.lower(seed, trials, truth, kind((), jnp.int32), known).compile()
    return compiled


class BatchProgram:
    """The parts of one policy's program in a setting."""

    def __init__(
        self,
        setting: Setting,
        policy: Policy,
        plays: int | None = None,
        environment: SimulatedEnvironment | None = None,
    ) -> None:
        at = Conditions(
            setting.kinds,
            channels=(setting.channels,),
            aggregation=setting.aggregation,
            draws=setting.draws,
        )
        why = refusal(policy, at)
        if why:
            raise ModelError(why)
        self.setting = setting
        self.policy = policy
        self.environment = environment or SimulatedEnvironment(setting.kinds, setting.idle_pay)
        self.rule = compiled_rule(setting, policy, plays, self.environment)
        self.sharing = EvidenceSharing(setting, policy)
        episodes = policy.episodes
        self.watches = policy.learns and episodes.watches(setting)
        # Whether all trials' episodes end together.
        self.in_step = episodes.in_step and not self.watches
        self.drawers = self.sharing.drawers
        visits = self.watches and episodes.watches_visits
        idle = visits and episodes.watches_idle and self.environment.any_always
        self.counting = Counting(
            setting, policy, self.environment, self.sharing, visits=visits, idle=idle
        )
        self.most = episodes.most(setting) if policy.learns else 1  # episodes

    # ---------------------------------------------------------------- the server

    def serve(self, start: BatchStart) -> tuple[_Episode, Array | None, Any]:
        """Begin an episode for the trials whose episode is over: Algorithm 1, lines 4 to 9.

        Returns also the squared error of the new dynamics, (N, R), and the sharing's state.
        """
        episode, due = start.episode, start.episode.over
        evidence, output, kept = self.learn(start)
        rule, drawers = self.policy.episodes, self.drawers
        explores = slots = None
        if evidence is not None:
            own = rule.own_slots(evidence, output)
            if own is not None:
                slots = jnp.broadcast_to(own, evidence.episode.shape)
                slots = slots.astype(jnp.int32).reshape(drawers, -1)
            if rule.explored is not None:
                explores = rule.explored(evidence, output).reshape(drawers, -1)
        cap = None
        if self.watches:
            watched = self.counting.watched(start.memory.counts)
            anew = start.memory.kept is not None  # counts that are kept elsewhere
            cap = rule.cap(self.setting, watched, evidence, anew=anew)
        fresh = _Episode(
            plan=self.rule.fill(output, start.truth, drawers),
            explores=explores,
            cap=cap,
            limit=rule.limit(self.setting, slots, episode.number, episode.length),
            length=jnp.zeros_like(episode.length),
            number=episode.number + 1,
            over=jnp.zeros_like(due),
        )
        fresh = jax.tree.map(lambda new, old: jnp.where(due, new, old), fresh, episode)
        error = self.error(output, start.truth) if self.policy.estimates else None
        return fresh, error, kept

    def learn(self, start: BatchStart) -> tuple[Evidence | None, LearnerOutput, Any]:
        """Return evidence and dynamics for A agents, and the sharing's state.

        They end in A R, agent after agent. A learner with its own state reads no evidence.
        """
        seed, trials, episode = start.seed, start.trials, start.episode
        counts, own, kept = start.memory
        number, sharing, learner = episode.number + 1, self.sharing, self.policy.learner
        draws, evidence = sharing.draws(seed, trials, number, episode.over), None
        if learner.function is None:
            state = jax.tree.map(lambda x: sharing.in_line(sharing.combined(x)), own)
            drawn = learner.own.dynamics(state, draws)
        else:

            def chances(lane: int, of: Array | None = None) -> Draws:
                key = stream(seed, trials, jnp.uint32(lane), EXPERTS)
                return Draws(key, number if of is None else jnp.full_like(number, of))

            plays, pairs = start.constraint.plays, self.counting.pairs(counts.pairs)
            given = pairs if counts.given is None else self.counting.pairs(counts.given)
            shared, kept = sharing.after_episode(
                given, counts.visits, kept, episode.length, chances, plays
            )
            evidence = sharing.evidence(shared, start.truth, plays, number, start.slot)
            drawn = sharing.drawn(evidence, shared.pairs, pairs, draws)
        # A learner may leave what is the same in all trials at a width of one.
        width = self.drawers * trials.size
        output: LearnerOutput = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (*x.shape[:-1], width)), drawn
        )
        return evidence, output, kept

    def error(self, output: LearnerOutput, truth: Truth) -> Array:
        """Squared error of the dynamics, (N, R): half a row's squared distance, rows averaged.

        For channels this is the mean of the squared errors of p01 and p11. Agents with draws or
        dynamics of their own are averaged.
        """
        drawn = jax.tree.map(lambda x: x.reshape(*x.shape[:-1], self.drawers, -1), matrices(output))
        true = truth.moves
        if not self.setting.laws_differ:  # (S, S, N) for all agents, else (S, S, N, M)
            true = Moves(*(m[..., None] for m in true))
        if not isinstance(drawn, Moves):
            pairs = zip(drawn, channel_pair(true), strict=True)
            off01, off11 = (x - t[..., None] for x, t in pairs)
            return jnp.asarray((off01**2 + off11**2) / 2).mean(1)
        sizes = jnp.array([kind.states for kind in self.setting.kinds])
        has = (jnp.arange(self.setting.n_states)[:, None] < sizes)[:, None, :, None, None]
        both = zip(drawn, true, strict=True)
        errors = [jnp.where(has, (x - t[..., None]) ** 2, 0).sum((0, 1)) for x, t in both]
        return ((errors[0] + errors[1]) / (4 * sizes[:, None, None])).mean(1)

    # ------------------------------------------------------------------- the run

    def run(self, seed: Array, trials: Array, truth: Truth, plays: Array, known: Any) -> Outcome:
        """Run all slots of a batch of trials."""
        setting, constraint = self.setting, Constraint(plays)
        start = self.start(seed, trials, truth, known)
        advance = self.slot(seed, trials, truth, constraint, known)
        if not self.policy.learns:
            return self.one_episode(
                lax.fori_loop(0, setting.horizon, lambda _, r: advance(r), start)
            )

        def episode(run: _Run) -> _Run:
            """Run until some trial's episode is over."""
            return lax.while_loop(
                lambda r: (r.slot < setting.horizon) & ~r.episode.over.any(),
                advance,
                self.begin(seed, trials, truth, constraint, run),
            )

        done: _Run = lax.while_loop(lambda r: r.slot < setting.horizon, episode, start)
        number, lengths = done.episode.number, done.out.lengths
        last = jnp.arange(trials.shape[0])
        return done.out._replace(
            episodes=number, lengths=lengths.at[number - 1, last].set(done.episode.length)
        )

    def one_episode(self, done: _Run) -> Outcome:
        """Return the outcome of a policy without episodes: one of all slots."""
        n_trials = done.out.rewards.shape[-1]
        return done.out._replace(
            episodes=jnp.ones(n_trials, jnp.int32),
            lengths=jnp.full((1, n_trials), self.setting.horizon, jnp.int32),
        )

    def keys(self, seed: Array, trials: Array) -> tuple[Key, Key]:
        """Return the streams of true states, (1, M or 1, R), and of agents' choices, (1, M, R)."""
        agents = jnp.arange(self.setting.n_agents)[None, :, None]
        lanes = agents[:, :1] if self.setting.shared else agents
        return stream(seed, trials, lanes, CHANNELS), stream(seed, trials, agents, PLAYS)

    def slot(
        self, seed: Array, trials: Array, truth: Truth, constraint: Constraint, known: Any
    ) -> Callable[[_Run], _Run]:
        """Return the function that advances a batch by one slot."""
        environment, rule, own = self.environment, self.rule, self.policy.learner.own
        key, play_key = self.keys(seed, trials)
        wraps = rule.wraps(known)

        def advance(run: _Run) -> _Run:
            slot, memory, episode = run.slot, run.memory, run.episode
            inputs = SlotInputs(
                plan=rule.plan_at(known, episode.plan, slot),
                observed=run.observed,
                state=run.state,
                memory=run.rule,
                slot=slot,
                key=play_key,
                truth=truth,
                wraps=wraps,
                constraint=constraint,
                playable=environment.playable(truth, slot),
            )
            inputs = rule.look(inputs)
            played = self.sharing.surveyed(slot, rule.choose(inputs), constraint.plays)
            paid = environment.pay(truth, run.state, played)
            shows = played | environment.always if environment.any_always else played
            seen = Observations(played, shows, run.state, paid, slot)
            counts = self.counting.update(memory.counts, run.observed, seen, episode.explores)
            if self.policy.learns:
                length = episode.length + 1
                over = length >= episode.limit
                watched = self.counting.watched(counts)
                if watched is not None and episode.cap is not None:
                    over = over | self.policy.episodes.over(watched, episode.cap)
                episode = episode._replace(length=length, over=over)
            rewards = environment.add_rewards(truth, run.out.rewards, paid, slot)
            after = None if own is None else own.update(memory.own, seen)
            return _Run(
                slot=slot + 1,
                state=environment.advance(
                    key, truth, run.state, played, slot.astype(jnp.uint32) + 1
                ),
                observed=environment.observe(truth, run.observed, played, run.state, slot),
                rule=rule.step(inputs, seen),
                memory=memory._replace(counts=counts, own=after),
                episode=episode,
                out=run.out._replace(rewards=rewards),
            )

        return advance

    def begin(
        self, seed: Array, trials: Array, truth: Truth, constraint: Constraint, run: _Run
    ) -> _Run:
        """Begin new episodes for the trials whose episode is over."""
        n_trials, (counts, _, kept) = trials.shape[0], run.memory
        own = self.after_episode(run)
        episode, out = run.episode, run.out
        due = episode.over
        # Filling tables and drawing from observations at any gap are large programs, compiled once
        # and run for a few trials at a time. An accelerator takes as long for some as for few.
        light = self.rule.light and not self.policy.learner.gaps
        few = max(1, n_trials // 8)
        if not light:
            few = self.rule.served_at_once(n_trials, few)
        if self.environment.at_once and self.in_step:
            few = n_trials

        def some(served: _Served) -> _Served:
            episode, record, kept = served
            which = jnp.nonzero(episode.over, size=few, fill_value=n_trials)[0]

            def these(x: Array) -> Array:
                return x.at[..., which].get(mode="clip")

            memory = _Memory(
                self.counting.of_trials(counts, which), *jax.tree.map(these, (own, kept))
            )
            part = jax.tree.map(these, episode)
            part = part._replace(over=which < n_trials)
            part, error, recalled = self.serve(
                BatchStart(seed, these(trials), truth, constraint, memory, part, run.slot)
            )
            whole, kept = jax.tree.map(
                lambda old, new: old.at[..., which].set(new, mode="drop"),
                (episode, kept),
                (part, recalled),
            )
            if error is not None:
                record = record.at[part.number - 1, :, which].set(error.T, mode="drop")
            return whole, record, kept

        def every(served: _Served) -> _Served:
            episode, record, kept = served
            memory = _Memory(counts, own, kept)
            whole, error, fresh = self.serve(
                BatchStart(seed, trials, truth, constraint, memory, episode, run.slot)
            )
            kept = jax.tree.map(lambda new, old: jnp.where(due, new, old), fresh, kept)
            if error is not None:
                where = jnp.where(due, jnp.arange(n_trials), n_trials)
                record = record.at[whole.number - 1, :, where].set(error.T, mode="drop")
            return whole, record, kept

        place = jnp.where(due & (episode.number > 0), episode.number - 1, self.most)
        lengths = out.lengths.at[place, jnp.arange(n_trials)].set(episode.length, mode="drop")
        served = episode, out.error, kept
        if light:
            fresh, record, kept = lax.cond(due.sum() <= few, some, every, served)
        else:
            fresh, record, kept = lax.while_loop(lambda s: s[0].over.any(), some, served)
        if kept is not None and self.sharing.clears:
            counts = self.counting.cleared(counts, due)
        out = out._replace(lengths=lengths, error=record)
        return run._replace(memory=_Memory(counts, own, kept), episode=fresh, out=out)

    def after_episode(self, run: _Run) -> Any:
        """Return the state of a learner that keeps its own, where an episode is over after it."""
        own = self.policy.learner.own
        if not hasattr(own, "end_episode"):
            return run.memory.own
        ended = run.episode.over & (run.episode.number > 0)
        fresh = own.end_episode(run.memory.own)
        return jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, run.memory.own)

    def start(self, seed: Array, trials: Array, truth: Truth, known: Any) -> _Run:
        """Return the run before the first slot.

        Nothing is observed except fully observed arms, which are in their limiting distribution
        under passivity.
        """
        setting, n_trials = self.setting, trials.shape[0]
        shape = (setting.n_arms, setting.n_agents, n_trials)
        learner, own = self.policy.learner, None
        key, play_key = self.keys(seed, trials)
        if learner.own is not None:
            own = jax.tree.map(jnp.asarray, learner.own.init(setting.n_states, shape))
        explores = None
        if self.policy.episodes.explored is not None:
            explores = jnp.zeros((self.drawers, n_trials), bool)
        zeros, counts = jnp.zeros(n_trials, jnp.int32), self.counting.start(n_trials)
        kept = self.sharing.start(n_trials, self.counting.whole)
        errors = self.most if self.policy.estimates else 0
        environment, per_agent = self.environment, (setting.n_agents, n_trials)
        return _Run(
            slot=jnp.int32(0),
            state=environment.start(key, truth, n_trials),
            observed=environment.unobserved(setting.n_agents, n_trials),
            rule=self.rule.init(known, play_key, n_trials),
            memory=_Memory(counts, own, kept),
            episode=_Episode(
                plan=self.rule.first(truth, n_trials, known, self.drawers),
                explores=explores,
                cap=self.counting.watched(counts) if self.watches else None,
                limit=zeros,
                length=zeros,
                number=zeros,
                over=jnp.ones(n_trials, bool),
            ),
            out=Outcome(
                rewards=environment.no_rewards(truth, setting.horizon, per_agent),
                episodes=zeros,
                lengths=jnp.zeros((self.most, n_trials), jnp.int32),
                error=jnp.zeros((errors, setting.n_arms, n_trials), jnp.float32),
            ),
        )
