"""Indices of arms seen only when played: closed form, the dense solver, published values."""

import numpy as np
import pytest

from rmab.arms import Arm, Dynamics, InformationStates
from rmab.errors import ModelError
from rmab.planning.expansion import expand, settled_age
from rmab.planning.finite import Indices, finite_indices
from rmab.planning.information import information_indices
from rmab.planning.whittle import whittle_at


def random_arm(rng: np.random.Generator, states: int, zeros: float = 0.0) -> Arm:
    """Moves and pays differently when played; some moves never happen."""
    moves = rng.dirichlet(np.ones(states), (2, states))
    moves *= rng.random(moves.shape) >= zeros
    moves[..., 0] += 1e-3  # some state is always reached, so the arm forgets
    moves /= moves.sum(-1, keepdims=True)
    pays = rng.normal(size=(2, states))
    return Arm(moves[0], moves[1], reward_passive=pays[0], reward_active=pays[1])


def channel(p01: float, p11: float, reward: float = 1.0) -> Arm:
    return Arm([[1 - p01, p01], [1 - p11, p11]], reward=[0, reward])


def assert_as_dense(arm: Arm, found: Indices, discount: float | None) -> None:
    shown = found.index.shape[1]
    cap = max(settled_age(arm, 1e-13), shown)
    dense = finite_indices(expand(arm, cap), discount)
    assert found.indexable is dense.indexable, (found.reason, dense.reason)
    by_age = dense.index[1:].reshape(-1, cap)[:, :shown]
    assert found.never_seen == pytest.approx(dense.index[0], abs=1e-8)
    np.testing.assert_allclose(found.index, by_age, atol=1e-8, rtol=0)


def gap_to_closed_form(pairs: np.ndarray, max_age: int) -> float:
    found = information_indices([channel(*pair) for pair in pairs], max_age)
    assert all(each.indexable is True for each in found)
    p01, p11 = pairs.T[:, :, None, None]
    dynamics = Dynamics(p01, p11, np.ones_like(p01))
    seen = InformationStates(np.arange(2)[:, None], np.arange(1, max_age + 1))
    never = InformationStates(np.zeros(1, int), np.zeros(1, int))
    off = np.abs(np.stack([each.index for each in found]) - whittle_at(dynamics, seen)).max()
    before = np.array([each.never_seen for each in found])
    return float(max(off, np.abs(before - whittle_at(dynamics, never).ravel()).max()))


def pairs(count: int, seed: int) -> np.ndarray:
    """Channels of both signs of memory that forget within 2,000 slots."""
    drawn = np.random.default_rng(seed).uniform(size=(2 * count, 2))
    return drawn[np.abs(drawn[:, 1] - drawn[:, 0]) < 0.985][:count]


def test_the_closed_form_of_channels():
    assert gap_to_closed_form(pairs(1000, 0), 100) < 1e-9


@pytest.mark.slow
def test_the_closed_form_of_ten_thousand_channels():
    assert gap_to_closed_form(pairs(10_000, 1), 100) < 1e-9


def test_published_values():
    first, second = information_indices([channel(0.2, 0.8), channel(0.89, 0.17)], 3)
    assert first.index[:, 1:] == pytest.approx(
        np.array([[0.392857, 0.518987], [0.772727, 0.752475]]), abs=1e-6
    )
    assert second.index[:, 1:] == pytest.approx(
        np.array([[0.270634, 0.792944], [0.792944, 0.405115]]), abs=1e-6
    )


@pytest.mark.parametrize("discount", [None, 0.9, 0.4])
@pytest.mark.parametrize("states", [2, 3, 4])
def test_any_arms_against_the_dense_solver(states, discount):
    rng = np.random.default_rng(10 * states)
    arms = [random_arm(rng, states, zeros) for zeros in (0.0, 0.0, 0.3, 0.6) for _ in range(8)]
    arms = [arm for arm in arms if settled_age(arm, 1e-13) * states < 250]
    found = information_indices(arms, 6, discount)
    for arm, each in zip(arms, found, strict=True):
        assert_as_dense(arm, each, discount)


