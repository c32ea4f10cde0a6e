"""How agents that look ahead play: what they are sent, and how they choose by it.

Where all arms are channels a plan is a `ChannelValues`, ten numbers (N, A, R) for each arm, and
what a lookahead needs is a formula of the information state. Other arms have `LookaheadTables`
(N, I, A, R) of chances and gains, filled from the dynamics in each episode, or given where the
dynamics are known (`Ahead`). The choice itself is `rmab.policies.lookahead.choose`, the
same function that exact values use; K is part of the program, as the sets of K arms are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from rmab.engine.choice import largest
from rmab.engine.counting import Looks
from rmab.engine.plans import Found, Plans, model_of, pair
from rmab.engine.setting import Ahead, Guide, Setting
from rmab.engine.world import Truth, World
from rmab.model.arms import NEVER, Dynamics, InformationStates
from rmab.planning.lookahead.channel import channel_state, channel_values
from rmab.planning.lookahead.tables import fill_lookahead
from rmab.policies.lookahead import LookaheadTables, choose, state_from_tables
from rmab.policies.registry import Policy

__all__ = ["LookaheadPlans", "ahead_shape"]


class LookaheadPlans(Plans):
    """Plans of a policy that looks `policy.depth` slots ahead with K plays."""

    def __init__(self, setting: Setting, policy: Policy, world: World, plays: int) -> None:
        super().__init__(setting, policy, world)
        self.plays = plays
        self.always = np.array([kind.always for kind in setting.kinds])

    def first(self, truth: Truth, n_trials: int, guide: Guide, agents: int) -> Any:
        """As in Plans."""
        if isinstance(guide, Ahead):
            return jax.tree.map(lambda table: table[:, :, None, None], guide.tables)
        return super().first(truth, n_trials, guide, agents)

    def _filled(self, found: Found, truth: Truth) -> Any:
        if self.setting.channels:
            reward = truth.reward_active[1][:, None]
            return channel_values(Dynamics(*pair(found), reward), self.plays)
        model = model_of(found, truth, self.setting.kinds, self.policy.name)
        return fill_lookahead(model, self.setting.max_age, self.plays, self.policy.depth)

    def wraps(self, guide: Guide) -> Array:
        """As in Plans."""
        if isinstance(guide, Ahead):
            return guide.wraps
        return jnp.zeros(self.setting.n_arms, jnp.int32)

    def choose(
        self,
        plan: Any,
        looks: Looks,
        state: Array,
        reward: Array,  # noqa: ARG002 - Plans.choose has it; here the plan does
        wraps: Array,
        plays: Array,
        noise: Callable[[], Array],  # noqa: ARG002 - Plans.choose has it; nothing is random here
    ) -> Array:
        """The arms played, a mask (N, M, R)."""
        depth = self.policy.depth

        def apart(compute: Callable[[], Any]) -> Any:
            return _apart(looks.age[0, 0, 0] >= NEVER, compute)

        if self.setting.channels:
            states = InformationStates(looks.last_seen, looks.age)
            ahead = apart(partial(channel_state, plan, states, depth))
        else:
            shown = self.world.shown(state, looks.last_seen).astype(jnp.int32)
            states = InformationStates(jnp.broadcast_to(shown, looks.age.shape), looks.age)
            ahead = state_from_tables(plan, states, depth, wraps, self.always)
        if depth == 1:
            return largest(ahead.now.gains[0], plays)
        played: Array = choose(ahead, self.plays, apart)
        return played


def _apart(always: Array, compute: Callable[[], Any]) -> Any:
    """What is computed, behind a branch that is always taken: see `Plans`."""
    shape = jax.eval_shape(compute)
    return lax.cond(
        always, compute, lambda: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    )


def ahead_shape(setting: Setting, depth: int, rows: int, kind: Callable[..., Any]) -> Ahead:
    """The shapes of known tables of so many rows; kind: from a shape and a type to one."""
    table = kind((setting.n_arms, rows), jnp.float32)
    states = (table,) * (setting.n_states - 1)
    passive = states if any(arm.always for arm in setting.kinds) else None
    tables = LookaheadTables(states, (table,) * depth, passive)
    return Ahead(tables, kind((setting.n_arms,), jnp.int32))
