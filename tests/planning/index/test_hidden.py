import numpy as np
import pytest

from rmab.errors import ModelError
from rmab.model.arms import Arm, Dynamics
from rmab.model.expansion import expand, expansion, settled_age
from rmab.model.information import InformationStates, information_states
from rmab.planning.channel.whittle import whittle_at
from rmab.planning.index import hidden
from rmab.planning.index.finite import finite_indices
from rmab.planning.index.hidden import Limits, information_indices
from tests.oracles.one_arm import advantage_near_one


def random_arm(rng, S, mixing=0.0, spread=1.0):
    """mixing: the share of each passive row that is uniform, so that the arm soon forgets."""
    passive, active = rng.dirichlet(np.full(S, spread), (2, S))
    unpaid, paid = rng.normal(size=(2, S))
    passive = mixing / S + (1 - mixing) * passive
    return Arm(passive, active, reward_passive=unpaid, reward_active=paid)


def channel(p01, p11):
    return Arm([[1 - p01, p01], [1 - p11, p11]], reward=[0, 1])


def dense(arm, discount, max_age, cap=None):
    """The dense solver's verdict, its indices up to an age, and that of never seen."""
    cap = max(settled_age(arm, 1e-12), max_age) if cap is None else cap
    found = finite_indices(expand(arm, cap), discount)
    return found, found.index[1:].reshape(arm.states, cap)[:, :max_age], found.index[0]


def same_as_dense(arm, found, discount, cap=None):
    other, index, never = dense(arm, discount, found.index.shape[1], cap)
    assert found.indexable is other.indexable, (found.reason, other.reason)
    np.testing.assert_allclose(found.index, index, atol=1e-9, rtol=1e-9)
    np.testing.assert_allclose(found.never_seen, never, atol=1e-9, rtol=1e-9)


def gap_to_closed_form(pairs, ages=100):
    found = information_indices([channel(*pair) for pair in pairs], ages)
    assert all(f.indexable is True for f in found)
    p01, p11 = np.asarray(pairs, float).T[:, :, None, None]
    dynamics = Dynamics(p01, p11, np.ones_like(p01))
    expected = whittle_at(
        dynamics, InformationStates(np.arange(2)[:, None], np.arange(1, ages + 1))
    )
    never = whittle_at(dynamics, InformationStates(np.zeros(1, int), np.zeros(1, int)))
    seen = np.abs(np.stack([f.index for f in found]) - expected).max()
    return max(seen, np.abs([f.never_seen for f in found] - never.ravel()).max())


def test_closed_form_of_channels():
    assert gap_to_closed_form(np.random.default_rng(0).uniform(size=(1500, 2))) < 1e-9


@pytest.mark.slow
def test_closed_form_of_ten_thousand_channels():
    assert gap_to_closed_form(np.random.default_rng(1).uniform(size=(10_000, 2))) < 1e-9


def test_closed_form_at_the_edges():
    edges = [(0.5, 0.5), (0.0, 0.5), (0.5, 1.0), (0.3, 0.3), (1.0, 0.5), (0.5, 0.0), (0.0, 0.0)]
    edges += [(1.0, 1.0), (0.2, 0.8), (0.8, 0.2), (0.89, 0.17), (1e-3, 0.9), (0.9, 1e-3)]
    assert gap_to_closed_form(edges) < 1e-9


def test_published_values_of_channels():
    found = information_indices([channel(0.2, 0.8), channel(0.89, 0.17)], 3)
    expected = [
        [[0.2, 0.392857, 0.518987], [0.8, 0.772727, 0.752475]],
        [[0.89, 0.270634, 0.792944], [0.17, 0.792944, 0.405115]],
    ]
    np.testing.assert_allclose([f.index for f in found], expected, atol=1e-6)


@pytest.mark.parametrize("discount", [None, 0.9, 0.5])
@pytest.mark.parametrize("S", [2, 3, 4, 5])
def test_equal_to_the_dense_solver(S, discount):
    rng = np.random.default_rng(S)
    arms = [random_arm(rng, S, mixing=0.6) for _ in range(6)]
    for arm, found in zip(arms, information_indices(arms, 8, discount), strict=True):
        same_as_dense(arm, found, discount)


