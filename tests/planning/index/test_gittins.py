"""Gittins indices by elimination against the best of all sets in which play goes on."""

from itertools import chain, combinations

import numpy as np
import pytest

from rmab.planning.index.api import eliminate


def best_of_all_sets(P, rewards, beta):
    """max over sets C with s of E[discounted rewards] / E[discounted slots] until C is left."""
    S = len(rewards)
    found = np.full(S, -np.inf)
    for held in chain.from_iterable(combinations(range(S), k) for k in range(1, S + 1)):
        inside = np.ix_(held, held)
        matrix = np.eye(len(held)) - beta * P[inside]
        won = np.linalg.solve(matrix, rewards[list(held)])
        slots = np.linalg.solve(matrix, np.ones(len(held)))
        found[list(held)] = np.maximum(found[list(held)], won / slots)
    return found


@pytest.mark.parametrize("beta", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("seed", range(4))
def test_indices_are_those_of_the_best_set(beta, seed):
    rng = np.random.default_rng(seed)
    P = rng.dirichlet(np.full(5, 0.4), 5)
    rewards = rng.normal(size=5)
    kept = P.copy(), rewards.copy()
    index, last = eliminate(P, rewards, beta)
    np.testing.assert_allclose(index, best_of_all_sets(P, rewards, beta), atol=1e-9)
    assert last == []  # with a discount every class is left
    np.testing.assert_array_equal(P, kept[0])
    np.testing.assert_array_equal(rewards, kept[1])


def test_without_a_discount_they_are_the_limits():
    rng = np.random.default_rng(9)
    P, rewards = rng.dirichlet(np.ones(5), 5), rng.random(5)
    index, last = eliminate(P, rewards, 1.0)
    np.testing.assert_allclose(index, best_of_all_sets(P, rewards, 1 - 1e-9), atol=1e-6)
    assert last == [int(index.argmin())]
    shares = np.linalg.matrix_power(P, 200)[0]
    assert index.min() == pytest.approx(shares @ rewards)


def test_a_state_that_may_come_to_a_closed_class_is_worth_it():
    """0 and 1 swap and pay 5 and 1; 2 stays and pays 2; 3 and 4 lead to 0 in the end."""
    P = np.array(
        [
            [0, 1, 0, 0, 0],
            [1, 0, 0, 0, 0],
            [0, 0, 1, 0, 0],
            [0.1, 0, 0.9, 0, 0],
            [0, 0, 0, 1.0, 0],
        ]
    )
    index, last = eliminate(P, np.array([5.0, 1.0, 2.0, 0.0, 4.0]), 1.0)
    assert index.tolist() == pytest.approx([5, 3, 2, 3, 4])
    assert last == [1, 2]
