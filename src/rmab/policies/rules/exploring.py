"""Explore first: arms that the learner names are played before all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from rmab.model.arms import Moves
from rmab.policies.rules.compiled import Scene, SlotInputs
from rmab.policies.rules.dynamics import ExploringDynamics, LearnedArms
from rmab.policies.rules.index import IndexRule
from rmab.policies.rules.index_jax import WrappedIndex
from rmab.policies.rules.rule import Rule

__all__ = ["ExploringRule"]


@dataclass(frozen=True, eq=False)
class ExploringRule(Rule):
    """Play the arms of `ExploringDynamics.first`, then those of the largest inner index."""

    inner: IndexRule
    by_arm: ClassVar[bool] = True

    def compiled(self, scene: Scene) -> WrappedIndex:
        """Return the rule as part of a program."""
        return _Exploring(self, scene)


class _Exploring(WrappedIndex):
    def like(self, moves: Moves) -> ExploringDynamics:
        return ExploringDynamics(moves, jnp.zeros(moves.passive.shape[2:], bool))

    def filled(self, learnt: LearnedArms) -> Any:
        assert isinstance(learnt.output, ExploringDynamics)
        moves, first = learnt.output
        return self.inner.filled(learnt._replace(output=moves)), first

    def index(self, inputs: SlotInputs) -> Array:
        plan, first = inputs.plan
        return jnp.where(first, jnp.inf, self.inner.index(inputs._replace(plan=plan)))
