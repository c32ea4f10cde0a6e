"""The lookahead rule in JAX programs: tables or, for channels, a formula; K is part of both."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rmab.model.arms import Arms, Dynamics
from rmab.planning.lookahead.channel import channel_state, channel_tables, channel_values
from rmab.planning.lookahead.tables import fill_lookahead
from rmab.planning.tables import Model
from rmab.policies.constraint import Constraint
from rmab.policies.lookahead import LookaheadTables, check_depth, choose, state_from_tables
from rmab.policies.rules.compiled import Scene, SlotInputs, TabledRule, computed_once
from rmab.policies.rules.dynamics import KnownTables, LearnedArms, channel_pair
from rmab.policies.rules.index_jax import grid
from rmab.policies.rules.lookahead import LookaheadRule

__all__ = ["compiled", "fill"]

# Loss of an arm that cannot be played, in units of the largest reward.
_NEVER_PLAYED = 1e4


def fill(
    rule: LookaheadRule, name: str, learnt: LearnedArms, plays: int, max_age: int
) -> LookaheadTables:
    """Return tables (N, I, trials) over the information states up to max_age."""
    if not learnt.channels:
        return fill_lookahead(learnt.model(name), max_age, plays, rule.depth)
    p01, p11 = channel_pair(learnt.output)
    rewards = learnt.pays[1][:, None]
    values = channel_values(Dynamics(p01[:, None], p11[:, None], rewards), plays)
    return channel_tables(values, grid(max_age), rule.depth)


class _Lookahead(TabledRule):
    def __init__(self, rule: LookaheadRule, scene: Scene) -> None:
        super().__init__(rule, scene)
        assert scene.constraint is not None
        self.plays: int = scene.constraint.plays
        self.light = scene.setting.channels
        self.always = np.array([kind.fully_observed for kind in scene.setting.kinds])

    def known(self, arms: Sequence[Arms], constraint: Constraint) -> KnownTables | None:
        check_depth(self.setting.kinds, constraint.plays, self.rule.depth)
        formula = self.setting.channels or self.scene.learns
        return None if formula else self.all_known(arms, constraint.plays)

    def tables(self, arms: Arms, plays: int, max_age: int, wraps: Any) -> Any:
        filled = fill_lookahead(Model.of(arms), max_age, plays, self.rule.depth, wraps)
        return jax.tree.map(lambda x: x[..., 0], filled)

    def filled(self, learnt: LearnedArms) -> Any:
        if not self.setting.channels:
            return fill(self.rule, self.scene.name, learnt, self.plays, self.setting.max_age)
        rewards = learnt.reward_active[1]
        rewards = rewards if rewards.ndim == 2 else rewards[:, None]
        return channel_values(Dynamics(*channel_pair(learnt.output), rewards), self.plays)

    def choose(self, inputs: SlotInputs) -> Array:
        depth, once = self.rule.depth, partial(computed_once, inputs)
        if self.setting.channels:
            state = once(partial(channel_state, inputs.plan, inputs.observed, depth))
        else:
            states = self.states(inputs)
            state = state_from_tables(inputs.plan, states, depth, inputs.wraps, self.always)
        if depth == 1:
            return inputs.largest(state.now.gains[0])
        if inputs.playable is None:
            played: Array = choose(state, self.plays, once)
            return played
        # No gain makes up for an arm that cannot be played: of sets with such arms, where there are
        # too few others, any with all others will do.
        now, *later = state.now.gains
        loss = _NEVER_PLAYED * (1 + jnp.abs(inputs.truth.reward_active).max())
        gains = (jnp.where(inputs.playable, now, -loss), *later)
        played = choose(state._replace(now=state.now._replace(gains=gains)), self.plays, once)
        return played & inputs.playable


compiled = _Lookahead
