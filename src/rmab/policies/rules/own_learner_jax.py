"""Learners with their own state in JAX programs."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from rmab.policies.own_index import Now, Observations, index_now, looked
from rmab.policies.rules.compiled import CompiledRule, SlotInputs, computed_once
from rmab.rng.variates import Key

__all__ = ["compiled"]


class _OwnIndex(CompiledRule):
    def init(self, known: Any, key: Key, n_trials: int) -> Any:  # noqa: ARG002 - nothing is drawn
        setting = self.setting
        shape = (setting.n_arms, setting.n_agents, n_trials)
        return jax.tree.map(jnp.asarray, self.rule.own.init(setting.n_states, shape))

    def look(self, inputs: SlotInputs) -> SlotInputs:
        memory = looked(self.rule.own, inputs.memory, partial(self._now, inputs))
        return inputs._replace(memory=memory)

    def choose(self, inputs: SlotInputs) -> Array:
        now = partial(self._now, inputs)
        index = computed_once(
            inputs, lambda: index_now(self.rule.own, inputs.memory, inputs.slot, now)
        )
        return inputs.largest(index)

    def step(self, inputs: SlotInputs, seen: Observations) -> Any:
        return self.rule.own.update(inputs.memory, seen)

    def _now(self, inputs: SlotInputs) -> Now:
        state, age = self.states(inputs)
        stepped = jnp.broadcast_to(self.environment.always & (inputs.slot > 0), age.shape)
        uniforms = jnp.stack([inputs.uniforms(0), inputs.uniforms(1)])
        return Now(state, age, stepped, inputs.slot, uniforms)


compiled = _OwnIndex
