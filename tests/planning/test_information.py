import itertools
from typing import Any

import numpy as np
import pytest

from rmab.arms import Dynamics, InformationStates
from rmab.errors import ModelError
from rmab.planning import information
from rmab.planning.indices import FiniteArm, whittle_indices
from rmab.planning.information import expand, information_indices, settled_age
from rmab.planning.whittle import whittle_at


def random_arm(rng, S, spread=1.0):
    alpha = np.full(S, spread)
    return FiniteArm(
        rng.dirichlet(alpha, S), rng.dirichlet(alpha, S), rng.normal(size=S), rng.normal(size=S)
    )


def channel(p01, p11, reward=1.0):
    matrix = [[1 - p01, p01], [1 - p11, p11]]
    return FiniteArm(matrix, matrix, [0, 0], [0, reward])


def same_as_dense(arm, found, discount):
    J = found.index.shape[1]
    dense = whittle_indices(expand(arm, J), discount)
    assert found.indexable is dense.indexable, dense.reason
    np.testing.assert_allclose(found.never_seen, dense.index[0], atol=1e-9, rtol=0)
    np.testing.assert_allclose(found.index, dense.index[1:].reshape(-1, J), atol=1e-9, rtol=0)


def gap_to_closed_form(pairs, max_age, ages):
    found = information_indices([channel(*pair) for pair in pairs], max_age)
    assert all(f.indexable is True for f in found)
    p01, p11 = np.asarray(pairs, float).T[:, :, None, None]
    dynamics = Dynamics(p01, p11, np.ones_like(p01))
    seen = InformationStates(np.arange(2)[:, None], np.arange(1, ages + 1))
    expected = whittle_at(dynamics, seen)
    never = whittle_at(dynamics, InformationStates(np.zeros(1, int), np.zeros(1, int)))
    gap = np.abs(np.stack([f.index[:, :ages] for f in found]) - expected).max((1, 2))
    return np.maximum(gap, np.abs([f.never_seen for f in found] - never.ravel()))


def by_settling(pairs):
    """Pairs with the ages at which their beliefs settle, in groups of like ones."""
    ages = np.array([settled_age(channel(*pair)) for pair in pairs])
    bounds = [0, 100, 200, 400, 800, 1600]
    for low, high in itertools.pairwise(bounds):
        group = pairs[(ages > low) & (ages <= high)]
        if len(group):
            yield group, high


def test_closed_form_of_channels():
    pairs = np.random.default_rng(0).uniform(size=(600, 2))
    for group, max_age in by_settling(pairs):
        assert gap_to_closed_form(group, max_age, 100).max() < 1e-9


@pytest.mark.slow
def test_closed_form_of_ten_thousand_channels():
    pairs = np.random.default_rng(1).uniform(size=(10_000, 2))
    for group, max_age in by_settling(pairs):
        assert gap_to_closed_form(group, max_age, 100).max() < 1e-9


def test_closed_form_at_the_edges():
    edges = [(0.5, 0.5), (0.0, 0.5), (0.5, 1.0), (0.3, 0.3), (1.0, 0.5), (0.5, 0.0), (0.0, 0.0)]
    edges += [(1.0, 1.0), (0.2, 0.8), (0.8, 0.2), (0.89, 0.17), (1e-3, 0.9), (0.9, 1e-3)]
    assert gap_to_closed_form(edges, 400, 100).max() < 1e-9


@pytest.mark.parametrize("discount", [None, 0.95, 0.5])
@pytest.mark.parametrize("S", [2, 3, 4])
def test_equal_to_the_dense_solver(S, discount):
    rng = np.random.default_rng(S)
    for max_age in (1, 2, 5, 9):
        arms = [random_arm(rng, S) for _ in range(12)]
        for arm, found in zip(arms, information_indices(arms, max_age, discount), strict=True):
            same_as_dense(arm, found, discount)


@pytest.mark.parametrize("discount", [None, 0.9])
def test_sparse_and_slow_arms(discount):
    rng = np.random.default_rng(7)
    arms = [random_arm(rng, 3, spread=0.1) for _ in range(20)]
    for arm, found in zip(arms, information_indices(arms, 6, discount), strict=True):
        dense = whittle_indices(expand(arm, 6), discount)
        if dense.indexable is not None:
            same_as_dense(arm, found, discount)


@pytest.mark.parametrize("discount", [None, 0.9])
def test_duplicates_and_zero_rewards(discount):
    half = [[0.5, 0.5], [0.5, 0.5]]
    mixed = [[0.7, 0.3], [0.2, 0.8]]
    for arm in (
        FiniteArm(half, half, [0, 0], [0, 0]),
        FiniteArm(mixed, half, [0, 0], [0, 0]),
        FiniteArm(mixed, mixed, [1, 1], [3, 3]),
        FiniteArm([[1]], [[1]], [2], [5]),
        FiniteArm(np.full((3, 3), 1 / 3), np.full((3, 3), 1 / 3), [0, 0, 0], [1, 1, 2]),
    ):
        [found] = information_indices(arm, 4, discount)
        same_as_dense(arm, found, discount)
    [found] = information_indices(FiniteArm(mixed, mixed, [1, 1], [3, 3]), 4, discount)
    np.testing.assert_allclose(found.index, 2, atol=1e-9)


