"""Joint plans: the joint optimum of learnt dynamics, planned anew in every episode.

A plan for all arms together is made for a few trials at once, over all joint codes as an array with
an axis for each arm. K is part of the program, as the sets of K arms are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from rmab.model.arms import Intervals
from rmab.planning.joint.chain import Layout, joint_code
from rmab.planning.joint.joint_plan import JointSpace, bounded_arms, drawn_arms, joint_plan
from rmab.policies.rules.compiled import CompiledRule, Scene, SlotInputs
from rmab.policies.rules.dynamics import LearnedArms
from rmab.policies.rules.rule import Rule

__all__ = ["JointRule", "OptimisticJointRule"]

# Trials planned at once, of which a few fill a core.
_PLANNED = 16
# Codes x trials of joint plans made at once on an accelerator.
_PLANNED_ELEMENTS = 1 << 26


@dataclass(frozen=True)
class JointRule(Rule):
    """Play the joint optimum of a learner's dynamics: `rmab.planning.joint.joint_plan`.

    ages: highest age that is distinguished; accuracy: of the average reward, as a part
    of the largest reward.
    """

    ages: int
    accuracy: float = 5e-3

    fixes_plays: ClassVar[bool] = True
    # Two programs at once keep what their loops used until they end: gigabytes.
    serial: ClassVar[bool] = True


@dataclass(frozen=True)
class OptimisticJointRule(JointRule):
    """Play the best that a learner's `rmab.model.arms.Intervals` allow, to their own accuracy."""

    estimates: ClassVar[bool] = False


class _Joint(CompiledRule):
    light = False

    def __init__(self, rule: JointRule, scene: Scene) -> None:
        super().__init__(rule, scene)
        assert scene.constraint is not None
        self.space = JointSpace(scene.setting.kinds, scene.constraint.plays, rule.ages)

    def served_at_once(self, n_trials: int, few: int) -> int:  # noqa: ARG002 - it is never quick
        if jax.default_backend() == "cpu":
            return min(n_trials, _PLANNED)
        return min(n_trials, max(1, _PLANNED_ELEMENTS // self.space.size))

    def filled(self, learnt: LearnedArms) -> Any:
        idle, pays = learnt.idle_pays, learnt.pays
        if isinstance(learnt.output, Intervals):
            arms, accuracy = bounded_arms(learnt.output, idle, pays), learnt.output.accuracy
        else:
            arms = drawn_arms(learnt.model(self.scene.name), self.space)
            accuracy = self.rule.accuracy * jnp.maximum(jnp.abs(idle).max(), jnp.abs(pays).max())
        return joint_plan(arms, self.space, accuracy).actions

    def choose(self, inputs: SlotInputs) -> Array:
        layout = Layout(*(jnp.asarray(x) for x in self.space.layout))
        seen = self.environment.shown(inputs.state, inputs.observed.last_seen)
        code = joint_code(seen.astype(jnp.int32), inputs.observed.age, layout)  # (M, R)
        drawers, n_trials = inputs.plan.shape[1:]
        agent = jnp.arange(code.shape[0])[:, None] if drawers > 1 else 0
        action = inputs.plan[code, agent, jnp.arange(n_trials)]
        played = jnp.moveaxis(jnp.asarray(self.space.subsets)[action], -1, 0)
        return played if inputs.playable is None else played & inputs.playable


compiled = _Joint
