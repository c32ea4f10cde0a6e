"""Rules as parts of a JAX program: how the agents of a batch of trials choose K arms.

The server fills a *plan* from a learner's dynamics; agents choose by it where they are. Arrays end
in agents and trials (M, R). A plan ends in (A, R): A = 1 where all agents play by one plan, else
A = M. A plan of known arms is the same in all trials, R = 1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from rmab.linalg import compute_in_branch
from rmab.model.arms import Arms, Moves
from rmab.model.information import NEVER, InformationStates
from rmab.planning.lookahead.tables import known_wraps
from rmab.policies.constraint import Constraint
from rmab.policies.own_index import Observations
from rmab.policies.rules.dynamics import (
    MAX_KNOWN_AGES,
    KnownTables,
    LearnedArms,
    LearnerOutput,
    known_ages,
)
from rmab.rng.variates import Key, threefry, unit

if TYPE_CHECKING:  # the engine is above
    from rmab.engine.environment import SimulatedEnvironment, Truth
    from rmab.engine.setting import Setting

__all__ = ["CompiledRule", "Scene", "SlotInputs", "SlotPlans", "TabledRule", "computed_once"]

# Trials served at once by a large program: with fewer each costs more, with more all wait longer.
_MAX_SERVED = 64
# An accelerator takes as long for fewer trials.
_MIN_SERVED = 25_000


class Scene(NamedTuple):
    """Everything that a rule is compiled for.

    name and learns are the policy's; constraint is None where K is an argument of the program.
    """

    name: str
    learns: bool
    setting: Setting
    environment: SimulatedEnvironment
    constraint: Constraint | None


class SlotInputs(NamedTuple):
    """Everything that agents may choose by in a slot.

    observed: information states, (N, M, R) each; state: true states, read where arms are fully
    observed; memory: the rule's own state; key: of the agents' random numbers, (M, R); wraps: (N,)
    or (N, M), how far ages past a table's highest fall back, 0: to never observed; playable: mask
    (N, M, 1) of arms that can be played, None: all. Where fewer than K can, all are.
    """

    plan: Any
    observed: InformationStates
    state: Array
    memory: Any
    slot: Array
    key: Key
    truth: Truth
    wraps: Array
    constraint: Constraint
    playable: Array | None = None

    def uniforms(self, word: int) -> Array:
        """Return uniform numbers (N, M, R) of this slot; word: 0 or 1, two independent kinds."""
        arm = jnp.arange(self.observed.age.shape[0], dtype=jnp.uint32)[:, None, None]
        numbers: Array = unit(threefry(self.key, self.slot.astype(jnp.uint32), arm)[word])
        return numbers

    def largest(self, index: Array) -> Array:
        """Return the mask (N, M, R) of the K arms of largest index that can be played."""
        there = index if self.playable is None else jnp.where(self.playable, index, -jnp.inf)
        played: Array = self.constraint.select(there)
        return played if self.playable is None else played & self.playable


class SlotPlans(NamedTuple):
    """Known plans, G of them, each for some of the slots.

    plan: arrays (G, ...); which: (T,) the plan of each slot; wraps: (N,).
    """

    plan: Any
    which: Array
    wraps: Array


class CompiledRule(ABC):
    """Plans and choices of agents by a rule; the methods here are of a rule without a plan."""

    # Filling a plan is quick, so that it is done for all trials at once where many are due.
    light = True

    def __init__(self, rule: Any, scene: Scene) -> None:
        self.rule = rule
        self.scene = scene
        self.setting = scene.setting
        self.environment = scene.environment

    # ---------------------------------------------------------------- known arms

    def known(self, arms: Sequence[Arms], constraint: Constraint) -> Any:  # noqa: ARG002
        """Return arrays made once of known arms, a pytree; None: nothing is.

        arms: of all agents, or of each where they differ.
        """
        return None

    def wraps(self, known: Any) -> Array:
        """Return how far ages past a table's highest fall back, (N,); 0: to never observed."""
        if isinstance(known, KnownTables | SlotPlans):
            return jnp.asarray(known.wraps)
        return jnp.zeros(self.setting.n_arms, jnp.int32)

    # ---------------------------------------------------------------- the server

    def served_at_once(self, n_trials: int, few: int) -> int:
        """Return for how many of a batch's trials plans are filled together; few: if quick."""
        if jax.default_backend() == "cpu":
            return min(few, _MAX_SERVED)
        return min(n_trials, max(few, _MIN_SERVED))

    def first(self, truth: Truth, n_trials: int, known: Any, agents: int) -> Any:
        """Return the plan before the first slot, for A agents.

        Of known arms it is the plan of all slots, else one of the right shape.
        """
        if isinstance(known, SlotPlans):
            return ()  # every slot has its own
        if known is not None:
            return known

        def filled(width: int) -> Any:
            moves = truth.moves
            if self.setting.laws_differ:
                if not self.scene.learns:
                    return self.fill(moves, truth, agents)  # (S, S, N, M): each its own
                moves = Moves(*(m[..., 0] for m in moves))
            wide = Moves(*(m[..., None] * jnp.ones(width, jnp.float32) for m in moves))
            return self.fill(wide, truth, agents)

        if not self.scene.learns:
            return filled(agents)
        shape = jax.eval_shape(lambda: filled(agents * n_trials))
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)

    def fill(self, output: LearnerOutput, truth: Truth, agents: int = 1) -> Any:
        """Return the plan of an episode, from a learner's output for A agents in R trials.

        The output ends in A R: all trials of the first agent, then those of the next.
        """
        setting = self.setting
        rewards = truth.reward_passive, truth.reward_active
        if setting.rewards_differ:
            trials = jax.tree.leaves(output)[0].shape[-1] // agents
            rewards = jnp.repeat(rewards[0], trials, -1), jnp.repeat(rewards[1], trials, -1)
        learnt = LearnedArms(output, *rewards, setting.kinds, setting.channels)
        plan = self.filled(learnt)
        return jax.tree.map(lambda x: x.reshape(*x.shape[:-1], agents, -1), plan)

    def filled(self, learnt: LearnedArms) -> Any:  # noqa: ARG002
        """Return the plan of an episode, arrays that end in A R."""
        return ()

    # ---------------------------------------------------------------- the agents

    def init(self, known: Any, key: Key, n_trials: int) -> Any:  # noqa: ARG002
        """Return the rule's state before the first slot, arrays (..., M, R); None: none is kept."""
        return None

    def plan_at(self, known: Any, plan: Any, slot: Array) -> Any:
        """Return the plan of a slot; plan: the episode's."""
        if not isinstance(known, SlotPlans):
            return plan
        which = known.which[slot]
        return jax.tree.map(lambda plans: plans[which], known.plan)

    def look(self, inputs: SlotInputs) -> SlotInputs:
        """Update the rule's state by the states that are shown before the choice."""
        return inputs

    @abstractmethod
    def choose(self, inputs: SlotInputs) -> Array:
        """Return the mask of arms played, (N, M, R)."""

    def step(self, inputs: SlotInputs, seen: Observations) -> Any:  # noqa: ARG002
        """Return the rule's state after a slot."""
        return inputs.memory

    def states(self, inputs: SlotInputs) -> InformationStates:
        """Return where tables are read, (N, M, R): a fully observed arm is in (state now, 1)."""
        observed = inputs.observed
        seen = self.environment.shown(inputs.state, observed.last_seen).astype(jnp.int32)
        seen = jnp.broadcast_to(seen, observed.age.shape)
        return InformationStates(seen, jnp.where(self.environment.always, 1, observed.age))


