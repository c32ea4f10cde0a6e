"""The engine's trials on NumPy: the same states as the engine's, slot by slot."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab import catalogue
from rmab.engine.environment import SimulatedEnvironment, truth
from rmab.model.arms import Arms, channels
from rmab.model.realisation import RealisedArms
from rmab.rng.variates import CHANNELS, seed_words, stream

SEED, TRIALS, SLOTS = 0x0123_4567_89AB_CDEF, [0, 5, 2**32 - 1], 40
FIVE = channels(
    p01=[0.2, 0.89, 0.1, 0.9, 0], p11=[0.8, 0.17, 0.9, 0.16, 1], reward=[0.4, 0.9, 0.7, 0.6, 1]
)
CASES = {
    "channels": FIVE,
    "few states, moved by plays": Arms(
        [catalogue.adherence(0.3, 0.6, 0.1, 0.05), *FIVE[:2], catalogue.machine(4, 0.3)]
    ),
    "many states": Arms([catalogue.age_of_information(20, 0.8), catalogue.fading(6, 0.3, 0.2)]),
}


@pytest.mark.parametrize("name", CASES)
def test_the_states_are_the_engines(name):
    arms = CASES[name]
    lanes = [0, 3]
    world, there = SimulatedEnvironment(arms.kinds, idle_pay=False), truth(arms)
    key = stream(
        seed_words(SEED), jnp.array(TRIALS, jnp.uint32), jnp.array(lanes)[None, :, None], CHANNELS
    )
    move = jax.jit(lambda state, played, slot: world.advance(key, there, state, played, slot))
    state = jax.jit(lambda: world.start(key, there, len(TRIALS)))()
    realised = RealisedArms(arms, SEED, TRIALS, lanes)
    played = np.random.default_rng(0).random((SLOTS, *realised.states.shape)) < 0.4
    for slot in range(SLOTS):
        assert realised.slot == slot
        np.testing.assert_array_equal(np.transpose(state.astype(int)), realised.states)
        state = move(state, np.transpose(played[slot]), jnp.uint32(slot + 1))
        realised.move(played[slot])


def test_more_slots_than_numbers_made_at_once(monkeypatch):
    whole = RealisedArms(FIVE, 1, [2])
    monkeypatch.setattr("rmab.model.realisation._WORDS", 6)  # two slots of three pairs of arms
    parts = RealisedArms(FIVE, 1, [2])
    for _ in range(7):
        np.testing.assert_array_equal(whole.states, parts.states)
        for arms in (whole, parts):
            arms.move(np.zeros(arms.states.shape, bool))


def test_trials_seeds_and_lanes_differ():
    def states(seed: int, trial: int, lane: int) -> list[int]:
        arms = RealisedArms(FIVE, seed, [trial], [lane])
        found = []
        for _ in range(20):
            found += arms.states.ravel().tolist()
            arms.move(np.zeros(arms.states.shape, bool))
        return found

    several = [states(0, 0, 0), states(1, 0, 0), states(0, 1, 0), states(0, 0, 1)]
    assert len({tuple(each) for each in several}) == 4
    assert several[0] == states(0, 0, 0)
