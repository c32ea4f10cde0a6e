"""One finite arm with a subsidy for passivity: the problem, and a record of its solutions.

States 0..S-1; action a moves by P_a and pays r_a; a passive slot also pays the subsidy lambda.
Under a policy (which states are active), gain, bias and values are affine in lambda, and so is the
*advantage* of active over passive in each state,

    A(s) = r_1(s) - r_0(s) - lambda + sum_s' D(s, s') v(s'),        D = beta (P_1 - P_0),

with v the discounted value, or with beta = 1 and v = h, the bias, for average reward; constants
in v do not matter. A policy stays optimal while A >= 0 in its active and A <= 0 in its passive
states, so the line falls into intervals with one policy each. `rmab.planning.index.fast_pivoting`
and `rmab.planning.index.sensitive` find them from -infinity upwards. A `History` records the action
of each state in them, from which `rmab.planning.index.finite` reads the indices and the verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.arrays import Bool, BoolArray, Float, FloatArray

__all__ = [
    "SHORT_INTERVAL",
    "Apart",
    "History",
    "Interval",
    "LineProblem",
    "factored",
    "most_intervals",
    "places",
]

_CLEAR_SHARE = 1e-10  # advantages below this share of the interval's largest may be rounding
_NO_ADVANTAGE = 1e-14  # advantages below this share of the interval's largest are 0
_MAX_SURE_ERROR = 1e-12  # rounding up to here changes no verdict and no printed digit
SHORT_INTERVAL = 1e-9  # relative length below which no advantage is clear
_NO_INTERVAL = 1e-13  # relative length below which an interval is empty


@dataclass(frozen=True)
class LineProblem:
    """Arm in units in which its rewards are of size 1; discount None is average reward."""

    passive: Float[FloatArray, "S S"]
    active: Float[FloatArray, "S S"]
    reward_passive: Float[FloatArray, " S"]
    reward_active: Float[FloatArray, " S"]
    discount: float | None

    @property
    def states(self) -> int:
        return self.reward_active.size

    @cached_property
    def difference(self) -> Float[FloatArray, "S S"]:
        """Difference of the matrices, P_1 - P_0."""
        return self.active - self.passive

    @cached_property
    def own_advantage(self) -> Float[FloatArray, "S 2"]:
        """Advantage of this slot, r_1 - r_0 - lambda, as coefficients of 1 and lambda."""
        at_once = self.reward_active - self.reward_passive
        return np.stack([at_once, -np.ones(self.states)], 1)

    def matrix(self, active: Bool[BoolArray, " S"]) -> Float[FloatArray, "S S"]:
        """Return the transition matrix of a policy."""
        return np.where(active[:, None], self.active, self.passive)

    def rewards(self, active: Bool[BoolArray, " S"]) -> Float[FloatArray, "S 2"]:
        """Return the rewards of a policy as coefficients of 1 and lambda."""
        pays = np.where(active, self.reward_active, self.reward_passive)
        return np.stack([pays, (~active).astype(np.float64)], 1)


class Apart(NamedTuple):
    """Two states from which the best average reward at a subsidy differs."""

    subsidy: float
    low_state: int
    low_gain: float
    high_state: int
    high_gain: float

    @property
    def by(self) -> float:
        return self.high_gain - self.low_gain


class Interval(NamedTuple):
    """Interval of subsidies with one optimal policy, and the advantages at its two `places`.

    weak: gain and bias are tied, and the next order decides; tied: that one is tied, too; error:
    bound on rounding; beneath: the order after the deciding one at the upper end, which decides
    there if the deciding one comes to 0.
    """

    active: Bool[BoolArray, " S"]
    ends: tuple[float, float]
    low: Float[FloatArray, " S"]
    high: Float[FloatArray, " S"]
    weak: Bool[BoolArray, " S"] | None = None
    tied: Bool[BoolArray, " S"] | None = None
    error: float = 0.0
    beneath: Float[FloatArray, " S"] | None = None


class History:
    """Record of the actions of S states in the intervals found so far.

    index: upper end of the last interval in which a state was active; witness: the change back with
    the widest margin, or None; doubtful: states whose advantage came so near to 0 that rounding may
    hide a change back; undetermined: states that choose between classes of one gain; apart: states
    between which the best gain differs most, or None; alike: states whose actions are equally good
    for a while, up to rounding; error: bound on rounding in an advantage.
    """

    def __init__(self, states: int) -> None:
        self.index = np.full(states, -np.inf)
        self.witness: tuple[int, float, float] | None = None
        self.doubtful = np.zeros(states, np.bool_)
        self.undetermined = np.zeros(states, np.bool_)
        self.apart: Apart | None = None
        self.exhausted = False
        self.alike = np.zeros(states, np.bool_)
        self.error = 0.0
        self._margin = 0.0  # of the witness
        self._passive_by = np.zeros(states)  # largest clear advantage of passive
        self._passive_at = np.zeros(states)  # subsidy of that advantage
        self._touched = np.zeros(states, np.bool_)  # states that may have been passive

    @property
    def in_doubt(self) -> bool:
        """Whether exact arithmetic could change the verdict."""
        return bool(
            self.apart is not None
            or self.exhausted
            or self.error > _MAX_SURE_ERROR
            or (self.doubtful | self.undetermined | self.alike).any()
            or np.isinf(self.index).any()
        )

    def add(self, interval: Interval) -> None:
        """Record the next interval.

        At its ends an optimal policy may change at once, so clear advantages are those in its
        middle.
        """
        active, ends, low, high, weak, tied, error, beneath = interval
        left, right = places(ends)
        middle, size = (left + right) / 2, np.abs(low + high) / 2
        weak = np.zeros_like(active) if weak is None else weak
        tied = np.zeros_like(active) if tied is None else tied
        length = (right - left) / (1 + abs(middle))
        if length <= SHORT_INTERVAL:
            self.index[active & ~tied & (self.index == ends[0])] = ends[1]
            self.doubtful |= active & (self._passive_by > 0) & (length > _NO_INTERVAL)
            return
        scale = 1 + float(size.max())
        least = max(_CLEAR_SHARE * scale, error)
        largest = np.where(weak, np.inf, np.maximum(np.abs(low), np.abs(high)))
        self.alike |= tied | (largest <= least)
        tied = tied | (largest <= _NO_ADVANTAGE * scale)
        self.index[active & ~tied] = ends[1]
        self.error = max(self.error, error)

        clear = (size > least) & ~weak
        back = active & clear & (self._passive_by > 0)
        self._compare_witness(back, size, middle)
        if beneath is not None:
            high = np.where(np.abs(high) > least, high, beneath)
        may_be_active = np.where(active, ~clear, ~weak & (high > -least))
        may_be_passive = np.where(active, weak | (high <= least), ~clear)
        self.doubtful |= active & clear & self._touched
        self.doubtful |= (self._passive_by > 0) & ~back & may_be_active
        self._touched |= may_be_passive

        deeper = ~active & clear & (size > self._passive_by)
        self._passive_by[deeper] = size[deeper]
        self._passive_at[deeper] = middle

    def _compare_witness(self, back: BoolArray, size: FloatArray, subsidy: float) -> None:
        """Keep the change back with the widest margin as the witness."""
        if not back.any():
            return
        margins = np.where(back, np.minimum(size, self._passive_by), 0)
        state = int(margins.argmax())
        if margins[state] > self._margin:
            self._margin = float(margins[state])
            self.witness = (state, float(self._passive_at[state]), subsidy)


def places(ends: tuple[float, float]) -> tuple[float, float]:
    """Return two subsidies of an interval: its ends, or one unit from its only finite end."""
    low, high = ends
    if np.isinf(low) and np.isinf(high):
        return -1.0, 1.0
    return (high - 1 if np.isinf(low) else low), (low + 1 if np.isinf(high) else high)


def most_intervals(states: int) -> int:
    """Return the number of intervals after which the search ends; usually there are O(S)."""
    return 40 * states + 1000


def factored(M: FloatArray) -> tuple[tuple[FloatArray, npt.NDArray[np.int32]], float]:
    """Return the LU factors of M, which is overwritten, and the growth of rounding, |M^-1|."""
    from scipy.linalg import lu_factor
    from scipy.linalg.lapack import dgecon

    size = float(np.abs(M).sum(1).max())
    factors = lu_factor(M, overwrite_a=True)
    reciprocal, _ = dgecon(factors[0], size, norm="I")
    return factors, 1 / max(float(reciprocal) * size, 1e-300)