class TabledRule(CompiledRule):
    """A rule that reads tables over information states, filled in every episode or known."""

    @abstractmethod
    def tables(self, arms: Arms, plays: int, max_age: int, wraps: Any) -> Any:
        """Return tables of known arms in double precision, (N, I) each."""

    def known_tables(
        self, arms: Arms, plays: int, most: int = MAX_KNOWN_AGES, least: int = 1
    ) -> KnownTables:
        """Return the tables of known arms; most, least: ages that they distinguish."""
        max_age = max(least, known_ages(arms, most))
        wraps = known_wraps(arms, max_age)
        return KnownTables(self.tables(arms, plays, max_age, wraps), wraps)

    def all_known(self, arms: Sequence[Arms], plays: int) -> KnownTables:
        """Return the tables of known arms as JAX arrays, (..., M) where agents differ."""
        if len(arms) == 1:
            found = self.known_tables(arms[0], plays)
            tables = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), found.tables)
            return KnownTables(tables, jnp.asarray(found.wraps, jnp.int32))
        apart = {id(one): one for one in arms}
        ages = max(map(known_ages, apart.values()))  # tables of one size
        made = {key: self.known_tables(one, plays, least=ages) for key, one in apart.items()}
        each = [made[id(one)] for one in arms]
        tables = jax.tree.map(
            lambda *by_agent: jnp.stack([jnp.asarray(x, jnp.float32) for x in by_agent], -1),
            *(known.tables for known in each),
        )
        return KnownTables(tables, jnp.asarray(np.stack([x.wraps for x in each], -1), jnp.int32))

    def first(self, truth: Truth, n_trials: int, known: Any, agents: int) -> Any:
        """Return the plan before the first slot, see `CompiledRule`."""
        if not isinstance(known, KnownTables):
            return super().first(truth, n_trials, known, agents)
        by_agent = known.wraps.ndim == 2
        return jax.tree.map(
            lambda table: table[..., None] if by_agent else table[:, :, None, None], known.tables
        )


def computed_once(inputs: SlotInputs, compute: Callable[[], Any]) -> Any:
    """Return compute(): XLA would otherwise compute it anew for every pair of arms compared."""
    return compute_in_branch(inputs.observed.age[0, 0, 0] >= NEVER, compute)