def test_several_recurrent_classes_go_by_the_dense_solver():
    frozen = FiniteArm(np.eye(2), [[0.6, 0.4], [0.3, 0.7]], [0, 0], [0, 1])
    dense = whittle_indices(expand(frozen, 3), 0.9)
    [found] = information_indices(frozen, 3, 0.9)
    assert found.indexable is dense.indexable
    np.testing.assert_array_equal(found.index.ravel(), dense.index[1:])
    assert expand(frozen, 3).passive[3, 3] == 1  # past the cap the age stays
    assert expand(frozen, 3).reward_active[0] == 0.5


def test_a_periodic_arm():
    swap = FiniteArm([[0, 1], [1, 0]], [[0.9, 0.1], [0.2, 0.8]], [0, 0.3], [0, 1])
    for discount in (None, 0.9):
        [found] = information_indices(swap, 5, discount)
        same_as_dense(swap, found, discount)
    assert settled_age(swap, most=50) == 50


def test_not_indexable_comes_with_a_witness_of_expand():
    rng = np.random.default_rng(0)
    arms = [random_arm(rng, 4) for _ in range(400)]
    found = information_indices(arms, 6)
    refused = [(arm, f) for arm, f in zip(arms, found, strict=True) if f.indexable is False]
    assert refused
    for arm, f in refused:
        assert f.witness is not None
        row, low, high = f.witness
        whole = expand(arm, 6)
        for subsidy, sign in ((low, -1), (high, 1)):
            value: Any = np.zeros(len(whole))
            beta = 0.99999  # near enough to average reward for these witnesses
            for _ in range(60):  # policy iteration
                play = whole.reward_active + beta * whole.active @ value
                leave = whole.reward_passive + subsidy + beta * whole.passive @ value
                moves = np.where((play > leave)[:, None], whole.active, whole.passive)
                pays = np.where(play > leave, whole.reward_active, whole.reward_passive + subsidy)
                value = np.linalg.solve(np.eye(len(whole)) - beta * moves, pays)
            assert sign * (play - leave)[row] > 0


def test_a_play_of_better_belief_has_the_higher_index():
    [found] = information_indices(channel(0.2, 0.8), 60)
    assert (np.diff(found.index[0, :40]) > 0).all()
    assert (np.diff(found.index[1, :40]) < 0).all()
    assert found.index[0].max() <= found.never_seen + 1e-9 <= found.index[1].min() + 2e-9


def test_indices_move_with_the_rewards():
    arm = random_arm(np.random.default_rng(3), 3)
    moved = FiniteArm(
        arm.passive, arm.active, 1e3 * arm.reward_passive - 5, 1e3 * arm.reward_active + 7
    )
    one, other = information_indices([arm, moved], 8)
    np.testing.assert_allclose(1e3 * one.index + 12, other.index, rtol=1e-11)


def test_a_batch_is_its_arms_one_by_one():
    rng = np.random.default_rng(5)
    arms = [random_arm(rng, S) for S in (2, 4, 2, 3, 4)]
    for arm, found in zip(arms, information_indices(arms, 7), strict=True):
        [alone] = information_indices(arm, 7)
        np.testing.assert_allclose(found.index, alone.index, atol=1e-11)
        assert found.index.shape == (len(arm), 7)
    assert information_indices([], 7) == []


def test_the_fast_path_decides_random_arms(monkeypatch):
    asked = []
    dense = information._by_oracle

    def counted(*given):
        asked.append(given)
        return dense(*given)

    monkeypatch.setattr(information, "_by_oracle", counted)
    rng = np.random.default_rng(11)
    information_indices([random_arm(rng, 3) for _ in range(100)], 8)
    assert len(asked) < 10


def test_settled_age():
    arm = channel(0.2, 0.8)  # total variation |p - b0| .6^age falls below 1e-12
    age = settled_age(arm)
    assert 0.5 * 0.6**age <= 1e-12 < 0.5 * 0.6 ** (age - 1)
    assert settled_age(channel(0.3, 0.3)) == 1
    assert settled_age(channel(0.2, 0.8), most=9) == 9
    # Frozen when left alone: nothing changes with age.
    assert settled_age(FiniteArm(np.eye(2), [[0.5, 0.5], [0.1, 0.9]], [0, 0], [0, 1])) == 1


def test_rows_of_expand():
    arm = random_arm(np.random.default_rng(2), 3)
    whole = expand(arm, 4)
    belief = arm.active[1] @ arm.passive @ arm.passive  # (1, 3) is row 1 + 4 + 2
    np.testing.assert_allclose(whole.active[7, 1::4], belief, atol=1e-15)
    assert whole.passive[7, 8] == whole.passive[8, 0] == whole.passive[0, 0] == 1
    assert whole.reward_passive[7] == pytest.approx(belief @ arm.reward_passive)


def test_what_is_refused():
    arm = channel(0.2, 0.8)
    with pytest.raises(ModelError, match="max_age must be at least 1, got 0"):
        information_indices(arm, 0)
    with pytest.raises(ModelError, match="max_age"):
        expand(arm, 0)
    with pytest.raises(ModelError, match="discount"):
        information_indices(arm, 3, 1.0)
    with pytest.raises(ModelError, match="tolerance"):
        settled_age(arm, tolerance=0)
    with pytest.raises(ModelError, match="most"):
        settled_age(arm, most=0)
