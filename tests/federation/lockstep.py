"""A federation played in one process, slot by slot, and the same one in the engine.

Both meet the same channels: the numbers of the engine's world, trial 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from rmab.engine.program import _Simulator
from rmab.engine.setting import Setting
from rmab.engine.world import World, truth
from rmab.federation.config import Federation
from rmab.federation.messages import RoundMessage, Upload, parse_round
from rmab.federation.planner import Planner
from rmab.federation.player import Player
from rmab.federation.rounds import Coordinator
from rmab.federation.schedule import LONGEST, first_limit, visits_can_end
from rmab.federation.uploads import Merged, parse_upload
from rmab.model.arms import Arms
from rmab.policies.policy import LookaheadRule
from rmab.policies.registry import named
from rmab.random import CHANNELS, seed_words, stream


def true_states(arms: Arms, seed: int, n_agents: int, horizon: int) -> np.ndarray:
    """(slots, agents, arms): the states that the engine's trial 0 meets."""
    world, there = World(arms.kinds, idle_pay=False), truth(arms)
    lanes = jnp.arange(n_agents)[None, :, None]
    key = stream(seed_words(seed), jnp.zeros(1, jnp.uint32), lanes, CHANNELS)
    alone = jnp.zeros((len(arms), n_agents, 1), bool)

    def step(state, slot):
        return world.move(key, there, state, alone, slot + 1), state

    start = world.start(key, there, 1)
    states = jax.lax.scan(step, start, jnp.arange(horizon, dtype=jnp.uint32))[1]
    return np.moveaxis(np.asarray(states)[..., 0].astype(int), 1, 2)


def engine_decisions(
    monkeypatch, arms: Arms, federation: Federation, n_agents: int, horizon: int
) -> np.ndarray:
    """(slots, agents, arms): which arms the engine plays in trial 0."""
    policy = named(federation.policy, federation.horizon, dict(federation.options))
    setting = Setting.of(
        arms, n_agents, horizon, schedule=federation.schedule, draws=federation.draws
    )
    seen: list[np.ndarray] = []
    plays = federation.plays if isinstance(policy.rule, LookaheadRule) else None
    made = _Simulator(setting, policy, plays)

    def watched(*args, _choose=made.agents.choose):
        mask = _choose(*args)
        jax.debug.callback(lambda m: seen.append(np.asarray(m)), mask, ordered=True)
        return mask

    monkeypatch.setattr(made.agents, "choose", watched)
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


def merged(federation: Federation, uploads: Sequence[Upload]) -> Merged:
    """What a server has of these, the last of each agent."""
    shape, S = federation.shape, max(federation.shape.states)
    counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
    visits = np.zeros((S, shape.n_arms), np.int64)
    for upload in uploads:
        counts, visits = counts + upload.counts, visits + upload.visits
    return Merged(counts, visits, len(uploads))


def served_decisions(
    planner: Planner, states: np.ndarray, *, over_the_wire: bool = True
) -> np.ndarray:
    """(slots, agents, arms): which arms agents play that a server of this planner leads.

    states: (slots, agents, arms). All messages go through JSON.
    """
    federation = planner.federation
    horizon, n_agents, _ = states.shape
    shape = federation.shape
    names = [f"agent-{m}" for m in range(n_agents)]
    coordinator = Coordinator(1, first_limit(federation.schedule), federation.deadline)
    last: dict[str, Upload] = {}
    players: list[Player] = []
    played = np.zeros(states.shape, bool)

    def message(agent: int) -> RoundMessage:
        lane = agent if federation.draws == "per-agent" else 0
        planned = planner.plan(merged(federation, list(last.values())), coordinator.number, lane)
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
        )
        return parse_round(made.to_json()) if over_the_wire else made

    for agent, name in enumerate(names):
        coordinator.fetched(name)
        players.append(Player(message(agent), f"{agent:032x}"))
    for slot in range(horizon):
        for agent, player in enumerate(players):
            chosen = player.choose()
            played[slot, agent, chosen] = True
            player.observe(chosen.tolist(), states[slot, agent, chosen].tolist())
        if all(player.over for player in players):
            for agent, player in enumerate(players):
                sent = player.upload(coordinator.number)
                body = sent.to_json(shape, federation.name)
                last[names[agent]] = parse_upload(body, shape, federation.name)
                coordinator.reported(names[agent], sent.length, now=0.0)
            assert coordinator.due(0.0) == "all"
            coordinator = coordinator.next(federation.schedule)
            fresh = [message(agent) for agent in range(n_agents)]
            for player, made in zip(players, fresh, strict=True):
                player.begin(made)
    return played
