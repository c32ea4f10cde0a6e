"""Random ties: indices that are equal except for rounding are ordered at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax import Array

from rmab.policies.rules.compiled import SlotInputs
from rmab.policies.rules.index import IndexRule
from rmab.policies.rules.index_jax import WrappedIndex
from rmab.policies.rules.rule import Rule

__all__ = ["RandomTiesRule"]

# Relative difference below which indices tie.
_TIE = 1e-5


@dataclass(frozen=True, eq=False)
class RandomTiesRule(Rule):
    """Play the K arms of the largest inner index; ties go to any arm, not to the lower one."""

    inner: IndexRule
    by_arm: ClassVar[bool] = True


class _RandomTies(WrappedIndex):
    def index(self, inputs: SlotInputs) -> Array:
        index = self.inner.index(inputs)
        return index + _TIE * jnp.maximum(jnp.abs(index), 1) * inputs.uniforms(0)


compiled = _RandomTies