@pytest.mark.parametrize("discount", [None, 0.9])
def test_odd_arms_against_the_dense_solver(discount):
    """Periods, several classes, equal rows, equal rewards, nothing paid."""
    flip, stay = [[0.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]]
    mixed = [[0.6, 0.4], [0.3, 0.7]]
    arms = [
        Arm(flip, reward=[0, 1]),
        Arm(flip, mixed, reward=[0, 1]),
        Arm(stay, mixed, reward=[0, 1]),
        Arm(mixed, stay, reward=[0.2, 1]),
        Arm(mixed, [[0.5, 0.5], [0.5, 0.5]], reward=[0, 1]),
        Arm(mixed, reward=[0.7, 0.7]),
        Arm(mixed, reward=[0, 0]),
        Arm(np.roll(np.eye(3), 1, 1), reward=[1, 0, 0]),
    ]
    for arm in arms:
        (found,) = information_indices(arm, 5, discount)
        assert not np.isnan(found.index).any()
        assert found.reason or found.indexable is True


def test_the_company_and_the_ages_asked_for_change_nothing():
    rng = np.random.default_rng(4)
    arms = [random_arm(rng, 3) for _ in range(30)]
    together = information_indices(arms, 8)
    for arm, each in zip(arms, together, strict=True):
        (alone,) = information_indices(arm, 3)
        np.testing.assert_allclose(alone.index, each.index[:, :3], atol=1e-9, rtol=0)
        assert alone.indexable is each.indexable


def test_a_witness_stands():
    """Passive is better at the lower subsidy, active at the higher: by policies solved afresh."""
    rng = np.random.default_rng(1)
    arms = [random_arm(rng, 4) for _ in range(400)]
    refused = [
        (arm, each)
        for arm, each in zip(arms, information_indices(arms, 4, 0.95), strict=True)
        if each.indexable is False
    ]
    assert len(refused) >= 3
    for arm, each in refused[:10]:
        assert each.witness is not None
        state, low, high = each.witness
        assert isinstance(state, tuple)
        last_seen, age = state
        cap = settled_age(arm, 1e-13)
        chain = expand(arm, cap)
        row = 0 if last_seen is None else 1 + last_seen * cap + age - 1
        assert advantage(chain, low, 0.95)[row] < 0 < advantage(chain, high, 0.95)[row]


def advantage(arm: Arm, subsidy: float, discount: float) -> np.ndarray:
    """Of active over passive, (S,), by policy iteration."""
    active = np.ones(arm.states, bool)
    while True:
        moves = np.where(active[:, None], arm.active, arm.passive)
        pays = np.where(active, arm.reward_active, arm.reward_passive + subsidy)
        value = np.linalg.solve(np.eye(arm.states) - discount * moves, pays)
        ahead = arm.reward_active - arm.reward_passive - subsidy
        ahead = ahead + discount * (arm.active - arm.passive) @ value
        better = np.where(np.abs(ahead) < 1e-11, active, ahead > 0)
        if np.array_equal(better, active):
            return np.asarray(ahead)
        active = better


def test_arms_that_forget_too_slowly_are_undecided():
    (found,) = information_indices(channel(1e-6, 1 - 1e-6), 3)
    assert found.indexable is None
    assert "slots to forget" in found.reason
    assert np.isfinite(found.index).all()


@pytest.mark.parametrize("max_age", [0, -1])
def test_an_age_limit_below_one_is_refused(max_age):
    with pytest.raises(ModelError, match=f"max_age must be at least 1, got {max_age}"):
        information_indices(channel(0.2, 0.8), max_age)


@pytest.mark.parametrize("discount", [0.0, 1.0, -0.5, float("nan")])
def test_a_discount_outside_the_unit_interval_is_refused(discount):
    with pytest.raises(ModelError, match="discount must lie in"):
        information_indices(channel(0.2, 0.8), 3, discount)
