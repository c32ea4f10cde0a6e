"""Whether agents see the same, from what rounds brought: on chains with known answers."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from rmab.protocol.correlation import AgentCorrelation

ARMS, AGENTS, ROUNDS, SLOTS = 3, 4, 80, 20


def together(rng, realisations, rounds=ROUNDS):
    """Agents play every arm in turn; realisations: how many different ones they see."""
    found = AgentCorrelation(np.ones(ARMS, np.intp))
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
    alone = AgentCorrelation(np.ones(1, np.intp))
    for number in range(1, 60):
        alone.add({"a": np.full((2, 1), number)})
    assert alone.correlation is None


def test_counts_that_were_taken_out_are_left_out():
    found = together(np.random.default_rng(0), 1)
    before = found.correlation
    found.add({f"agent-{m}": np.zeros((2, ARMS), np.int64) for m in range(AGENTS)})
    assert found.correlation == before


def by_loops(history, best):
    """Sum of r_a r_b over pairs, and what it would be if all rests of a round were alike."""
    products, alike = 0.0, 0.0
    for then, now in pairwise(history):
        for arm in range(len(best)):
            rests = []
            for name in now:
                if name not in then:
                    continue
                known, found = then[name][:, arm], now[name][:, arm]
                plays = (found - known).sum()
                expected = (known[best[arm]] + 0.5) / (known.sum() + 1)
                if plays:
                    rests.append((found - known)[best[arm]] - expected * plays)
            for i, a in enumerate(rests):
                products += sum(a * b for j, b in enumerate(rests) if j != i)
                alike += (len(rests) - 1) * a**2
    return products, alike


def test_the_correlation_is_that_of_loops_over_pairs():
    """Arms that only some played, an agent that came later, another best state of each arm."""
    rng = np.random.default_rng(4)
    best = np.array([1, 0, 2])
    total = {name: np.zeros((3, 3), np.int64) for name in "abc"}
    found = AgentCorrelation(best)
    history: list[dict[str, Any]] = []
    for number in range(22):
        luck = rng.random((3, 3)) * 3
        for name in total if number > 5 else "ab":
            total[name] = total[name] + rng.poisson(luck) * (rng.random(3) < 0.8)
        history.append({n: x for n, x in total.items() if number > 5 or n != "c"})
        before = found.correlation
        found.add(history[-1])
        assert before is None or number > 20  # a first round has nothing to compare
    products, alike = by_loops(history, best)
    assert found.correlation == pytest.approx(products / alike, rel=1e-12)


@pytest.mark.parametrize("rounds", [19, 20])
def test_twenty_rounds_are_enough(rounds):
    found = AgentCorrelation(np.array([1]))
    for number in range(rounds + 1):
        found.add({name: np.array([[0], [number]]) for name in "ab"})
    assert (found.correlation is None) == (rounds < 20)


def test_a_correlation_matters_from_a_tenth_on_and_beyond_three_errors():
    found = AgentCorrelation(np.array([1]))
    for products, squares, matters in (
        (0.9, 1e-4, False),  # sure, but small
        (1.1, 1e-4, True),
        (1.1, 0.13, True),  # the root is .361
        (1.1, 0.14, False),  # and .374
    ):
        found._rounds, found._equal = 50, 10.0
        found._products, found._squares = products, squares
        assert found.correlation == products / 10
        assert found.correlated == matters