@pytest.mark.parametrize("discount", [None, 0.8])
def test_zero_probabilities(discount):
    rng = np.random.default_rng(7)
    arms: list[Arm] = []
    while len(arms) < 10:
        matrices = rng.integers(0, 3, (2, 3, 3)) * rng.random((2, 3, 3))
        if (matrices.sum(2) > 0).all():
            passive, active = matrices / matrices.sum(2, keepdims=True)
            unpaid, paid = rng.normal(size=(2, 3))
            arm = Arm(passive, active, reward_passive=unpaid, reward_active=paid)
            if settled_age(arm, 1e-12, most=25) < 25 and expansion(arm, 1).wrap == 0:
                arms.append(arm)
    for arm, found in zip(arms, information_indices(arms, 5, discount), strict=True):
        same_as_dense(arm, found, discount)


@pytest.mark.parametrize("discount", [None, 0.9])
def test_duplicate_rows_and_equal_rewards(discount):
    half, mixed = [[0.5, 0.5], [0.5, 0.5]], [[0.7, 0.3], [0.2, 0.8]]
    third, twins = np.full((3, 3), 1 / 3), [[0.2, 0.4, 0.4], [0.6, 0.2, 0.2], [0.6, 0.2, 0.2]]
    arms = [
        Arm(half, reward=[0, 0]),
        Arm(mixed, half, reward=[0, 0]),
        Arm(mixed, reward_passive=[1, 1], reward_active=[3, 3]),
        Arm(third, reward=[1, 1, 2]),
        Arm(third, twins, reward=[0, 1, 1], reward_passive=[0.5, 0.25, 0.25]),
        Arm(twins, reward=[0, 1, 1]),
    ]
    found = information_indices(arms, 4, discount)
    for arm, indices in zip(arms, found, strict=True):
        same_as_dense(arm, indices, discount)
    np.testing.assert_allclose(found[2].index, 2, atol=1e-9)


@pytest.mark.parametrize("discount", [None, 0.9])
def test_arms_that_do_not_forget(discount):
    played = [[0.6, 0.4, 0.0], [0.3, 0.3, 0.4], [0.2, 0.2, 0.6]]
    swings = [[0.0, 0.2, 0.8], [1.0, 0.0, 0.0], [1.0, 0.0, 0.0]]  # settles late, period 2
    parts = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.3, 0.3, 0.4]]  # two classes
    for passive in (swings, parts):
        arm = Arm(passive, played, reward=[0, 0.3, 1], reward_passive=[0.1, 0, 0])
        [found] = information_indices(arm, 9, discount)
        same_as_dense(arm, found, discount, cap=39)


def test_a_frozen_arm_by_hand():
    frozen = Arm(np.eye(2), [[0.6, 0.4], [0.3, 0.7]], reward=[0, 1])
    [found] = information_indices(frozen, 30, 0.9)
    np.testing.assert_array_equal(found.index, found.index[:, :1] * np.ones(30))
    # What was seen stays true, so an age of 5 is an age of 1: a finite arm of three states.
    small = Arm(
        np.eye(3),
        [[0, 0.5, 0.5], [0, 0.6, 0.4], [0, 0.3, 0.7]],
        reward_active=[0.5, 0.4, 0.7],
        observed="always",
    )
    expected = finite_indices(small, 0.9).index
    np.testing.assert_allclose([found.never_seen, *found.index[:, 4]], expected, atol=1e-12)


def test_not_indexable_comes_with_a_witness():
    rng = np.random.default_rng(0)
    arms = [random_arm(rng, 4, mixing=0.5) for _ in range(600)]
    found = information_indices(arms, 30)
    refused = [(arm, f) for arm, f in zip(arms, found, strict=True) if f.indexable is False]
    assert refused
    for arm, f in refused[:3]:
        assert f.witness is not None
        state, low, high = f.witness
        assert isinstance(state, tuple)
        last_seen, age = state
        assert last_seen is not None
        assert low < high
        assert f"state {last_seen} seen {age} slot" in f.reason
        row = last_seen * 30 + age
        chain = expand(arm, 30)
        assert advantage_near_one(chain, low)[row] < 0 < advantage_near_one(chain, high)[row]
        same_as_dense(arm, f, None)


def test_the_index_does_not_depend_on_the_ages_asked_for():
    rng = np.random.default_rng(4)
    arms = [random_arm(rng, 3) for _ in range(20)]
    for discount in (None, 0.7):
        few, many = (information_indices(arms, ages, discount) for ages in (2, 90))
        for one, other in zip(few, many, strict=True):
            np.testing.assert_allclose(one.index, other.index[:, :2], atol=1e-12)
            assert one.indexable is other.indexable
            assert one.witness == other.witness


