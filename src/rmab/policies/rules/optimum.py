"""Oracle: the exact joint optimum of known arms decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array

from rmab.errors import TooLargeError
from rmab.model.arms import Arms
from rmab.planning.joint.chain import Layout, joint_code
from rmab.planning.joint.optimum import Optimum, optimal
from rmab.policies.constraint import Constraint
from rmab.policies.rules.compiled import CompiledRule, SlotInputs
from rmab.policies.rules.rule import Rule

__all__ = ["JointLookup", "OptimumRule"]


@dataclass(frozen=True)
class OptimumRule(Rule):
    """Play the exact joint optimum of known arms: `rmab.planning.joint.optimum`."""

    optimal: ClassVar[bool] = True


class JointLookup(NamedTuple):
    """The joint optimum of an agent as a lookup.

    actions: (codes,) the row of `subsets` to play; subsets: (A, N) bool; layout: of joint codes.
    """

    actions: Array
    subsets: Array
    layout: Layout

    @classmethod
    def of(cls, optimum: Optimum) -> JointLookup:
        """Return the lookup of a solved problem."""
        actions = jnp.asarray(optimum.actions, jnp.int32)
        caps, wraps, strides = (jnp.asarray(x, jnp.int32) for x in optimum.layout[:3])
        layout = Layout(caps, wraps, strides, jnp.asarray(optimum.layout.always, bool))
        return cls(actions, jnp.asarray(optimum.subsets, bool), layout)

    def decided(self, seen: Array, age: Array) -> Array:
        """Return the mask (N, M, R) of arms played in joint information states."""
        code = joint_code(seen.astype(jnp.int32), age, self.layout)  # (M, R)
        return jnp.moveaxis(self.subsets[self.actions[code]], -1, 0)


class _Optimum(CompiledRule):
    def known(self, arms: Sequence[Arms], constraint: Constraint) -> Any:
        """Return the optimum of all agents, or a tuple with that of each; or TooLargeError."""
        try:
            solved = {id(one): JointLookup.of(optimal(one, constraint.plays)) for one in arms}
        except TooLargeError as error:
            text = f"policies: 'optimal' is too large: {error}"
            raise TooLargeError(text, error.states) from None
        each = tuple(solved[id(one)] for one in arms)
        return each[0] if len(each) == 1 else each

    def choose(self, inputs: SlotInputs) -> Array:
        plan, age = inputs.plan, inputs.observed.age
        seen = self.environment.shown(inputs.state, inputs.observed.last_seen)
        if isinstance(plan, JointLookup):
            return plan.decided(seen, age)
        seen = jnp.broadcast_to(seen, age.shape)
        by_agent = [
            own.decided(seen[:, m : m + 1], age[:, m : m + 1]) for m, own in enumerate(plan)
        ]
        return jnp.concatenate(by_agent, 1)


compiled = _Optimum
