"""The indices of an arm of any kind: published values, ages, words and refusals."""

import numpy as np
import pytest

from rmab.errors import ModelError
from rmab.model.arms import Arm, Arms, Dynamics
from rmab.model.expansion import expand, settled_age
from rmab.model.information import information_states
from rmab.planning.channel.whittle import whittle_at
from rmab.planning.index.api import gittins_indices, whittle_indices
from rmab.planning.index.finite import finite_indices
from rmab.planning.index.hidden import information_indices
from tests.oracles.exact_line import exact_arm, solve
from tests.oracles.one_arm import iterated_advantage
from tests.planning.index.families import drawn
from tests.planning.index.models import seen


def channel(p01: float, p11: float, **changed) -> Arm:
    return Arm([[1 - p01, p01], [1 - p11, p11]], **({"reward": [0, 1]} | changed))


TWO = seen([[0.5, 0.5], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]], [0.5, 0.5], [2, 1])
# Passivity pays .9^(s + 1) and wears the machine, activity restarts it.
RESTART = seen(
    passive=0.1 * np.eye(5)[[0] * 5] + 0.9 * np.eye(5)[[1, 2, 3, 4, 4]],
    active=np.eye(5)[[0] * 5],
    reward_passive=0.9 ** np.arange(1, 6),
    reward_active=np.zeros(5),
)
STEPPING = 0.5 * np.eye(4) + 0.5 * np.roll(np.eye(4), 1, axis=1)
CIRCULANT = seen(STEPPING.T, STEPPING, [-1, 0, 0, 1], [-1, 0, 0, 1])
# Not indexable.
FALLS_BACK = Arm(
    passive=[[0, 0.16, 0.84], [0, 0.85, 0.15], [0.21, 0.78, 0.01]],
    active=[[0.96, 0.04, 0], [0.02, 0.9, 0.08], [0.96, 0, 0.04]],
    reward=[0.3, 0.6, 1],
)
# Left alone its state wears off; a play repairs it for a while.
WANING = Arm(
    passive=[[0.9, 0.1, 0.0], [0.3, 0.6, 0.1], [0.1, 0.3, 0.6]],
    active=[[0.4, 0.4, 0.2], [0.1, 0.4, 0.5], [0.0, 0.1, 0.9]],
    reward_passive=[0, 0.5, 1],
    reward_active=[0, 0.5, 1],
)


@pytest.mark.parametrize(
    ("arm", "discount", "values"),
    [
        (TWO, None, [1.5, 1.0]),
        (TWO, 0.9, [1.5, 0.909091]),
        (CIRCULANT, None, [-0.5, 0.5, 1, -1]),
        (RESTART, None, [-0.9, -0.729, -0.50949, -0.258787, 0.009893]),
    ],
)
def test_published_values(arm, discount, values):
    found = whittle_indices(arm, discount)
    assert found.index == pytest.approx(values, abs=5e-7)
    assert (found.indexable, found.reason, found.witness) == (True, "", None)
    assert found.never_seen is None


@pytest.mark.parametrize(
    ("p01", "p11", "values"),
    [
        (0.2, 0.8, [[0.2, 0.392857, 0.518987], [0.8, 0.772727, 0.752475]]),
        (0.89, 0.17, [[0.89, 0.270634, 0.792944], [0.17, 0.792944, 0.405115]]),
    ],
)
def test_published_values_of_channels_seen_only_when_played(p01, p11, values):
    found = whittle_indices(channel(p01, p11), max_age=3)
    assert found.index == pytest.approx(np.array(values), abs=5e-7)
    assert (found.indexable, found.reason, found.witness) == (True, "", None)


@pytest.mark.parametrize("max_age", [1, 7, 300])
@pytest.mark.parametrize(("p01", "p11"), [(0.2, 0.8), (0.89, 0.17), (0.05, 0.9), (0.3, 0.3)])
def test_channels_have_the_closed_form_whatever_the_ages_asked_for(p01, p11, max_age):
    found = whittle_indices(channel(p01, p11), max_age=max_age)
    closed = whittle_at(Dynamics(p01, p11, 1.0), information_states(max_age))
    assert found.never_seen == pytest.approx(closed[0], abs=1e-9)
    assert found.index.ravel() == pytest.approx(closed[1:], abs=1e-9)


def test_a_channel_has_the_closed_form_to_the_last_bit():
    found = whittle_indices(channel(0.2, 0.8, reward=[0, 0.7]), max_age=5)
    closed = whittle_at(Dynamics(0.2, 0.8, 0.7), information_states(5))
    assert [found.never_seen, *found.index.ravel()] == closed.tolist()
    [solved] = information_indices(channel(0.2, 0.8, reward=[0, 0.7]), 5)
    assert (found.indexable, found.reason) == (solved.indexable, solved.reason) == (True, "")


