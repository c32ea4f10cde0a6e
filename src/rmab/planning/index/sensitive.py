"""Subsidy line of any finite arm, policy by policy, each solved afresh.

The value of a policy at discount 1 - eps has the expansion g / eps + h + eps w + ...: gain g, bias
h, and w = -H h with the deviation matrix H. The advantage has the orders

    A_-1 = (P_1 - P_0) g,    A_0 = r_1 - r_0 - lambda + (P_1 - P_0) h,    A_1 = (P_1 - P_0) w,

compared lexicographically: the Bellman pair of gain and bias, with A_1 to make the bias itself the
largest of all gain-optimal policies (Veinott). So several recurrent classes, transient states and
periods need no special case. At each border of intervals policy iteration runs just after it,
values first, slopes in lambda where values are 0. With a discount there is one order, A itself.

References: A. F. Veinott, "Discrete dynamic programming with sensitive discount optimality
criteria", Ann. Math. Stat. 40(5), 1969; M. L. Puterman, "Markov Decision Processes", 1994,
Chapters 9 and 10. `rmab.planning.index.subsidy_line` has the symbols.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rmab.arrays import Bool, BoolArray, Float, FloatArray, Int, IntArray
from rmab.markov import limit, recurrent
from rmab.planning.index.subsidy_line import (
    SHORT_INTERVAL,
    Apart,
    History,
    Interval,
    LineProblem,
    factored,
    most_intervals,
    places,
)

__all__ = ["OptimalPolicy", "add_interval", "confirmed", "follow_by_solving", "settle"]

_EPSILON = 8 * float(np.finfo(np.float64).eps)
_NUDGE = 1e-10  # distance above a border at which policies are compared
_MIN_CHANCE = 1e-12  # smaller chances of ending up in another class are 0
_FAINT_SHARE = 1e-10  # smaller coefficients of an advantage may be rounding
_GAIN_TOLERANCE = 1e-11  # gains this close are equal


@dataclass(frozen=True)
class _Orders:
    """Advantage under a policy, leading order first, as coefficients of 1 and lambda.

    gain: 0 with a discount; ends_in: chances of ending up in each class that no policy leaves;
    errors: rounding of the deciding term's coefficients; faint: whether it may be rounding.
    """

    terms: Float[FloatArray, "orders S 2"]
    gain: Float[FloatArray, "S 2"]
    ends_in: Float[FloatArray, "S C"]
    errors: Float[FloatArray, 2]
    faint: Bool[BoolArray, " S"]

    def sign_at(self, subsidy: float) -> Int[IntArray, " S"]:
        """Return the sign of the advantage at a subsidy, or near -infinity."""
        level, slope = self.terms[:, :, 0], self.terms[:, :, 1]
        if np.isinf(subsidy):
            signs = np.where(slope != 0, -np.sign(slope), np.sign(level))
        else:
            at = level + subsidy * slope
            noise = 1e-15 * (np.abs(level) + np.abs(subsidy * slope))
            signs = np.where(np.abs(at) > noise, np.sign(at), 0)
        return _first_nonzero(signs).astype(np.int64)

    def leading(self) -> tuple[FloatArray, IntArray]:
        """Return the first term that is not 0 on the whole line, (S, 2), and its order, (S,)."""
        there = (self.terms != 0).any(2)
        which = np.where(there.any(0), there.argmax(0), len(self.terms))
        padded = np.concatenate([self.terms, np.zeros((1, *self.terms.shape[1:]))])
        return padded[which, np.arange(which.size)], which


def _first_nonzero(values: FloatArray) -> FloatArray:
    chosen = (values != 0).argmax(0)
    return np.asarray(values[chosen, np.arange(values.shape[1])])


def _without_noise(
    term: FloatArray, source: FloatArray, condition: float
) -> tuple[FloatArray, BoolArray]:
    """Set rounding in a term to 0; return also the states in which the rest may be rounding.

    source: (S, 2), solution of a system that the term was made of; condition: growth of rounding
    in it. Other parts of the term have size 1.
    """
    size = np.abs(source).max(0)
    clear = np.where(np.abs(term) > _EPSILON * (1 + condition * size), term, 0)
    faint = (clear != 0).any(1) & (np.abs(clear) <= _FAINT_SHARE * (1 + size)).all(1)
    return clear, faint


def _orders(problem: LineProblem, active: BoolArray, closed: IntArray) -> _Orders:
    """Solve for the orders of the advantage under a policy."""
    P, rewards, D = problem.matrix(active), problem.rewards(active), problem.difference
    if problem.discount is not None:
        M = np.eye(problem.states) - problem.discount * P
        M[:, 0] = 1
        (values,), condition = _solved(M, rewards, 1)
        values[0] = 0
        advantage = problem.own_advantage + problem.discount * (D @ values)
        term, faint = _without_noise(advantage, values, condition)
        return _Orders(
            terms=term[None],
            gain=np.zeros((problem.states, 2)),
            ends_in=np.zeros((problem.states, 0)),
            errors=_EPSILON * condition * np.abs(values).max(0),
            faint=faint,
        )
    ends_up = limit(P)
    gain = ends_up @ rewards
    M = np.eye(problem.states) - P + ends_up
    (bias, next_term), condition = _solved(M, rewards - gain, 2)
    by_gain, faint_gain = _without_noise(D @ gain, gain, 1.0)
    by_bias, faint_bias = _without_noise(problem.own_advantage + D @ bias, bias, condition)
    by_next, _ = _without_noise(-D @ next_term, next_term, condition)
    tied = ~by_gain.any(1)
    members = closed[:, None] == np.arange(closed.max() + 1)
    return _Orders(
        terms=np.stack([by_gain, by_bias, by_next]),
        gain=gain,
        ends_in=ends_up @ members,
        errors=_EPSILON * condition * np.abs(bias).max(0),
        faint=faint_gain | (tied & faint_bias),
    )


def _solved(M: FloatArray, right: FloatArray, times: int) -> tuple[list[FloatArray], float]:
    """Return M^-1, M^-2, ... times the right side, and the size of M^-1."""
    from scipy.linalg import lu_solve

    factors, size = factored(M)
    solutions = []
    for _ in range(times):
        right = np.asarray(lu_solve(factors, right), np.float64)
        solutions.append(right)
    return solutions, size


class OptimalPolicy(NamedTuple):
    """Policy that is optimal at a place just above a subsidy, and its advantages."""

    active: BoolArray
    orders: _Orders
    place: float


def follow_by_solving(problem: LineProblem, history: History) -> None:
    """Follow the line with a fresh solution of each policy, any number of recurrent classes."""
    closed = recurrent((problem.active != 0) | (problem.passive != 0))
    active, here = np.ones(problem.states, np.bool_), -np.inf
    for _ in range(most_intervals(problem.states)):
        optimal = settle(problem, active, here, closed)
        if optimal is None:
            break
        active, here = optimal.active, add_interval(problem, optimal, here, history)
        if np.isinf(here):
            return
    history.exhausted = True


def add_interval(
    problem: LineProblem, optimal: OptimalPolicy, here: float, history: History
) -> float:
    """Add the interval of a policy from a subsidy on to the history, and return its end."""
    active, orders, place = optimal
    advantage, which = orders.leading()
    level, slope = advantage.T
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = np.where(np.where(active, slope, -slope) < 0, -level / slope, np.inf)
    there = max(float(crossing.min()), place)
    ends = places((here, there))
    low, high = (level + slope * end for end in ends)
    order = 0 if problem.discount is not None else 1  # where the bias or value decides
    tied = which == len(orders.terms)
    farthest = max(abs(end) for end in ends)
    error = float(orders.errors[0] + farthest * orders.errors[1])
    beneath = np.zeros(problem.states)
    if problem.discount is None:
        by_gain = which == 0
        beneath[by_gain] = (orders.terms[1] @ [1, ends[1]])[by_gain]
    history.add(
        Interval(
            active=active,
            ends=(here, there),
            low=low,
            high=high,
            weak=which > order,
            tied=tied,
            error=error,
            beneath=beneath,
        )
    )
    if there - here > SHORT_INTERVAL * (1 + farthest):
        history.doubtful |= orders.faint
        _compare_starts(orders.gain, ends, history)
    if problem.discount is None and orders.ends_in.shape[1] > 1:
        moved = np.abs(problem.difference @ orders.ends_in).max(1) > _MIN_CHANCE
        history.undetermined |= moved & (which >= order)
    return there


def _compare_starts(gain: FloatArray, subsidies: tuple[float, float], history: History) -> None:
    """Compare starts at the ends of an interval, between which the gain (S, 2) is affine."""
    for subsidy in subsidies:
        at = gain @ [1, subsidy]
        low, high = int(at.argmin()), int(at.argmax())
        apart = Apart(subsidy, low, float(at[low]), high, float(at[high]))
        least = _GAIN_TOLERANCE * (1 + float(np.abs(at).max()))
        if apart.by > (least if history.apart is None else history.apart.by):
            history.apart = apart


def settle(
    problem: LineProblem, active: BoolArray, border: float, closed: IntArray
) -> OptimalPolicy | None:
    """Run policy iteration a _NUDGE above a border, from any policy.

    closed: (S,), classes that no policy leaves, as `recurrent` labels them. At the border itself
    several orders of the advantage may be 0, which rounding hides; the nudge grows while the
    iteration cycles, and None means that it always did.
    """
    for nudge in (1, 10, 100, 1000):
        place, policy = border + nudge * _NUDGE * (1 + abs(border)), active
        if np.isinf(border):
            place = border
        for _ in range(problem.states + 50):
            orders = _orders(problem, policy, closed)
            sign = orders.sign_at(place)
            better = np.where(sign == 0, policy, sign > 0)
            if np.array_equal(better, policy):
                return OptimalPolicy(policy, orders, place)
            policy = better
    return None


def confirmed(problem: LineProblem, witness: tuple[int, float, float] | None) -> bool:
    """Whether a witness, if any, is confirmed by fresh solutions at its two subsidies."""
    if witness is None:
        return True
    state, low, high = witness
    closed, start = np.zeros(problem.states, np.int64), np.ones(problem.states, np.bool_)
    for place, sign in ((low, -1), (high, 1)):
        optimal = settle(problem, start, place, closed)
        if optimal is None or optimal.orders.sign_at(optimal.place)[state] != sign:
            return False
    return True
