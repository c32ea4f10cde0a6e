"""Turns in JAX programs."""

from __future__ import annotations

from typing import Any

from jax import Array

from rmab.policies.rules.compiled import Scene, SlotInputs
from rmab.policies.rules.dynamics import LearnedArms, channel_pair
from rmab.policies.rules.index_jax import IndexFormula
from rmab.policies.rules.turns import TurnsRule, WaitingTurnsRule, take_turns

__all__ = ["compiled", "fill"]


class _Turns(IndexFormula):
    def filled(self, learnt: LearnedArms) -> Any:
        return channel_pair(learnt.output)[1]

    def formula(self, inputs: SlotInputs, rewards: Array) -> Array:  # noqa: ARG002 - turns
        index: Array = take_turns(inputs.plan > 0, inputs.observed)
        return index


class _WaitingTurns(_Turns):
    def choose(self, inputs: SlotInputs) -> Array:
        in_play: Array = (inputs.plan > 0).any(0)
        return super().choose(inputs) & in_play


_COMPILED = {TurnsRule: _Turns, WaitingTurnsRule: _WaitingTurns}


def compiled(rule: TurnsRule, scene: Scene) -> _Turns:
    """Return the rule as part of a program."""
    return _COMPILED[type(rule)](rule, scene)


def fill(rule: TurnsRule, name: str, learnt: LearnedArms, plays: int, max_age: int) -> Array:  # noqa: ARG001
    """Return which arms are in play, (N, trials): 1, else 0."""
    in_play: Array = channel_pair(learnt.output)[1]
    return in_play
