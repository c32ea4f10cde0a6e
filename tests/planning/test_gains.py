"""Gains of small chains against what can be worked out by hand."""

import numpy as np
import pytest
from scipy.sparse import csr_array

from rmab.errors import ConvergenceError
from rmab.planning import gains
from rmab.planning.gains import chain_gain, optimal_gain


def test_stationary_mean_of_an_ergodic_chain():
    move = csr_array([[0.8, 0.2], [0.6, 0.4]])  # stationary: 3/4, 1/4
    assert chain_gain(move, np.array([1.0, 5.0])) == pytest.approx(2.0, abs=1e-8)


def test_periodic_chain():
    move = csr_array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    assert chain_gain(move, np.array([1.0, 2.0, 6.0])) == pytest.approx(3.0, abs=1e-8)


def test_two_closed_classes_count_by_the_chance_to_end_there():
    # 0 goes to 1 (for ever, pays 1) with 1/4 / (1/4 + 1/2) = 1/3, else to 2 (for ever, pays 4).
    move = csr_array([[0.25, 0.25, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert chain_gain(move, np.array([9.0, 1.0, 4.0])) == pytest.approx(3.0, abs=1e-8)


def test_transient_start_earns_what_its_class_earns():
    move = csr_array([[0.5, 0.5], [0.0, 1.0]])
    assert chain_gain(move, np.array([100.0, 2.0])) == pytest.approx(2.0, abs=1e-6)


def test_the_better_choice_is_found_and_h_solves_the_equation():
    """Choice 0 stays and pays 1 in state 0; choice 1 swaps the states and pays 0 and 5."""
    moves = [csr_array(np.eye(2)), csr_array([[0.0, 1.0], [1.0, 0.0]])]
    rewards = [np.array([1.0, 0.0]), np.array([0.0, 5.0])]
    gain, relative = optimal_gain(moves, rewards, np.zeros(2, np.int64), np.ones(1))
    assert gain == pytest.approx(2.5, abs=1e-8)  # swap for ever
    assert relative[1] - relative[0] == pytest.approx(2.5, abs=1e-8)


def test_gains_scale_with_the_unit_of_reward():
    move = csr_array([[0.8, 0.2], [0.6, 0.4]])
    assert chain_gain(move, np.array([1e9, 5e9])) == pytest.approx(2e9, rel=1e-8)
    assert chain_gain(move, np.zeros(2)) == 0


def test_slow_chains_raise(monkeypatch):
    monkeypatch.setattr(gains, "MAX_SWEEPS", 5)
    move = csr_array([[0.99, 0.01], [0.01, 0.99]])
    with pytest.raises(ConvergenceError, match=r"2 states: the gain is known to .* after 5 sweeps"):
        chain_gain(move, np.array([0.0, 1.0]))
    leaving = csr_array([[0.8, 0.1, 0.1], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    with pytest.raises(ConvergenceError, match="on its way"):
        chain_gain(leaving, np.array([0.0, 1.0, 2.0]))
