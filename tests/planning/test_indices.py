"""Indices of finite arms against published values, exact arithmetic and one another.

The oracle knows nothing of paths, pivots, gains or classes: it solves the arm with a subsidy by
policy iteration in rational numbers, discounted; for average reward at discount 1 - 10^-24, which
tells gain, bias and the order after it apart by their size.
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest

from rmab.arms import Dynamics, belief_after, information_states
from rmab.errors import ModelError
from rmab.planning import subsidy
from rmab.planning.indices import FiniteArm, Indices, gittins_indices, whittle_indices
from rmab.planning.whittle import whittle_at

NEAR_ONE = 1 - Fraction(1, 10**24)
TIE = 1e-9  # an advantage this small leaves both actions optimal
STEP = 1e-6  # how far from an index the oracle is asked

TWO = FiniteArm([[0.5, 0.5], [0.25, 0.75]], [[1.0, 0.0], [0.5, 0.5]], [0.5, 0.5], [2, 1])
# Passivity pays .9^(s + 1) and wears the machine, activity restarts it.
RESTART = FiniteArm(
    passive=0.1 * np.eye(5)[[0] * 5] + 0.9 * np.eye(5)[[1, 2, 3, 4, 4]],
    active=np.eye(5)[[0] * 5],
    reward_passive=0.9 ** np.arange(1, 6),
    reward_active=np.zeros(5),
)
STEPPING = 0.5 * np.eye(4) + 0.5 * np.roll(np.eye(4), 1, axis=1)
CIRCULANT = FiniteArm(STEPPING.T, STEPPING, [-1, 0, 0, 1], [-1, 0, 0, 1])
NOT_INDEXABLE = {
    "dense": FiniteArm(
        [[0.005, 0.793, 0.202], [0.027, 0.558, 0.415], [0.736, 0.249, 0.015]],
        [[0.718, 0.254, 0.028], [0.347, 0.097, 0.556], [0.015, 0.956, 0.029]],
        [0, 0, 0],
        [0.699, 0.362, 0.715],
    ),
    "sparse": FiniteArm(
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


def as_exact(arm: FiniteArm) -> Exact:
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


def oracle(exact: Exact, discount: Fraction, pays: float, guess) -> list[float]:
    """The advantage of active over passive in each state under the best policy at a subsidy."""
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
            return [float(a) for a in ahead]
        active = better


def check(arm: FiniteArm, discount: float | None, found: Indices) -> None:
    """Hold every index and the verdict against the oracle."""
    exact = as_exact(arm)
    rate = NEAR_ONE if discount is None else Fraction(discount).limit_denominator(1000)

    def at(pays: float) -> list[float]:
        return oracle(exact, rate, round(pays, 9), found.index > pays)

    assert not np.isnan(found.index).any()
    assert (found.reason == "") == (found.indexable is True)
    assert (found.witness is not None) == (found.indexable is False)
    finite = np.unique(found.index[np.isfinite(found.index)])
    far = [finite.min() - 100, finite.max() + 100] if finite.size else [-100.0, 100.0]
    between = (finite[1:] + finite[:-1]) / 2
    for pays in np.unique(np.concatenate([finite - STEP, finite + STEP, between, far])):
        for state, (index, advantage) in enumerate(zip(found.index, at(pays), strict=True)):
            place = f"state {state}, subsidy {pays}, index {index}"
            if pays > index + STEP / 2:
                assert advantage <= TIE, place
            # An arm that is not indexable may be passive below, but not just below.
            if pays < index - STEP / 2 and (found.indexable or pays > index - 2 * STEP):
                assert advantage >= -TIE, place
    if found.witness is not None:
        state, low, high = found.witness
        assert low < high
        assert at(low)[state] < 0 < at(high)[state]


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


def random_arm(seed: int, least: int, most: int) -> FiniteArm:
    rng = np.random.default_rng(seed)
    S = int(rng.integers(least, most + 1))
    kinds = rng.choice(KINDS, 2)
    drawn = [random_matrix(rng, kind, S) for kind in kinds] + [random_rewards(rng, S) for _ in "01"]
    if seed % 4 == 0:
        for array in drawn:
            array[0] = array[1]  # duplicate states
    return FiniteArm(*drawn)


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


def test_gittins_index_is_a_reward_rate():
    assert gittins_indices(TWO, 0.5) == pytest.approx([2, 4 / 3])
    # Left alone the arm may do anything: the index is of the arm when played.
    other = FiniteArm(np.eye(2), TWO.active, [7, 7], TWO.reward_active)
    assert gittins_indices(other, 0.5) == pytest.approx([2, 4 / 3])


@pytest.mark.parametrize("discount", [None, 0.5, 0.99])
@pytest.mark.parametrize("block", range(4))
def test_small_arms_of_all_kinds(discount, block):
    for seed in range(25 * block, 25 * (block + 1)):
        arm = random_arm(seed, 2, 5)
        check(arm, discount, whittle_indices(arm, discount))


@pytest.mark.parametrize("discount", [None, 0.9])
def test_larger_arms_of_all_kinds(discount):
    for seed in range(1000, 1012):
        arm = random_arm(seed, 6, 12)
        check(arm, discount, whittle_indices(arm, discount))


@pytest.mark.slow
@pytest.mark.parametrize("discount", [None, 0.9])
def test_many_arms_of_all_kinds(discount):
    for seed in range(10_000, 11_500):
        arm = random_arm(seed, 2, 8)
        check(arm, discount, whittle_indices(arm, discount))


@pytest.mark.parametrize("name", NOT_INDEXABLE)
@pytest.mark.parametrize("discount", [None, 0.9])
def test_arms_that_are_not_indexable(name, discount):
    arm = NOT_INDEXABLE[name]
    found = whittle_indices(arm, discount)
    if (name, discount) != ("sparse", 0.9):
        assert found.indexable is False
        assert found.witness is not None
        state, low, high = found.witness
        assert found.reason == (
            f"state {state} is passive at subsidy {low:.9g} and active again at subsidy {high:.9g}"
        )
    check(arm, discount, found)


@pytest.mark.parametrize("discount", [None, 0.5, 0.95])
def test_both_ways_along_the_line_agree(discount):
    """The pivots are there for speed only."""
    for seed in range(8):
        rng = np.random.default_rng(seed)
        S = 80 if seed == 0 else 12  # more than one block of pivots
        passive, active = rng.dirichlet(np.full(S, 0.5), (2, S))
        unpaid, paid = rng.uniform(-1, 1, (2, S))
        problem = subsidy.Problem(passive, active, unpaid, paid, discount)
        fast, slow = subsidy.History(S), subsidy.History(S)
        assert subsidy.follow_by_pivots(problem, fast)
        subsidy.follow_by_solving(problem, slow)
        assert fast.index == pytest.approx(slow.index, abs=1e-8)
        assert (fast.witness is None) == (slow.witness is None)
        assert not (fast.doubtful | slow.doubtful).any()


def test_pivots_follow_an_arm_that_is_not_indexable():
    """A long path back and forth, against the same arm solved afresh at each change."""
    rng = np.random.default_rng(3)
    S, base = 60, NOT_INDEXABLE["dense"]
    near = rng.dirichlet(np.full(S, 0.5), (2, S))
    # Blocks of the arm above, weakly tied together.
    passive, active = (
        0.9 * np.kron(np.eye(S // 3), P) + 0.1 * noise
        for P, noise in zip((base.passive, base.active), near, strict=True)
    )
    rewards = np.tile(base.reward_active, S // 3) + rng.normal(0, 0.01, S)
    problem = subsidy.Problem(passive, active, np.zeros(S), rewards, None)
    fast, slow = subsidy.History(S), subsidy.History(S)
    assert subsidy.follow_by_pivots(problem, fast)
    subsidy.follow_by_solving(problem, slow)
    assert fast.witness is not None
    assert slow.witness is not None
    assert fast.index == pytest.approx(slow.index, abs=1e-8)


def channel_seen_when_played(p01: float, p11: float, ages: int) -> FiniteArm:
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
    return FiniteArm(np.eye(belief.size)[older], active, np.zeros(belief.size), belief)


@pytest.mark.parametrize(
    ("p01", "p11"), [(0.2, 0.8), (0.89, 0.17), (0.6, 0.25), (0.4, 0.6), (0.3, 0.3), (0.05, 0.5)]
)
def test_information_states_of_a_channel_have_the_closed_form(p01, p11):
    """Never played, they stay apart in three classes; average reward copes."""
    ages = 2 + int(np.log(1e-13) / np.log(max(abs(p11 - p01), 1e-3)))  # the belief has settled
    arm = channel_seen_when_played(p01, p11, ages)
    found = whittle_indices(arm)
    assert found.indexable is True
    closed = whittle_at(Dynamics(p01, p11, 1.0), information_states(ages))
    assert found.index == pytest.approx(np.asarray(closed), abs=1e-9)


def test_classes_of_their_own_are_compared_within_themselves():
    """Two separate arms in one: the gain depends on the start, no index does."""
    rng = np.random.default_rng(1)
    parts = [
        FiniteArm(*rng.dirichlet(np.ones(3), (2, 3)), *rng.uniform(-1, 1, (2, 3))) for _ in "ab"
    ]

    def both(name):
        first, second = (getattr(part, name) for part in parts)
        return np.block([[first, np.zeros((3, 3))], [np.zeros((3, 3)), second]])

    rewards = [
        np.concatenate([getattr(part, name) for part in parts])
        for name in ("reward_passive", "reward_active")
    ]
    found = whittle_indices(FiniteArm(both("passive"), both("active"), *rewards))
    assert found.indexable is True
    apart = np.concatenate([whittle_indices(part).index for part in parts])
    assert found.index == pytest.approx(apart, abs=1e-9)
    frozen = FiniteArm(np.eye(2), np.eye(2), [0, 3], [1, 1])
    assert whittle_indices(frozen).index == pytest.approx([1, -2])


def test_a_choice_between_classes_of_one_gain_is_undecided():
    """State 0 chooses for ever between two copies of one class."""
    leads = [[0, 0, 1], [0, 1, 0], [0, 0, 1]], [[0, 1, 0], [0, 1, 0], [0, 0, 1]]
    found = whittle_indices(FiniteArm(*leads, [0, 0, 0], [1, 0.5, 0.5]))
    assert found.indexable is None
    assert found.reason.startswith("depends on the starting class: state 0 ")
    assert found.index[1:] == pytest.approx([0.5, 0.5])


def test_a_choice_between_classes_of_different_gain_goes_by_gain():
    """Class 1 pays 5 when played, class 2 pays 5 when left alone: whoever plays first, loses."""
    leads = [[0, 0, 1], [0, 1, 0], [0, 0, 1]], [[0, 1, 0], [0, 1, 0], [0, 0, 1]]
    found = whittle_indices(FiniteArm(*leads, [0, 0, 5], [0, 0, 0]))
    assert found.index.tolist() == pytest.approx([-5, 0, -5])
    assert whittle_indices(FiniteArm(*leads, [0, 1, 5], [0, 1, 5])).index[0] == -np.inf
    swapped = FiniteArm(leads[1], leads[0], [0, 1, 5], [0, 1, 5])
    assert whittle_indices(swapped).index[0] == np.inf


@pytest.mark.parametrize("discount", [None, 0.9])
def test_units_do_not_matter(discount):
    base = whittle_indices(RESTART, discount).index
    for scale, shift in ((1e-6, 0), (1e8, 0), (1, 1e3)):
        moved = FiniteArm(
            RESTART.passive,
            RESTART.active,
            scale * RESTART.reward_passive,
            scale * RESTART.reward_active + shift,
        )
        found = whittle_indices(moved, discount)
        assert found.indexable is True
        assert found.index == pytest.approx(scale * base + shift, rel=1e-9, abs=1e-9 * scale)


def test_a_rested_arm_has_the_limit_of_its_gittins_indices():
    """Left alone it waits at no cost in gain or bias: only the order after these tells."""
    rng = np.random.default_rng(5)
    arm = FiniteArm(np.eye(4), rng.dirichlet(np.ones(4), 4), np.zeros(4), rng.random(4))
    found = whittle_indices(arm)
    assert found.indexable is True
    assert found.index == pytest.approx(gittins_indices(arm, 1 - 1e-7), abs=1e-5)
    assert found.index.max() == pytest.approx(arm.reward_active.max(), abs=1e-12)


@pytest.mark.parametrize("link", [1e-3, 1e-14])
def test_classes_that_hardly_connect_are_undecided(link):
    passive = [[0.3, 0.7, 0], [0.6, 0.4 - link, link], [link, 0, 1 - link]]
    active = [[0.8, 0.2, 0], [0.1, 0.9 - link, link], [0, link, 1 - link]]
    found = whittle_indices(FiniteArm(passive, active, [0, 0, 0], [1, 0.2, 0.6]))
    assert found.indexable is (True if link == 1e-3 else None)
    assert found.reason.startswith("" if link == 1e-3 else "rounding may change an advantage by")


@pytest.mark.parametrize("discount", [1 - 1e-6, 1 - 1e-12])
def test_discounts_near_one_lose_no_accuracy(discount):
    near = whittle_indices(RESTART, discount)
    assert near.indexable is True
    assert near.index == pytest.approx(whittle_indices(RESTART).index, abs=20 * (1 - discount))


def test_one_state():
    assert whittle_indices(FiniteArm([[1]], [[1]], [0.25], [1])).index.tolist() == [0.75]


def test_the_arm_is_frozen():
    given = np.eye(2)
    arm = FiniteArm(given, given, [0, 0], [1, 1])
    given[0, 0] = 7
    assert arm.passive[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        arm.passive[0, 0] = 7


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"passive": [[0.5, 0.4], [0, 1]]}, r"passive row 0 must sum to 1, got 0\.9: \[0\.5, 0\.4"),
        ({"active": [[0, 1], [1.5, -0.5]]}, r"active row 1: column 1 must be a prob.*got -0\.5"),
        ({"active": [[0, 1], [np.nan, 1]]}, r"active row 1: column 0 must be a prob.*got nan"),
        ({"active": [[0, 1], [np.inf, 1]]}, r"active row 1: column 0 must be a prob.*got inf"),
        ({"passive": [[1, 0], [1]]}, "passive must be numbers, with rows of one length"),
        ({"passive": np.eye(3)}, r"passive must have shape \(2, 2\), .* got \(3, 3\)"),
        ({"reward_passive": [0, 0, 0]}, r"reward_passive must have shape \(2,\), .* got \(3,\)"),
        ({"reward_passive": [0, np.nan]}, "reward_passive: state 1 must be finite, got nan"),
        ({"reward_active": [[1, 2]]}, r"reward_active must be one number per state, .* \(1, 2\)"),
        ({"reward_active": []}, r"reward_active must be one number per state, got shape \(0,\)"),
        ({"reward_active": ["a", 1]}, "reward_active must be numbers"),
    ],
)
def test_bad_arms_are_refused(changed, message):
    good = {
        "passive": np.eye(2),
        "active": np.eye(2),
        "reward_passive": [0, 0],
        "reward_active": [0, 1],
    }
    with pytest.raises(ModelError, match=message):
        FiniteArm(**(good | changed))


@pytest.mark.parametrize("discount", [0, 1, -0.1, 1.5, np.nan])
def test_bad_discounts_are_refused(discount):
    with pytest.raises(ModelError, match=r"discount must lie in \(0, 1\)"):
        whittle_indices(TWO, discount)
    with pytest.raises(ModelError, match=r"discount must lie in \(0, 1\)"):
        gittins_indices(TWO, discount)
