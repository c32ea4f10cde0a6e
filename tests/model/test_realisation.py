"""Realisations against the engine's states, and simulated arms against their chains."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab import ModelError, catalogue
from rmab.engine.environment import SimulatedEnvironment, truth
from rmab.model.arms import Arm, Arms, channels
from rmab.model.realisation import RealisedArms, SimulatedArms
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

PAPER = channels(p01=[0.2, 0.89, 0.1, 0.9], p11=[0.8, 0.17, 0.9, 0.16], reward=[0.4, 0.9, 0.7, 0.6])


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


def test_the_first_slot_follows_the_limiting_distribution():
    runs = 2000
    good = np.mean([SimulatedArms(PAPER, seed).sense([0, 1, 2, 3]) for seed in range(runs)], 0)
    b0 = PAPER.p01 / (PAPER.p01 + 1 - PAPER.p11)
    assert np.all(np.abs(good - b0) < 4 * np.sqrt(b0 * (1 - b0) / runs))


@pytest.mark.parametrize(
    ("matrix", "expected"),
    [
        ([[0.0, 1.0], [1.0, 0.0]], [0.5, 0.5]),  # a period of two
        ([[1.0, 0.0], [0.0, 1.0]], [0.5, 0.5]),  # two classes
        ([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [0, 8 / 15, 7 / 15]),
    ],
)
def test_the_first_slot_of_arms_that_do_not_forget(matrix, expected):
    arms, runs = Arms([Arm(matrix, reward=np.arange(len(expected)))]), 2000
    first = [SimulatedArms(arms, seed).sense([0])[0] for seed in range(runs)]
    share = np.bincount(first, minlength=len(expected)) / runs
    error = np.sqrt(np.array(expected) * (1 - np.array(expected)) / runs)
    assert np.all(np.abs(share - expected) <= 4 * error)


def test_arms_move_by_their_transitions_seen_or_not():
    arms, slots = SimulatedArms(PAPER, seed=5), 20_000
    seen = np.array([arms.sense([0, 1, 2, 3]) for _ in range(slots)])
    for n in range(4):
        for state, chance in ((0, PAPER.p01[n]), (1, PAPER.p11[n])):
            ahead = seen[1:, n][seen[:-1, n] == state]
            error = np.sqrt(chance * (1 - chance) / len(ahead))
            assert abs(ahead.mean() - chance) < 4 * error
    # Looks two slots apart follow the square of the matrix.
    p2 = (PAPER.passive[0] @ PAPER.passive[0])[0, 1]
    arms = SimulatedArms(PAPER, seed=6)
    seen_0 = np.array([arms.sense([0] if slot % 2 == 0 else [1])[0] for slot in range(slots)])[::2]
    ahead = seen_0[1:][seen_0[:-1] == 0]
    assert abs(ahead.mean() - p2) < 4 * np.sqrt(p2 * (1 - p2) / len(ahead))


def test_a_play_moves_an_arm_by_its_active_matrix():
    stays, flips = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]
    arms = SimulatedArms(Arms([Arm(stays, flips, reward=[0, 1]), Arm(stays, reward=[0, 1])]), 0)
    first = arms.sense([0])[0]
    assert arms.sense([0])[0] == 1 - first
    assert arms.sense([1])[0] == arms.sense([1])[0]  # left alone, the first stays as it came out
    assert arms.sense([0])[0] == first


def test_arms_of_several_sizes_stay_within_their_states():
    three = Arm([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]], reward=[0.0, 0.5, 1.0])
    arms = SimulatedArms(Arms([*PAPER[:1], three]), 3)
    seen = np.array([arms.sense([0, 1]) for _ in range(3000)])
    assert set(seen[:, 0]) == {0, 1}
    assert set(seen[:, 1]) == {0, 1, 2}


def test_what_a_slot_paid():
    arms = SimulatedArms(PAPER, 1)
    for _ in range(20):
        states = arms.sense([0, 2])
        assert arms.paid() == pytest.approx(0.4 * states[0] + 0.7 * states[1])


def test_the_same_seed_gives_the_same_arms():
    one, two, other = (SimulatedArms(PAPER, seed) for seed in ([7, 1], [7, 1], [7, 2]))
    seen = [[arms.sense([0, 1, 2, 3]) for _ in range(50)] for arms in (one, two, other)]
    assert seen[0] == seen[1] != seen[2]


def test_an_arm_that_does_not_exist_is_refused():
    with pytest.raises(ModelError, match="from 0 to 3, got 4"):
        SimulatedArms(PAPER, 0).sense([4])
