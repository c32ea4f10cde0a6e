"""Beliefs and information states against plain repetition of the belief update, eq. (27)."""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmab.errors import ModelError
from rmab.model.arms import Dynamics, channels
from rmab.model.information import (
    NEVER,
    InformationStates,
    after,
    belief_after,
    deviation,
    information_states,
    row_of,
    slots_to_cross,
    stationary_belief,
    update_belief,
)

CORNERS = np.array([0.0, 1e-12, 0.25, 0.5, 1 - 1e-12, 1.0])
probability = st.floats(0, 1) | st.sampled_from(CORNERS.tolist())


def many_arms() -> Dynamics:
    """Random channels, then all corner cases: p01 and p11 of shape (236,)."""
    draws = np.random.default_rng(1).random((2, 200))
    corners = np.array(np.meshgrid(CORNERS, CORNERS)).reshape(2, -1)
    p01, p11 = np.concatenate([draws, corners], axis=1)
    return Dynamics(p01, p11, 1.0)


def unseen(arms: Dynamics, belief: npt.ArrayLike, slots: int) -> np.ndarray:
    """Eq. (27), last case, slot by slot: (slots + 1, ...)."""
    path = [np.asarray(belief) + 0 * arms.p01]
    for _ in range(slots):
        path.append(path[-1] * arms.p11 + (1 - path[-1]) * arms.p01)
    return np.array(path)


def test_belief_after_repeats_the_update():
    arms = many_arms()
    belief = np.random.default_rng(2).random(arms.p01.shape)
    slots = np.arange(61)[:, None]
    np.testing.assert_allclose(
        belief_after(arms, belief, slots), unseen(arms, belief, 60), rtol=0, atol=2e-14
    )


def test_update_belief_takes_each_case_of_eq_27():
    arms = channels([0.2, 0.2, 0.2], 0.7, 1.0)
    next_belief = update_belief(
        arms, np.full(3, 0.4), played=np.array([True, True, False]), state=np.array([1, 0, 1])
    )
    np.testing.assert_allclose(next_belief, [0.7, 0.2, 0.4 * 0.7 + 0.6 * 0.2], rtol=1e-15)


def test_stationary_belief_is_where_the_update_rests():
    arms = many_arms()
    rest = stationary_belief(arms)
    np.testing.assert_allclose(unseen(arms, rest, 1)[1], rest, rtol=0, atol=1e-15)
    np.testing.assert_allclose(
        stationary_belief(Dynamics(np.array([0.89, 0.0, 0.0]), np.array([0.17, 1.0, 0.5]), 1.0)),
        [0.89 / 1.72, 0.5, 0.0],
        rtol=1e-15,
    )


def test_slots_to_cross_agrees_with_a_plain_search():
    """Random beliefs, and beliefs on the orbit of p01, where only rounding decides a tie."""
    arms = many_arms()
    n_slots, tie = 200, 1e-13
    draws = np.random.default_rng(3).random((4, arms.p01.size))
    low, high = np.minimum(arms.p01, arms.p11), np.maximum(arms.p01, arms.p11)
    orbit = unseen(arms, arms.p01, 6)
    cases = [
        (draws[0], draws[1]),
        (arms.p01, low + draws[2] * (high - low)),
        (draws[3], stationary_belief(arms)),
        *((orbit[i], orbit[j]) for i in (0, 2) for j in (0, 1, 4, 5, 6)),
    ]
    for start, target in cases:
        answer = slots_to_cross(arms, start, target)
        over = unseen(arms, start, n_slots) - target  # (slots + 1, arms)
        before = np.arange(n_slots + 1)[:, None] < answer
        assert not np.any(before & (over > tie))
        near = answer <= n_slots
        reached = over[np.where(near, answer, 0).astype(int), np.arange(answer.size)]
        assert np.all(reached[near] > -tie)
        assert np.all(np.any(~before, axis=0) == near)


