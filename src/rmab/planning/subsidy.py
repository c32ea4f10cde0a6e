"""One finite arm with a subsidy for passivity: its optimal policies along the whole subsidy line.

States 0..S-1; action a moves by P_a and pays r_a; a passive slot also pays the subsidy lambda.
Under a policy (which states are active), gain, bias and values are affine in lambda, and so is the
*advantage* of active over passive in each state,

    A(s) = r_1(s) - r_0(s) - lambda + sum_s' D(s, s') v(s'),        D = beta (P_1 - P_0),

with v the discounted value, or with beta = 1 and v = h, the bias, for average reward; constants
in v do not matter. A policy stays optimal while A >= 0 in its active and A <= 0 in its passive
states, so the line falls into intervals with one policy each. They are walked from -infinity
upwards; what each state does in them is kept by a `History`, from which `rmab.planning.indices`
reads the indices and the verdict.

*By pivots* (`follow_by_pivots`), for discounted reward and for average reward as long as every
policy met has one recurrent class. Let M = I - beta P of the policy, with one column all ones: v is
0 in that state, and its unknown becomes the gain, or (1 - beta) times the value there, so that
nothing grows as beta nears 1. With that column of D set to 0 and F = D M^-1, letting
state j change its action (sign = 1 if it becomes passive, else -1) adds sign x D(j, :) to row j of
M, so by Sherman and Morrison

    F <- F - sign F(:, j) F(j, :) / (1 + sign F(j, j)),
    A <- A - sign F(:, j) A(j)    / (1 + sign F(j, j)):

F is all that is needed. Rows and columns are brought up to date when they are asked for, the whole
of F once per BLOCK changes by one matrix product: O(S^3) for a path of O(S) intervals, all states
checked in all intervals.

*By solving* (`follow_by_solving`), for any arm. The value of a policy at discount 1 - eps has the
expansion g / eps + h + eps w + ...: gain g, bias h, and w = -H h with the deviation matrix H. The
advantage has the orders

    A_-1 = (P_1 - P_0) g,    A_0 = r_1 - r_0 - lambda + (P_1 - P_0) h,    A_1 = (P_1 - P_0) w,

compared lexicographically: the Bellman pair of gain and bias, with A_1 to make the bias itself the
largest of all gain-optimal policies (Veinott). So several recurrent classes, transient states and
periods need no case of their own. Each policy is solved afresh, and at each border of intervals
policy iteration runs just after it, values first, slopes in lambda where values are 0.

References: A. F. Veinott, "Discrete dynamic programming with sensitive discount optimality
criteria", Ann. Math. Stat. 40(5), 1969; M. L. Puterman, "Markov Decision Processes", 1994,
Chapters 9 and 10; J. Nino-Mora, "A fast-pivoting algorithm for Whittle's restless bandit index",
Mathematics 8(12), 2020; N. Gast, B. Gaujal, K. Khun, "Testing indexability and computing Whittle
and Gittins index in subcubic time", Math. Meth. Oper. Res. 97, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["History", "Problem", "follow", "follow_by_pivots", "follow_by_solving"]

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

EPS = 8 * float(np.finfo(np.float64).eps)
BLOCK = 64  # changes of policy between two matrix products
CLEAR = 1e-10  # an advantage below this, against the largest of its interval, may be rounding
SHORT = 1e-9  # nothing is clear in an interval below this
ROUNDING = 1e-13  # an interval below this is none
NUDGE = 1e-10  # how far above a border policies are compared
ZERO = 1e-12  # an advantage below this for a while: both actions are alike
FAINT = 1e-10  # coefficients of an advantage below this may be rounding
FLAT = 1e-11  # a slope below this crosses nothing
SINGULAR = 1e-9  # a pivot below this: the next policy has two recurrent classes
GROWTH = 1e5  # more than this in F makes rounding count
DRIFT = 1e-10  # the most that the advantages may be off after all pivots
NEAR_ONE = 1 - 1e-4  # a discount that stands in for average reward
ILL = 1e-6  # the most that rounding may change an advantage


@dataclass(frozen=True)
class Problem:
    """An arm in units in which its rewards are of size 1.

    passive, active: (S, S), rows sum to 1; reward_passive, reward_active: (S,);
    discount: None for average reward.
    """

    passive: FloatArray
    active: FloatArray
    reward_passive: FloatArray
    reward_active: FloatArray
    discount: float | None

    @property
    def states(self) -> int:
        return self.reward_active.size

    @cached_property
    def difference(self) -> FloatArray:
        """P_1 - P_0, shape (S, S)."""
        return self.active - self.passive

    @cached_property
    def own_advantage(self) -> FloatArray:
        """r_1 - r_0 - lambda as coefficients of 1 and lambda, shape (S, 2)."""
        at_once = self.reward_active - self.reward_passive
        return np.stack([at_once, -np.ones(self.states)], 1)

    def matrix(self, active: BoolArray) -> FloatArray:
        """Transitions under a policy, shape (S, S)."""
        return np.where(active[:, None], self.active, self.passive)

    def rewards(self, active: BoolArray) -> FloatArray:
        """Rewards under a policy as coefficients of 1 and lambda, shape (S, 2)."""
        pays = np.where(active, self.reward_active, self.reward_passive)
        return np.stack([pays, (~active).astype(np.float64)], 1)


class History:
    """What each of S states did in the intervals walked so far.

    index: (S,) the upper end of the last interval in which the state was active; witness: of the
    widest margin, or None; doubtful: states whose advantage came so near to 0 that rounding may
    hide a change back; undetermined: states that choose between classes of one gain.
    """

    def __init__(self, states: int) -> None:
        self.index = np.full(states, -np.inf)
        self.witness: tuple[int, float, float] | None = None
        self.doubtful = np.zeros(states, np.bool_)
        self.undetermined = np.zeros(states, np.bool_)
        self.exhausted = False
        self.error = 0.0  # the largest that rounding may have made in an advantage
        self._margin = 0.0  # of the witness
        self._passive_by = np.zeros(states)  # how clearly passive it ever was, and where
        self._passive_at = np.zeros(states)
        self._touched = np.zeros(states, np.bool_)

    def add(
        self,
        active: BoolArray,
        ends: tuple[float, float],
        low: FloatArray,
        high: FloatArray,
        weak: BoolArray | None = None,
        tied: BoolArray | None = None,
        error: float = 0.0,
        beneath: FloatArray | None = None,
    ) -> None:
        """One interval: advantages (S,) at its `_places`.

        weak: gain and bias are tied, the next order decides; tied: that one is tied, too;
        error: the largest that rounding may have made; beneath: the order after the deciding one
        at the upper end, which decides there if that one comes to 0.

        At its ends an optimal policy may change at once, so what is clear is taken in its middle.
        """
        places = _places(ends)
        middle, size = (places[0] + places[1]) / 2, np.abs(low + high) / 2
        was_passive = self._passive_by > 0
        weak = np.zeros_like(active) if weak is None else weak
        stays = active if tied is None else active & ~tied
        length = (places[1] - places[0]) / (1 + abs(middle))
        if length <= SHORT:
            self.index[stays & (self.index == ends[0])] = ends[1]
            self.doubtful |= active & was_passive & (length > ROUNDING)
            return
        self.index[stays] = ends[1]
        least = max(CLEAR * (1 + float(size.max())), error)
        self.error = max(self.error, error)
        clear = (size > least) & ~weak

        back = active & clear & was_passive
        if back.any():
            margins = np.where(back, np.minimum(size, self._passive_by), 0)
            state = int(margins.argmax())
            if margins[state] > self._margin:
                self._margin = float(margins[state])
                self.witness = (state, float(self._passive_at[state]), middle)
        if beneath is not None:
            high = np.where(np.abs(high) > least, high, beneath)
        self.doubtful |= active & clear & self._touched
        # Passive all along, but so near to 0 at the end that it might have been active there.
        self.doubtful |= was_passive & ~back & np.where(active, ~clear, ~weak & (high > -least))
        self._touched |= np.where(active, weak | (high <= least), ~clear)

        deeper = ~active & clear & (size > self._passive_by)
        self._passive_by[deeper] = size[deeper]
        self._passive_at[deeper] = middle


def _places(ends: tuple[float, float]) -> tuple[float, float]:
    """Two finite subsidies of an interval: its ends, or one unit from its only finite end."""
    low, high = ends
    if np.isinf(low) and np.isinf(high):
        return -1.0, 1.0
    return (high - 1 if np.isinf(low) else low), (low + 1 if np.isinf(high) else high)


def follow(problem: Problem) -> History:
    """The whole line: by pivots if these can be trusted, else by solving.

    Where rounding ends the walk early, the indices are those of a discount near 1.
    """
    history = History(problem.states)
    if follow_by_pivots(problem, history) and _confirmed(problem, history.witness):
        return history
    history = History(problem.states)
    follow_by_solving(problem, history)
    if history.exhausted and problem.discount is None:
        near = History(problem.states)
        if follow_by_pivots(replace(problem, discount=NEAR_ONE), near):
            history.index = near.index
    return history


def follow_by_pivots(problem: Problem, history: History) -> bool:
    """Walk the line by pivots; False where that cannot be trusted, and history is then void."""
    from scipy.linalg.blas import dgemm

    S = problem.states
    begun = _begin(problem)
    if begun is None:
        return False
    F, last = begun  # F is kept transposed: rows of F are contiguous
    own = problem.reward_active - problem.reward_passive
    level, slope = own + problem.reward_active @ F, -np.ones(S)
    left, right = np.empty((S, BLOCK), order="F"), np.empty((S, BLOCK), order="F")
    pending, here, active = 0, -np.inf, np.ones(S, np.bool_)
    sole = problem.discount is not None or _always_one_class(problem)
    for _ in range(_most_intervals(S)):
        heading = np.where(active, slope, -slope)
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = np.where(heading < -FLAT, -level / slope, np.inf)
        j = int(crossing.argmin())
        there = max(float(crossing[j]), here)
        if there > here:
            low, high = (level + slope * place for place in _places((here, there)))
            if not sole and there - here > 1e-6 and _idle(low, high):
                return False  # both actions alike for a while: h may not be unique
            history.add(active, (here, there), low, high)
        if np.isinf(there):
            break
        if here - crossing[j] > DRIFT * (1 + abs(here)):
            return False
        here = there
        sign = 1.0 if active[j] else -1.0
        column = F[j] - left[:, :pending] @ right[j, :pending]
        row = F[:, j] - right[:, :pending] @ left[j, :pending]
        pivot = 1 + sign * column[j]
        if pivot < SINGULAR:
            return False
        column *= sign / pivot
        if np.abs(column).max() > GROWTH:
            return False
        left[:, pending], right[:, pending] = column, row
        level, slope = level - column * level[j], slope - column * slope[j]
        active[j] = not active[j]
        pending += 1
        if pending == BLOCK:
            F = dgemm(-1.0, right, left, beta=1.0, c=F, trans_b=True, overwrite_c=True)
            pending = 0
    else:
        history.exhausted = True
        return True
    return not active.any() and _close(level, last) and _close(slope, -np.ones(S))


def _close(found: FloatArray, right: FloatArray) -> bool:
    return bool(np.abs(found - right).max() <= DRIFT * (1 + np.abs(right).max()))


def _idle(low: FloatArray, high: FloatArray) -> bool:
    return bool((np.maximum(np.abs(low), np.abs(high)) <= ZERO).any())


def _most_intervals(states: int) -> int:
    return 40 * states + 1000


def _begin(problem: Problem) -> tuple[FloatArray, FloatArray] | None:
    """F of the policy that is always active, transposed, and A at lambda = 0 of never active.

    None where one of the two has several recurrent classes, or nearly so.
    """
    from scipy.linalg import lu_solve

    S, beta = problem.states, problem.discount or 1.0
    if problem.discount is None and not (
        _one_class(problem.active) and _one_class(problem.passive)
    ):
        return None
    base = int((problem.active.sum(0) + problem.passive.sum(0)).argmax())
    D = beta * problem.difference
    D[:, base] = 0
    matrices = [np.eye(S) - beta * P for P in (problem.active, problem.passive)]
    for M in matrices:
        M[:, base] = 1
    factors = [_factored(M) for M in matrices]
    if max(size for _, size in factors) > GROWTH:
        return None
    (always, _), (never, _) = factors
    F = lu_solve(always, D.T, trans=1)
    values = lu_solve(never, problem.reward_passive)
    last = problem.reward_active - problem.reward_passive + D @ values
    return np.asfortranarray(F), last


def _factored(M: FloatArray) -> tuple[tuple[FloatArray, npt.NDArray[np.int32]], float]:
    """The LU factors of M, which is overwritten, and the size of M^-1: what rounding grows by."""
    from scipy.linalg import lu_factor
    from scipy.linalg.lapack import dgecon

    size = float(np.abs(M).sum(1).max())
    factors = lu_factor(M, overwrite_a=True)
    reciprocal, _ = dgecon(factors[0], size, norm="I")
    return factors, 1 / max(float(reciprocal) * size, 1e-300)


def _always_one_class(problem: Problem) -> bool:
    """Whether some state is reached at once from everywhere, whatever the policy (sufficient)."""
    return bool(np.minimum(problem.active, problem.passive).min(0).max() > 0)


def _one_class(P: FloatArray) -> bool:
    """Whether a chain has one recurrent class."""
    return bool(P.min(0).max() > 0) or len(set(_recurrent(P).tolist()) - {-1}) == 1


def _recurrent(P: npt.NDArray[np.generic]) -> IntArray:
    """The recurrent class of each state as a label 0.., -1 for transient states, shape (S,)."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    edges = csr_array(P != 0)
    _, labels = connected_components(edges, directed=True, connection="strong")
    source, target = edges.nonzero()
    left = np.unique(labels[source][labels[source] != labels[target]])
    closed = ~np.isin(labels, left)
    classes = np.full(labels.size, -1, np.int64)
    classes[closed] = np.unique(labels[closed], return_inverse=True)[1]
    return classes


