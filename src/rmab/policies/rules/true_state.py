"""Hindsight: the arms whose true states pay most, which only a recording can tell."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array

from rmab.policies.rules.compiled import CompiledRule, SlotInputs
from rmab.policies.rules.rule import Rule

__all__ = ["TrueStateRule"]


@dataclass(frozen=True)
class TrueStateRule(Rule):
    """Play the K arms whose true states pay most."""


class _TrueState(CompiledRule):
    def choose(self, inputs: SlotInputs) -> Array:
        pays = self.environment.select(inputs.truth.reward_active, inputs.state)
        return inputs.largest(jnp.broadcast_to(pays, inputs.observed.age.shape))


compiled = _TrueState
