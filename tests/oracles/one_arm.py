"""One finite arm with a subsidy for passivity, by brute force.

Nothing here knows of paths, pivots, orders or classes.

    exactly             policy iteration in rational numbers, discounted; average reward is discount
                        1 - 10^-24, which tells gain, bias and the next order apart by their size
    bisected            an index by bisection on the subsidy, with policy iteration in floats, where
                        one class is all there is
    iterated_advantage  relative value iteration, average reward
    advantage_near_one  policy iteration in floats with a discount near 1
"""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from rmab.model.arms import Arm

NEAR_ONE = 1 - Fraction(1, 10**24)


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
            return np.asarray(ahead)
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


def iterated_advantage(arm: Arm, subsidy: float) -> np.ndarray:
    """Of active over passive by relative value iteration, half of the slots skipped: (S,)."""
    value, before = np.zeros(arm.states), np.ones(arm.states)
    while np.abs(value - before).max() > 1e-12:
        before = value
        played = arm.reward_active + arm.active @ value
        left_alone = arm.reward_passive + subsidy + arm.passive @ value
        value = (value + np.maximum(played, left_alone)) / 2
        value -= value[0]
    return np.asarray(played - left_alone)


def advantage_near_one(whole: Arm, subsidy: float, beta: float = 0.999999) -> np.ndarray:
    """Of active over passive by policy iteration with a discount near 1: (S,)."""
    plays, before = np.ones(whole.states, bool), np.zeros(whole.states, bool)
    while (plays != before).any():
        moves = np.where(plays[:, None], whole.active, whole.passive)
        pays = np.where(plays, whole.reward_active, whole.reward_passive + subsidy)
        value = np.linalg.solve(np.eye(whole.states) - beta * moves, pays)
        better = whole.reward_active - whole.reward_passive - subsidy
        better += beta * (whole.active - whole.passive) @ value
        before, plays = plays, better > 0
    return np.asarray(better)
