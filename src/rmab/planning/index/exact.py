"""Subsidy line in rational arithmetic: small arms, any chain, no rounding.

The method of `rmab.planning.index.sensitive` without tolerances: the orders of the advantage under
a policy (gain, bias, the order after it; with a discount only the values) are solved with integers,
policy iteration runs just above each border of intervals, and an advantage is 0 or it is not.

A number is taken as it was written: at most 15 digits are that decimal, so that .1 is a tenth, any
other number is the binary fraction itself. Rows are then divided by their sum.

Linear systems are solved by fraction-free elimination (Bareiss): all entries stay integers, minors
of the matrix. Its cost grows with the fourth power of the number of states, or faster.

Reference: E. H. Bareiss, "Sylvester's identity and multistep integer-preserving Gaussian
elimination", Math. Comp. 22, 1968. `rmab.planning.index.subsidy_line` has the symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import gcd, inf, lcm
from typing import NamedTuple

import numpy as np

from rmab.markov import recurrent
from rmab.model.arms import Arm
from rmab.planning.index.subsidy_line import Apart

__all__ = ["Line", "RationalProblem", "follow_exactly"]

_WRITTEN_DIGITS = 15  # numbers with more digits are binary fractions, others decimals

_Matrix = list[list[int]]
_Number = Fraction | float  # a Fraction, or -inf or inf


class _Column(NamedTuple):
    """Numbers with one denominator."""

    top: list[int]
    bottom: int


class _RationalRows(NamedTuple):
    """Transition matrix: each row is integers over their sum."""

    chances: _Matrix
    sums: list[int]


class _Term(NamedTuple):
    """Leading order of an advantage, level + slope lambda; order 3: both actions are equal."""

    level: Fraction
    slope: Fraction
    order: int

    def sign_above(self, subsidy: _Number) -> int:
        """Return the sign just above a subsidy, or near -infinity."""
        if isinstance(subsidy, float):
            return _sign(-self.slope) or _sign(self.level)
        return _sign(self.at(subsidy)) or _sign(self.slope)

    def at(self, subsidy: Fraction) -> Fraction:
        return self.level + self.slope * subsidy


@dataclass(frozen=True)
class Line:
    """Record of the whole line.

    index: upper end of the last interval in which active is better, by state; back: clearest change
    back as (state, low, high), or None; by_bias: the same where actions of one gain and bias count
    as equal; undetermined: a state that chooses between classes of one gain, or None; apart: states
    between which the best gain differs most, or None.
    """

    index: list[float]
    back: tuple[int, float, float] | None
    by_bias: tuple[int, float, float] | None
    undetermined: int | None
    apart: Apart | None


class RationalProblem:
    """Fully observed arm in integers; rewards are over `unit`, discount None is average reward."""

    def __init__(self, arm: Arm, discount: float | None) -> None:
        self.states = arm.states
        self.passive, self.active = (_rows(m.tolist()) for m in (arm.passive, arm.active))
        rewards = [
            [_as_written(x) for x in paid.tolist()]
            for paid in (arm.reward_passive, arm.reward_active)
        ]
        self.unit = lcm(*(x.denominator for paid in rewards for x in paid))
        self.reward_passive, self.reward_active = (
            [int(x * self.unit) for x in paid] for paid in rewards
        )
        self.discount = None if discount is None else _as_written(discount)
        # P_1 - P_0 with a common denominator for each row
        self.difference = [
            [p * unpaid - q * paid for p, q in zip(played, left, strict=True)]
            for played, left, paid, unpaid in zip(
                self.active.chances,
                self.passive.chances,
                self.active.sums,
                self.passive.sums,
                strict=True,
            )
        ]
        self.difference_sums = [
            a * b for a, b in zip(self.active.sums, self.passive.sums, strict=True)
        ]
        union = np.array(
            [
                [p != 0 or q != 0 for p, q in zip(a, b, strict=True)]
                for a, b in zip(self.active.chances, self.passive.chances, strict=True)
            ]
        )
        self.closed = recurrent(union)  # classes that no policy leaves

    def rows(self, active: Sequence[bool]) -> _RationalRows:
        """Return the transition matrix of a policy."""
        chosen = [self.active if plays else self.passive for plays in active]
        return _RationalRows(
            [rows.chances[s] for s, rows in enumerate(chosen)],
            [rows.sums[s] for s, rows in enumerate(chosen)],
        )

    def rewards(self, active: Sequence[bool]) -> list[_Column]:
        """Return the rewards of a policy as coefficients of 1 and lambda."""
        pays = [
            self.reward_active[s] if plays else self.reward_passive[s]
            for s, plays in enumerate(active)
        ]
        return [_Column(pays, self.unit), _Column([int(not plays) for plays in active], 1)]

    def moved(self, column: _Column) -> list[Fraction]:
        """Return (P_1 - P_0) times a column."""
        return [
            Fraction(_dot(row, column.top), whole * column.bottom)
            for row, whole in zip(self.difference, self.difference_sums, strict=True)
        ]

    def at_once(self) -> list[Fraction]:
        """Return r_1 - r_0."""
        return [
            Fraction(paid - unpaid, self.unit)
            for paid, unpaid in zip(self.reward_active, self.reward_passive, strict=True)
        ]


class _Solved(NamedTuple):
    """Leading advantages of a policy, its gain (level, slope) by state, and the states in which the
    two actions lead to different closed classes."""

    terms: list[_Term]
    gain: list[tuple[Fraction, Fraction]] | None
    parts: list[bool]


def follow_exactly(problem: RationalProblem) -> Line:
    """Follow all intervals from -infinity upwards."""
    S = problem.states
    active = [True] * S
    here: _Number = -inf
    changes, by_bias = _Changes(S), _Changes(S)
    index: list[_Number] = [-inf] * S
    undetermined: int | None = None
    apart: Apart | None = None
    while here != inf:
        active, solved = _optimal_above(problem, active, here)
        signs = [term.sign_above(here) for term in solved.terms]
        crossings = [
            -term.level / term.slope
            for term, sign in zip(solved.terms, signs, strict=True)
            if sign * term.slope < 0
        ]
        there = min((x for x in crossings if x > here), default=inf)
        for s, sign in enumerate(signs):
            if sign > 0:
                index[s] = there
        middle = _inside(here, there)
        sizes = [abs(term.at(middle)) for term in solved.terms]
        changes.add(signs, middle, sizes)
        by_bias.add(
            [0 if t.order >= 2 else x for t, x in zip(solved.terms, signs, strict=True)],
            middle,
            sizes,
        )
        if undetermined is None:
            chooses = (s for s in range(S) if solved.parts[s] and solved.terms[s].order > 0)
            undetermined = next(chooses, None)
        if solved.gain is not None:
            apart = _farther(apart, solved.gain, (here, there))
        here = there
    return Line([float(x) for x in index], changes.witness, by_bias.witness, undetermined, apart)


class _Changes:
    """Clearest change of a state from passive, or equal actions, to active."""

    def __init__(self, states: int) -> None:
        self.witness: tuple[int, float, float] | None = None
        self._margin = Fraction(-1)
        self._passive: list[tuple[Fraction, Fraction] | None] = [None] * states  # margin, subsidy

    def add(self, signs: list[int], subsidy: Fraction, sizes: list[Fraction]) -> None:
        for s, (sign, size) in enumerate(zip(signs, sizes, strict=True)):
            before = self._passive[s]
            if sign > 0 and before is not None and min(size, before[0]) > self._margin:
                self._margin = min(size, before[0])
                self.witness = (s, float(before[1]), float(subsidy))
            by = size if sign < 0 else Fraction(0)
            if sign <= 0 and (before is None or by > before[0]):
                self._passive[s] = (by, subsidy)


def _optimal_above(
    problem: RationalProblem, active: list[bool], subsidy: _Number
) -> tuple[list[bool], _Solved]:
    """Run policy iteration just above a subsidy, from any policy."""
    while True:
        solved = _solved(problem, active)
        signs = [term.sign_above(subsidy) for term in solved.terms]
        better = [plays if x == 0 else x > 0 for plays, x in zip(active, signs, strict=True)]
        if better == active:
            return active, solved
        active = better


def _solved(problem: RationalProblem, active: list[bool]) -> _Solved:
    """Return the leading advantages under a policy."""
    rows, rewards = problem.rows(active), problem.rewards(active)
    at_once = problem.at_once()
    if problem.discount is not None:
        values = [problem.moved(x) for x in _discounted(rows, rewards, problem.discount)]
        terms = [
            _Term(own + problem.discount * level, -1 + problem.discount * slope, 1)
            for own, level, slope in zip(at_once, *values, strict=True)
        ]
        leading = [t if t.level or t.slope else t._replace(order=3) for t in terms]
        return _Solved(leading, None, [False] * problem.states)
    chain = _Chain(rows)
    gains, biases = chain.gain_and_bias(rewards)
    by_gain = [problem.moved(x) for x in gains]
    by_bias = [problem.moved(x) for x in biases]
    terms = []
    for s, own in enumerate(at_once):
        level, slope, order = by_gain[0][s], by_gain[1][s], 0
        if not (level or slope):
            level, slope, order = own + by_bias[0][s], by_bias[1][s] - 1, 1
        terms.append(_Term(level, slope, order))
    if not all(t.level or t.slope for t in terms):
        _, following = chain.gain_and_bias([_Column([-x for x in b.top], b.bottom) for b in biases])
        by_next = [problem.moved(x) for x in following]
        for s, term in enumerate(terms):
            if not (term.level or term.slope):
                level, slope = by_next[0][s], by_next[1][s]
                terms[s] = _Term(level, slope, 2 if level or slope else 3)
    gain = [
        (Fraction(a, gains[0].bottom), Fraction(b, gains[1].bottom))
        for a, b in zip(gains[0].top, gains[1].top, strict=True)
    ]
    return _Solved(terms, gain, _parts(problem, chain))


def _parts(problem: RationalProblem, chain: _Chain) -> list[bool]:
    """Return the states whose two actions end up in different closed classes."""
    classes = int(problem.closed.max()) + 1
    if classes == 1:
        return [False] * problem.states
    members = [_Column([int(c == label) for c in problem.closed], 1) for label in range(classes)]
    ends_in, _ = chain.gain_and_bias(members)
    moved = [problem.moved(x) for x in ends_in]
    return [any(column[s] for column in moved) for s in range(problem.states)]


def _discounted(rows: _RationalRows, rewards: list[_Column], discount: Fraction) -> list[_Column]:
    """Return the values of a policy."""
    top, bottom = discount.as_integer_ratio()
    M = [[-top * p for p in chances] for chances in rows.chances]
    for s, whole in enumerate(rows.sums):
        M[s][s] += bottom * whole
    right = [[bottom * whole * r.top[s] for r in rewards] for s, whole in enumerate(rows.sums)]
    values, determinant = _divided(M, right)
    return [
        _Column([row[j] for row in values], determinant * reward.bottom)
        for j, reward in enumerate(rewards)
    ]


class _Chain:
    """Chain of a policy, with its recurrent classes, gain and bias."""

    def __init__(self, rows: _RationalRows) -> None:
        self.rows = rows
        labels = recurrent(np.array(rows.chances, dtype=object) != 0)
        self.classes = [
            np.flatnonzero(labels == label).tolist() for label in range(int(labels.max()) + 1)
        ]
        self.transient = np.flatnonzero(labels < 0).tolist()

    def gain_and_bias(self, rewards: list[_Column]) -> tuple[list[_Column], list[_Column]]:
        """Return gain and bias for each column of rewards; several classes have mean bias 0."""
        S = len(self.rows.sums)
        gains = [_Column([0] * S, 1) for _ in rewards]
        biases = [_Column([0] * S, 1) for _ in rewards]
        for members in self.classes:
            for j, (gain, bias) in enumerate(self._class(members, rewards)):
                gains[j] = _placed(gains[j], members, gain)
                biases[j] = _placed(biases[j], members, bias)
        if self.transient:
            if len(self.classes) == 1:
                first = self.classes[0][0]
                gains = [_Column([gain.top[first]] * S, gain.bottom) for gain in gains]
            else:
                gains = self._through(gains, [_Column([0] * S, 1) for _ in rewards])
            due = [_minus(reward, gain) for reward, gain in zip(rewards, gains, strict=True)]
            biases = self._through(biases, due)
        return gains, biases

    def _class(self, members: list[int], rewards: list[_Column]) -> list[tuple[_Column, _Column]]:
        """Return gain and bias of one recurrent class, for each column of rewards."""
        chances, sums = self.rows
        M = [[-chances[s][t] for t in members] for s in members]
        for i, s in enumerate(members):
            M[i][i] += sums[s]
            M[i][0] = sums[s]  # the unknown of the first state is the gain
        right = [[sums[s] * reward.top[s] for reward in rewards] for s in members]
        values, determinant = _divided(M, right)
        weights = None
        if len(self.classes) > 1:
            unit = [[int(i == 0)] for i in range(len(members))]
            turned, _ = _divided([list(column) for column in zip(*M, strict=True)], unit)
            weights = [y * sums[s] for (y,), s in zip(turned, members, strict=True)]
        solutions = []
        for j, reward in enumerate(rewards):
            bottom = determinant * reward.bottom
            gain = _Column([values[0][j]] * len(members), bottom)
            bias = [0, *(row[j] for row in values[1:])]
            if weights is not None:
                mean, whole = _dot(weights, bias), sum(weights)
                bias, bottom = [x * whole - mean for x in bias], bottom * whole
            solutions.append((gain, _Column(bias, bottom)))
        return solutions

    def _through(self, known: list[_Column], due: list[_Column]) -> list[_Column]:
        """Solve x = due + P x in transient states, with x known in recurrent states."""
        chances, sums = self.rows
        inside = self.transient
        M = [[-chances[s][t] for t in inside] for s in inside]
        for i, s in enumerate(inside):
            M[i][i] += sums[s]
        outside = [s for members in self.classes for s in members]
        right = [
            [
                sums[s] * more.top[s] * x.bottom
                + more.bottom * sum(chances[s][t] * x.top[t] for t in outside if chances[s][t])
                for x, more in zip(known, due, strict=True)
            ]
            for s in inside
        ]
        values, determinant = _divided(M, right)
        return [
            _placed(
                x, inside, _Column([row[j] for row in values], determinant * x.bottom * more.bottom)
            )
            for j, (x, more) in enumerate(zip(known, due, strict=True))
        ]


def _divided(M: _Matrix, right: _Matrix) -> tuple[_Matrix, int]:
    """Return integers X and d with M X = d right, by fraction-free elimination; M is regular."""
    rows = [[*left, *more] for left, more in zip(M, right, strict=True)]
    n, before = len(M), 1
    for k in range(n):
        chosen = next(i for i in range(k, n) if rows[i][k])
        rows[k], rows[chosen] = rows[chosen], rows[k]
        pivot_row = rows[k][k + 1 :]
        pivot = rows[k][k]
        for i in range(n):
            if i != k:
                factor, row = rows[i][k], rows[i]
                if factor:
                    row[k + 1 :] = [
                        (pivot * x - factor * y) // before
                        for x, y in zip(row[k + 1 :], pivot_row, strict=True)
                    ]
                elif pivot != before:
                    row[k + 1 :] = [pivot * x // before for x in row[k + 1 :]]
        before = pivot
    return [row[n:] for row in rows], before


def _farther(
    known: Apart | None,
    gain: list[tuple[Fraction, Fraction]],
    ends: tuple[_Number, _Number],
) -> Apart | None:
    """Compare starts at the ends of an interval, between which the gain is affine."""
    if all(x == gain[0] for x in gain):
        return known
    low, high = ends
    finite = [x for x in (low, high) if isinstance(x, Fraction)] or [Fraction(0)]
    if low == -inf:
        finite.append(finite[0] - 1)
    if high == inf:
        finite.append(finite[0] + 1)
    for subsidy in finite:
        at = [level + slope * subsidy for level, slope in gain]
        least, most = min(at), max(at)
        if known is None or float(most - least) > known.by:
            low_state, high_state = at.index(least), at.index(most)
            known = Apart(float(subsidy), low_state, float(least), high_state, float(most))
    return known


def _inside(low: _Number, high: _Number) -> Fraction:
    """Return a subsidy of an open interval."""
    if isinstance(low, Fraction) and isinstance(high, Fraction):
        return (low + high) / 2
    if isinstance(low, Fraction):
        return low + 1
    return high - 1 if isinstance(high, Fraction) else Fraction(0)


def _placed(whole: _Column, members: list[int], part: _Column) -> _Column:
    """Replace some entries of a column."""
    common = lcm(whole.bottom, part.bottom)
    top = [x * (common // whole.bottom) for x in whole.top]
    for s, x in zip(members, part.top, strict=True):
        top[s] = x * (common // part.bottom)
    shared = gcd(common, *top)
    return _Column([x // shared for x in top], common // shared)


def _minus(left: _Column, right: _Column) -> _Column:
    return _Column(
        [x * right.bottom - y * left.bottom for x, y in zip(left.top, right.top, strict=True)],
        left.bottom * right.bottom,
    )


def _dot(left: Sequence[int], right: Sequence[int]) -> int:
    return sum(x * y for x, y in zip(left, right, strict=True) if x and y)


def _sign(x: Fraction) -> int:
    return (x > 0) - (x < 0)


def _as_written(x: float) -> Fraction:
    """Return the number as it was written: a short decimal, else the binary fraction."""
    digits = Decimal(repr(x)).normalize().as_tuple().digits
    return Fraction(repr(x)) if len(digits) <= _WRITTEN_DIGITS else Fraction(x)


def _rows(matrix: list[list[float]]) -> _RationalRows:
    chances, sums = [], []
    for row in matrix:
        exact = [_as_written(x) for x in row]
        common = lcm(*(x.denominator for x in exact))
        whole = [int(x * common) for x in exact]
        shared = gcd(*whole)
        chances.append([x // shared for x in whole])
        sums.append(sum(whole) // shared)
    return _RationalRows(chances, sums)
