"""A batch of trials of one policy, as one JAX program.

Arrays have shape (N arms, M agents, R trials), trials last, so that the innermost loop runs over
trials. A slot, for all trials at once:

    1. the agents choose K arms each by what they know (rmab.engine.agents);
    2. played arms show their state, as fully observed arms do anyway; agents remember it
       (rmab.engine.memory);
    3. every arm's true state moves (played or not), from numbers that depend on the seed, trial,
       agent, arm and slot alone, or as it was recorded: every policy faces the same realisations
       (rmab.engine.world).

A policy that learns runs these slots inside episodes, as Algorithm 1: at the start of an episode
the agents' counts are aggregated, the learner gives dynamics, and the rule a plan. Trials keep one
slot clock but end their episodes at different slots, so the server's part runs for those that do:
when they are few, or filling a plan is a large program, they are gathered, served and scattered
back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from rmab.engine.agents import Sight, agents_of
from rmab.engine.memory import Counting, Counts, Kept, Noisy, by_colour, first_states, next_states
from rmab.engine.setting import Fitted, Guide, Outcome, Setting, Simulate
from rmab.engine.world import RecordedWorld, Recording, Truth, World
from rmab.errors import ModelError
from rmab.learning.channel.local_draws import check_own_draws, draw_for_agents
from rmab.learning.learners import Evidence
from rmab.model.arms import Moves, Uncertain
from rmab.model.beliefs import InformationStates
from rmab.policies.episodes import (
    FIRST_LENGTH,
    most_episodes,
    next_limit,
    visit_limit,
    visits_can_end,
)
from rmab.policies.filling import Found, channel_pair
from rmab.policies.own_index import Observations
from rmab.policies.policy import Policy
from rmab.privacy.survey import scheduled
from rmab.rng.variates import CHANNELS, DRAWS, EXPERTS, PLAYS, Draws, Key, stream, threefry, unit

__all__ = ["simulator", "world_of"]


class _Episode(NamedTuple):
    """Where each trial stands in its episode; arrays end in R."""

    plan: Any  # see rmab.engine.agents
    explores: Array | None  # (A, R) bool: whether its plays are visits; None: all are
    visit_cap: Array | None  # as Counts.watched: what ends it when exceeded, if it can
    limit: Array
    length: Array
    number: Array  # episodes begun
    over: Array  # bool: the server is due


class _Asked(NamedTuple):
    """What a policy asks of an episode besides a plan: its slots, (R,), where its lengths are its
    own; the arms that are played first, (N, A R); whether it explores, (A, R); and what the pairs
    of its colours must reach to end it, (C S, N, A, R)."""

    limit: Array | None = None
    first: Array | None = None
    explores: Array | None = None
    pairs: Array | None = None


class _Run(NamedTuple):
    slot: Array
    state: Array  # (N, M or 1, R) true states
    observed: InformationStates  # (N, M, R) each
    counts: Counts
    own: Any  # the state of a learner that keeps its own, or None
    kept: Kept | Noisy | None  # of counts that are forgotten, mixed or released with noise
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
_Served = tuple[_Episode, Array, Kept | Noisy | None]  # the error of all episodes is the second


def simulator(
    setting: Setting,
    policy: Policy,
    n_trials: int,
    guide: Guide = None,
    plays: int | None = None,
    recorded: Recording | None = None,
) -> Simulate:
    """The compiled program for batches of `n_trials` trials.

    guide, recorded: what it will be given, or the like; plays: K where it is part of the program.
    """
    setting = _as_needed(setting, policy)
    leaves, tree = jax.tree.flatten((guide, recorded))
    shapes = tuple((leaf.shape, leaf.dtype) for leaf in leaves)
    return _compiled(setting, policy, n_trials, plays, tree, shapes)


def _as_needed(setting: Setting, policy: Policy) -> Setting:
    """The setting but for what makes no difference to this policy."""
    if not policy.ties and any(kind.tie for kind in setting.kinds):
        setting = replace(setting, kinds=tuple(kind._replace(tie=None) for kind in setting.kinds))
    if not policy.learns or not policy.randomised:
        return replace(setting, draws="shared")
    return setting if policy.draws is None else replace(setting, draws=policy.draws)


def _draws_differ(setting: Setting, policy: Policy) -> bool:
    """Whether agents draw for themselves."""
    per_agent = setting.draws != "shared" and policy.randomised
    return per_agent or not setting.aggregation.shared


def _drawers(setting: Setting, policy: Policy) -> int:
    """A, how many agents have their own dynamics to play by; 1: all have the same.

    Agents whose rewards differ plan by themselves, if from the same dynamics.
    """
    if policy.learns:
        apart = _draws_differ(setting, policy) or setting.rewards_differ
    else:
        apart = setting.laws_differ or setting.rewards_differ
    return setting.n_agents if apart else 1


@lru_cache(maxsize=64)
def _compiled(
    setting: Setting, policy: Policy, n_trials: int, plays: int | None, tree: Any, shapes: Any
) -> Simulate:
    def kind(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct(shape, dtype)  # type: ignore[no-untyped-call]  # untyped in JAX

    program = jax.jit(
        _Simulator(setting, policy, plays).run,
        compiler_options=_CPU_OPTIONS if jax.default_backend() == "cpu" else None,
    )
    guide, recorded = jax.tree.unflatten(tree, [kind(*shape) for shape in shapes])
    S, n_arms, by_agent = setting.n_states, setting.n_arms, (setting.n_agents,)
    laws = (n_arms, *(by_agent if setting.laws_differ else ()))
    pays = (n_arms, *(by_agent if setting.rewards_differ else ()))
    square, row = kind((S, S, *laws), jnp.float32), kind((S, *pays), jnp.float32)
    levels, rest = kind((S, S - 1, *laws), jnp.uint32), kind((S - 1, *laws), jnp.uint32)
    truth = Truth(Moves(square, square), row, row, levels, levels, rest, recorded)
    compiled: Simulate = program.lower(
        kind((2,), jnp.uint32), kind((n_trials,), jnp.uint32), truth, kind((), jnp.int32), guide
    ).compile()
    return compiled


def world_of(setting: Setting) -> World:
    """The arms of a setting: simulated, or recorded."""
    if setting.windows:
        return RecordedWorld(setting.kinds, idle_pay=setting.idle_pay, windows=setting.windows)
    return World(setting.kinds, idle_pay=setting.idle_pay)


class _Simulator:
    def __init__(self, setting: Setting, policy: Policy, plays: int | None = None) -> None:
        self.setting = setting
        self.policy = policy
        self.world = world_of(setting)
        self.agents = agents_of(setting, policy, self.world, plays)
        own_lengths = policy.lengths is not None
        schedule = setting.schedule
        # Whether visits may end an episode, and the factor by which they must grow, a power of 2.
        self.doublings = 1 if policy.own_visits else setting.n_agents
        self.watches = policy.own_pairs or (
            policy.learns
            and not own_lengths
            and visits_can_end(schedule, self.doublings, setting.horizon)
        )
        # Whether all trials' episodes end together.
        self.in_step = not own_lengths and not self.watches
        self.drawers = _drawers(setting, policy)
        if setting.draws == "own":
            check_own_draws(policy, channels=setting.channels)
            if not setting.aggregation.shared:
                raise ModelError(
                    f"policy {policy.name}: draws must not be 'own' unless agents share a sum"
                )
        counted = policy.learner is not None
        watches_visits = self.watches and not policy.own_pairs
        visits = watches_visits or (counted and policy.reads_visits)
        idle = watches_visits and policy.own_visits and self.world.any_always
        self.counting = Counting(
            setting, policy, self.world, learns=counted, visits=visits, idle=idle
        )
        limits = [limit for limit in (setting.longest, policy.longest) if limit is not None]
        self.longest = min(limits, default=None)
        self.most = 1  # episodes
        if policy.own_pairs:
            self.most = setting.horizon
        elif policy.learns:
            self.most = (
                -(-setting.horizon // policy.lengths.least)
                if policy.lengths is not None
                else most_episodes(
                    schedule,
                    setting.n_agents,
                    setting.n_arms,
                    setting.horizon,
                    setting.n_states,
                    self.longest,
                    own_visits=policy.own_visits,
                )
            )

    # ---------------------------------------------------------------- the server

    def serve(
        self,
        seed: Array,
        trials: Array,
        truth: Truth,
        plays: Array,
        memory: tuple[Counts, Any, Kept | Noisy | None],
        episode: _Episode,
        slot: Array,
    ) -> tuple[_Episode, Array | None, Kept | Noisy | None]:
        """A new episode for the trials whose episode is over: Algorithm 1, lines 4 to 9.

        memory: counts, the learner's own state, if any, and what is kept of counts that are
        forgotten, mixed or released with noise. Returns also the squared error of the new dynamics,
        (N, R), and what is kept now.
        """
        due = episode.over
        number = episode.number + 1
        found, own, kept = self.learn(seed, trials, truth, plays, memory, number, episode, slot)
        if self.policy.own_pairs:
            limit = jnp.full_like(episode.limit, self.setting.horizon)
        elif own.limit is not None:
            limit = own.limit
        else:
            length = jnp.where(episode.number == 0, FIRST_LENGTH, episode.length)
            limit = next_limit(self.setting.schedule, length, self.longest)
        fresh = _Episode(
            plan=self.agents.fill(found, truth, self.drawers, own.first),
            explores=own.explores,
            visit_cap=self.cap(memory, own) if self.watches else None,
            limit=limit,
            length=jnp.zeros_like(episode.length),
            number=number,
            over=jnp.zeros_like(due),
        )
        fresh = jax.tree.map(lambda new, old: jnp.where(due, new, old), fresh, episode)
        error = self.error(found, truth) if self.policy.estimates else None
        return fresh, error, kept

    def learn(
        self,
        seed: Array,
        trials: Array,
        truth: Truth,
        plays: Array,
        memory: tuple[Counts, Any, Kept | Noisy | None],
        number: Array,
        episode: _Episode,
        slot: Array,
    ) -> tuple[Found, _Asked, Kept | Noisy | None]:
        """Dynamics for A agents, each from its evidence: they end in A R, agent after agent; and
        what the policy asks for besides.

        Each agent draws from its own stream; where all share one draw it is the first's.
        """
        counts, own, kept = memory
        due = episode.over
        asked = _Asked()

        def in_line(x: Array) -> Array:
            """(..., A or 1, R) -> (..., A R)."""
            if x.shape[-2] == 1:
                return jnp.tile(x[..., 0, :], self.drawers)
            return x.reshape(*x.shape[:-2], -1)

        lane = jnp.repeat(jnp.arange(self.drawers, dtype=jnp.uint32), trials.size)
        if not _draws_differ(self.setting, self.policy) and self.drawers > 1:
            lane = jnp.zeros_like(lane)  # each has what all draw
        key = stream(seed, jnp.tile(trials, self.drawers), lane, DRAWS)
        draws = Draws(key, jnp.tile(number, self.drawers), jnp.tile(due, self.drawers))
        if self.policy.learner is None:
            state = jax.tree.map(lambda x: in_line(self.counting.combined(x)), own)
            drawn = self.policy.own.dynamics(state, draws)
        else:

            def chances(lane: int, of: Array | None = None) -> Draws:
                key = stream(seed, trials, jnp.uint32(lane), EXPERTS)
                return Draws(key, number if of is None else jnp.full_like(number, of))

            shared, kept = self.counting.recalled(counts, kept, episode.length, chances, plays)
            told = shared.pairs  # of all agents first, then perhaps of groups
            if self.counting.sums > 1:
                shared = shared._replace(pairs=told[..., :1, :])
            evidence = self.counting.evidence(shared, truth, plays, number)._replace(slot=slot)
            agents: Any = evidence.agents
            if not self.counting.running:
                agents = in_line(agents)
            evidence = evidence._replace(
                counts=in_line(evidence.counts),
                visits=in_line(evidence.visits),
                episode=jnp.tile(number, self.drawers),
                agents=agents,
                prior=None if evidence.prior is None else in_line(evidence.prior),
                lanes=self.drawers,
            )
            if self.setting.rewards_differ:
                evidence = evidence._replace(  # (S, N, A R)
                    rewards=jnp.repeat(truth.reward_active, trials.size, -1),
                    idle_rewards=jnp.repeat(truth.reward_passive, trials.size, -1),
                )
            if self.setting.draws == "own":
                apart = self.counting.pairs(counts)
                p01, p11, _ = draw_for_agents(self.policy, told, apart, draws, self.setting.doubt)
                drawn = p01, p11
            else:
                drawn = self.policy.learner(evidence, draws)
            asked = self.asked(evidence, drawn)
        # A learner may leave what is the same in all trials at a width of one.
        found: Found = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (*x.shape[:-1], lane.size)), drawn
        )
        return found, asked, kept

    def asked(self, evidence: Evidence, found: Found) -> _Asked:
        """What a policy asks for besides a plan; there is one clock for all agents."""
        lengths, limit = self.policy.lengths, None
        if lengths is not None:
            slots = jnp.broadcast_to(lengths.slots(evidence, found), evidence.episode.shape)
            each = slots.astype(jnp.int32).reshape(self.drawers, -1)
            limit = each.max(0) if lengths.complete else each.min(0)
        first, explores = getattr(self.policy.rule, "first", None), None
        if self.policy.explores is not None:
            explores = self.policy.explores(evidence, found).reshape(self.drawers, -1)
        pairs = None
        if self.policy.own_pairs:
            seen = by_colour(evidence.counts)
            pairs = seen.reshape(*seen.shape[:2], self.drawers, -1)
        return _Asked(limit, None if first is None else first(evidence), explores, pairs)

    def cap(self, memory: tuple[Counts, Any, Kept | Noisy | None], asked: _Asked) -> Array:
        """What ends an episode when it is exceeded, from what there was at its start."""
        visits = self.counting.watched(memory[0])
        assert visits is not None
        if asked.pairs is not None:
            # Counts that are kept elsewhere begin anew with the episode.
            before = visits if memory[2] is None else jnp.zeros_like(visits)
            seen = asked.pairs[:, :, : visits.shape[2]]  # one where all agents see the same
            return before + jnp.maximum(seen, 1) - 1
        factor = 2**self.doublings
        most = visit_limit(visits.astype(jnp.int32), factor, self.setting.horizon)
        return jnp.asarray(most, self.counting.whole)

    def error(self, found: Found, truth: Truth) -> Array:
        """Squared error of the dynamics, (N, R): half a row's squared distance, rows averaged.

        For channels this is the mean of the squared errors of p01 and p11. Agents with draws or
        laws of their own are averaged.
        """
        moves = found.moves if isinstance(found, Uncertain) else found
        drawn = jax.tree.map(lambda x: x.reshape(*x.shape[:-1], self.drawers, -1), moves)
        laws = truth.moves
        if not self.setting.laws_differ:  # (S, S, N) for all agents, else (S, S, N, M)
            laws = Moves(*(law[..., None] for law in laws))
        if not isinstance(drawn, Moves):
            pairs = zip(drawn, channel_pair(laws), strict=True)
            off01, off11 = (x - t[..., None] for x, t in pairs)
            return jnp.asarray((off01**2 + off11**2) / 2).mean(1)
        sizes = jnp.array([kind.states for kind in self.setting.kinds])
        has = (jnp.arange(self.setting.n_states)[:, None] < sizes)[:, None, :, None, None]
        matrices = zip(drawn, laws, strict=True)
        errors = [jnp.where(has, (x - t[..., None]) ** 2, 0).sum((0, 1)) for x, t in matrices]
        return ((errors[0] + errors[1]) / (4 * sizes[:, None, None])).mean(1)

    # ------------------------------------------------------------------- the run

    def run(self, seed: Array, trials: Array, truth: Truth, plays: Array, guide: Guide) -> Outcome:
        """All slots of a batch of trials."""
        setting = self.setting
        lanes = jnp.arange(1 if setting.shared else setting.n_agents)[None, :, None]
        key = stream(seed, trials, lanes, CHANNELS)
        advance = self.slot(seed, trials, truth, plays, guide, key)
        start = self.start(key, truth, trials.shape[0], guide)
        if not self.policy.learns:
            return self.one_episode(
                lax.fori_loop(0, setting.horizon, lambda _, r: advance(r), start)
            )

        def episode(run: _Run) -> _Run:
            """Until some trial's episode is over."""
            return lax.while_loop(
                lambda r: (r.slot < setting.horizon) & ~r.episode.over.any(),
                advance,
                self.begin(seed, trials, truth, plays, run),
            )

        done: _Run = lax.while_loop(lambda r: r.slot < setting.horizon, episode, start)
        number, lengths = done.episode.number, done.out.lengths
        last = jnp.arange(trials.shape[0])
        return done.out._replace(
            episodes=number, lengths=lengths.at[number - 1, last].set(done.episode.length)
        )

    def one_episode(self, done: _Run) -> Outcome:
        """What a policy without episodes gave: one of all slots."""
        n_trials = done.out.rewards.shape[-1]
        return done.out._replace(
            episodes=jnp.ones(n_trials, jnp.int32),
            lengths=jnp.full((1, n_trials), self.setting.horizon, jnp.int32),
        )

    def slot(
        self, seed: Array, trials: Array, truth: Truth, plays: Array, guide: Guide, key: Key
    ) -> Callable[[_Run], _Run]:
        """What a slot does to a run; key: of the true states."""
        setting = self.setting
        play_key = stream(seed, trials, jnp.arange(setting.n_agents)[None, :, None], PLAYS)
        arm = jnp.arange(setting.n_arms, dtype=jnp.uint32)[:, None, None]
        wraps = self.agents.wraps(guide)
        turns = jnp.arange(setting.n_agents)[:, None]  # agents begin a survey one block apart

        def plan_of(run: _Run) -> Any:
            if not isinstance(guide, Fitted):
                return run.episode.plan
            which = guide.which[run.slot]
            return jax.tree.map(lambda plans: plans[which], guide.plan)

        def advance(run: _Run) -> _Run:
            slot = run.slot.astype(jnp.uint32)

            def noise(word: int) -> Array:
                uniforms: Array = unit(threefry(play_key, slot, arm)[word])
                return uniforms

            sight = Sight(
                plan=plan_of(run),
                observed=run.observed,
                state=run.state,
                own=run.own,
                slot=run.slot,
                noise=noise,
                truth=truth,
                wraps=wraps,
                plays=plays,
                playable=self.world.playable(truth, run.slot),
            )
            sight = self.agents.look(sight)
            played = self.agents.choose(sight)
            if self.counting.survey:
                arms = scheduled(run.slot, turns, setting.n_arms, plays)
                played = jnp.where(run.slot < self.counting.survey, arms, played)
            paid = self.world.paid(truth, run.state, played)
            shows = played | self.world.always if self.world.any_always else played
            seen = Observations(played, shows, run.state, paid, run.slot)
            counts = self.counting.update(run.counts, run.observed, seen, run.episode.explores)
            own = None if self.policy.own is None else self.policy.own.update(sight.own, seen)
            episode = run.episode
            if self.policy.learns:
                length = episode.length + 1
                over = length >= episode.limit
                watched = self.counting.watched(counts)
                if watched is not None and episode.visit_cap is not None:
                    past = (watched > episode.visit_cap).astype(jnp.int8)
                    over = over | (past.max((0, 1, 2)) > 0)
                episode = episode._replace(length=length, over=over)
            rewards = self.world.add_rewards(truth, run.out.rewards, paid, run.slot)
            return _Run(
                slot=run.slot + 1,
                state=self.world.move(key, truth, run.state, played, slot + 1),
                observed=self.world.known(
                    truth, next_states(run.observed, self.world, played, run.state), run.slot
                ),
                counts=counts,
                own=own,
                kept=run.kept,
                episode=episode,
                out=run.out._replace(rewards=rewards),
            )

        return advance

    def begin(self, seed: Array, trials: Array, truth: Truth, plays: Array, run: _Run) -> _Run:
        """New episodes for the trials whose episode is over."""
        setting, n_trials = self.setting, trials.shape[0]
        run = run._replace(own=self.after_episode(run))
        episode, out = run.episode, run.out
        due = episode.over
        # Filling tables and drawing from observations at any gap are large programs, compiled once
        # and run for a few trials at a time. An accelerator takes as long for some as for few.
        light = self.agents.light and not self.policy.gaps
        few = max(1, n_trials // 8)
        if not light:
            few = self.agents.served_at_once(n_trials, few)
        if setting.windows and self.in_step:  # a few runs, all due at once
            few = n_trials

        def some(served: _Served) -> _Served:
            episode, record, kept = served
            which = jnp.nonzero(episode.over, size=few, fill_value=n_trials)[0]

            def these(x: Array) -> Array:
                return x.at[..., which].get(mode="clip")

            own, recalled = jax.tree.map(these, (run.own, kept))
            memory = self.counting.of_trials(run.counts, which), own, recalled
            part = jax.tree.map(these, episode)
            part = part._replace(over=which < n_trials)
            part, error, recalled = self.serve(
                seed, these(trials), truth, plays, memory, part, run.slot
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
            memory = run.counts, run.own, kept
            whole, error, fresh = self.serve(seed, trials, truth, plays, memory, episode, run.slot)
            kept = jax.tree.map(lambda new, old: jnp.where(due, new, old), fresh, kept)
            if error is not None:
                where = jnp.where(due, jnp.arange(n_trials), n_trials)
                record = record.at[whole.number - 1, :, where].set(error.T, mode="drop")
            return whole, record, kept

        place = jnp.where(due & (episode.number > 0), episode.number - 1, self.most)
        lengths = out.lengths.at[place, jnp.arange(n_trials)].set(episode.length, mode="drop")
        served = episode, out.error, run.kept
        if light:
            fresh, record, kept = lax.cond(due.sum() <= few, some, every, served)
        else:
            fresh, record, kept = lax.while_loop(lambda s: s[0].over.any(), some, served)
        clears = kept is not None and self.counting.clears
        counts = self.counting.cleared(run.counts, due) if clears else run.counts
        out = out._replace(lengths=lengths, error=record)
        return run._replace(counts=counts, kept=kept, episode=fresh, out=out)

    def after_episode(self, run: _Run) -> Any:
        """The state of a learner that keeps its own; of trials whose episode is over, after it."""
        if not hasattr(self.policy.own, "end_episode"):
            return run.own
        ended = run.episode.over & (run.episode.number > 0)
        fresh = self.policy.own.end_episode(run.own)
        return jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, run.own)

    def start(self, key: Key, truth: Truth, n_trials: int, guide: Guide) -> _Run:
        """Before the first slot: nothing observed but fully observed arms, in their limiting
        distribution under passivity."""
        setting, S = self.setting, self.setting.n_states
        shape = (setting.n_arms, setting.n_agents, n_trials)
        own = None
        if self.policy.own is not None:
            own = jax.tree.map(jnp.asarray, self.policy.own.init(S, shape))
        return _Run(
            slot=jnp.int32(0),
            state=self.world.start(key, truth, n_trials),
            observed=first_states(setting, self.world, n_trials),
            counts=self.counting.start(n_trials),
            own=own,
            kept=self.counting.kept(n_trials),
            episode=_Episode(
                plan=self.agents.first(truth, n_trials, guide, self.drawers),
                explores=None
                if self.policy.explores is None
                else jnp.zeros((self.drawers, n_trials), bool),
                visit_cap=self.counting.unwatched(n_trials) if self.watches else None,
                limit=jnp.zeros(n_trials, jnp.int32),
                length=jnp.zeros(n_trials, jnp.int32),
                number=jnp.zeros(n_trials, jnp.int32),
                over=jnp.ones(n_trials, bool),
            ),
            out=Outcome(
                rewards=self.world.no_rewards(truth, setting.horizon, (setting.n_agents, n_trials)),
                episodes=jnp.zeros(n_trials, jnp.int32),
                lengths=jnp.zeros((self.most, n_trials), jnp.int32),
                error=jnp.zeros(
                    (self.most if self.policy.estimates else 0, setting.n_arms, n_trials),
                    jnp.float32,
                ),
            ),
        )