@dataclass(frozen=True)
class _Orders:
    """The advantage under a policy, leading order first: (orders, S, 2), coefficients of 1, lambda.

    ends_in: (S, C), the chances of ending up in each class that no policy leaves;
    errors: (2,), of rounding, in the coefficients of the deciding term;
    faint: (S,), where the deciding term might be rounding.
    """

    terms: FloatArray
    ends_in: FloatArray
    errors: FloatArray
    faint: BoolArray

    def sign_at(self, subsidy: float) -> IntArray:
        """The sign of the advantage at a subsidy, or near -infinity, shape (S,)."""
        level, slope = self.terms[:, :, 0], self.terms[:, :, 1]
        if np.isinf(subsidy):
            signs = np.where(slope != 0, -np.sign(slope), np.sign(level))
        else:
            at = level + subsidy * slope
            noise = 1e-15 * (np.abs(level) + np.abs(subsidy * slope))
            signs = np.where(np.abs(at) > noise, np.sign(at), 0)
        return _first_nonzero(signs).astype(np.int64)

    def leading(self) -> tuple[FloatArray, IntArray]:
        """The first term that is not 0 on the whole line, (S, 2), and which that is, (S,)."""
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
    """A term with rounding set to 0, and the states, (S,), where it is hardly more than that."""
    size = 1 + np.abs(source).max(0)
    kept = np.where(np.abs(term) > EPS * condition * size, term, 0)
    faint = (kept != 0).any(1) & (np.abs(kept) <= FAINT * size).all(1)
    return kept, faint


