"""Finite chains in the long run against powers of their matrices."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rmab.markov import (
    forgets,
    limit,
    limiting_distribution,
    limiting_distributions,
    period,
    recurrent,
    stationary,
)

CASES: dict[str, Any] = {
    "irreducible": [[0.9, 0.1, 0], [0.5, 0, 0.5], [0.2, 0.3, 0.5]],
    "two classes": [[1, 0, 0], [0, 1, 0], [0.3, 0.3, 0.4]],
    "period 2, and a transient state": [[0, 1, 0], [1, 0, 0], [0.5, 0, 0.5]],
    "period 3": [[0, 1, 0], [0, 0, 1], [1, 0, 0]],
    "frozen": np.eye(3),
    "ends in one state": [[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1]],
    "seldom moves": [[1 - 1e-9, 1e-9, 0], [2e-9, 1 - 3e-9, 1e-9], [0, 1e-9, 1 - 1e-9]],
}


def averaged(P):
    """The Cesaro limit as a power of the lazy chain."""
    power = (np.eye(len(P)) + P) / 2
    for _ in range(60):
        power = power @ power
        power /= power.sum(1, keepdims=True)
    return power


@pytest.mark.parametrize("name", CASES)
def test_the_limit_is_the_mean_over_slots(name):
    P = np.array(CASES[name], float)
    np.testing.assert_allclose(limit(P), averaged(P), atol=1e-7)
    np.testing.assert_allclose(limiting_distribution(P), averaged(P).mean(0), atol=1e-7)


def test_limiting_distributions_of_many_chains():
    passive = np.stack([np.array(case, float) for case in CASES.values()], -1)
    expected = np.stack([limiting_distribution(passive[..., b]) for b in range(len(CASES))], -1)
    np.testing.assert_allclose(limiting_distributions(passive), expected, atol=1e-12)
    passive, expected = passive[..., :-1], expected[..., :-1]  # a float32 takes it for frozen
    single = np.asarray(limiting_distributions(jnp.asarray(passive, jnp.float32)))
    np.testing.assert_allclose(single, expected, atol=1e-5)


def test_a_stationary_distribution_keeps_small_chances():
    P = np.array([[1 - 1e-200, 1e-200], [0.5, 0.5]])
    assert stationary(P)[1] == pytest.approx(2e-200, rel=1e-12)


@pytest.mark.parametrize(
    ("name", "classes", "cycle", "forgotten"),
    [
        ("irreducible", [0, 0, 0], 1, True),
        ("two classes", [0, 1, -1], 1, False),
        ("period 2, and a transient state", [0, 0, -1], 2, False),
        ("period 3", [0, 0, 0], 3, False),
        ("frozen", [0, 1, 2], 1, False),
        ("ends in one state", [-1, -1, 0], 1, True),
        ("seldom moves", [0, 0, 0], 1, True),
    ],
)
def test_classes_and_periods(name, classes, cycle, forgotten):
    P = np.array(CASES[name], float)
    assert recurrent(P).tolist() == classes
    assert period(P) == cycle
    assert bool(forgets(P)) is forgotten


def test_chains_that_take_longest_to_meet_forget():
    """Wielandt's chain: (S - 1)^2 slots until a state is reached from all."""
    for S in (2, 3, 5, 8, 13):
        P = np.roll(np.eye(S), 1, axis=1)
        assert not forgets(P)
        P[-1, :2] = 0.5
        assert forgets(P)
    both = np.stack([np.roll(np.eye(S), 1, axis=1), P], -1)
    assert forgets(both).tolist() == [False, True]
