"""A federation played in one process, slot by slot, and the same one in the engine.

Both meet the same arms: the numbers of the engine's world, trial 0.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from rmab.engine.environment import SimulatedEnvironment, truth
from rmab.engine.program import BatchProgram, _as_needed
from rmab.engine.setting import Setting
from rmab.model.arms import Arms
from rmab.policies.aggregation import evidence_of
from rmab.policies.episodes import LONGEST, first_limit, visits_can_end
from rmab.policies.registry import named
from rmab.protocol.config import Federation
from rmab.protocol.growth import LaneCounts, Merged
from rmab.protocol.messages import RoundMessage, parse_round
from rmab.protocol.planner import Planner
from rmab.protocol.player import Player
from rmab.protocol.round_memory import RoundMemory
from rmab.protocol.rounds import Coordinator
from rmab.protocol.shape import Upload
from rmab.protocol.uploads import parse_upload
from rmab.rng.variates import CHANNELS, seed_words, stream


def true_states(arms: Arms, seed: int, n_agents: int, horizon: int) -> np.ndarray:
    """(slots, agents, arms): the states that the engine's trial 0 meets."""
    world, there = SimulatedEnvironment(arms.kinds, idle_pay=False), truth(arms)
    lanes = jnp.arange(n_agents)[None, :, None]
    key = stream(seed_words(seed), jnp.zeros(1, jnp.uint32), lanes, CHANNELS)
    alone = jnp.zeros((len(arms), n_agents, 1), bool)

    def step(state, slot):
        return world.advance(key, there, state, alone, slot + 1), state

    start = world.start(key, there, 1)
    states = jax.lax.scan(step, start, jnp.arange(horizon, dtype=jnp.uint32))[1]
    return np.moveaxis(np.asarray(states)[..., 0].astype(int), 1, 2)


class Realisation:
    """Arms that move by what is played, as the engine's trial 0 has them.

    states: (agents, arms), now.
    """

    def __init__(self, arms: Arms, seed: int, n_agents: int) -> None:
        self._truth = truth(arms)
        self._world = SimulatedEnvironment(arms.kinds, idle_pay=False)
        lanes = jnp.arange(n_agents)[None, :, None]
        self._key = stream(seed_words(seed), jnp.zeros(1, jnp.uint32), lanes, CHANNELS)
        self._state = self._world.start(self._key, self._truth, 1)
        self._slot = 0
        self._step = jax.jit(lambda *now: self._world.advance(self._key, self._truth, *now))

    @property
    def states(self) -> np.ndarray:
        return np.asarray(self._state)[..., 0].astype(int).T

    def move(self, played: np.ndarray) -> None:
        """To the next slot; played: (agents, arms)."""
        self._slot += 1
        mask = jnp.asarray(played.T[..., None])
        self._state = self._step(self._state, mask, jnp.uint32(self._slot))


class Film:
    """Arms that move whatever is played; states: (slots, agents, arms)."""

    def __init__(self, states: np.ndarray) -> None:
        self._states = states
        self._slot = 0

    @property
    def states(self) -> np.ndarray:
        now: np.ndarray = self._states[self._slot]
        return now

    def move(self, played: np.ndarray) -> None:
        self._slot += 1


def name_of(agent: int) -> str:
    return f"agent-{agent}"


def engine_decisions(
    monkeypatch, arms: Arms, federation: Federation, n_agents: int, horizon: int
) -> np.ndarray:
    """(slots, agents, arms): which arms the engine plays in trial 0."""
    policy = named(federation.policy, federation.horizon, dict(federation.options))
    weights = [federation.weights.get(name_of(m), 1.0) for m in range(n_agents)]
    setting = Setting.of(
        arms,
        n_agents,
        horizon,
        schedule=federation.schedule,
        draws=federation.draws,
        aggregation=federation.shares,
        weights=tuple(weights) if federation.weights else None,
    )
    setting = _as_needed(setting, policy)
    seen: list[np.ndarray] = []
    plays = federation.plays if policy.rule.fixes_plays else None
    made = BatchProgram(setting, policy, plays)

    def watched(*args, _choose=made.rule.choose):
        mask = _choose(*args)
        jax.debug.callback(lambda m: seen.append(np.asarray(m)), mask, ordered=True)
        return mask

    monkeypatch.setattr(made.rule, "choose", watched)
    run = jax.jit(made.run)
    out = run(
        seed_words(federation.seed),
        jnp.zeros(1, jnp.uint32),
        truth(arms),
        jnp.int32(federation.plays),
        None,
    )
    jax.block_until_ready(out)
    jax.effects_barrier()
    monkeypatch.undo()
    return np.moveaxis(np.stack(seen)[..., 0], 1, 2)


