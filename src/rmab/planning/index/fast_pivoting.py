"""Subsidy line by pivots: rank-one changes from one policy to the next.

For discounted reward, and for average reward where the policies met have one recurrent class. Let
M = I - beta P of the policy, with one column all ones: v is 0 in that state, and its unknown
becomes the gain, or (1 - beta) times the value there, so that nothing grows as beta nears 1. With
that column of D set to 0 and F = D M^-1, letting state j change its action (sign = 1 if it becomes
passive, else -1) adds sign x D(j, :) to row j of M, so by Sherman and Morrison

    F <- F - sign F(:, j) F(j, :) / (1 + sign F(j, j)),
    A <- A - sign F(:, j) A(j)    / (1 + sign F(j, j)):

Only F is needed. Rows and columns are updated when they are used, the whole of F once per block of
changes by one matrix product: O(S^3) for a path of O(S) intervals, all states checked in all
intervals.

A pivot of 0 means that the next policy has two recurrent classes. `rmab.planning.index.sensitive`
then finds the policies after that subsidy, and pivots go on from the first that has one class
again. At the end of each run of pivots its last policy is solved afresh. Numbers that grow,
intervals out of order or an end that is off mean that none of it can be trusted.

References: J. Nino-Mora, "A fast-pivoting algorithm for Whittle's restless bandit index",
Mathematics 8(12), 2020; N. Gast, B. Gaujal, K. Khun, "Testing indexability and computing Whittle
and Gittins index in subcubic time", Math. Meth. Oper. Res. 97, 2023.
`rmab.planning.index.subsidy_line` has the symbols.
"""

from __future__ import annotations

import numpy as np

from rmab.arrays import BoolArray, FloatArray
from rmab.markov import recurrent
from rmab.planning.index.sensitive import add_interval, settle
from rmab.planning.index.subsidy_line import (
    History,
    Interval,
    LineProblem,
    factored,
    most_intervals,
    places,
)

__all__ = ["follow_by_pivots"]

_BLOCK_SIZE = 64  # changes of policy between two matrix products
_MIN_ADVANTAGE = 1e-12  # smaller advantages in a whole interval mean that both actions are equal
_MIN_SLOPE = 1e-11  # smaller slopes cross nothing
_ROUNDING = 4e-16  # rounding of an advantage of size 1
_MIN_PIVOT = 1e-9  # smaller pivots mean that the next policy has two recurrent classes
_MAX_GROWTH = 1e5  # larger entries of F make rounding matter
_MAX_DRIFT = 1e-10  # largest error of the advantages after all pivots
_MAX_RUNS = 50


def follow_by_pivots(problem: LineProblem, history: History) -> bool:
    """Follow the line by pivots; False where that cannot be trusted, and history is then void."""
    average = problem.discount is None
    together = np.zeros(problem.states, np.int64)  # some policy leads from everywhere to one class
    active, here, ready = np.ones(problem.states, np.bool_), -np.inf, True
    if average and not _one_class(problem.active):
        if recurrent((problem.active != 0) | (problem.passive != 0)).max() > 0:
            return False  # no policy has one class
        ready = False
    for _ in range(_MAX_RUNS):
        while not ready:
            optimal = settle(problem, active, here, together)
            if optimal is None:
                return False
            active = optimal.active
            ready = _one_class(problem.matrix(active))
            if not ready:
                here = add_interval(problem, optimal, here, history)
                if np.isinf(here):
                    return True
        stopped = _run(problem, active, here, history)
        if stopped is None:
            return False
        active, here = stopped
        if np.isinf(here):
            return True
        ready = False
    return False