def _orders(problem: Problem, active: BoolArray, closed: IntArray) -> _Orders:
    """The orders of the advantage under a policy, each policy solved afresh."""
    P, rewards, D = problem.matrix(active), problem.rewards(active), problem.difference
    if problem.discount is not None:
        M = np.eye(problem.states) - problem.discount * P
        M[:, 0] = 1
        (values,), condition = _solved(M, rewards, 1)
        values[0] = 0
        advantage = problem.own_advantage + problem.discount * (D @ values)
        term, faint = _without_noise(advantage, values, condition)
        ends_in = np.zeros((problem.states, 0))
        return _Orders(term[None], ends_in, EPS * condition * np.abs(values).max(0), faint)
    limit = _limit(P)
    gain = limit @ rewards
    M = np.eye(problem.states) - P + limit
    (bias, next_term), condition = _solved(M, rewards - gain, 2)
    by_gain, faint_gain = _without_noise(D @ gain, gain, 1.0)
    by_bias, faint_bias = _without_noise(problem.own_advantage + D @ bias, bias, condition)
    by_next, _ = _without_noise(-D @ next_term, next_term, condition)
    tied = ~by_gain.any(1)
    members = closed[:, None] == np.arange(closed.max() + 1)
    return _Orders(
        terms=np.stack([by_gain, by_bias, by_next]),
        ends_in=limit @ members,
        errors=EPS * condition * np.abs(bias).max(0),
        faint=faint_gain | (tied & faint_bias),
    )


