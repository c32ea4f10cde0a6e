"""Environments are given to a program: one from outside takes the place of simulated arms."""

import jax
import jax.numpy as jnp
import numpy as np

from rmab.engine.environment import SimulatedEnvironment, truth
from rmab.engine.program import simulator
from rmab.engine.setting import Setting
from rmab.model.arms import channels
from rmab.policies.registry import named
from rmab.rng.variates import seed_words

ARMS = channels([0.2, 0.89, 0.1], [0.8, 0.17, 0.9], [0.4, 0.9, 0.7])


class EverySecondSlot(SimulatedEnvironment):
    """Arms that can be played in slots 0, 2, 4, ..."""

    def playable(self, truth, slot) -> jax.Array:
        return jnp.broadcast_to(slot % 2 == 0, (self.n_arms, 1, 1))


def test_a_program_plays_in_the_environment_that_it_is_given():
    setting, policy = Setting.of(ARMS, 2, 40), named("whittle", 40)
    trials = jnp.arange(32, dtype=jnp.uint32)
    arguments = seed_words(1), trials, truth(ARMS), jnp.int32(1), None
    night = EverySecondSlot(setting.kinds, setting.idle_pay)
    rewards = np.asarray(simulator(setting, policy, 32, environment=night)(*arguments).rewards)
    assert (rewards[1::2] == 0).all()
    assert (rewards[::2].mean(1) > 0).all()
    plain = np.asarray(simulator(setting, policy, 32)(*arguments).rewards)
    np.testing.assert_array_equal(rewards[0], plain[0])
    assert (plain[1::2].mean(1) > 0).all()


def test_environments_of_equal_parts_are_equal():
    kinds = ARMS.kinds
    assert SimulatedEnvironment(kinds, False) == SimulatedEnvironment(kinds, False)
    assert SimulatedEnvironment(kinds, False) != SimulatedEnvironment(kinds, True)
    assert SimulatedEnvironment(kinds, False) != EverySecondSlot(kinds, False)
