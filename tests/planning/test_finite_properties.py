"""Indices of finite arms: closed forms, limits, and what must not matter."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rmab.model.arms import Arm, Dynamics, belief_after, information_states
from rmab.planning.channel.index import whittle_at
from rmab.planning.index.finite import Indices, finite_indices


def seen(passive, active, reward_passive, reward_active) -> Arm:
    """An arm whose state is seen before each choice."""
    return Arm(
        passive,
        active,
        reward_passive=reward_passive,
        reward_active=reward_active,
        observed="always",
    )


# Passivity pays .9^(s + 1) and wears the machine, activity restarts it.
RESTART = seen(
    passive=0.1 * np.eye(5)[[0] * 5] + 0.9 * np.eye(5)[[1, 2, 3, 4, 4]],
    active=np.eye(5)[[0] * 5],
    reward_passive=0.9 ** np.arange(1, 6),
    reward_active=np.zeros(5),
)


def channel_seen_when_played(p01: float, p11: float, ages: int) -> Arm:
    """The information states of a channel, in the order of an index table's rows."""
    states = information_states(ages)
    dynamics = Dynamics(p01, p11, 1.0)
    rest = p01 / (1 - p11 + p01)
    belief = np.where(
        states.age == 0, rest, belief_after(dynamics, states.last_seen * 1.0, states.age)
    )
    older = np.arange(belief.size) + 1
    older[[0, ages, 2 * ages]] = [0, ages, 2 * ages]
    active = np.zeros((belief.size, belief.size))
    active[:, 1], active[:, 1 + ages] = 1 - belief, belief
    return seen(np.eye(belief.size)[older], active, np.zeros(belief.size), belief)


@pytest.mark.parametrize(
    ("p01", "p11"), [(0.2, 0.8), (0.89, 0.17), (0.6, 0.25), (0.4, 0.6), (0.3, 0.3), (0.05, 0.5)]
)
def test_information_states_of_a_channel_have_the_closed_form(p01, p11):
    """Never played, they stay apart in three classes; average reward copes."""
    ages = 2 + int(np.log(1e-13) / np.log(max(abs(p11 - p01), 1e-3)))  # the belief has settled
    arm = channel_seen_when_played(p01, p11, ages)
    found = finite_indices(arm)
    assert found.indexable is True
    closed = whittle_at(Dynamics(p01, p11, 1.0), information_states(ages))
    assert found.index == pytest.approx(np.asarray(closed), abs=1e-9)


def test_units_of_any_size():
    for scale, shift in ((1e-300, 0), (1e-6, 0), (1e8, 0), (1e300, 0), (1, 1e3)):
        for discount in (None, 0.9):
            base = finite_indices(RESTART, discount).index
            rewards = scale * RESTART.reward_passive, scale * RESTART.reward_active + shift
            found = finite_indices(seen(RESTART.passive, RESTART.active, *rewards), discount)
            assert found.indexable is True
            assert found.index == pytest.approx(scale * base + shift, rel=1e-9, abs=1e-9 * scale)


def arms(S: int):
    """Arms of S states with rewards in hundredths and rows that meet in every state."""
    entry = st.integers(1, 20)
    matrix = arrays(np.float64, (S, S), elements=entry.map(float))
    rewards = arrays(np.float64, S, elements=st.integers(-100, 100).map(lambda x: x / 100))
    return st.builds(
        lambda P, Q, r, q: seen(P / P.sum(1, keepdims=True), Q / Q.sum(1, keepdims=True), r, q),
        matrix,
        matrix,
        rewards,
        rewards,
    )


some_arm = st.integers(2, 6).flatmap(arms)
some_discount = st.sampled_from([None, 0.3, 0.9, 0.999])


def same_verdict(found: Indices, other: Indices) -> None:
    """Never True and False; doubt may come and go with rounding."""
    assert {found.indexable, other.indexable} != {True, False}


@settings(max_examples=60)
@given(some_arm, some_discount, st.floats(0.01, 100), st.floats(-9, 9), st.floats(-9, 9))
def test_rewards_may_be_scaled_and_shifted(arm, discount, scale, paid, unpaid):
    """The subsidy scales along, and takes up the difference of what each action always pays."""
    found = finite_indices(arm, discount)
    moved = finite_indices(
        seen(
            arm.passive,
            arm.active,
            scale * arm.reward_passive + unpaid,
            scale * arm.reward_active + paid,
        ),
        discount,
    )
    same_verdict(found, moved)
    if found.indexable and moved.indexable:
        expected = scale * found.index + paid - unpaid
        assert moved.index == pytest.approx(expected, abs=1e-8 * (1 + scale))


@settings(max_examples=60)
@given(some_arm, some_discount, st.randoms(use_true_random=False))
def test_names_of_states_do_not_matter(arm, discount, random):
    order = list(range(arm.states))
    random.shuffle(order)
    found = finite_indices(arm, discount)
    renamed = finite_indices(
        seen(
            arm.passive[np.ix_(order, order)],
            arm.active[np.ix_(order, order)],
            arm.reward_passive[order],
            arm.reward_active[order],
        ),
        discount,
    )
    same_verdict(found, renamed)
    if found.indexable and renamed.indexable:
        assert renamed.index == pytest.approx(found.index[order], abs=1e-9)


@settings(max_examples=60)
@given(some_arm, some_discount)
def test_actions_that_change_places_change_the_sign(arm, discount):
    found = finite_indices(arm, discount)
    swapped = finite_indices(
        seen(arm.active, arm.passive, arm.reward_active, arm.reward_passive), discount
    )
    same_verdict(found, swapped)
    if found.indexable and swapped.indexable:
        assert swapped.index == pytest.approx(-found.index, abs=1e-9)


@settings(max_examples=40)
@given(some_arm, some_discount, st.floats(0, 1))
def test_a_state_may_be_told_twice(arm, discount, share):
    """A copy of state 0 takes a share of the ways to it: all indices stay, the copy has its own."""

    def wider(P):
        split = np.column_stack([P, share * P[:, 0]])
        split[:, 0] -= split[:, -1]
        return np.vstack([split, split[0]])

    def longer(r):
        return np.append(r, r[0])

    found = finite_indices(arm, discount)
    twice = finite_indices(
        seen(
            wider(arm.passive),
            wider(arm.active),
            longer(arm.reward_passive),
            longer(arm.reward_active),
        ),
        discount,
    )
    same_verdict(found, twice)
    if found.indexable and twice.indexable:
        assert twice.index == pytest.approx(longer(found.index), abs=1e-9)


def test_a_rested_arm_has_the_limit_of_its_gittins_indices():
    """Left alone it waits at no cost in gain or bias: only the order after these tells. The indices
    of a rested arm with a discount are Gittins'."""
    rng = np.random.default_rng(5)
    arm = seen(np.eye(4), rng.dirichlet(np.ones(4), 4), np.zeros(4), rng.random(4))
    found = finite_indices(arm)
    assert found.indexable is True
    assert found.index == pytest.approx(finite_indices(arm, 1 - 1e-7).index, abs=1e-5)
    assert found.index.max() == pytest.approx(arm.reward_active.max(), abs=1e-12)


@pytest.mark.parametrize("discount", [1 - 1e-6, 1 - 1e-12])
def test_discounts_near_one_lose_no_accuracy(discount):
    near = finite_indices(RESTART, discount)
    assert near.indexable is True
    assert near.index == pytest.approx(finite_indices(RESTART).index, abs=20 * (1 - discount))