def _solved(M: FloatArray, right: FloatArray, times: int) -> tuple[list[FloatArray], float]:
    """M^-1, M^-2, ... times the right side, and the size of M^-1."""
    from scipy.linalg import lu_solve

    factors, size = _factored(M)
    solutions = []
    for _ in range(times):
        right = np.asarray(lu_solve(factors, right), np.float64)
        solutions.append(right)
    return solutions, size


def _limit(P: FloatArray) -> FloatArray:
    """The Cesaro limit of P^t: where each start ends up in the long run, shape (S, S)."""
    classes = _recurrent(P)
    occupied = np.zeros((int(classes.max()) + 1, len(P)))  # by each class, in the long run
    for label, shares in enumerate(occupied):
        members = np.flatnonzero(classes == label)
        shares[members] = _stationary(P[np.ix_(members, members)])
    ends_in = (classes[:, None] == np.arange(len(occupied))).astype(np.float64)
    transient = classes < 0
    if transient.any() and len(occupied) == 1:
        ends_in[transient] = 1
    elif transient.any():
        inside = np.eye(int(transient.sum())) - P[np.ix_(transient, transient)]
        reached = np.linalg.solve(inside, P[transient] @ ends_in)
        ends_in[transient] = reached / reached.sum(1, keepdims=True)  # classes of one gain stay so
    return np.asarray(ends_in @ occupied)


