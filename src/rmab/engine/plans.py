"""What agents play by in an episode, and how they choose.

The server fills a *plan* from the learner's dynamics and sends it; the agents look up what it says
where they are and play the K arms with the largest index. A plan is

    dynamics  p01 and p11, each (N, A, R): the index is a formula of the information state
    a table   (N, I, A, R): an index for every information state
    a Joint   the exact optimum: a decision for every joint information state

Its arrays end in agents and trials: A = 1 where all agents play by one plan, else A = M. A known
plan is the same in all trials, R = 1.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from rmab.engine.choice import largest
from rmab.engine.counting import Looks
from rmab.engine.setting import Guide, Joint, Lookup, Setting
from rmab.engine.world import Truth, World
from rmab.errors import ModelError
from rmab.model.arms import NEVER, Dynamics, InformationStates, Kind, Moves, information_states
from rmab.planning.exact.chain import joint_code
from rmab.planning.tables import Model
from rmab.policies.registry import Policy

__all__ = ["Found", "Plans", "model_of", "pair"]

Found = Moves | tuple[Array, Array]  # what a learner returns: (S, S, N, R) each, or (N, R) each


class Plans:
    """How a policy's plans are filled and read in a setting."""

    def __init__(self, setting: Setting, policy: Policy, world: World) -> None:
        self.setting = setting
        self.policy = policy
        self.world = world
        # Evaluated where the agents are, by a formula of the state; else from a table.
        self.statewise = policy.statewise and (setting.channels or not policy.estimates)

    # ---------------------------------------------------------------- the server

    def first(self, truth: Truth, n_trials: int, guide: Guide, agents: int) -> Any:
        """What a policy that knows plays by; for others a plan of the right shape, for A agents."""
        if isinstance(guide, Lookup):
            return guide.table[:, :, None, None]
        if guide is not None:
            return guide

        def filled(width: int) -> Any:
            wide = Moves(*(m[..., None] * jnp.ones(width, jnp.float32) for m in truth.moves))
            return self.fill(wide, truth, agents)

        if self.policy.learner is None:
            return filled(1)
        shape = jax.eval_shape(lambda: filled(agents * n_trials))
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)

    def fill(self, found: Found, truth: Truth, agents: int = 1) -> Any:
        """The plan an episode is played with, from dynamics of A agents in R trials.

        The dynamics end in A R: all trials of the first agent, then those of the next.
        """
        plan = self._filled(found, truth)
        return jax.tree.map(lambda x: x.reshape(*x.shape[:-1], agents, -1), plan)

    def _filled(self, found: Found, truth: Truth) -> Any:
        policy, setting = self.policy, self.setting
        if self.statewise or (policy.planner is None and policy.table is None):
            return pair(found)
        if setting.channels and policy.planner is not None:
            p01, p11 = pair(found)
            grid = information_states(policy.max_age)
            states = InformationStates(*(jnp.asarray(x, jnp.int32)[None, :, None] for x in grid))
            reward = truth.reward_active[1][:, None, None]
            table = policy.planner(Dynamics(p01[:, None], p11[:, None], reward), states)
            rows, width = grid.age.size, p01.shape[-1]
        else:
            assert policy.table is not None
            model = model_of(found, truth, setting.kinds, policy.name)
            table = policy.table(model, setting.max_age)
            rows, width = 1 + setting.n_states * setting.max_age, model.moves.passive.shape[-1]
        shape = (setting.n_arms, rows, width)
        try:
            return jnp.broadcast_to(jnp.asarray(table, jnp.float32), shape)
        except ValueError:
            raise ModelError(
                f"policy {policy.name}: its planner must give an index for (arms, information "
                f"states, trials) = {shape}, got shape {jnp.shape(table)}"
            ) from None

    # ---------------------------------------------------------------- the agents

    def wraps(self, guide: Guide) -> Array:
        """(N,) how far ages past a table's highest fall back; 0: they become never seen."""
        if isinstance(guide, Lookup):
            return guide.wraps
        # A planner's own table stays at its highest age; a filled one goes on as never seen.
        stays = self.setting.channels and self.policy.planner is not None
        return jnp.full(self.setting.n_arms, 1 if stays else 0, jnp.int32)

    def choose(
        self,
        plan: Any,
        looks: Looks,
        state: Array,
        reward: Array,
        wraps: Array,
        plays: Array,
        noise: Callable[[], Array],
    ) -> Array:
        """The arms played, a mask (N, M, R).

        state: the true states, read where they are always seen; reward: (N,) what a channel pays;
        noise: uniforms (N, M, R) for those who choose at random.
        """
        if isinstance(plan, Joint):
            return _look_up(plan, self.world.shown(state, looks.last_seen), looks.age)
        if self.policy.planner is None and self.policy.table is None:
            return largest(noise(), plays)
        if self.statewise:
            return largest(self._index(plan, reward, looks), plays)
        max_age = (plan.shape[1] - 1) // self.setting.n_states
        seen = self.world.shown(state, looks.last_seen)
        age = jnp.where(self.world.always, 1, looks.age)
        row = _row(seen, age, max_age, wraps)
        if plan.shape[2] == 1:  # one plan for all agents
            return largest(jnp.take_along_axis(plan[:, :, 0], row, axis=1), plays)
        return largest(jnp.take_along_axis(plan, row[:, None], axis=1)[:, 0], plays)

    def _index(self, plan: Any, reward: Array, looks: Looks) -> Array:
        """A statewise planner's index where the agents are, (N, M, R)."""
        planner = self.policy.planner
        assert planner is not None
        shape = looks.age.shape

        def evaluate() -> Array:
            dynamics = Dynamics(plan[0], plan[1], reward[:, None, None])
            states = InformationStates(looks.last_seen, looks.age)
            return jnp.broadcast_to(planner(dynamics, states), shape).astype(jnp.float32)

        # Always taken. XLA would otherwise merge the index into the comparisons that follow and
        # compute it anew for every pair of arms; it does not merge across a branch.
        index: Array = lax.cond(looks.age[0, 0, 0] >= NEVER, evaluate, lambda: jnp.zeros(shape))
        return index


def model_of(found: Found, truth: Truth, kinds: tuple[Kind, ...], name: str) -> Model:
    """A learner's dynamics with what is known; name: of the policy."""
    if not isinstance(found, Moves):
        raise ModelError(
            f"policy {name}: its learner must return rmab.Moves for arms that are not channels"
        )
    return Model(found, truth.reward_passive[:, :, None], truth.reward_active[:, :, None], kinds)


def pair(found: Found) -> tuple[Array, Array]:
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