@pytest.mark.parametrize(
    ("p01", "p11", "start", "target", "slots"),
    [
        (0.25, 0.75, 0.3, 0.2, 0),  # already above
        (0.25, 0.75, 0.25, 0.25, 1),  # must exceed, not reach
        (0.25, 0.75, 0.0, 0.49, 6),  # 0.5 - 0.5^(j + 1) > 0.49
        (0.25, 0.75, 0.25, 0.5, np.inf),  # b0 is approached, never passed
        (0.8, 0.3, 0.3, 0.6, 1),  # swings over to 0.65
        (0.8, 0.3, 0.3, 0.7, np.inf),
        (0.4, 0.4, 0.1, 0.3, 1),  # forgets at once
        (0.4, 0.4, 0.1, 0.4, np.inf),
        (0.2, 1.0, 0.0, 0.9999, 42),  # 1 - 0.8^j > 0.9999
        (0.2, 1.0, 0.5, 1.0, np.inf),
        (0.0, 0.5, 0.1, 0.2, np.inf),  # only falls
        (0.0, 1.0, 0.3, 0.3, np.inf),  # never changes
        (1.0, 0.0, 0.2, 0.7, 1),  # 0.2, 0.8, 0.2, ...
        (1.0, 0.0, 0.5, 0.5, np.inf),
    ],
)
def test_slots_to_cross_by_hand(p01, p11, start, target, slots):
    assert slots_to_cross(channels(p01, p11, 1.0), start, target) == slots


def test_information_states_order():
    states = information_states(3)
    assert states.last_seen.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert states.age.tolist() == [NEVER, 1, 2, 3, 1, 2, 3]
    assert information_states(2, n_states=3).last_seen.tolist() == [0, 0, 0, 1, 1, 2, 2]
    with pytest.raises(ModelError, match="max_age must be at least 1, got 0"):
        information_states(0)


def test_deviation_is_the_belief_less_b0():
    arms = many_arms()
    states = information_states(60)
    away = deviation(Dynamics(*(np.reshape(x, (-1, 1)) for x in arms)), states)  # (arms, rows)
    rest = stationary_belief(arms)
    assert np.all(away[:, 0] == 0)
    for seen in (0, 1):
        path = unseen(arms, seen, 60)[1:].T - rest[:, None]
        rows = slice(1 + 60 * seen, 61 + 60 * seen)
        np.testing.assert_allclose(away[:, rows], path, rtol=0, atol=2e-14)


def test_deviation_keeps_its_precision_when_the_belief_has_settled():
    away = deviation(Dynamics(0.3, 0.8, 1.0), InformationStates(np.array([0, 1]), 80))
    np.testing.assert_allclose(away, [-0.6 * 0.5**80, 0.4 * 0.5**80], rtol=1e-12)


def test_numpy_and_jax_agree():
    """The same functions, compiled, in JAX's single precision."""
    singles = Dynamics(*(jnp.reshape(jnp.asarray(x), (-1, 1)) for x in many_arms()))
    columns = Dynamics(*(np.asarray(x, np.float64) for x in singles))
    states = information_states(20)
    belief = np.linspace(0, 1, 21)
    seen = jax.tree.map(jnp.asarray, states)
    for found, wanted in [
        (jax.jit(deviation)(singles, seen), deviation(columns, states)),
        (
            jax.jit(belief_after)(singles, jnp.asarray(belief), jnp.arange(21)),
            belief_after(columns, belief, np.arange(21)),
        ),
    ]:
        assert isinstance(found, jax.Array)
        assert found.dtype == jnp.float32
        np.testing.assert_allclose(found, wanted, rtol=0, atol=5e-6)


@given(probability, probability, probability, st.integers(1, 10**6))
def test_unseen_beliefs_stay_between_p01_and_p11(p01, p11, belief, slots):
    """Eq. (33)."""
    after = belief_after(channels(p01, p11, 1.0), belief, slots)
    assert min(p01, p11) <= after <= max(p01, p11)


def test_rows_are_those_of_the_order():
    for max_age, n_states in ((1, 2), (3, 2), (4, 3)):
        states = information_states(max_age, n_states)
        rows = row_of(states, max_age, np.array(0))
        assert rows.tolist() == list(range(1 + max_age * n_states))


@pytest.mark.parametrize("wrap", [0, 1, 2, 3])
def test_rows_of_ages_past_the_last(wrap):
    """By falling back one period after the other."""
    max_age = 3
    for age in range(12):
        expected = age
        while expected > max_age:
            expected = expected - wrap if wrap else NEVER
        row = 0 if expected == NEVER else expected + max_age
        for xp in (np, jnp):
            states = InformationStates(xp.asarray(1), xp.asarray(age))
            assert int(row_of(states, max_age, xp.asarray(wrap))) == row


def test_rows_of_arms_whose_ages_end_apart():
    states = InformationStates(np.array([1, 0, 1]), np.array([5, 5, 0]))
    rows = row_of(states, np.array([2, 3, 4]), np.array([1, 2, 0]))
    assert rows.tolist() == [4, 3, 0]


def test_slots_alone_leave_never_observed_as_it_is():
    later = after(InformationStates(np.array([0, 1]), np.array([NEVER, 2])), 3)
    assert later.age.tolist() == [NEVER, 5]
    assert later.last_seen.tolist() == [0, 1]