def _stationary(P: FloatArray) -> FloatArray:
    """The stationary distribution of an irreducible chain, shape (S,): elimination of states
    without subtractions (Grassmann, Taksar, Heyman), so that small chances stay accurate."""
    P = P.copy()
    for k in range(len(P) - 1, 0, -1):
        P[:k, k] /= P[k, :k].sum()
        P[:k, :k] += np.outer(P[:k, k], P[k, :k])
    weight = np.ones(len(P))
    for k in range(1, len(P)):
        weight[k] = weight[:k] @ P[:k, k]
    return np.asarray(weight / weight.sum())


def follow_by_solving(problem: Problem, history: History) -> None:
    """Walk the line with a fresh solution of each policy, any number of recurrent classes."""
    S = problem.states
    closed = _recurrent((problem.active != 0) | (problem.passive != 0))
    active, here = np.ones(S, np.bool_), -np.inf
    for _ in range(_most_intervals(S)):
        found = _settle(problem, active, here, closed)
        if found is None:
            break
        active, orders, place = found
        advantage, which = orders.leading()
        level, slope = advantage.T
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = np.where(np.where(active, slope, -slope) < 0, -level / slope, np.inf)
        there = max(float(crossing.min()), place)
        low, high = (level + slope * place for place in _places((here, there)))
        order = 0 if problem.discount is not None else 1  # where the bias or value decides
        tied = which == len(orders.terms)
        farthest = max(abs(x) for x in _places((here, there)))
        error = float(orders.errors[0] + farthest * orders.errors[1])
        beneath = np.zeros(S)
        if problem.discount is None:
            by_gain = which == 0
            beneath[by_gain] = (orders.terms[1] @ [1, _places((here, there))[1]])[by_gain]
        history.add(active, (here, there), low, high, which > order, tied, error, beneath)
        if there - here > SHORT * (1 + farthest):
            history.doubtful |= orders.faint
        if problem.discount is None and orders.ends_in.shape[1] > 1:
            moved = np.abs(problem.difference @ orders.ends_in).max(1) > ZERO
            history.undetermined |= moved & (which >= order)
        if np.isinf(there):
            return
        here = there
    history.exhausted = True


def _settle(
    problem: Problem, active: BoolArray, border: float, closed: IntArray
) -> tuple[BoolArray, _Orders, float] | None:
    """Policy iteration a NUDGE above a border: the policy, its advantages, and where.

    At the border itself orders of the advantage may be 0 at once, in rounding not all of them; the
    nudge grows while that makes the iteration cycle, and None means that it always did.
    """
    for nudge in (1, 10, 100, 1000):
        place, policy = border + nudge * NUDGE * (1 + abs(border)), active
        if np.isinf(border):
            place = border
        for _ in range(problem.states + 50):
            orders = _orders(problem, policy, closed)
            sign = orders.sign_at(place)
            better = np.where(sign == 0, policy, sign > 0)
            if np.array_equal(better, policy):
                return policy, orders, place
            policy = better
    return None


def _confirmed(problem: Problem, witness: tuple[int, float, float] | None) -> bool:
    """Whether a witness, if there is one, stands when its two subsidies are solved afresh."""
    if witness is None:
        return True
    state, low, high = witness
    closed, start = np.zeros(problem.states, np.int64), np.ones(problem.states, np.bool_)
    for place, sign in ((low, -1), (high, 1)):
        found = _settle(problem, start, place, closed)
        if found is None or found[1].sign_at(found[2])[state] != sign:
            return False
    return True