def test_a_channel_that_never_changes_is_undecided():
    found = whittle_indices(channel(0.0, 1.0), max_age=3)
    assert found.indexable is None
    assert found.reason == "depends on the starting class: the arm never changes"
    assert found.index.tolist() == [[0, 0, 0], [1, 1, 1]]
    assert found.never_seen == 1  # a look costs nothing in the long run, and good lasts
    assert whittle_indices(channel(0.0, 1.0, reward=[0, 0]), max_age=3).indexable is True


def test_a_discounted_channel_is_solved():
    found = whittle_indices(channel(0.2, 0.8), 0.9, max_age=4)
    [solved] = information_indices(channel(0.2, 0.8), 4, 0.9)
    np.testing.assert_array_equal(found.index, solved.index)
    assert found.index[0, 1] != whittle_indices(channel(0.2, 0.8), max_age=4).index[0, 1]


@pytest.mark.parametrize("discount", [None, 0.9])
def test_other_arms_seen_only_when_played_are_their_information_states(discount):
    found = whittle_indices(WANING, discount, max_age=4)
    ages = settled_age(WANING)
    chain = finite_indices(expand(WANING, ages), discount)
    assert found.index == pytest.approx(chain.index[1:].reshape(3, ages)[:, :4], abs=1e-8)
    assert found.never_seen == pytest.approx(chain.index[0], abs=1e-8)
    assert found.indexable is chain.indexable


def test_a_witness_names_the_last_seen_state_and_its_age():
    found = whittle_indices(FALLS_BACK, max_age=10)
    assert found.indexable is False
    assert found.witness is not None
    state, low, high = found.witness
    assert isinstance(state, tuple)
    last_seen, age = state
    assert last_seen is not None
    slots = "1 slot" if age == 1 else f"{age} slots"
    assert found.reason == (
        f"state {last_seen} seen {slots} ago is passive at subsidy {low:.9g} "
        f"and active again at subsidy {high:.9g}"
    )
    assert low < high
    chain = expand(FALLS_BACK, settled_age(FALLS_BACK))
    place = 1 + last_seen * settled_age(FALLS_BACK) + age - 1
    assert iterated_advantage(chain, low)[place] < 0 < iterated_advantage(chain, high)[place]


def test_ages_that_are_not_asked_for_end_where_the_belief_has_settled():
    quick, slow = channel(0.2, 0.8), channel(0.01, 0.99)
    assert whittle_indices(quick).index.shape == (2, settled_age(quick))
    assert whittle_indices(slow).index.shape == (2, 1000)


def test_gittins_index_is_a_reward_rate():
    assert gittins_indices(TWO, 0.5) == pytest.approx([2, 4 / 3])
    # Left alone the arm may do anything: the index is of the arm when played.
    other = seen(np.eye(2), TWO.active, [7, 7], TWO.reward_active)
    assert gittins_indices(other, 0.5) == pytest.approx([2, 4 / 3])


def test_gittins_index_is_the_best_rate_until_a_stop():
    """Over all sets of states in which to go on, each solved by itself."""
    rng = np.random.default_rng(2)
    S, discount = 5, 0.8
    P, rewards = rng.dirichlet(np.ones(S), S), rng.uniform(-1, 1, S)
    best = np.full(S, -np.inf)
    for code in range(2**S):
        goes_on = np.array([code >> s & 1 for s in range(S)], bool)
        until = np.eye(S) - discount * P * goes_on  # a stop ends all
        paid, slots = np.linalg.solve(until, np.stack([rewards, np.ones(S)], 1)).T
        best = np.maximum(best, paid / slots)
    assert gittins_indices(seen(np.eye(S), P, np.zeros(S), rewards), discount) == pytest.approx(
        best, abs=1e-10
    )


@pytest.mark.parametrize("discount", [0, 1, -0.1, 1.5, np.nan])
def test_bad_discounts_are_refused(discount):
    for arm in (TWO, channel(0.2, 0.8)):
        with pytest.raises(ModelError, match=r"discount must lie in \(0, 1\)"):
            whittle_indices(arm, discount)
    with pytest.raises(ModelError, match=r"discount must lie in \(0, 1\)"):
        gittins_indices(TWO, discount)


def test_ages_are_for_arms_seen_only_when_played():
    with pytest.raises(ModelError, match=r'max_age must not be given .* "always", got 5'):
        whittle_indices(TWO, max_age=5)
    with pytest.raises(ModelError, match="max_age must be at least 1, got 0"):
        whittle_indices(channel(0.2, 0.8), max_age=0)


@pytest.mark.parametrize("discount", ["a", True, 1.0, 0, -0.5, np.nan, [0.9], 1j])
def test_what_is_no_discount(discount):
    for arm in (TWO, channel(0.2, 0.8)):
        with pytest.raises(ModelError, match=r"discount must lie in \(0, 1\), or be None"):
            whittle_indices(arm, discount)
    with pytest.raises(ModelError, match="discount must lie in"):
        gittins_indices(TWO, discount)


