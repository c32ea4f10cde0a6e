"""Policies on a recording: the engine's programs with true states that were measured.

A recording takes the place of simulated arms (`rmab.engine.world.RecordedWorld`). All else is as in
a simulation: the agents, their memory and counts, the episodes of a learner, the random numbers of
a trial. Trials, here runs, differ in their draws: they share the recording, or each has its own.

The true dynamics of a recording are unknown. A policy that knows dynamics is given transition
matrices that were fitted, for each agent, and perhaps for each segment.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rmab.engine.agents import agents_of
from rmab.engine.montecarlo import setting_of
from rmab.engine.program import simulator, world_of
from rmab.engine.setting import Fitted, Guide, Setting
from rmab.engine.world import Recording, truth
from rmab.errors import ModelError
from rmab.model.arms import Arm, Arms, Moves
from rmab.policies.filling import MAX_KNOWN_AGES, KnownTables, known_tables
from rmab.policies.policy import IndexRule, Policy
from rmab.rng.variates import seed_words

__all__ = ["Laws", "Replay"]

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Laws:
    """Fitted dynamics, G of them for each agent.

    steps: (S, S, N, G, M or 1, R or 1) chances of the next state; which: (T,) the one of each slot.
    """

    steps: Floats
    which: npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Replay:
    """Recording and setting of a back-test.

    arms: their kinds and rewards, and any dynamics; setting: with as many windows as the recording.
    """

    arms: Arms
    plays: int
    setting: Setting
    recording: Recording
    seed: int = 0

    def rewards(self, policy: Policy, laws: Laws | None, first: int, count: int) -> Floats:
        """What the runs first, first + 1, ... earned: (W windows, M agents, count).

        laws: what a policy that knows the dynamics plays by; None for all others.
        """
        setting = setting_of(self.setting, policy)
        guide = None if laws is None else self._guide(setting, policy, laws)
        # The sets of K arms are part of some programs; K is an argument of the others.
        plays = self.plays if policy.fixes_plays else None
        program = simulator(setting, policy, count, guide, plays, self.recording)
        runs = jnp.arange(first, first + count, dtype=jnp.uint32)
        world = truth(self.arms)._replace(recorded=self.recording)
        out = program(seed_words(self.seed), runs, world, jnp.int32(self.plays), guide)
        return np.asarray(out.rewards, np.float64)

    def _guide(self, setting: Setting, policy: Policy, laws: Laws) -> Guide:
        """The plans of a policy that knows these laws."""
        which = jnp.asarray(laws.which, jnp.int32)
        shape = laws.steps.shape[3:]  # G, M or 1, R or 1

        def apart(plan: Any) -> Any:
            """(..., G M R) to (G, ..., M, R)."""
            return jnp.moveaxis(plan.reshape(*plan.shape[:-1], *shape), -3, 0)

        if setting.channels:
            agents = agents_of(setting, policy, world_of(setting), self.plays)
            steps = jnp.asarray(laws.steps, jnp.float32).reshape(*laws.steps.shape[:3], -1)
            filled = agents.fill(Moves(steps, steps), truth(self.arms))  # (N, ..., 1, G M R)
            plan = jax.tree.map(lambda x: apart(x[..., 0, :]), filled)
            return Fitted(plan, which, agents.wraps(None))
        if not isinstance(policy.rule, IndexRule):
            raise ModelError(
                f"policy {policy.name}: on a trace it is for arms of two states that pay in one"
            )
        known, place = self._tables(policy, laws)
        tables = jnp.asarray(np.moveaxis(known.tables[place], 1, -1), jnp.float32)
        # Every step has a chance, so no law swings: ages past the tables' are the same for all.
        return Fitted(apart(tables), which, jnp.asarray(known.wraps[place[:, 0]], jnp.int32))

    def _tables(self, policy: Policy, laws: Laws) -> tuple[KnownTables, npt.NDArray[np.intp]]:
        """Tables of the laws that differ, and the place (N, G M R) of each among them."""
        S, _, n_arms = laws.steps.shape[:3]
        steps = np.moveaxis(laws.steps, (0, 1), (-2, -1)).reshape(n_arms, -1, S * S)
        pays = np.broadcast_to(self.arms.reward_active[:, None], (*steps.shape[:2], S))
        rows = np.concatenate([steps, pays], -1).reshape(-1, S * S + S)
        differing, place = np.unique(rows, axis=0, return_inverse=True)
        arms = Arms([Arm(row[: S * S].reshape(S, S), reward=row[S * S :]) for row in differing])
        ages = min(self.setting.horizon, MAX_KNOWN_AGES)
        return known_tables(policy, arms, self.plays, ages), place.reshape(n_arms, -1)
