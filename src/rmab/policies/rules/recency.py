"""Recency: arms that were observed longest ago are played; nothing is learnt."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jax import Array

from rmab.model.information import NEVER
from rmab.policies.rules.compiled import CompiledRule, SlotInputs
from rmab.policies.rules.dynamics import wide
from rmab.policies.rules.rule import Rule

__all__ = ["AgeRule"]

# A float above all ages.
_OLDEST = np.finfo(np.float32).max


@dataclass(frozen=True)
class AgeRule(Rule):
    """Play arms that were never observed, then those that were observed longest ago.

    stays: before them an arm that was observed one slot ago in the state that pays most, so that
    an arm is left only when it is no longer good.
    """

    stays: bool


class _Recency(CompiledRule):
    def choose(self, inputs: SlotInputs) -> Array:
        age, environment = inputs.observed.age, self.environment
        index = jnp.where(age == NEVER, _OLDEST, age.astype(jnp.float32))
        if self.rule.stays:
            seen = environment.shown(inputs.state, inputs.observed.last_seen)
            recent = (age == 1) | environment.always if environment.any_always else age == 1
            good = self._best_states(inputs.truth.reward_active)
            index = jnp.where(recent & (seen == good), jnp.inf, index)
        return inputs.largest(index)

    def _best_states(self, rewards: Array) -> Array:
        """Return the state of each arm that pays most, the highest of equals, (N, M or 1, 1)."""
        setting = self.setting
        sizes = jnp.array([kind.states for kind in setting.kinds])
        state = jnp.arange(setting.n_states)[:, None]
        there = state < sizes
        there = there[..., None] if setting.rewards_differ else there
        pays = jnp.where(there, rewards, -jnp.inf)
        best = setting.n_states - 1 - pays[::-1].argmax(0)
        found: Array = wide(best).astype(self.environment.state_type)
        return found


compiled = _Recency