@pytest.mark.parametrize("max_age", [1.5, "3", True, [2]])
def test_what_is_no_age(max_age):
    arm, whole = channel(0.2, 0.8), np.int64(3)
    assert whittle_indices(arm, max_age=whole).index.shape == (2, 3)  # type: ignore[call-overload]
    with pytest.raises(ModelError, match="max_age must be a whole number"):
        whittle_indices(arm, max_age=max_age)


def test_more_ages_than_fit_are_refused_at_once():
    with pytest.raises(ModelError, match=r"at most 5,000,000 for 2 states, got 1,000,000,000"):
        whittle_indices(channel(0.2, 0.8), max_age=10**9)


@pytest.mark.parametrize("reward", [[0.0, 1.0], [1e-9, 1.0], [1.0, 0.0], [-2.0, 0.5]])
def test_channels_with_slow_memory_have_the_closed_form(reward):
    """Whichever state pays, and whatever else is paid."""
    low, high = min(reward), max(reward)
    closed = whittle_at(Dynamics(1e-4, 0.9999, high - low), information_states(5))[1:]
    found = whittle_indices(channel(1e-4, 0.9999, reward=reward), max_age=5)
    assert found.indexable is True
    closed = low + closed.reshape(2, 5)
    expected = closed if reward[1] > reward[0] else closed[::-1]  # 1e-4 both ways
    assert found.index == pytest.approx(expected, abs=1e-12)


def test_what_is_paid_anyway_plays_no_part_in_two_states_that_move_alike():
    paid = channel(0.3, 0.6, reward=None, reward_active=[0.5, 0.2], reward_passive=[0.1, 0.7])
    found = whittle_indices(paid, max_age=4)
    [solved] = information_indices(paid, 4)
    assert found.index == pytest.approx(solved.index, abs=1e-9)
    assert found.never_seen == pytest.approx(solved.never_seen, abs=1e-9)
    assert found.indexable is solved.indexable is True


@pytest.mark.parametrize("discount", [None, 0.9])
def test_many_arms_give_a_list(discount):
    arms = Arms([TWO, channel(0.2, 0.8), WANING, CIRCULANT, FALLS_BACK])
    found = whittle_indices(arms, discount, max_age=6)
    for arm, one in zip(arms, found, strict=True):
        alone = whittle_indices(arm, discount, None if arm.observed == "always" else 6)
        assert one.index == pytest.approx(alone.index, abs=1e-9)
        assert (one.indexable, one.never_seen is None) == (
            alone.indexable,
            alone.never_seen is None,
        )
    shapes = [one.index.shape for one in whittle_indices(list(arms), discount)]
    assert shapes == [whittle_indices(arm, discount).index.shape for arm in arms]


NEAR_ONE = Arm(
    np.eye(3),
    [[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    reward_active=[3, 3, 0],
    observed="always",
)


@pytest.mark.parametrize("discount", [0.5, 0.99999, 0.999999, 1 - 1e-9, 1 - 1e-15])
def test_gittins_indices_near_discount_1(discount):
    assert gittins_indices(NEAR_ONE, discount).tolist() == [3, 3, 0]


@pytest.mark.parametrize("discount", [0.3, 0.9, 0.99999, 0.999999, 1 - 1e-9])
def test_gittins_indices_are_those_of_exact_arithmetic(discount):
    for number in range(12):
        given = drawn("rested", number)
        exact = solve(exact_arm(given.numbers(), discount))
        arm = given.arm()
        assert exact.indexable
        assert gittins_indices(arm, discount) == pytest.approx(exact.index, rel=1e-9, abs=1e-12)
        whittle = whittle_indices(arm, discount)
        assert whittle.indexable is True
        assert whittle.index == pytest.approx(exact.index, rel=1e-9, abs=1e-9)


def test_gittins_indices_of_average_reward_come_with_a_verdict():
    decided = 0
    for number in range(40):
        given = drawn("rested", number)
        arm = given.arm()
        found, whittle = gittins_indices(arm, None), whittle_indices(arm)
        exact = solve(exact_arm(given.numbers()))
        assert found.index == pytest.approx(exact.index, abs=1e-9)
        assert (found.indexable, found.reason == "") == (whittle.indexable, found.indexable is True)
        decided += found.indexable is True
    assert decided > 10
    apart = gittins_indices(NEAR_ONE, None)
    assert apart.index.tolist() == [3, 3, 0]
    assert apart.indexable is None
    assert "the average reward is 0 from state 2 and 3 from state 1" in apart.reason
    entered = Arm(
        [[0.5, 0.25, 0.25], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], reward=[0, 1, 1], observed="always"
    )
    assert gittins_indices(entered, None).index.tolist() == [1, 1, 1]
    assert "state 0 leads to one of several closed" in gittins_indices(entered, None).reason


def test_gittins_indices_need_an_arm_that_is_always_seen():
    with pytest.raises(ModelError, match=r'need an arm observed "always".*when_played'):
        gittins_indices(channel(0.2, 0.8), 0.9)
