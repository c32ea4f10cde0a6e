"""Indices and verdicts of small arms of 19 families against exact rational policy iteration."""

from fractions import Fraction

import numpy as np
import pytest

from rmab.planning.index.api import gittins_indices, whittle_indices
from rmab.planning.index.exact import RationalProblem, follow_exactly
from tests.oracles.exact_line import exact_arm, solve
from tests.oracles.one_arm import bisected
from tests.planning.index.families import FAMILIES, Given, drawn
from tests.planning.index.models import seen


def written(numbers):
    """Numbers as people write them, at any depth."""
    if isinstance(numbers, list):
        return [written(each) for each in numbers]
    return Fraction(str(numbers))


def exact(given: Given, decimals: bool):
    numbers = given.numbers()
    discount = None if given.discount is None else Fraction(str(given.discount))
    return exact_arm(written(numbers) if decimals else numbers, discount)


def check(family: str, number: int) -> None:
    given = drawn(family, number)
    found = whittle_indices(given.arm(), given.discount)
    truth = exact(given, decimals=family == "decimals")
    answer = solve(truth)
    case = (family, number)
    size = max(np.abs(x).max() for x in given[2:4])
    for ours, theirs in zip(found.index.tolist(), answer.index, strict=True):
        close = abs(ours - theirs) <= 1e-9 * max(abs(theirs), 1e-3 * size)
        assert ours == theirs or close, (*case, found, answer)
    if found.indexable is None:
        assert given.discount is None, (*case, found)
        assert "starting class" in found.reason or "gain and bias" in found.reason, (*case, found)
        return
    assert found.indexable is answer.indexable, (*case, found, answer)
    if found.witness is not None:
        state, low, high = found.witness
        policy = [True] * len(found.index)
        policy, at_low = truth.best(Fraction(low), policy)
        _, at_high = truth.best(Fraction(high), policy)
        assert at_low[state] <= 0 < at_high[state], (*case, found)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_hundred_arms_of_each_family(family):
    for number in range(100):
        check(family, number)


@pytest.mark.slow  # by hand: a hundred times as many
@pytest.mark.parametrize("family", FAMILIES)
def test_ten_thousand_arms_of_each_family(family):
    for number in range(100, 10_000):
        check(family, number)


@pytest.mark.parametrize("e", [1e-3, 1e-9, 1e-12, 1e-15, 1e-300])
def test_an_index_is_finite_however_seldom_an_arm_moves(e):
    rarely = [[1 - e, e], [e, 1 - e]]
    found = whittle_indices(seen(rarely, np.full((2, 2), 0.5), [0, 0], [0, 1]))
    assert found.index == pytest.approx([0.5, 1], abs=1.1 * e + 1e-9)
    assert (found.indexable, found.reason) == (True, "")


@pytest.mark.parametrize("e", [0.0, 1e-15, 1e-9, 0.3, 1.0])
@pytest.mark.parametrize("discount", [None, 0.9, 1 - 1e-9])
def test_an_arm_that_moves_alike_has_the_difference_of_its_rewards(e, discount):
    rows = [[1 - e, e], [e, 1 - e]]
    found = whittle_indices(seen(rows, rows, [0.5, 0.25], [0.75, 2]), discount)
    assert found.index.tolist() == [0.25, 1.75]
    assert found.indexable is True


def test_frozen_when_left_alone_and_tied_in_gain():
    """Advantages of 0 beside large ones: every index is finite, all of an arm that is indexable."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        active = np.maximum(rng.dirichlet(np.full(4, 0.15), 4), 1e-4)
        active /= active.sum(1, keepdims=True)
        found = whittle_indices(seen(np.eye(4), active, [0] * 4, [0.6, 0.1, 0.4, 0.8]))
        assert found.indexable is True
        assert found.index.max() == 0.8
        assert (found.index >= 0.1).all()


def test_a_tie_over_an_interval_counts_as_passive():
    to = np.eye(3)
    arm = seen(to[[1, 2, 2]], to[[2, 1, 0]], [0, 0, 1], [1, 2, 2])
    found = whittle_indices(arm, 0.5)
    assert found.index == pytest.approx([2 / 3, 1.5, 2 / 3])
    assert found.indexable is True


def test_a_number_is_taken_as_it_is_written():
    """.1 + .2 is .3: the two states are alike, and no rounding makes one of them change back."""
    rows = [[0.1, 0.2, 0.7], [0.3, 0.0, 0.7], [0.3, 0.3, 0.4]]
    arm = seen(
        rows, [[0.7, 0.2, 0.1], [0.9, 0.0, 0.1], [0.1, 0.2, 0.7]], [0.3] * 3, [0.1, 0.1, 1.1]
    )
    found = follow_exactly(RationalProblem(arm, None))
    assert found.index[0] == found.index[1]
    assert found.back is None


def test_arms_too_large_for_exact_arithmetic_are_followed_in_floating_point():
    rng = np.random.default_rng(3)
    for S in (31, 60):
        P, Q = rng.dirichlet(np.full(S, 0.3), (2, S))
        arm = seen(P, Q, *rng.random((2, S)))
        found = whittle_indices(arm)
        assert found.indexable is True
        for state in (0, S // 2, S - 1):
            assert found.index[state] == pytest.approx(bisected(arm, None, state), abs=1e-8)


def test_exact_arithmetic_is_asked_about_thirty_states_at_most(monkeypatch):
    """Rewards of very different size are a case for it."""
    asked: list[int] = []

    def exactly(arm, discount, name):
        asked.append(arm.states)

    monkeypatch.setattr("rmab.planning.index.finite._exactly", exactly)
    rng = np.random.default_rng(3)
    for S in (30, 31):
        P, Q = rng.dirichlet(np.ones(S), (2, S))
        whittle_indices(seen(P, Q, [1e-12] * S, rng.random(S) + 0.5))
    assert asked == [30]


@pytest.mark.parametrize("discount", [None, 0.99, 0.999999])
def test_large_rested_arms_have_their_gittins_indices(discount):
    """Two methods that share nothing; what one leaves open is no True."""
    rng = np.random.default_rng(2)
    for alpha in (1.0, 0.1, 0.03):
        active = np.maximum(rng.dirichlet(np.full(40, alpha), 40), 1e-7)
        paid = rng.random(40).round(1)
        arm = seen(np.eye(40), active / active.sum(1, keepdims=True), np.zeros(40), paid)
        found = whittle_indices(arm, discount)
        right = (
            gittins_indices(arm, None).index if discount is None else gittins_indices(arm, discount)
        )
        assert found.indexable is not False
        if found.indexable:
            assert found.index == pytest.approx(right, abs=1e-8)


@pytest.mark.parametrize("e", [1e-6, 1e-9, 1e-12, 1e-14])
def test_a_large_arm_that_hardly_moves_is_right_or_undecided(e):
    S = 40
    around = (1 - e) * np.eye(S) + e * np.roll(np.eye(S), 1, axis=1)
    found = whittle_indices(seen(around, np.full((S, S), 1 / S), np.zeros(S), np.linspace(0, 1, S)))
    assert found.indexable is (True if e == 1e-6 else None)
    if found.indexable:
        assert found.index[[0, -1]] == pytest.approx([0.5, 1], abs=1e-4)
