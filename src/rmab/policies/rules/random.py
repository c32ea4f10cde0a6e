"""Random plays: any K arms are as likely as any others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from rmab.policies.rules.compiled import CompiledRule, Scene, SlotInputs
from rmab.policies.rules.rule import Rule

__all__ = ["RandomRule"]


@dataclass(frozen=True)
class RandomRule(Rule):
    """Play K arms at random."""

    draws: ClassVar[bool] = True

    def compiled(self, scene: Scene) -> CompiledRule:
        """Return the rule as part of a program."""
        return _Random(self, scene)


class _Random(CompiledRule):
    def choose(self, inputs: SlotInputs) -> Array:
        return inputs.largest(inputs.uniforms(0))