def test_indices_move_with_the_rewards():
    arm = random_arm(np.random.default_rng(3), 3)
    moved = Arm(
        arm.passive,
        arm.active,
        reward_passive=1e3 * arm.reward_passive - 5,
        reward_active=1e3 * arm.reward_active + 7,
    )
    one, other = information_indices([arm, moved], 8)
    np.testing.assert_allclose(1e3 * one.index + 12, other.index, rtol=1e-11)


def test_relabelled_states_have_the_same_indices():
    arm = random_arm(np.random.default_rng(9), 4)
    order = np.array([2, 0, 3, 1])
    other = Arm(
        arm.passive[np.ix_(order, order)],
        arm.active[np.ix_(order, order)],
        reward_passive=arm.reward_passive[order],
        reward_active=arm.reward_active[order],
    )
    one, two = information_indices([arm, other], 8)
    np.testing.assert_allclose(one.index[order], two.index, atol=1e-10)


def test_a_batch_is_its_arms_one_by_one():
    rng = np.random.default_rng(5)
    arms = [random_arm(rng, S) for S in (2, 4, 2, 3, 4, 4, 4, 2)]
    for arm, found in zip(arms, information_indices(arms, 7), strict=True):
        [alone] = information_indices(arm, 7)
        np.testing.assert_allclose(found.index, alone.index, atol=1e-11)
        assert found.index.shape == (arm.states, 7)
        assert found.indexable is alone.indexable
    assert information_indices([], 7) == []


def test_random_arms_need_no_dense_solver(monkeypatch):
    def no_dense(*_):
        raise AssertionError("the dense solver was asked")

    monkeypatch.setattr(hidden, "finite_indices", no_dense)
    rng = np.random.default_rng(11)
    found = information_indices([random_arm(rng, 4) for _ in range(150)], 8)
    assert {f.indexable for f in found} == {True, False}


def test_what_is_doubtful_goes_to_the_dense_solver():
    rng = np.random.default_rng(12)
    arms = [random_arm(rng, 3, mixing=0.7) for _ in range(3)]
    sure = information_indices(arms, 5)
    doubtful = Limits(value=0.0)  # now every arm is
    for one, other in zip(sure, information_indices(arms, 5, limits=doubtful), strict=True):
        np.testing.assert_allclose(one.index, other.index, atol=1e-9)
        assert one.indexable is other.indexable is True
    too_large = Limits(value=0.0, dense_states=10)
    for one, other in zip(sure, information_indices(arms, 5, limits=too_large), strict=True):
        np.testing.assert_array_equal(one.index, other.index)
        assert other.indexable is None
        assert "rounding" in other.reason


def test_classes_that_only_play_keeps_apart():
    # Every look shows for ever what the last one did, unless the arm is left alone.
    arm = Arm([[0.5, 0.5], [0.4, 0.6]], np.eye(2), reward=[0, 1])
    [found] = information_indices(arm, 3)
    same_as_dense(arm, found, None)


def test_an_arm_that_hardly_forgets():
    limits = Limits(settling_states=80, cut_states=40)
    slow, fast = channel(0.05, 0.95), channel(0.5, 0.7)
    one, other = information_indices([slow, fast], 4, limits=limits)
    assert other.indexable is True
    assert one.indexable is None
    assert "takes more than 40 slots to forget" in one.reason
    assert "an index that depends on ages beyond 10 is not known" in one.reason
    closed = whittle_at(Dynamics(0.05, 0.95, 1.0), information_states(4))[1:].reshape(2, 4)
    known = ~np.isnan(one.index)
    assert known.tolist() == [[True, False, False, False], [True] * 4]
    np.testing.assert_allclose(one.index[known], closed[known], atol=1e-9)
    assert np.isfinite(other.index).all()


def test_a_slow_arm_of_many_states_keeps_the_indices_that_are_known():
    """Every index that is given is that of the arm which is not cut."""
    arm = Arm(0.97 * np.eye(3) + 0.01, reward=[0.0, 0.4, 1.0])
    [cut] = information_indices(arm, 60, limits=Limits(settling_states=400, cut_states=120))
    [whole] = information_indices(arm, 60)
    assert cut.indexable is None
    assert whole.indexable is not None
    known = ~np.isnan(cut.index)
    assert 0 < known.sum() < known.size
    np.testing.assert_allclose(cut.index[known], whole.index[known], atol=1e-8)


def test_what_is_refused():
    arm = channel(0.2, 0.8)
    with pytest.raises(ModelError, match="max_age must be at least 1, got 0"):
        information_indices(arm, 0)
    with pytest.raises(ModelError, match=r"discount must lie in \(0, 1\).*1\.0"):
        information_indices(arm, 3, 1.0)
