"""Policies on a recording: the engine's programs with true states that were measured.

A recording takes the place of simulated arms (`ReplayedEnvironment`). All else is as in a
simulation: the agents, their memory and counts, the episodes of a learner, the random numbers of a
trial. Trials, here runs, differ in their draws: they share the recording, or each has its own.

The true dynamics of a recording are unknown. A policy that knows dynamics is given transition
matrices that were fitted, for each agent, and perhaps for each segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.engine.environment import SimulatedEnvironment, Truth, truth
from rmab.engine.program import compiled_rule, simulator
from rmab.engine.setting import Setting
from rmab.errors import ModelError
from rmab.model.arms import Arm, ArmKind, Arms, Moves
from rmab.model.information import NEVER, InformationStates
from rmab.policies.policy import Policy
from rmab.policies.rules.compiled import SlotPlans
from rmab.policies.rules.dynamics import MAX_KNOWN_AGES, KnownTables
from rmab.rng.variates import Key, seed_words

__all__ = ["FittedDynamics", "Replay", "ReplayedEnvironment", "ReplayedStates"]

Floats = npt.NDArray[np.float64]


class ReplayedStates(NamedTuple):
    """True states that were recorded, in T slots; trials share them unless they end in R."""

    state: Array  # (T, N, M, 1 or R)
    measured: Array  # (T, N, M, 1) whether an arm's state is known, so that it can be played
    starts: Array  # (T,) whether a segment begins: nothing that was observed before counts
    window: Array  # (T,) 0..W-1, never falling: where rewards are added up


class RecordedTruth(NamedTuple):
    """Rewards and kinds of arms, and their recorded states."""

    arms: Truth
    recording: ReplayedStates

    @property
    def moves(self) -> Moves:
        """Dynamics of the arms, which nothing is drawn from."""
        return self.arms.moves

    @property
    def reward_passive(self) -> Array:
        """Rewards without a play, (S, N)."""
        return self.arms.reward_passive

    @property
    def reward_active(self) -> Array:
        """Rewards of a play, (S, N)."""
        return self.arms.reward_active


class ReplayedEnvironment(SimulatedEnvironment):
    """Arms with recorded states, which no play changes.

    An arm that was not measured in a slot cannot be played in it, and where a new segment of the
    recording begins every arm was never observed. windows: W, into which the slots are divided.
    """

    at_once = True

    def __init__(self, kinds: tuple[ArmKind, ...], idle_pay: bool, windows: int) -> None:
        super().__init__(kinds, idle_pay, windows)
        self.windows = windows

    def start(self, key: Key, truth: Any, n_trials: int) -> Array:  # noqa: ARG002 - nothing is drawn
        """Return the states in the first slot, (N, M, 1 or R)."""
        first: Array = truth.recording.state[0].astype(self.state_type)
        return first

    def advance(self, key: Key, truth: Any, state: Array, played: Array, slot: Array) -> Array:  # noqa: ARG002
        """Return the states in slot `slot`; past the end the last, which are not used."""
        state = _at(truth.recording.state, slot)
        return state.astype(self.state_type)

    def playable(self, truth: Any, slot: Array) -> Array | None:
        """Return the mask of arms that were measured, (N, M, 1)."""
        return _at(truth.recording.measured, slot)

    def observe(
        self, truth: Any, observed: InformationStates, played: Array, state: Array, slot: Array
    ) -> InformationStates:
        """Return the information states after a slot; none where the next begins a segment."""
        observed = super().observe(truth, observed, played, state, slot)
        begins = _at(truth.recording.starts, slot + 1)
        return observed._replace(age=jnp.where(begins, NEVER, observed.age))

    def no_rewards(self, truth: Any, horizon: int, shape: tuple[int, int]) -> Array:  # noqa: ARG002
        """Return the rewards before the first slot, (W, M, R)."""
        return jnp.zeros((self.windows, *shape), jnp.float32)

    def add_rewards(self, truth: Any, rewards: Array, paid: Array, slot: Array) -> Array:
        """Return the rewards with those of a slot, added to those of its window."""
        added: Array = rewards.at[_at(truth.recording.window, slot)].add(paid.sum(0))
        return added


def _at(series: Array, slot: Array) -> Array:
    value: Array = lax.dynamic_index_in_dim(series, slot, keepdims=False)
    return value


@dataclass(frozen=True, eq=False)
class FittedDynamics:
    """Transition matrices fitted to a recording, G of them for each agent.

    steps: (S, S, N, G, M or 1, R or 1) chances of the next state; which: (T,) the matrix of each
    slot.
    """

    steps: Floats
    which: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Replay:
    """Recording and setting of a back-test.

    arms: their kinds and rewards, and any dynamics; windows: W of the recording.
    """

    arms: Arms
    plays: int
    setting: Setting
    recording: ReplayedStates
    windows: int
    seed: int = 0

    def rewards(
        self, policy: Policy, dynamics: FittedDynamics | None, first: int, count: int
    ) -> Floats:
        """Return the rewards of the runs first, first + 1, ...: (W windows, M agents, count).

        dynamics: those that a policy knows; None for a policy that knows none.
        """
        setting = policy.sharing.applied(self.setting)
        known = None if dynamics is None else self._plans(setting, policy, dynamics)
        # The sets of K arms are part of some programs; K is an argument of the others.
        plays = self.plays if policy.rule.fixes_plays else None
        arms = ReplayedEnvironment(setting.kinds, setting.idle_pay, self.windows)
        data = RecordedTruth(truth(self.arms), self.recording)
        program = simulator(setting, policy, count, known, plays, arms, data)
        runs = jnp.arange(first, first + count, dtype=jnp.uint32)
        out = program(seed_words(self.seed), runs, data, jnp.int32(self.plays), known)  # type: ignore[arg-type]
        return np.asarray(out.rewards, np.float64)

    def _plans(self, setting: Setting, policy: Policy, dynamics: FittedDynamics) -> SlotPlans:
        """Return the plans of a policy that knows these dynamics."""
        which = jnp.asarray(dynamics.which, jnp.int32)
        shape = dynamics.steps.shape[3:]  # G, M or 1, R or 1

        def apart(plan: Any) -> Any:
            """(..., G M R) to (G, ..., M, R)."""
            return jnp.moveaxis(plan.reshape(*plan.shape[:-1], *shape), -3, 0)

        rule = compiled_rule(setting, policy, self.plays)
        if setting.channels:
            steps = jnp.asarray(dynamics.steps, jnp.float32).reshape(*dynamics.steps.shape[:3], -1)
            filled = rule.fill(Moves(steps, steps), truth(self.arms))  # (N, ..., 1, G M R)
            plan = jax.tree.map(lambda x: apart(x[..., 0, :]), filled)
            return SlotPlans(plan, which, rule.wraps(None))
        if not policy.rule.by_arm:
            raise ModelError(
                f"policy {policy.name}: on a trace it is for arms of two states that pay in one"
            )
        known, place = self._tables(rule, dynamics)
        tables = jnp.asarray(np.moveaxis(known.tables[place], 1, -1), jnp.float32)
        # Every step has a chance, so no chain swings: ages past the tables' are common to all.
        return SlotPlans(apart(tables), which, jnp.asarray(known.wraps[place[:, 0]], jnp.int32))

    def _tables(
        self, rule: Any, dynamics: FittedDynamics
    ) -> tuple[KnownTables, npt.NDArray[np.intp]]:
        """Return tables of distinct matrices, and the place (N, G M R) of each among them."""
        S, _, n_arms = dynamics.steps.shape[:3]
        steps = np.moveaxis(dynamics.steps, (0, 1), (-2, -1)).reshape(n_arms, -1, S * S)
        pays = np.broadcast_to(self.arms.reward_active[:, None], (*steps.shape[:2], S))
        rows = np.concatenate([steps, pays], -1).reshape(-1, S * S + S)
        differing, place = np.unique(rows, axis=0, return_inverse=True)
        arms = Arms([Arm(row[: S * S].reshape(S, S), reward=row[S * S :]) for row in differing])
        ages = min(self.setting.horizon, MAX_KNOWN_AGES)
        return rule.known_tables(arms, self.plays, ages), place.reshape(n_arms, -1)
