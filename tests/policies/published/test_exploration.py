"""Restless-UCB's optimistic steps and exploration; DSEE's blocks against a loop over them."""

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.learning.evidence import Evidence
from rmab.model.arms import CHANNEL, ArmKind, Moves
from rmab.policies.published.dsee import block_arms, block_explores, block_slots
from rmab.policies.published.restless_ucb import (
    explored_arms,
    raised_steps,
    slots_to_explore,
    steps_wanted,
)
from rmab.rng.variates import DRAWS, Draws, seed_words, stream
from tests.oracles.dsee import dsee_block

LEVELS = ArmKind(4, fully_observed=False, action_dependent=False)
# Steps of an arm that goes one level up or down, and of a channel beside it.
STEPS = np.zeros((4, 4, 2), np.float32)
STEPS[:, :, 0] = [[6, 4, 0, 0], [3, 5, 2, 0], [0, 4, 4, 2], [0, 0, 3, 7]]
STEPS[:2, :2, 1] = [[7, 3], [1, 4]]


def evidence(steps: np.ndarray, kinds: tuple[ArmKind, ...], plays: int = 1, agents=1) -> Evidence:
    counts = jnp.asarray(steps, jnp.float32)[None, ..., None]
    unread = jnp.zeros(0)
    visits = jnp.zeros((*steps.shape[1:], 1))
    return Evidence(counts, visits, jnp.ones(1), unread, unread, jnp.int32(plays), agents, kinds)


UNREAD = Draws(stream(seed_words(5), jnp.arange(1), jnp.uint32(0), DRAWS), jnp.ones(1, jnp.int32))


def raised(radius: float, steps: np.ndarray = STEPS) -> Moves:
    return raised_steps(evidence(steps, (LEVELS, CHANNEL)), UNREAD, radius=radius)


def test_the_radius_goes_one_level_up():
    rows = np.asarray(raised(0.1).active)[..., 0]
    expected = [[0.5, 0.5, 0, 0], [0.2, 0.5, 0.3, 0], [0, 0.3, 0.4, 0.3], [0, 0, 0.2, 0.8]]
    np.testing.assert_allclose(rows[..., 0], expected, atol=1e-6)
    np.testing.assert_allclose(rows[:2, :2, 1], [[0.6, 0.4], [0.1, 0.9]], atol=1e-6)


@pytest.mark.parametrize("radius", [0.0, 0.05, 0.25, 0.6, 2.0])
def test_rows_stay_laws_and_rise_with_the_radius(radius):
    """No mass is taken that is not there."""
    less, more = (np.asarray(raised(r).active)[..., 0] for r in (radius, radius + 0.1))
    for n, size in ((0, 4), (1, 2)):
        low, high = less[:size, :size, n], more[:size, :size, n]
        assert (low >= 0).all()
        np.testing.assert_allclose(low.sum(1), 1, atol=1e-6)
        assert (np.cumsum(high, 1) <= np.cumsum(low, 1) + 1e-6).all()


def test_rows_without_a_step_are_uniform_over_the_states_an_arm_has():
    rows = raised(0.0, 0 * STEPS).passive
    np.testing.assert_allclose(rows[:, :, 0, 0], 0.25)
    np.testing.assert_allclose(rows[:2, :, 1, 0], [[0.5, 0.5, 0, 0]] * 2)


def test_steps_wanted_are_a_power_of_the_horizon():
    assert steps_wanted(5000) == 293  # floor(5000^(2/3)) + 1
    assert [steps_wanted(T**3) for T in (3, 5, 10, 15, 100)] == [10, 26, 101, 226, 10_001]
    assert steps_wanted(1000, 0.25) == 26
    assert steps_wanted(1000, 1, 0.5) == 32


def test_the_lowest_arms_of_which_too_little_was_seen_are_explored():
    steps = np.zeros((2, 2, 4), np.float32)
    steps[:, :, 0] = 5  # ten from each state
    steps[0, 0, 1], steps[1, 1, 1] = 10, 7
    steps[:, :, 2] = 9
    kinds = (CHANNEL,) * 4

    def seen(plays: int, agents: float = 1) -> tuple[list[int], int]:
        given = evidence(steps, kinds, plays, agents)
        arms = np.flatnonzero(np.asarray(explored_arms(given, 10))[:, 0])
        return arms.tolist(), int(slots_to_explore(given, None, wanted=10, horizon=1000)[0])

    assert seen(1) == ([1], 3)
    assert seen(2) == ([1, 3], 3)  # of arm 3 twenty are missing
    assert seen(3) == ([0, 1, 3], 3)  # a finished one fills up
    assert seen(1, agents=2) == ([1], 2)
    done = evidence(steps + 10, kinds)
    assert not np.asarray(explored_arms(done, 10)).any()
    assert int(slots_to_explore(done, None, wanted=10, horizon=1000)[0]) == 1000


@pytest.mark.parametrize(
    ("plays", "agents", "exploration"), [(2, 1, 5.0), (3, 4, 20.0), (5, 2, 1.0)]
)
def test_blocks_of_exploration_and_the_best_means_between_them(plays, agents, exploration):
    """In every one of 600 slots, as trials beside one another."""
    n_arms, horizon = 5, 600
    visits = np.random.default_rng(plays).integers(0, 9, (2, n_arms, horizon))
    visits[:, 1] = 0  # never played: its mean counts as 0
    pays = np.stack([np.zeros(n_arms), [0.917, 1.0, 0.433, 0.801, 0.611]])[..., None]
    unread = jnp.zeros(0)
    given = Evidence(
        unread,
        jnp.asarray(visits, jnp.float32),
        jnp.ones(horizon),
        jnp.asarray(pays, jnp.float32),
        unread,
        jnp.int32(plays),
        agents,
        (CHANNEL,) * n_arms,
        slot=jnp.arange(horizon, dtype=jnp.int32),
    )
    found = block_arms(given, UNREAD, exploration=exploration, horizon=horizon)
    arms, same = (np.asarray(each) for each in found)
    explores = np.asarray(block_explores(given, None, exploration=exploration, horizon=horizon))
    slots = np.asarray(block_slots(given, None, exploration=exploration, horizon=horizon))
    assert 0 < explores.sum() < horizon
    np.testing.assert_array_equal(arms, same)
    for slot in range(horizon):
        group, left = dsee_block(slot, n_arms, plays, agents, exploration)
        assert explores[slot] == (group is not None)
        assert slots[slot] == min(left, horizon)
        if group is None:
            bad, good = visits[:, :, slot]
            mean = pays[1, :, 0] * good / np.maximum(bad + good, 1)
            group = set(np.argsort(-mean, kind="stable")[:plays].tolist())
        assert set(np.flatnonzero(arms[:, slot]).tolist()) == group
