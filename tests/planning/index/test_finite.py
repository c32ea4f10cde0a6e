"""Indices and verdicts of finite arms: brute force, closed forms, limits, and what must not
matter."""

import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from rmab.model.arms import Arm, Dynamics
from rmab.model.information import belief_after, information_states
from rmab.planning.channel.whittle import whittle_at
from rmab.planning.index.finite import Indices, finite_indices
from tests.oracles.one_arm import NEAR_ONE, Solved, as_exact, bisected, exactly
from tests.planning.index.models import seen

TIE = 1e-9  # an advantage this small leaves both actions optimal
STEP = 1e-6  # how far from an index the oracle is asked


TWO = seen([[0.5, 0.5], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]], [0.5, 0.5], [2, 1])
NOT_INDEXABLE = {
    "dense": seen(
        [[0.005, 0.793, 0.202], [0.027, 0.558, 0.415], [0.736, 0.249, 0.015]],
        [[0.718, 0.254, 0.028], [0.347, 0.097, 0.556], [0.015, 0.956, 0.029]],
        [0, 0, 0],
        [0.699, 0.362, 0.715],
    ),
    "sparse": seen(
        [[0, 0.2, 0.8], [0.7, 0.3, 0], [0.1, 0.9, 0]],
        [[1.0, 0.0, 0.0], [0.3, 0.7, 0.0], [1.0, 0.0, 0.0]],
        [0, 0, 0],
        [0, 0.7, 0.8],
    ),
}


STARTS = re.compile(
    r"depends on the starting class: the best average reward at subsidy (\S+) "
    r"is (\S+) from state (\d+) and (\S+) from state (\d+)"
)


def check(arm: Arm, discount: float | None, found: Indices) -> None:
    """Hold every index and the verdict against the exact solution."""
    exact = as_exact(arm)
    factor = NEAR_ONE if discount is None else Fraction(discount).limit_denominator(1000)

    def at(pays: float) -> Solved:
        return exactly(exact, factor, round(pays, 9), found.index > pays)

    assert not np.isnan(found.index).any()
    assert (found.reason == "") == (found.indexable is True)
    assert (found.witness is not None) == (found.indexable is False)
    claim = STARTS.fullmatch(found.reason)
    if claim is not None:
        pays, low, one, high, other = map(float, claim.groups())
        rate = at(pays).rate
        assert low < high
        assert [float(rate[int(s)]) for s in (one, other)] == pytest.approx([low, high], abs=1e-7)
    finite = np.unique(found.index[np.isfinite(found.index)])
    far = [finite.min() - 100, finite.max() + 100] if finite.size else [-100.0, 100.0]
    between = (finite[1:] + finite[:-1]) / 2
    for pays in np.unique(np.concatenate([finite - STEP, finite + STEP, between, far])):
        solved = at(pays)
        # What is done changes nothing of an arm that moves alike, however many its classes.
        if discount is None and arm.action_dependent and max(solved.rate) - min(solved.rate) > 1e-5:
            assert claim is not None, f"the gain depends on the start at subsidy {pays}"
        for state, (index, advantage) in enumerate(zip(found.index, solved.advantage, strict=True)):
            place = f"state {state}, subsidy {pays}, index {index}"
            if pays > index + STEP / 2:
                assert advantage <= TIE, place
            # An arm that is not indexable may be passive below, but not just below.
            if pays < index - STEP / 2 and (found.indexable or pays > index - 2 * STEP):
                assert advantage >= -TIE, place
    if found.witness is not None:
        place_of, low, high = found.witness
        assert isinstance(place_of, int)
        assert low < high
        assert at(low).advantage[place_of] < 0 < at(high).advantage[place_of]


def random_matrix(rng, kind: str, S: int):
    weights = {
        "dense": lambda: rng.integers(1, 10, (S, S)),
        "sparse": lambda: sum(np.eye(S)[rng.integers(0, S, S)] for _ in range(3)),
        "permutation": lambda: np.eye(S)[rng.permutation(S)],
        "deterministic": lambda: np.eye(S)[rng.integers(0, S, S)],
        "absorbing": lambda: np.where(
            rng.random((S, 1)) < 0.5, np.eye(S), np.eye(S)[rng.integers(0, S, S)] + np.eye(S)
        ),
        "blocks": lambda: np.kron(np.eye(2), rng.integers(1, 3, (S, S)))[:S, :S],
        "upwards": lambda: np.triu(rng.integers(0, 3, (S, S))) + np.eye(S),
        "frozen": lambda: np.eye(S),
    }[kind]()
    return weights / weights.sum(1, keepdims=True)


KINDS = (
    "dense", "sparse", "permutation", "deterministic", "absorbing", "blocks", "upwards", "frozen"
)  # fmt: skip