def _run(
    problem: LineProblem, policy: BoolArray, start: float, history: History
) -> tuple[BoolArray, float] | None:
    """Follow the line by pivots from a policy that is optimal just above a subsidy.

    Return the last policy and the subsidy at which it ends, None if they cannot be trusted.
    """
    from scipy.linalg.blas import dgemm

    S = problem.states
    begun = _begin(problem, policy)
    if begun is None:
        return None
    F, advantage = begun  # F is kept transposed: rows of F are contiguous
    level, slope = advantage.T
    left, right = np.empty((S, _BLOCK_SIZE), order="F"), np.empty((S, _BLOCK_SIZE), order="F")
    pending, here, active = 0, start, policy.copy()
    sole = problem.discount is not None or _always_one_class(problem)
    for _ in range(most_intervals(S)):
        heading = np.where(active, slope, -slope)
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = np.where(heading < -_MIN_SLOPE, -level / slope, np.inf)
        j = int(crossing.argmin())
        there = max(float(crossing[j]), here)
        if there > here:
            low, high = (level + slope * place for place in places((here, there)))
            if not sole and there - here > 1e-6 and _idle(low, high):
                return None  # both actions are equal for a while: h may not be unique
            history.add(Interval(active, (here, there), low, high))
        if here - crossing[j] > _MAX_DRIFT * (1 + abs(here)):
            return None
        here = there
        if np.isinf(there):
            break
        # A flat advantage crosses 0 at a subsidy that rounding moves far.
        history.error = max(history.error, _ROUNDING * (1 + abs(there)) / abs(float(slope[j])))
        sign = 1.0 if active[j] else -1.0
        column = F[j] - left[:, :pending] @ right[j, :pending]
        row = F[:, j] - right[:, :pending] @ left[j, :pending]
        pivot = 1 + sign * column[j]
        if pivot < _MIN_PIVOT:
            if problem.discount is not None:
                return None  # with a discount: it is too near 1
            break
        column *= sign / pivot
        if np.abs(column).max() > _MAX_GROWTH:
            return None
        left[:, pending], right[:, pending] = column, row
        level, slope = level - column * level[j], slope - column * slope[j]
        active[j] = not active[j]
        pending += 1
        if pending == _BLOCK_SIZE:
            F = dgemm(-1.0, right, left, beta=1.0, c=F, trans_b=True, overwrite_c=True)
            pending = 0
    else:
        history.exhausted = True
        return active, np.inf
    afresh = _advantage(problem, active)
    if afresh is None or not _close(np.stack([level, slope], 1), afresh):
        return None
    return active, here


def _close(values: FloatArray, right: FloatArray) -> bool:
    return bool((np.abs(values - right).max(0) <= _MAX_DRIFT * (1 + np.abs(right).max(0))).all())


def _idle(low: FloatArray, high: FloatArray) -> bool:
    return bool((np.maximum(np.abs(low), np.abs(high)) <= _MIN_ADVANTAGE).any())


def _begin(problem: LineProblem, active: BoolArray) -> tuple[FloatArray, FloatArray] | None:
    """Return F of a policy, transposed, and its advantage, (S, 2); None with nearly two classes."""
    from scipy.linalg import lu_solve

    M, D = _system(problem, active)
    factors, size = factored(M)
    if size > _MAX_GROWTH:
        return None
    F = np.asfortranarray(lu_solve(factors, D.T, trans=1))
    return F, problem.own_advantage + (problem.rewards(active).T @ F).T


def _advantage(problem: LineProblem, active: BoolArray) -> FloatArray | None:
    """Return the advantage under a policy, (S, 2), without F."""
    from scipy.linalg import lu_solve

    M, D = _system(problem, active)
    factors, size = factored(M)
    if size > _MAX_GROWTH:
        return None
    return np.asarray(problem.own_advantage + D @ lu_solve(factors, problem.rewards(active)))


def _system(problem: LineProblem, active: BoolArray) -> tuple[FloatArray, FloatArray]:
    """Return M of a policy and D, both (S, S), with the base in the same column."""
    beta = problem.discount or 1.0
    base = int((problem.active.sum(0) + problem.passive.sum(0)).argmax())
    M, D = np.eye(problem.states) - beta * problem.matrix(active), beta * problem.difference
    M[:, base], D[:, base] = 1, 0
    return M, D


def _always_one_class(problem: LineProblem) -> bool:
    """Whether some state is reached at once from everywhere under all policies (sufficient)."""
    return bool(np.minimum(problem.active, problem.passive).min(0).max() > 0)


def _one_class(P: FloatArray) -> bool:
    """Whether a chain has one recurrent class."""
    return bool(P.min(0).max() > 0) or bool(recurrent(P).max() == 0)
