"""Gains of small chains and decision problems against what can be worked out by hand or by trying
every policy."""

from itertools import product

import numpy as np
import pytest
from scipy.sparse import csr_array

from rmab.errors import ConvergenceError
from rmab.markov import limit
from rmab.planning.joint.average_reward import chain_gain, end_components, optimal_gain


def first(size: int):
    """A start in state 0."""
    return np.eye(size)[0]


def test_stationary_mean_of_an_ergodic_chain():
    move = csr_array([[0.8, 0.2], [0.6, 0.4]])  # stationary: 3/4, 1/4
    assert chain_gain(move, np.array([1.0, 5.0]), first(2)) == pytest.approx(2.0, abs=1e-8)


def test_periodic_chain():
    move = csr_array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    assert chain_gain(move, np.array([1.0, 2.0, 6.0]), first(3)) == pytest.approx(3.0, abs=1e-8)


def test_two_closed_classes_count_by_the_chance_to_end_there():
    # 0 goes to 1 (for ever, pays 1) with 1/4 / (1/4 + 1/2) = 1/3, else to 2 (for ever, pays 4).
    move = csr_array([[0.25, 0.25, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    reward = np.array([9.0, 1.0, 4.0])
    assert chain_gain(move, reward, first(3)) == pytest.approx(3.0, abs=1e-8)
    spread = np.array([0.5, 0.5, 0.0])
    assert chain_gain(move, reward, spread) == pytest.approx(2.0, abs=1e-8)


def test_transient_start_earns_what_its_class_earns():
    move = csr_array([[0.5, 0.5], [0.0, 1.0]])
    assert chain_gain(move, np.array([100.0, 2.0]), first(2)) == pytest.approx(2.0, abs=1e-6)


def test_the_better_choice_is_found_and_h_solves_the_equation():
    """Choice 0 stays and pays 1 in state 0; choice 1 swaps the states and pays 0 and 5."""
    moves = [csr_array(np.eye(2)), csr_array([[0.0, 1.0], [1.0, 0.0]])]
    rewards = [np.array([1.0, 0.0]), np.array([0.0, 5.0])]
    best = optimal_gain(moves, rewards, first(2))
    assert best.value == pytest.approx(2.5, abs=1e-8)  # swap for ever
    assert best.choices.tolist() == [1, 1]
    assert best.relative[1] - best.relative[0] == pytest.approx(2.5, abs=1e-8)
    assert best.span == pytest.approx(2.5, abs=1e-8)


def test_end_components_by_hand():
    """0 <-> 1 by choice 0; choice 1 leaves from 1 to 2, which leads to 3 or 4; both stay."""
    moves = [np.zeros((5, 5)), np.zeros((5, 5))]
    for a, source, target in [(0, 0, 1), (0, 1, 0), (1, 0, 1), (1, 1, 2)]:
        moves[a][source, target] = 1
    for move in moves:
        move[2, [3, 4]] = 0.5
        move[3, 3] = move[4, 4] = 1
    labels, stays = end_components([csr_array(move) for move in moves])
    assert labels[2] == -1
    assert labels[0] == labels[1]
    assert sorted({*labels.tolist()}) == [-1, 0, 1, 2]
    assert stays.tolist() == [[True, True, False, True, True], [True, False, False, True, True]]


def random_problem(rng: np.random.Generator, size: int, choices: int):
    """Sparse transitions, so that closed classes and states that never return are common."""
    moves = rng.random((choices, size, size)) * (rng.random((choices, size, size)) < 0.3)
    lonely = moves.sum(-1) == 0
    moves[lonely, rng.integers(size, size=lonely.sum())] = 1
    return moves / moves.sum(-1, keepdims=True), np.round(rng.random((choices, size)), 1)


@pytest.mark.parametrize("seed", range(40))
def test_best_of_all_policies_from_every_state(seed):
    """Some stationary deterministic policy is best from all states at once."""
    rng = np.random.default_rng(seed)
    size, choices = [(3, 3), (4, 3), (5, 2), (6, 2)][seed % 4]
    moves, rewards = random_problem(rng, size, choices)
    start = rng.dirichlet(np.ones(size))
    states = np.arange(size)
    best = np.full(size, -np.inf)
    for policy in product(range(choices), repeat=size):
        chosen = np.array(policy)
        best = np.maximum(best, limit(moves[chosen, states]) @ rewards[chosen, states])

    found = optimal_gain([csr_array(move) for move in moves], list(rewards), start)
    assert found.gain == pytest.approx(best, abs=5e-9)
    assert found.value == pytest.approx(start @ best, abs=5e-9)
    assert limit(moves[found.choices, states]) @ rewards[found.choices, states] == pytest.approx(
        best, abs=5e-9
    )
    for chosen in (np.zeros(size, int), found.choices):
        chain, reward = moves[chosen, states], rewards[chosen, states]
        wanted = start @ limit(chain) @ reward
        assert chain_gain(csr_array(chain), reward, start) == pytest.approx(wanted, abs=5e-9)


def test_gains_that_hardly_differ():
    """Leaving state 0 costs .3 once and pays 1e-6 a slot ever after: value iteration alone would
    need 300,000 sweeps to see it."""
    moves = [csr_array(np.eye(2)), csr_array([[0.0, 1.0], [0.0, 1.0]])]
    rewards = [np.array([0.3, 0.3 + 1e-6]), np.zeros(2)]
    best = optimal_gain(moves, rewards, first(2))
    assert best.gain == pytest.approx([0.3 + 1e-6] * 2, abs=1e-9)
    assert best.choices.tolist() == [1, 0]


def test_gains_scale_with_the_unit_of_reward():
    move = csr_array([[0.8, 0.2], [0.6, 0.4]])
    assert chain_gain(move, np.array([1e9, 5e9]), first(2)) == pytest.approx(2e9, rel=1e-8)
    assert chain_gain(move, np.zeros(2), first(2)) == 0


def test_slow_chains_raise():
    move = csr_array([[0.99, 0.01], [0.01, 0.99]])
    with pytest.raises(ConvergenceError, match=r"2 states: the gain is known to .* after 5 sweeps"):
        chain_gain(move, np.array([0.0, 1.0]), first(2), max_sweeps=5)
    leaving = csr_array([[0.8, 0.1, 0.1], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    with pytest.raises(ConvergenceError, match="on its way"):
        chain_gain(leaving, np.array([0.0, 1.0, 2.0]), first(3), max_sweeps=5)


def test_a_slow_way_to_a_component_raises():
    leaving = csr_array([[0.9998, 0.0001, 0.0001], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    with pytest.raises(ConvergenceError, match="2 end components: the best mean is known to"):
        optimal_gain([leaving], [np.array([0.0, 1.0, 2.0])], first(3), max_sweeps=100)
