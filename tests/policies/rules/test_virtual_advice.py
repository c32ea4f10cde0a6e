"""A rule from outside: virtual advice, which plays by arms that it simulates itself."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import rmab
from rmab.model.arms import Arms
from rmab.policies.constraint import Constraint
from rmab.policies.own_index import Observations
from rmab.policies.rules.compiled import CompiledRule, Scene, SlotInputs
from rmab.policies.rules.rule import Rule
from rmab.rng.variates import Key, threefry, unit

ARMS = rmab.channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])


class Advice(NamedTuple):
    """Relaxed policy: (2, N, 1, 1) each, by virtual state."""

    good: jax.Array  # chance that the next state is good
    play: jax.Array  # chance that a play is advised


@dataclass(frozen=True)
class VirtualAdviceRule(Rule):
    """Play the arms that a relaxed policy plays in virtual copies, which meet arms when played."""

    def compiled(self, scene: Scene) -> CompiledRule:
        return _VirtualAdvice(self, scene)


class _VirtualAdvice(CompiledRule):
    def known(self, arms: Sequence[Arms], constraint: Constraint) -> Advice:
        """Spend K plays on average on the pairs of arm and state that pay most."""
        (all_arms,) = arms
        good = np.stack([all_arms.p01, all_arms.p11])  # (2, N)
        often = all_arms.p01 / (all_arms.p01 + 1 - all_arms.p11)
        share = np.stack([1 - often, often]).ravel()
        play, left = np.zeros(share.size), constraint.relaxed
        for place in np.argsort(-np.outer([0, 1], all_arms.reward), axis=None).tolist():
            play[place] = min(1.0, left / share[place])
            left -= float(play[place] * share[place])
        both = good, play.reshape(good.shape)
        return Advice(*(jnp.asarray(x, jnp.float32)[..., None, None] for x in both))

    def init(self, known: Advice, key: Key, n_trials: int) -> jax.Array:
        """All virtual arms are bad at first."""
        return jnp.zeros((len(ARMS), self.setting.n_agents, n_trials), bool)

    def choose(self, inputs: SlotInputs) -> jax.Array:
        virtual, first = inputs.memory, inputs.uniforms(0)
        advised = inputs.uniforms(1) < jnp.where(virtual, inputs.plan.play[1], inputs.plan.play[0])
        return inputs.largest(first + advised)

    def step(self, inputs: SlotInputs, seen: Observations) -> Any:
        arm = jnp.arange(len(ARMS), dtype=jnp.uint32)[:, None, None] + (1 << 16)  # its own stream
        uniform = unit(threefry(inputs.key, inputs.slot.astype(jnp.uint32), arm)[0])
        good, state = inputs.plan.good, jnp.where(seen.observed, seen.state, inputs.memory)
        return uniform < jnp.where(state, good[1], good[0])


def test_a_rule_from_outside_plays_beside_others_on_the_same_trials():
    mine = rmab.Policy("virtual-advice", rule=VirtualAdviceRule())
    study = rmab.Study(ARMS, agents=2, plays=2, horizon=200, trials=96, policies=["whittle", mine])
    both = rmab.run(study)
    others = rmab.run(replace(study, policies=["whittle", "random"]), batch=32)
    np.testing.assert_array_equal(both["whittle"].slots.mean, others["whittle"].slots.mean)
    assert others["random"].mean + 0.02 < both["virtual-advice"].mean < both["whittle"].mean
