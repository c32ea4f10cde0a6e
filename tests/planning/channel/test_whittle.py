"""The closed-form Whittle index against numbers, numeric solutions and its own shape."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmab.errors import ModelError
from rmab.model.arms import Dynamics, channels
from rmab.model.information import (
    InformationStates,
    belief_after,
    information_states,
    stationary_belief,
)
from rmab.planning.channel.whittle import whittle_at, whittle_index
from tests.oracles.channel import bisected_index, iterated_advantage

EXTREMES = [0.0, 1e-300, 1e-12, 1e-6, 0.3, 0.7, 1 - 1e-6, 1 - 1e-12, 1 - 2**-53, 1.0]
unit = st.floats(0, 1)
probability = st.floats(1e-6, 1 - 1e-6) | st.sampled_from([0.0, 0.5, 1.0])


def random_channels(n_arms: int, seed: int) -> Dynamics:
    """Both signs of memory, some of them slow: p01 and p11 of shape (n_arms,)."""
    rng = np.random.default_rng(seed)
    p01, p11 = rng.random((2, n_arms))
    slow = rng.random(n_arms) < 0.2
    return Dynamics(np.where(slow, 0.05 * p01, p01), np.where(slow, 1 - 0.05 * p11, p11), 1.0)


@pytest.mark.parametrize(
    ("p01", "p11", "wanted"),
    [
        # age 1, 2, 3 after bad, then after good; at age 1 the index is the belief
        (0.2, 0.8, [0.2, 0.392857, 0.518987, 0.8, 0.772727, 0.752475]),
        (0.89, 0.17, [0.89, 0.270634, 0.792944, 0.17, 0.792944, 0.405115]),
    ],
)
def test_known_values(p01, p11, wanted):
    index = whittle_at(Dynamics(p01, p11, 1.0), information_states(3))
    np.testing.assert_allclose(index[1:], wanted, rtol=0, atol=5e-7)


def test_equals_the_bisected_subsidy_at_any_belief():
    """Beliefs between the orbit's points as well as outside [p01, p11]."""
    dynamics = random_channels(4000, seed=5)
    rng = np.random.default_rng(6)
    low = np.minimum(dynamics.p01, dynamics.p11)
    inner = low + rng.random(4000) * np.abs(dynamics.p11 - dynamics.p01)
    belief = np.where(rng.random(4000) < 0.8, inner, rng.random(4000))
    np.testing.assert_allclose(
        whittle_index(channels(*dynamics), belief),
        bisected_index(dynamics, belief),
        rtol=0,
        atol=1e-12,
    )


def test_equals_the_bisected_subsidy_in_information_states():
    dynamics = random_channels(150, seed=7)
    columns = Dynamics(dynamics.p01[:, None], dynamics.p11[:, None], 1.0)
    states = information_states(40)
    seen = np.where(states.age == 0, stationary_belief(columns), states.last_seen)
    belief = belief_after(columns, seen, states.age)  # (150, 81)
    index = whittle_at(columns, states)
    np.testing.assert_allclose(index, bisected_index(columns, belief), rtol=0, atol=1e-12)
    by_belief = whittle_index(channels(*dynamics), belief.T).T
    np.testing.assert_allclose(index, by_belief, rtol=0, atol=1e-12)


def test_plain_value_iteration_plays_below_the_index_and_waits_above():
    """A second numeric check that shares no code with the first."""
    max_age, margin = 100, 1e-4
    p01 = np.array([0.2, 0.1, 0.3, 0.89, 0.9, 0.55, 0.02, 0.4, 0.97, 0.35])
    p11 = np.array([0.8, 0.9, 0.35, 0.17, 0.16, 0.4, 0.6, 0.98, 0.6, 0.02])
    last_seen, age = np.array([(0, 1), (0, 2), (0, 3), (0, 6), (1, 1), (1, 2), (1, 4)]).T
    dynamics = Dynamics(p01[:, None], p11[:, None], 1.0)
    index = whittle_at(dynamics, InformationStates(last_seen, age))  # (arms, states)
    shape = (2, *index.shape)
    subsidy = index + margin * np.array([-1, 1])[:, None, None]
    p01, p11 = (np.broadcast_to(x, shape).ravel() for x in dynamics[:2])
    advantage = iterated_advantage(p01, p11, subsidy.ravel(), max_age)
    rows = np.arange(subsidy.size)
    at_state = advantage[
        rows, np.broadcast_to(last_seen, shape).ravel(), np.broadcast_to(age, shape).ravel() - 1
    ].reshape(shape)
    assert np.all(at_state[0] > 0)
    assert np.all(at_state[1] < 0)


