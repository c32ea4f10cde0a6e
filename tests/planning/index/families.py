"""Small arms of many kinds, to be held against exact arithmetic.

A family gives the rows and rewards of an arm as numbers that a float holds exactly, and a discount,
None for average reward.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from rmab.model.arms import Arm
from tests.planning.index.models import seen

DISCOUNTS = [None, None, 0.01, 0.5, 0.9, 0.99, 0.999999, 1 - 1e-9]


class Given(NamedTuple):
    """passive, active: rows of numbers that sum to 1; the rewards; the discount."""

    passive: Any
    active: Any
    reward_passive: Any
    reward_active: Any
    discount: float | None

    def numbers(self) -> list[Any]:
        return [x.tolist() for x in self[:4]]

    def arm(self) -> Arm:
        return seen(*self[:4])


def _rows(rng, S, support=None, parts=64):
    """Random rows of multiples of 1/64, on at most `support` states each."""
    rows = np.zeros((S, S))
    for row in rows:
        where = rng.choice(S, size=min(S, support or S), replace=False)
        cuts = np.sort(rng.integers(0, parts + 1, size=where.size - 1))
        row[where] = np.diff([0, *cuts, parts]) / parts
    return rows


def _rewards(rng, S, parts=64):
    return rng.integers(-parts, parts + 1, S) / parts


def _size(rng):
    return int(rng.integers(2, 5))


def dense(rng):
    S = _size(rng)
    return _rows(rng, S), _rows(rng, S), _rewards(rng, S), _rewards(rng, S)


def any_floats(rng):
    S = _size(rng)
    P, Q = rng.dirichlet(np.ones(S), (2, S))
    return P, Q, *rng.normal(size=(2, S))


def sparse(rng):
    S = _size(rng)
    return _rows(rng, S, 2), _rows(rng, S, 2), _rewards(rng, S), _rewards(rng, S)


def deterministic(rng):
    S = _size(rng)
    P, Q = np.eye(S)[rng.integers(0, S, (2, S))]
    return P, Q, rng.integers(0, 3, S), rng.integers(0, 3, S)


def periodic(rng):
    S = _size(rng)
    turn = np.roll(np.eye(S), 1, axis=1)
    other = turn.T if rng.random() < 0.5 else _rows(rng, S)
    return turn, other, _rewards(rng, S), _rewards(rng, S)


def absorbing(rng):
    P, Q, *rewards = dense(rng)
    (P if rng.random() < 0.5 else Q)[0] = np.eye(len(P))[0]
    return P, Q, *rewards


def multichain(rng):
    P, Q, *rewards = dense(rng)
    S, cut = len(P), int(rng.integers(1, len(P)))
    first = np.arange(S) < cut
    for matrix in (P, Q) if rng.random() < 0.5 else (P,):
        for s in range(S):
            matrix[s] = np.where(first == first[s], matrix[s], 0)
            matrix[s, s] += 1 - matrix[s].sum()
    return P, Q, *rewards


def rested(rng):
    _, Q, _, paid = dense(rng)
    return np.eye(len(Q)), Q, np.zeros(len(Q)), paid


def restarting(rng):
    P, Q, *rewards = dense(rng)
    Q[:] = np.eye(len(Q))[int(rng.integers(len(Q)))]
    return P, Q, *rewards


def duplicates(rng):
    P, Q, unpaid, paid = dense(rng)
    P[1], Q[1], unpaid[1], paid[1] = P[0], Q[0], unpaid[0], paid[0]
    return P, Q, unpaid, paid


def alike(rng):
    P, _, unpaid, paid = dense(rng)
    return P, P, unpaid, paid


def nearly_alike(rng):
    P, Q, unpaid, paid = dense(rng)
    changed = int(rng.integers(len(P)))
    Q[np.arange(len(P)) != changed] = P[np.arange(len(P)) != changed]
    return P, Q, unpaid, paid


def near_ties(rng):
    P, Q, unpaid, paid = duplicates(rng)
    paid[1] += 2.0 ** -int(rng.integers(20, 48))
    return P, Q, unpaid, paid


def tied_rewards(rng):
    P, Q, _, _ = sparse(rng)
    return P, Q, rng.integers(0, 2, len(P)), rng.integers(0, 2, len(P))


def tiny_chances(rng):
    P, Q, *rewards = sparse(rng)
    S = len(P)
    for matrix in (P, Q):
        chance = 2.0 ** -int(rng.integers(10, 45))
        for s in range(S):
            to = int(rng.integers(S))
            matrix[s] = 0
            matrix[s, s] = 1 - chance
            matrix[s, to] += chance
    return P, Q, *rewards


def hardly_connected(rng):
    P, Q, unpaid, paid = multichain(rng)
    chance = 2.0 ** -int(rng.integers(10, 40))
    for matrix in (P, Q):
        s = int(rng.integers(len(P)))
        matrix[s, s] += 0 if matrix[s, s] > chance else 1
        matrix[s] /= matrix[s].sum()
        matrix[s, s] -= chance
        matrix[s, int(rng.integers(len(P)))] += chance
    return P, Q, unpaid, paid


def extreme_rewards(rng):
    P, Q, unpaid, paid = dense(rng)
    factors = 2.0 ** rng.integers(-30, 31, (2, len(P)))
    return P, Q, unpaid * factors[0], paid * factors[1]


def large_rewards(rng):
    P, Q, unpaid, paid = sparse(rng)
    return P, Q, unpaid * 2.0**40, paid * 2.0**40


def decimals(rng):
    """Chances and rewards as people write them: tenths."""
    S = _size(rng)
    P, Q = (_rows(rng, S, parts=10).round(1) for _ in range(2))
    return P, Q, rng.integers(0, 11, S) / 10, rng.integers(0, 11, S) / 10


FAMILIES: dict[str, Callable[[np.random.Generator], Any]] = {
    made.__name__: made
    for made in (
        dense,
        any_floats,
        sparse,
        deterministic,
        periodic,
        absorbing,
        multichain,
        rested,
        restarting,
        duplicates,
        alike,
        nearly_alike,
        near_ties,
        tied_rewards,
        tiny_chances,
        hardly_connected,
        extreme_rewards,
        large_rewards,
        decimals,
    )
}


def drawn(family: str, number: int) -> Given:
    """One arm of a family."""
    rng = np.random.default_rng([list(FAMILIES).index(family), number])
    passive, active, unpaid, paid = (np.asarray(x, np.float64) for x in FAMILIES[family](rng))
    return Given(passive, active, unpaid, paid, DISCOUNTS[number % len(DISCOUNTS)])
