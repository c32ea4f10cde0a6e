"""One finite arm with a subsidy for passivity: the problem, and what is known of its solutions.

States 0..S-1; action a moves by P_a and pays r_a; a passive slot also pays the subsidy lambda.
Under a policy (which states are active), gain, bias and values are affine in lambda, and so is the
*advantage* of active over passive in each state,

    A(s) = r_1(s) - r_0(s) - lambda + sum_s' D(s, s') v(s'),        D = beta (P_1 - P_0),

with v the discounted value, or with beta = 1 and v = h, the bias, for average reward; constants
in v do not matter. A policy stays optimal while A >= 0 in its active and A <= 0 in its passive
states, so the line falls into intervals with one policy each. `rmab.planning.index.fast_pivoting`
and
`rmab.planning.index.sensitive` find them from -infinity upwards; what each state does in them is
kept by a `History`, from which `rmab.planning.index.finite` reads the indices and the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.arrays import BoolArray, FloatArray

__all__ = [
    "SHORT_INTERVAL",
    "Apart",
    "History",
    "Interval",
    "Problem",
    "factored",
    "most_intervals",
    "places",
]


_CLEAR_SHARE = 1e-10  # an advantage below this share of the largest of its interval may be rounding
_NO_ADVANTAGE = 1e-14  # one below this share is none
_MAX_SURE_ERROR = 1e-12  # rounding that changes no verdict and no digit that is shown
SHORT_INTERVAL = 1e-9  # nothing is clear in an interval below this
_NO_INTERVAL = 1e-13  # an interval below this is none


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


class Apart(NamedTuple):
    """Two states from which the best average reward at a subsidy is not the same."""

    subsidy: float
    low_state: int
    low_gain: float
    high_state: int
    high_gain: float

    @property
    def by(self) -> float:
        return self.high_gain - self.low_gain


class Interval(NamedTuple):
    """Subsidies with one optimal policy: which states are active, (S,), the two ends, and the
    advantages, (S,), at the two `places` of the interval.

    weak: gain and bias are tied, the next order decides; tied: that one is tied, too; error: the
    largest that rounding may have made; beneath: the order after the deciding one at the upper end,
    which decides there if that one comes to 0.
    """

    active: BoolArray
    ends: tuple[float, float]
    low: FloatArray
    high: FloatArray
    weak: BoolArray | None = None
    tied: BoolArray | None = None
    error: float = 0.0
    beneath: FloatArray | None = None


class History:
    """What each of S states did in the intervals found so far.

    index: (S,) the upper end of the last interval in which the state was active; witness: of the
    widest margin, or None; doubtful: states whose advantage came so near to 0 that rounding may
    hide a change back; undetermined: states that choose between classes of one gain; apart: where
    the best gain depends most on the start, or None.
    """

    def __init__(self, states: int) -> None:
        self.index = np.full(states, -np.inf)
        self.witness: tuple[int, float, float] | None = None
        self.doubtful = np.zeros(states, np.bool_)
        self.undetermined = np.zeros(states, np.bool_)
        self.apart: Apart | None = None
        self.exhausted = False
        self.alike = np.zeros(states, np.bool_)  # both actions are for a while, as far as is known
        self.error = 0.0  # the largest that rounding may have made in an advantage
        self._margin = 0.0  # of the witness
        self._passive_by = np.zeros(states)  # how clearly passive it ever was, and where
        self._passive_at = np.zeros(states)
        self._touched = np.zeros(states, np.bool_)

    @property
    def in_doubt(self) -> bool:
        """Whether anything is that exact arithmetic could decide."""
        return bool(
            self.apart is not None
            or self.exhausted
            or self.error > _MAX_SURE_ERROR
            or (self.doubtful | self.undetermined | self.alike).any()
            or np.isinf(self.index).any()
        )

    def add(self, interval: Interval) -> None:
        """One interval more.

        At its ends an optimal policy may change at once, so what is clear is taken in its middle.
        """
        active, ends, low, high, weak, tied, error, beneath = interval
        left, right = places(ends)
        middle, size = (left + right) / 2, np.abs(low + high) / 2
        was_passive = self._passive_by > 0
        weak = np.zeros_like(active) if weak is None else weak
        tied = np.zeros_like(active) if tied is None else tied
        length = (right - left) / (1 + abs(middle))
        if length <= SHORT_INTERVAL:
            self.index[active & ~tied & (self.index == ends[0])] = ends[1]
            self.doubtful |= active & was_passive & (length > _NO_INTERVAL)
            return
        least = max(_CLEAR_SHARE * (1 + float(size.max())), error)
        largest = np.where(weak, np.inf, np.maximum(np.abs(low), np.abs(high)))
        self.alike |= tied | (largest <= least)
        tied = tied | (largest <= _NO_ADVANTAGE * (1 + float(size.max())))
        self.index[active & ~tied] = ends[1]
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


def places(ends: tuple[float, float]) -> tuple[float, float]:
    """Two finite subsidies of an interval: its ends, or one unit from its only finite end."""
    low, high = ends
    if np.isinf(low) and np.isinf(high):
        return -1.0, 1.0
    return (high - 1 if np.isinf(low) else low), (low + 1 if np.isinf(high) else high)


def most_intervals(states: int) -> int:
    """After how many intervals the search is given up; the policy usually changes O(S) times."""
    return 40 * states + 1000


def factored(M: FloatArray) -> tuple[tuple[FloatArray, npt.NDArray[np.int32]], float]:
    """The LU factors of M, which is overwritten, and the size of M^-1: what rounding grows by."""
    from scipy.linalg import lu_factor
    from scipy.linalg.lapack import dgecon

    size = float(np.abs(M).sum(1).max())
    factors = lu_factor(M, overwrite_a=True)
    reciprocal, _ = dgecon(factors[0], size, norm="I")
    return factors, 1 / max(float(reciprocal) * size, 1e-300)
