"""Index tables of many arms at once, on NumPy and under JAX, against the solver of one arm."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rmab.arms import Arm, Kind, Moves
from rmab.planning.finite import finite_indices
from rmab.planning.greedy import state_table
from rmab.planning.information import information_indices
from rmab.planning.tables import Model, fill_myopic, fill_whittle
from rmab.planning.walk import information_table

AGES = 16


def many(states: int, count: int, seed: int, *, alike: bool = False) -> tuple[np.ndarray, ...]:
    """passive, active (S, S, B), reward_passive, reward_active (S, B)."""
    rng = np.random.default_rng(seed)
    moves = rng.dirichlet(np.ones(states), (2, states, count))
    passive, active = np.moveaxis(moves, -1, 2)
    idle, pays = rng.random((2, states, count))
    return (passive, passive, 0 * idle, pays) if alike else (passive, active, idle, pays)


def tabled(given: Any, max_age: int) -> Any:
    passive, active, idle, pays = given
    return information_table(passive, active, idle, pays, max_age)


def narrowed(given: Any) -> Any:
    """In single precision, for JAX."""
    return [jnp.asarray(x, jnp.float32) for x in given]


def arm_of(given: tuple[np.ndarray, ...], b: int, observed: str) -> Arm:
    passive, active, idle, pays = (x[..., b] for x in given)
    return Arm(passive, active, reward_passive=idle, reward_active=pays, observed=observed)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("states", [2, 3, 4])
def test_tables_are_the_indices_of_arms_that_settle(states, alike):
    """Ages past the last are never seen, so arms that have settled by then have their indices."""
    given = many(states, 60, states, alike=alike)
    # The middle of each row keeps beliefs near one another: they settle within the ages told apart.
    passive = 0.15 * given[0] + 0.85 * given[0].mean(0, keepdims=True)
    active = passive if alike else given[1]
    given = (passive, active, *given[2:])
    table = tabled(given, 24)
    assert table.shape == (1 + states * 24, 60)
    single = jax.jit(lambda *x: tabled(x, 24))(*narrowed(given))
    compared = 0
    for b in range(60):
        (found,) = information_indices(arm_of(given, b, "when_played"), 24)
        if found.indexable is True:
            compared += 1
            wanted = np.append(np.array(found.never_seen), found.index)
            np.testing.assert_allclose(table[:, b], wanted, atol=1e-7)
            np.testing.assert_allclose(single[:, b], wanted, atol=2e-4)
    assert compared > 40


@pytest.mark.parametrize("states", [2, 3, 6])
def test_tables_of_arms_always_seen(states):
    given = many(states, 80, 7 * states)
    table = state_table(*given)
    single = jax.jit(state_table)(*narrowed(given))
    compared = 0
    for b in range(80):
        found = finite_indices(arm_of(given, b, "always"))
        if found.indexable is True:
            compared += 1
            np.testing.assert_allclose(table[:, b], found.index, atol=1e-5)
            np.testing.assert_allclose(single[:, b], found.index, atol=1e-3)
    assert compared > 60


@pytest.mark.parametrize("states", [2, 3])
def test_tables_are_finite_whatever_is_drawn(states):
    """Rows of zeros and ones, equal rows, states that are never left, equal rewards."""
    rng = np.random.default_rng(states)
    moves = np.eye(states)[rng.integers(states, size=(2, states, 400))]
    passive, active = np.moveaxis(moves, -1, 2)
    idle, pays = rng.integers(0, 2, (2, states, 400)).astype(float)
    given = (passive, active, idle, pays)
    narrow = narrowed(given)
    for table in (
        tabled(given, 5),
        jax.jit(lambda *x: tabled(x, 5))(*narrow),
        state_table(*given),
        jax.jit(state_table)(*narrow),
    ):
        assert np.isfinite(table).all()


def test_an_arm_does_not_notice_its_company():
    given = many(3, 50, 1)
    together = tabled(given, AGES)
    for b in (0, 17, 49):
        alone = tabled([x[..., b : b + 1] for x in given], AGES)
        np.testing.assert_allclose(together[:, b], alone[:, 0], atol=1e-10)


def test_tables_of_several_kinds_stand_in_their_rows():
    small, large = many(2, 2, 3), many(3, 2, 4)
    wide = np.zeros((3, 3, 4, 1)), np.zeros((3, 3, 4, 1)), np.zeros((3, 4, 1)), np.zeros((3, 4, 1))
    kinds = []
    for n in range(4):
        given, always = (small, large)[n % 2], n >= 2
        size = (2, 3)[n % 2]
        kinds.append(Kind(size, always, alike=False))
        for x, y in zip(wide, given, strict=True):
            part = y[..., n // 2]
            x[..., n, 0][(slice(size),) * part.ndim] = part
    model = Model(Moves(wide[0], wide[1]), wide[2], wide[3], tuple(kinds))
    for fill in (fill_whittle, fill_myopic):
        table = fill(model, AGES)
        assert table.shape == (4, 1 + 3 * AGES, 1)
        assert not table[0, 1 + 2 * AGES :].any()
        assert not table[2, 2 : 1 + AGES].any()
    whittle, myopic = (fill(model, AGES)[..., 0] for fill in (fill_whittle, fill_myopic))
    for n, observed in enumerate(["when_played", "when_played", "always", "always"]):
        arm = arm_of((small, large)[n % 2], n // 2, observed)
        gain = arm.reward_active - arm.reward_passive
        if observed == "always":
            rows = 1 + AGES * np.arange(arm.states)
            np.testing.assert_allclose(whittle[n, rows], state_of(arm), atol=1e-8)
            np.testing.assert_allclose(myopic[n, rows], gain)
            continue
        alone = tabled(one(arm), AGES)
        np.testing.assert_allclose(whittle[n, : 1 + arm.states * AGES], alone[:, 0], atol=1e-10)
        for s in range(arm.states):
            for age in (1, 2, 9):
                belief = arm.active[s] @ np.linalg.matrix_power(arm.passive, age - 1)
                assert myopic[n, s * AGES + age] == pytest.approx(belief @ gain)


def state_of(arm: Arm) -> np.ndarray:
    return np.asarray(state_table(*one(arm)))[:, 0]


def one(arm: Arm) -> Any:
    """The arm as a batch of one."""
    return [x[..., None] for x in (arm.passive, arm.active, arm.reward_passive, arm.reward_active)]
