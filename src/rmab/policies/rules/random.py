"""Random plays: any K arms are as likely as any others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from rmab.policies.rules.compiled import CompiledRule, SlotInputs
from rmab.policies.rules.rule import Rule

__all__ = ["RandomRule"]


@dataclass(frozen=True)
class RandomRule(Rule):
    """Play K arms at random."""

    draws: ClassVar[bool] = True


class _Random(CompiledRule):
    def choose(self, inputs: SlotInputs) -> Array:
        return inputs.largest(inputs.uniforms(0))


compiled = _Random
