"""Whether agents see the same, from what rounds brought: on chains with known answers."""

import numpy as np
import pytest

from rmab.federation.correlation import Togetherness

ARMS, AGENTS, ROUNDS, SLOTS = 3, 4, 80, 20


def together(rng, realisations, rounds=ROUNDS):
    """Agents play every arm in turn; realisations: how many different ones they see."""
    found = Togetherness(np.ones(ARMS, np.intp))
    visits = {f"agent-{m}": np.zeros((2, ARMS), np.int64) for m in range(AGENTS)}
    state = rng.integers(0, 2, (realisations, ARMS))
    for number in range(rounds):
        for slot in range(SLOTS):
            arm = (number * SLOTS + slot) % ARMS
            for m, seen in enumerate(visits.values()):
                seen[state[m % realisations, arm], arm] += 1
            stays = rng.random(state.shape) < 0.9
            state = np.where(stays, state, 1 - state)
        found.add(visits)
    return found


def test_agents_on_one_realisation_are_correlated():
    found = together(np.random.default_rng(0), 1)
    assert found.correlation == pytest.approx(1, abs=1e-6)
    assert found.correlated


def test_pairs_of_agents_on_one_realisation_are_half_so():
    found = together(np.random.default_rng(1), 2)
    assert found.correlation == pytest.approx(1 / 3, abs=0.1)  # one of three others sees the same
    assert found.correlated


@pytest.mark.parametrize("seed", range(5))
def test_independent_agents_are_not(seed):
    found = together(np.random.default_rng(seed), AGENTS)
    assert found.correlation == pytest.approx(0, abs=0.1)
    assert not found.correlated


def test_nothing_is_said_of_a_few_rounds_or_of_one_agent():
    assert together(np.random.default_rng(0), 1, rounds=15).correlation is None
    alone = Togetherness(np.ones(1, np.intp))
    for number in range(1, 60):
        alone.add({"a": np.full((2, 1), number)})
    assert alone.correlation is None


def test_counts_that_were_taken_out_are_left_out():
    found = together(np.random.default_rng(0), 1)
    before = found.correlation
    found.add({f"agent-{m}": np.zeros((2, ARMS), np.int64) for m in range(AGENTS)})
    assert found.correlation == before
