"""Explore first: arms that the learner names are played before all others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
from jax import Array

from rmab.policies.rules.compiled import SlotInputs
from rmab.policies.rules.dynamics import LearnedArms, channel_pair, matrices
from rmab.policies.rules.index import IndexRule
from rmab.policies.rules.index_jax import WrappedIndex
from rmab.policies.rules.rule import Rule

__all__ = ["ExploringRule"]


@dataclass(frozen=True, eq=False)
class ExploringRule(Rule):
    """Play the arms of `ExploringDynamics.first`, then those of the largest inner index."""

    inner: IndexRule
    by_arm: ClassVar[bool] = True


class _Exploring(WrappedIndex):
    def filled(self, learnt: LearnedArms) -> Any:
        first = getattr(learnt.output, "first", None)
        if first is None:  # before the first episode
            first = jnp.zeros(channel_pair(learnt.output)[0].shape, bool)
        return self.inner.filled(learnt._replace(output=matrices(learnt.output))), first

    def index(self, inputs: SlotInputs) -> Array:
        plan, first = inputs.plan
        return jnp.where(first, jnp.inf, self.inner.index(inputs._replace(plan=plan)))


compiled = _Exploring
