"""Indices and verdicts of finite arms against brute force and one another.

Brute force knows nothing of paths, pivots, orders or classes. `exactly` solves the arm with a
subsidy by policy iteration in rational numbers, discounted; for average reward at discount
1 - 10^-24, which tells gain, bias and the order after it apart by their size. `bisected` finds an
index by bisection on the subsidy, with policy iteration in floats, where one class is all there is.
"""

import re
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from rmab.model.arms import Arm
from rmab.planning.index.finite import Indices, finite_indices

NEAR_ONE = 1 - Fraction(1, 10**24)
TIE = 1e-9  # an advantage this small leaves both actions optimal
STEP = 1e-6  # how far from an index the oracle is asked


def seen(passive, active, reward_passive, reward_active) -> Arm:
    """An arm whose state is seen before each choice."""
    return Arm(
        passive,
        active,
        reward_passive=reward_passive,
        reward_active=reward_active,
        observed="always",
    )


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


class Exact(NamedTuple):
    """An arm in rational numbers."""

    passive: list[list[Fraction]]
    active: list[list[Fraction]]
    reward_passive: list[Fraction]
    reward_active: list[Fraction]


def as_exact(arm: Arm) -> Exact:
    """The fractions of small denominators that the floats stand for."""

    def fractions(values):
        return [Fraction(float(x)).limit_denominator(10**6) for x in values]

    matrices = [[fractions(row) for row in P] for P in (arm.passive, arm.active)]
    for P in matrices:
        assert all(sum(row) == 1 for row in P)
    passive, active = matrices
    return Exact(passive, active, fractions(arm.reward_passive), fractions(arm.reward_active))


def solve(matrix, right):
    """Gauss and Jordan."""
    rows = [[*row, x] for row, x in zip(matrix, right, strict=True)]
    for c in range(len(rows)):
        pivot = next(i for i in range(c, len(rows)) if rows[i][c])
        rows[c], rows[pivot] = rows[pivot], rows[c]
        rows[c] = [x / rows[c][c] for x in rows[c]]
        for i in range(len(rows)):
            if i != c and rows[i][c]:
                factor = rows[i][c]
                rows[i] = [x - factor * y for x, y in zip(rows[i], rows[c], strict=True)]
    return [row[-1] for row in rows]


class Solved(NamedTuple):
    """Of the best policy: the advantage of active over passive, and the reward rate, by state."""

    advantage: list[float]
    rate: list[Fraction]


def exactly(exact: Exact, discount: Fraction, pays: float, guess) -> Solved:
    """The best policy at a subsidy, by policy iteration from a guess."""
    states, subsidy = range(len(guess)), Fraction(pays)
    active = list(guess)
    while True:
        P = [exact.active[s] if active[s] else exact.passive[s] for s in states]
        matrix = [[(s == t) - discount * P[s][t] for t in states] for s in states]
        value = solve(
            matrix,
            [exact.reward_active[s] if a else exact.reward_passive[s] + subsidy
             for s, a in zip(states, active, strict=True)],
        )  # fmt: skip
        ahead = [
            exact.reward_active[s]
            - exact.reward_passive[s]
            - subsidy
            + discount * sum((exact.active[s][t] - exact.passive[s][t]) * value[t] for t in states)
            for s in states
        ]
        better = [a > 0 or (a == 0 and b) for a, b in zip(ahead, active, strict=True)]
        if better == active:
            return Solved([float(a) for a in ahead], [(1 - discount) * v for v in value])
        active = better


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
        if discount is None and max(solved.rate) - min(solved.rate) > 1e-5:
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


def advantage(arm: Arm, discount: float | None, pays: float) -> np.ndarray:
    """Of active over passive under the best policy, by policy iteration; one class throughout."""
    S, factor = arm.states, 1.0 if discount is None else discount
    active = np.zeros(S, bool)
    while True:
        matrix = np.eye(S) - factor * np.where(active[:, None], arm.active, arm.passive)
        if discount is None:
            matrix[:, 0] = 1  # the gain takes the place of the value of state 0
        value = np.linalg.solve(
            matrix, np.where(active, arm.reward_active, arm.reward_passive + pays)
        )
        if discount is None:
            value[0] = 0
        ahead = arm.reward_active - arm.reward_passive - pays
        ahead += factor * (arm.active - arm.passive) @ value
        better = np.where(np.abs(ahead) > 1e-12, ahead > 0, active)
        if (better == active).all():
            return ahead
        active = better


def bisected(arm: Arm, discount: float | None, state: int) -> float:
    """The index of a state of an indexable arm."""
    low, high = -64.0, 64.0
    while high - low > 1e-10:
        middle = (low + high) / 2
        if advantage(arm, discount, middle)[state] > 0:
            low = middle
        else:
            high = middle
    return low


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
    "multichain": (seen(HALVES, HALVES, [0, 0, 0], [1, 2, 5]), None),
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
def test_classes_that_hardly_connect_are_undecided(link):
    passive = [[0.3, 0.7, 0], [0.6, 0.4 - link, link], [link, 0, 1 - link]]
    active = [[0.8, 0.2, 0], [0.1, 0.9 - link, link], [0, link, 1 - link]]
    found = finite_indices(seen(passive, active, [0, 0, 0], [1, 0.2, 0.6]))
    assert found.indexable is (True if link == 1e-3 else None)
    assert found.reason.startswith("" if link == 1e-3 else "rounding may change an advantage by")