def added(federation: Federation, uploads: Mapping[str, Upload]) -> Merged:
    """The sum of these, the last of each agent by its name."""
    shape, S = federation.shape, max(federation.shape.states)
    counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
    visits = np.zeros((S, shape.n_arms), np.int64)
    for upload in uploads.values():
        counts, visits = counts + upload.counts, visits + upload.visits
    return Merged(counts, visits, len(uploads))


def merged(federation: Federation, uploads: Mapping[str, Upload]) -> Merged:
    """What the learners of a server see of these, the last of each agent by its name."""
    if not uploads:
        return added(federation, uploads)
    weights = None
    if federation.weights:
        weights = np.array([federation.weights.get(name, 1.0) for name in uploads])

    def whole(numbers: list[np.ndarray]) -> np.ndarray:
        return evidence_of(federation.shares, numbers, 0, weights)

    return Merged(
        whole([upload.counts for upload in uploads.values()]),
        whole([upload.visits for upload in uploads.values()]),
        whole([np.ones((), np.int64)] * len(uploads)).item(),
    )


def _stored(memory: RoundMemory) -> RoundMemory:
    """As a server has it that has started again."""
    return RoundMemory.from_bytes(memory.to_bytes())


def served_decisions(
    planner: Planner,
    states: np.ndarray | Realisation,
    horizon: int | None = None,
    *,
    over_the_wire: bool = True,
    after_slot: Callable[[int, Player], Player] = lambda _, player: player,
) -> np.ndarray:
    """(slots, agents, arms): which arms agents play that a server of this planner leads.

    states: (slots, agents, arms), or a realisation of `horizon` slots. All messages go through
    JSON. after_slot: the player that goes on for an agent.
    """
    federation = planner.federation
    world = states if isinstance(states, Realisation) else Film(states)
    horizon = len(states) if isinstance(states, np.ndarray) else horizon
    assert horizon is not None
    n_agents, n_arms = world.states.shape
    shape = federation.shape
    names = [name_of(m) for m in range(n_agents)]
    first = first_limit(federation.schedule, federation.longest)
    coordinator = Coordinator(1, first, federation.deadline)
    before: LaneCounts | None = None
    memory: RoundMemory | None = None
    last: dict[str, Upload] = {}
    players: list[Player] = []
    played = np.zeros((horizon, n_agents, n_arms), bool)

    def message(agent: int) -> RoundMessage:
        lane = agent if federation.plan_per_agent else 0
        if federation.recalls:
            whole = added(federation, last)
            each = before if federation.needs_each else None
            planned = planner.plan(whole, coordinator.number, lane, each, memory)
        else:
            planned = planner.plan(merged(federation, last), coordinator.number, lane)
        n_live = max(1, n_agents)
        watched = visits_can_end(federation.schedule, n_live, LONGEST) and planned.limit is None
        made = RoundMessage(
            federation=federation.name,
            agent=names[agent],
            round=coordinator.number,
            slots=planned.limit or coordinator.limit,
            visit_factor=2**n_live if watched else None,
            shape=shape,
            rewards=tuple(arm.reward for arm in federation.arms),
            plan=planned.plan,
            idle_rewards=tuple(arm.reward_passive for arm in federation.arms),
        )
        return parse_round(made.to_json()) if over_the_wire else made

    def by_lane() -> LaneCounts:
        nothing = added(federation, {})
        given = [last.get(name, nothing) for name in names]
        weights = np.array([federation.weights.get(name, 1.0) for name in names])
        return LaneCounts(
            np.stack([x.counts for x in given]),
            np.stack([x.visits for x in given]),
            weights if federation.weights else None,
        )

    if federation.recalls:
        before = by_lane()
    if before is not None and federation.forgets:
        memory = planner.remember(None, None, before, 0)
    for agent, name in enumerate(names):
        coordinator.fetched(name)
        players.append(Player(message(agent), f"{agent:032x}"))
    for slot in range(horizon):
        for agent, player in enumerate(players):
            now = world.states[agent]
            player.look(now[list(shape.always)].tolist())
            chosen = player.choose()
            played[slot, agent, chosen] = True
            player.observe(chosen.tolist(), now[chosen].tolist())
            players[agent] = after_slot(agent, player)
        world.move(played[slot])
        if all(player.over for player in players):
            for agent, player in enumerate(players):
                sent = player.upload(coordinator.number)
                body = sent.to_json(shape, federation.name)
                last[names[agent]] = parse_upload(body, shape, federation.name)
                coordinator.reported(names[agent], sent.length, now=0.0)
            assert coordinator.due(0.0) == "all"
            if federation.recalls:
                now = by_lane()
                if federation.forgets:
                    kept = memory if not over_the_wire or memory is None else _stored(memory)
                    memory = planner.remember(kept, before, now, coordinator.limit)
                before = now
            coordinator = coordinator.next(federation.schedule, federation.longest)
            fresh = [message(agent) for agent in range(n_agents)]
            for player, made in zip(players, fresh, strict=True):
                player.begin(made)
    return played