@given(probability, probability, unit, unit, st.floats(0, 10))
def test_rises_with_belief_within_the_reward(p01, p11, one, other, reward):
    low, high = whittle_index(channels([p01, p01], p11, 1.0), np.sort([one, other]))
    assert 0 <= low <= high + 1e-9
    assert high <= 1
    scaled = whittle_index(channels(p01, p11, reward), one)[0]
    np.testing.assert_allclose(scaled, reward * whittle_index(channels(p01, p11, 1.0), one)[0])


@given(st.floats(0.05, 0.95), st.floats(0.05, 0.95))
def test_continuous_where_the_cases_of_eqs_34_and_35_meet(p01, p11):
    """At p01, p11, b0 and T(p11), and where the number of slots to cross jumps."""
    arms = channels([p01], [p11], 1.0)
    borders = np.concatenate(
        [
            [p01, p11, stationary_belief(arms)[0]],
            belief_after(arms, p11, np.arange(1, 4)),
            belief_after(arms, p01, np.arange(1, 6)),
        ]
    )[:, None]
    at = whittle_index(arms, borders)
    for side in (-1e-10, 1e-10):
        np.testing.assert_allclose(whittle_index(arms, borders + side), at, rtol=0, atol=1e-7)


def test_finite_and_bounded_in_every_corner():
    """Pytest turns a warning into a failure, so this also shows that there is none."""
    p01, p11 = np.array(np.meshgrid(EXTREMES, EXTREMES)).reshape(2, -1)
    arms = channels(p01, p11, 0.5)
    rest = stationary_belief(arms)
    for belief in (*EXTREMES, p01, p11, rest, np.nextafter(rest, 0), np.nextafter(rest, 1)):
        index = whittle_index(arms, np.clip(belief, 0, 1))
        assert np.all((index >= 0) & (index <= 0.5))
    table = whittle_at(Dynamics(p01[:, None], p11[:, None], 0.5), information_states(300))
    assert np.all((table >= -1e-15) & (table <= 0.5 + 1e-15))


def test_corners_by_hand():
    arms = channels([0.4, 0.0, 0.0, 0.3, 1.0, 1.0], [0.4, 1.0, 0.5, 1.0, 0.0, 1.0], 1.0)
    wanted = [
        0.7,  # forgets at once: the index is the belief
        1.0,  # never changes: one look settles it, so it is worth the whole reward
        0.7,  # bad for ever once bad: 0.7 lies above p11
        # Good for ever once good: 0.3, 0.51, 0.657, 0.7599 exceeds 0.7 after L = 3 slots, and
        # b - T(b) = -0.09.
        (0.7599 - 0.09 * 4) / (0.7599 - 0.09 * 3),
        1.0,  # alternates, so one look settles it
        0.7,  # always good in the next slot
    ]
    np.testing.assert_allclose(whittle_index(arms, 0.7), wanted, rtol=1e-12)


def test_any_leading_shape():
    arms = channels([0.2, 0.89, 0.1], [0.8, 0.17, 0.9], [0.4, 0.9, 0.7])
    belief = np.random.default_rng(8).random((2, 5, 3))
    index = whittle_index(arms, belief)
    assert index.shape == (2, 5, 3)
    for n, (p01, p11, reward) in enumerate(zip(*arms.dynamics, strict=True)):
        alone = whittle_index(channels(p01, p11, reward), belief[..., n : n + 1])[..., 0]
        np.testing.assert_array_equal(index[..., n], alone)
    assert whittle_index(arms, 0.5).shape == (3,)
    assert whittle_index(arms, belief[..., :1]).shape == (2, 5, 3)


def test_refuses_beliefs_that_are_none():
    arms = channels([0.2, 0.3], 0.8, 1.0)
    with pytest.raises(ModelError, match=r"^a belief must lie in \[0, 1\], got \[0.5, nan\]$"):
        whittle_index(arms, np.array([0.5, np.nan]))
    for outside in (-1e-9, 1 + 1e-9):
        with pytest.raises(ModelError, match=r"^a belief must lie in \[0, 1\], got \[0.5, "):
            whittle_index(arms, np.array([0.5, outside]))
    assert whittle_index(arms, np.array([0.0, 1.0])).tolist() == [0.0, 1.0]
    with pytest.raises(ModelError, match=r"each of 2 arms, got shape \(2, 3\)$"):
        whittle_index(arms, np.full((2, 3), 0.5))


def test_jax_gives_the_same_indices():
    dynamics = random_channels(50, seed=9)
    singles = Dynamics(jnp.asarray(dynamics.p01)[:, None], jnp.asarray(dynamics.p11)[:, None], 0.8)
    doubles = Dynamics(*(np.asarray(x, np.float64) for x in singles))
    states = information_states(30)
    found = jax.jit(whittle_at)(singles, jax.tree.map(jnp.asarray, states))
    assert isinstance(found, jax.Array)
    np.testing.assert_allclose(found, whittle_at(doubles, states), rtol=0, atol=1e-5)