def random_rewards(rng, S: int):
    drawn = [np.zeros(S), rng.integers(0, 2, S), rng.integers(-1000, 1000, S) / 1000]
    return drawn[rng.integers(3)].astype(float)


def random_arm(seed: int, least: int, most: int) -> Arm:
    rng = np.random.default_rng(seed)
    S = int(rng.integers(least, most + 1))
    kinds = rng.choice(KINDS, 2)
    drawn = [random_matrix(rng, kind, S) for kind in kinds] + [random_rewards(rng, S) for _ in "01"]
    if seed % 4 == 0:
        for array in drawn:
            array[0] = array[1]  # duplicate states
    return seen(*drawn)


CYCLE, SWAP = np.roll(np.eye(3), 1, axis=1), np.eye(3)[[0, 2, 1]]
HALVES = [[0.5, 0.5, 0], [0.25, 0.75, 0], [0, 0, 1]]
NAMED = {
    # arm, whether it is indexable under average reward
    "periodic": (seen(CYCLE, CYCLE.T, [0, 0, 0], [0.1, 0.7, 0.4]), True),
    "periodic and one class only when passive": (seen(CYCLE, SWAP, [0, 0, 0], [1, 2, 4]), True),
    "multichain when played": (seen(CYCLE, np.eye(3), [0, 0, 0], [1, 2, 4]), True),
    "multichain when passive": (seen(np.eye(3), CYCLE, [0, 0, 0], [1, 2, 4]), True),
    "multichain, moves alike": (seen(HALVES, HALVES, [0, 0, 0], [1, 2, 5]), True),
    "absorbing": (
        seen([[0.5, 0.5, 0], [0, 0.5, 0.5], [0, 0, 1]], np.eye(3)[[1, 2, 2]], [0] * 3, [3, 2, 1]),
        True,
    ),
    "absorbing in two ways": (
        seen([[0.5, 0.25, 0.25], [0, 1, 0], [0, 0, 1]], np.eye(3)[[1, 1, 2]], [0] * 3, [1, 2, 4]),
        None,
    ),
    "reducible": (
        seen([[0.5, 0.5, 0], [0.5, 0.5, 0], [0.25, 0.25, 0.5]], HALVES, [0] * 3, [1, 2, 0.5]),
        True,
    ),
    "duplicate states": (
        seen([[0.5, 0.25, 0.25]] * 2 + [[1, 0, 0]], [[0, 0, 1]] * 2 + [[0, 0.5, 0.5]], [0] * 3,
             [1, 1, 2]),
        True,
    ),
    "zero rewards": (seen(CYCLE, HALVES, [0, 0, 0], [0, 0, 0]), True),
    "equal rewards": (seen(CYCLE, HALVES, [1, 1, 1], [3, 3, 3]), True),
    "equal actions": (seen(TWO.passive, TWO.passive, [0, 0], [1, 2]), True),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("discount", [None, 0.5, 0.9])
def test_arms_with_a_name(name, discount):
    arm, indexable = NAMED[name]
    found = finite_indices(arm, discount)
    check(arm, discount, found)
    if discount is None:
        assert found.indexable is indexable


@pytest.mark.parametrize("discount", [None, 0.9])
@pytest.mark.parametrize("S", range(2, 13))
def test_the_index_of_each_state_is_where_bisection_finds_it(S, discount):
    rng = np.random.default_rng(S)
    for spread in (0.2, 1.0):  # few likely moves, many
        arm = seen(*rng.dirichlet(np.full(S, spread), (2, S)), *rng.uniform(-1, 1, (2, S)))
        found = finite_indices(arm, discount)
        assert found.indexable is not None  # nothing is in doubt about such arms
        if found.indexable:
            expected = [bisected(arm, discount, state) for state in range(S)]
            assert found.index == pytest.approx(expected, abs=1e-8)


@pytest.mark.parametrize("discount", [None, 0.5, 0.99])
@pytest.mark.parametrize("block", range(4))
def test_small_arms_of_all_kinds(discount, block):
    for seed in range(25 * block, 25 * (block + 1)):
        arm = random_arm(seed, 2, 5)
        check(arm, discount, finite_indices(arm, discount))


@pytest.mark.parametrize("discount", [None, 0.9])
def test_larger_arms_of_all_kinds(discount):
    for seed in range(1000, 1012):
        arm = random_arm(seed, 6, 12)
        check(arm, discount, finite_indices(arm, discount))


@pytest.mark.slow
@pytest.mark.parametrize("discount", [None, 0.9])
def test_many_arms_of_all_kinds(discount):
    for seed in range(10_000, 11_500):
        arm = random_arm(seed, 2, 8)
        check(arm, discount, finite_indices(arm, discount))


@pytest.mark.parametrize("name", NOT_INDEXABLE)
@pytest.mark.parametrize("discount", [None, 0.9])
def test_arms_that_are_not_indexable(name, discount):
    arm = NOT_INDEXABLE[name]
    found = finite_indices(arm, discount)
    if (name, discount) != ("sparse", 0.9):
        assert found.indexable is False
        assert found.witness is not None
        state, low, high = found.witness
        assert found.reason == (
            f"state {state} is passive at subsidy {low:.9g} and active again at subsidy {high:.9g}"
        )
    check(arm, discount, found)


def side_by_side(one: Arm, other: Arm) -> Arm:
    """Two arms in one, no way between them."""

    def both(name):
        first, second = getattr(one, name), getattr(other, name)
        if first.ndim == 1:
            return np.concatenate([first, second])
        S, T = len(first), len(second)
        return np.block([[first, np.zeros((S, T))], [np.zeros((T, S)), second]])

    return seen(*map(both, ("passive", "active", "reward_passive", "reward_active")))


@pytest.mark.parametrize("discount", [None, 0.9])
def test_classes_of_their_own_are_compared_within_themselves(discount):
    """The gain depends on the start and says so; no index does."""
    rng = np.random.default_rng(1)
    parts = [seen(*rng.dirichlet(np.ones(3), (2, 3)), *rng.uniform(-1, 1, (2, 3))) for _ in "ab"]
    found = finite_indices(side_by_side(*parts), discount)
    apart = np.concatenate([finite_indices(part, discount).index for part in parts])
    assert found.index == pytest.approx(apart, abs=1e-9)
    assert found.indexable is (None if discount is None else True)
    assert bool(STARTS.fullmatch(found.reason)) is (discount is None)
    frozen = seen(np.eye(2), np.eye(2), [0, 3], [1, 1])
    assert finite_indices(frozen, discount).index == pytest.approx([1, -2])


def test_a_witness_in_one_class_does_not_hide_that_the_gain_depends_on_the_start():
    arm = side_by_side(NOT_INDEXABLE["dense"], TWO)
    found = finite_indices(arm)
    assert (found.indexable, found.witness) == (None, None)
    assert STARTS.fullmatch(found.reason)
    assert finite_indices(arm, 0.9).indexable is False
    # Twins have one gain at every subsidy: the verdict of each is the verdict of both.
    assert finite_indices(side_by_side(TWO, TWO)).indexable is True
    twins = finite_indices(side_by_side(NOT_INDEXABLE["dense"], NOT_INDEXABLE["dense"]))
    assert twins.indexable is False


def test_a_choice_between_classes_of_one_gain_is_undecided():
    """State 0 chooses for ever between two copies of one class."""
    leads = [[0, 0, 1], [0, 1, 0], [0, 0, 1]], [[0, 1, 0], [0, 1, 0], [0, 0, 1]]
    found = finite_indices(seen(*leads, [0, 0, 0], [1, 0.5, 0.5]))
    assert found.indexable is None
    assert found.reason.startswith("depends on the starting class: state 0 ")
    assert found.index[1:] == pytest.approx([0.5, 0.5])


def test_a_choice_between_classes_of_different_gain_goes_by_gain():
    """Class 1 pays 5 when played, class 2 pays 5 when left alone: whoever plays first, loses."""
    leads = [[0, 0, 1], [0, 1, 0], [0, 0, 1]], [[0, 1, 0], [0, 1, 0], [0, 0, 1]]
    found = finite_indices(seen(*leads, [0, 0, 5], [0, 0, 0]))
    assert found.index.tolist() == pytest.approx([-5, 0, -5])
    assert finite_indices(seen(*leads, [0, 1, 5], [0, 1, 5])).index[0] == -np.inf
    swapped = seen(leads[1], leads[0], [0, 1, 5], [0, 1, 5])
    assert finite_indices(swapped).index[0] == np.inf


@pytest.mark.parametrize("link", [1e-3, 1e-14])
def test_classes_that_hardly_connect_are_decided_exactly(link):
    passive = [[0.3, 0.7, 0], [0.6, 0.4 - link, link], [link, 0, 1 - link]]
    active = [[0.8, 0.2, 0], [0.1, 0.9 - link, link], [0, link, 1 - link]]
    arm = seen(passive, active, [0, 0, 0], [1, 0.2, 0.6])
    assert finite_indices(arm).indexable is True
    rounded = finite_indices(arm, max_exact_states=0)
    assert rounded.indexable is (True if link == 1e-3 else None)
    assert rounded.reason.startswith("" if link == 1e-3 else "rounding may change an advantage by")


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
