"""Indices and indexability of a small fully observed arm in exact rational arithmetic.

The best total value (summed over starts) is a convex, piecewise affine function of the subsidy, so
its pieces are found from its values alone: two affine pieces meet at a subsidy; if the best there
is no better, nothing lies between, else the piece that is best there splits the question. Within a
piece the sign of each state's advantage is that of its middle. Values come from policy iteration
with fractions.

Average reward is the discount 1 - 1e-120, less than any number here can tell from 1.
"""

from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

NEARLY_ONE = 1 - Fraction(1, 10**120)
BEYOND = 10**30  # an index beyond this grows with the discount: it has no limit

Vector = list[Fraction]


@dataclass(frozen=True)
class Answer:
    """index: -inf or inf where there is none; indexable: the passive set only grows."""

    index: list[float]
    indexable: bool


class Solved(NamedTuple):
    """Advantages of active under a policy and its total value: levels and slopes."""

    levels: Vector
    slopes: Vector
    level: Fraction
    slope: Fraction


class ExactArm(NamedTuple):
    moves: list[list[Vector]]  # passive, active
    rewards: list[Vector]
    discount: Fraction
    known: dict[tuple[bool, ...], Solved]

    def solved(self, active: list[bool]) -> Solved:
        """A policy, solved once."""
        policy = tuple(active)
        if policy not in self.known:
            values = self._values(active)
            advantage = [
                self._advantage(*each) for each in zip(values, (1, 0), (0, 1), strict=True)
            ]
            totals = [sum(each, Fraction(0)) for each in values]
            self.known[policy] = Solved(advantage[0], advantage[1], totals[0], totals[1])
        return self.known[policy]

    def _values(self, active: list[bool]) -> tuple[Vector, Vector]:
        """The value of a policy from each state: levels and slopes in the subsidy."""
        S = len(active)
        rows = []
        for s, plays in enumerate(active):
            row = [-self.discount * p for p in self.moves[plays][s]]
            row[s] += 1
            rows.append([*row, self.rewards[plays][s], Fraction(not plays)])
        for k in range(S):
            pivot = next(i for i in range(k, S) if rows[i][k])
            rows[k], rows[pivot] = rows[pivot], rows[k]
            rows[k] = [x / rows[k][k] if x else x for x in rows[k]]
            for i in range(S):
                if i != k and rows[i][k]:
                    factor = rows[i][k]
                    rows[i] = [
                        x - factor * y if y else x for x, y in zip(rows[i], rows[k], strict=True)
                    ]
        return [row[S] for row in rows], [row[S + 1] for row in rows]

    def _advantage(self, value: Vector, paid: int, subsidy: int) -> Vector:
        """Active over passive in each state, from values, with or without the rewards."""
        return [
            (self.rewards[1][s] - self.rewards[0][s]) * paid
            - subsidy
            + self.discount
            * sum((p - q) * v for p, q, v in zip(played, left, value, strict=True) if p != q)
            for s, (left, played) in enumerate(zip(*self.moves, strict=True))
        ]

    def best(self, subsidy: Fraction, active: list[bool]) -> tuple[list[bool], Vector]:
        """An optimal policy at a subsidy, and its advantages."""
        while True:
            levels, slopes, _, _ = self.solved(active)
            found = [level + slope * subsidy for level, slope in zip(levels, slopes, strict=True)]
            better = [a if x == 0 else x > 0 for a, x in zip(active, found, strict=True)]
            if better == active:
                return active, found
            active = better


def exact_arm(numbers, discount=None) -> ExactArm:
    """passive, active, reward_passive, reward_active: numbers as they are, or Fractions; rows are
    divided by their sums."""
    passive, active, *paid = numbers

    def rows(matrix):
        exact = [[Fraction(x) for x in row] for row in matrix]
        return [[x / sum(row) for x in row] for row in exact]

    rewards = [[Fraction(x) for x in each] for each in paid]
    beta = NEARLY_ONE if discount is None else Fraction(discount)
    return ExactArm([rows(passive), rows(active)], rewards, beta, {})


def solve(arm: ExactArm) -> Answer:
    """The indices and the verdict."""
    S = len(arm.rewards[0])
    largest = max(abs(x) for paid in arm.rewards for x in paid)
    far = 4 * (largest + 1) / (1 - arm.discount)  # beyond this one action is best everywhere
    borders = sorted({-far, far, *_borders(arm, (-far, [True] * S), (far, [False] * S))})
    index: list[Fraction] = [-far] * S
    passive = [False] * S
    indexable = True
    policy = [True] * S
    for low, high in pairwise(borders):
        policy, found = arm.best((low + high) / 2, policy)
        # Others move away, or shrink to one subsidy, as the discount tends to 1.
        stays = low < BEYOND and high > -BEYOND and high - low > Fraction(1, BEYOND)
        for s, x in enumerate(found):
            if stays and x > 0:
                index[s] = high
                indexable &= not passive[s]
            elif stays:
                passive[s] = True
    limits = [float("inf") if x > BEYOND else float("-inf") if x < -BEYOND else x for x in index]
    return Answer([float(x) for x in limits], indexable)


def _borders(arm, left, right):
    """Where the best total value bends, between two subsidies with a best policy each."""
    (low, below), (high, above) = left, right
    first, second = (arm.solved(policy)[2:] for policy in (below, above))
    if first == second:
        return
    meet = (first[0] - second[0]) / (second[1] - first[1]) if first[1] != second[1] else low
    if not low < meet < high:
        return
    yield meet  # a bend, or a subsidy within a piece, which does no harm
    policy, _ = arm.best(meet, below)
    level, slope = arm.solved(policy)[2:]
    if level + slope * meet == first[0] + first[1] * meet:
        return
    yield from _borders(arm, left, (meet, policy))
    yield from _borders(arm, (meet, policy), right)
