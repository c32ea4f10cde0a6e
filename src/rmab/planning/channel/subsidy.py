"""Optimal play of one channel with a subsidy for every passive slot, eqs. (11) and (18).

This is the problem behind the Whittle index: with subsidy `lambda`, reward r and average reward
(gain) g, the relative values of the belief b solve eq. (18), printed with min for max,

    V(b; 1) = b r + b h(1) + (1 - b) h(0) - g          play: the state is observed
    V(b; 0) = lambda - g + V(T b)                      leave alone: the belief moves to T b
    V(b)    = max of both = max over j >= 0 of  j (lambda - g) + V(T^j b; 1),

where h(s) = V(T s) is the value one slot after s was observed. So a stationary policy is two waits:
play again k_s slots after observing s, or never. At plays it is a chain of two states that is good
with chance q_0 = b0 a_0 after bad and bad with chance 1 - q_1 = (1 - b0) a_1 after good, where
a_s = 1 - memory^k_s. With the weights u_1 = b0 a_0 and u_0 = (1 - b0) a_1 of the two states, the
*excess* of the gain over never playing is

    e = g - lambda = (r u_1 - lambda (u_0 + u_1)) / (u_0 k_0 + u_1 k_1)

and V(b; 1) has the slope D = r + h(1) - h(0) = (r + e (k_0 - k_1)) / (u_0 + u_1).

Policy iteration finds the waits. Given e and D, one more slot after j pays as long as

    D (T^(j+1) b - T^j b) = D (1 - memory)(b0 - b) memory^j > e,

whose left side falls in j (memory >= 0) or changes sign in every slot, ever smaller (memory < 0):
the best j comes from a logarithm, or is 0 or 1. No threshold, no index and no largest age is
assumed.

Playing beats never playing (e > 0) just if r u_1 / (u_0 + u_1), the long-run reward of a play, can
exceed lambda: it is largest when u_1 is as large and u_0 as small as waits can make them.
Otherwise g = lambda, waiting costs nothing, h is the total gain over never playing, and at most one
of the two observed states is worth a play.

A frozen arm (p01 = 0, p11 = 1) never changes, so its gain depends on the first observation: from
belief b it is lambda + b max(r - lambda, 0) + (1 - b) max(-lambda, 0), and h = 0.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.arrays import FloatArray
from rmab.model.arms import Dynamics
from rmab.model.information import stationary_belief

__all__ = ["SubsidyProblem", "Threshold", "solve", "threshold"]

_MAX_ITERATIONS = 50  # bound on policy iteration, which rounding might make cycle


@dataclass(frozen=True)
class SubsidyProblem:
    """Solved problem; fields broadcast to the shape (...) of the arguments of `solve`.

    excess: gain - subsidy, from the belief b0; waits: (2, ...), k_0 and k_1, inf for never;
    relative_values: (2, ...), h(0) and h(1), with h(0) = 0 where the excess is positive, else
    relative to never playing; passive_share: long-run share of passive slots, from b0, which is the
    slope of the gain in the subsidy.
    """

    dynamics: Dynamics
    subsidy: FloatArray
    excess: FloatArray
    waits: FloatArray
    relative_values: FloatArray
    passive_share: FloatArray
    _change: FloatArray = field(repr=False)

    @property
    def gain(self) -> FloatArray:
        """Best average reward, subsidies included, from the belief b0: eq. (11)."""
        return self.subsidy + self.excess

    @property
    def slope(self) -> FloatArray:
        """Slope D of V(b; 1) in b."""
        return np.asarray(self.dynamics.reward + self.relative_values[1] - self.relative_values[0])

    def active_value(self, belief: npt.ArrayLike) -> FloatArray:
        """Return V(b; 1); beliefs broadcast against the arms."""
        belief = np.asarray(belief, np.float64)
        won = self.relative_values[0] + belief * self.slope
        return np.asarray(won - self.subsidy - self._excess_from(belief))

    def passive_value(self, belief: npt.ArrayLike) -> FloatArray:
        """Return V(b; 0); beliefs broadcast against the arms."""
        return self.active_value(belief) - self.advantage(belief)

    def value(self, belief: npt.ArrayLike) -> FloatArray:
        """Return V(b), the better of both; beliefs broadcast against the arms."""
        return self.active_value(belief) - np.minimum(self.advantage(belief), 0)

    def advantage(self, belief: npt.ArrayLike) -> FloatArray:
        """Return V(b; 1) - V(b; 0), without the rounding of either.

        V(b; 0) waits 1 + j slots, with the best j from T b, and then plays:

            V(b; 1) - V(b; 0) = (1 + j) e - D (b0 - b)(1 - memory^(1 + j)).
        """
        belief = np.asarray(belief, np.float64)
        excess = self._excess_from(belief)
        below = np.asarray(self.slope * (stationary_belief(self.dynamics) - belief))
        further = _slots_to_wait(below * self._change * (1 - self._change), excess, self._change)
        cost = excess * np.where(np.isinf(further), 0, 1 + further)
        over_later = cost - below * _settled(self._change, 1 + further)
        # Never playing is worth 0 where no play is better, else minus infinity.
        over_never = np.where(excess > 0, np.inf, self.active_value(belief))
        return np.minimum(over_later, over_never)

    def _excess_from(self, belief: npt.ArrayLike) -> FloatArray:
        frozen = _frozen_excess(self.dynamics.reward, self.subsidy, belief)
        return np.where(self._change > 0, self.excess, frozen)


class Threshold(NamedTuple):
    """Belief b*(lambda) of each arm, shape (...), and whether it is played above it or below.

    belief is 0 where every belief is played and 1 where none is.
    """

    belief: FloatArray
    active_above: npt.NDArray[np.bool_]


def solve(
    p01: npt.ArrayLike, p11: npt.ArrayLike, reward: npt.ArrayLike, subsidy: npt.ArrayLike
) -> SubsidyProblem:
    """Solve each channel for each subsidy; the arguments broadcast to (...).

    >>> float(solve(0.2, 0.8, 1.0, 0.3).gain)  # plays on while good, else again after 2 slots
    0.5277777777777778
    """
    given = (np.asarray(x, np.float64) for x in (p01, p11, reward, subsidy))
    rise, stay, pays, subsidy = np.broadcast_arrays(*given)
    dynamics = Dynamics(rise, stay, pays)
    fail = 1 - stay
    change = rise + fail  # 1 - memory
    moves = change > 0
    good = stationary_belief(dynamics)
    bad = np.where(moves, fail / np.where(moves, change, 1), 0.5)  # 1 - b0 to full precision

    pays_off, trial = _first_waits(dynamics, subsidy, change, good, bad)
    for _ in range(_MAX_ITERATIONS):
        waits = trial
        settled = _settled(change, waits)
        seen_good, seen_bad = good * settled[0], bad * settled[1]  # u_1, u_0
        weight = np.where(moves, seen_good + seen_bad, 1)
        cycle = np.where(moves, seen_bad * waits[0] + seen_good * waits[1], 1)
        excess = (pays * seen_good - subsidy * weight) / cycle
        pays_off = pays_off & (excess > 0)  # rounding may leave none
        slope = (pays + excess * (waits[0] - waits[1])) / weight
        gained = slope * (1 - change) * np.stack([rise, -fail])  # D (T^2 s - T s)
        again = 1 + _slots_to_wait(gained, excess, change)
        trial = np.where(pays_off, again, waits)
        if np.array_equal(trial, waits):
            break

    once = _worth_once(dynamics, subsidy, change)
    values = np.where(pays_off, np.stack([np.zeros_like(slope), slope - pays]), once)
    excess, passive = np.where(pays_off, excess, 0), np.where(pays_off, 1 - weight / cycle, 1)
    waits = np.where(pays_off, waits, np.where(once > 0, 1, np.inf))

    frozen_waits = np.where(np.stack([0 * pays, pays]) > subsidy, 1, np.inf)
    frozen_passive = good * (pays <= subsidy) + bad * (subsidy >= 0)
    return SubsidyProblem(
        dynamics=dynamics,
        subsidy=subsidy,
        excess=np.where(moves, excess, _frozen_excess(pays, subsidy, good)),
        waits=np.where(moves, waits, frozen_waits),
        relative_values=np.where(moves, values, 0.0),
        passive_share=np.where(moves, passive, frozen_passive),
        _change=change,
    )


def threshold(
    p01: npt.ArrayLike, p11: npt.ArrayLike, reward: npt.ArrayLike, subsidy: npt.ArrayLike
) -> Threshold:
    """Find b*(lambda) of Proposition 2, where both actions are equally good, by bisection.

    The proof in the paper puts the active side on the left; the result comes from comparing
    V(b; 1) with V(b; 0).
    """
    problem = solve(p01, p11, reward, subsidy)

    def active(belief: FloatArray) -> npt.NDArray[np.bool_]:
        return problem.advantage(belief) > 0

    low, high = np.zeros(problem.excess.shape), np.ones(problem.excess.shape)
    at_low, at_high = active(low), active(high)
    for _ in range(60):
        middle = (low + high) / 2
        like_high = active(middle) == at_high
        low, high = np.where(like_high, low, middle), np.where(like_high, middle, high)
    crossing = np.where(at_low == at_high, np.where(at_high, 0.0, 1.0), (low + high) / 2)
    return Threshold(crossing, at_high | ~at_low)


def _first_waits(
    dynamics: Dynamics, subsidy: FloatArray, change: FloatArray, good: FloatArray, bad: FloatArray
) -> tuple[npt.NDArray[np.bool_], FloatArray]:
    """Find waits with a positive excess: whether there are any, (...), and the waits, (2, ...).

    The excess is positive where r u_1 > lambda (u_0 + u_1). With memory >= 0 the best u_0 comes
    from k_1 = 1, and u_1 nears b0 as k_0 grows: k_0 goes half of the distance beyond the least
    sufficient u_1. With memory < 0 the belief peaks at once after bad, after two slots after good.
    """
    reward, fail, swings = dynamics.reward, 1 - dynamics.p11, change > 1
    most = good * np.where(swings, change, 1)
    least = np.where(swings, bad * change * (dynamics.p11 + (1 - dynamics.p01)), fail)
    pays_off = (change > 0) & (subsidy * (most + least) < reward * most)
    waits = pays_off & ~swings & (subsidy > 0)
    enough = np.where(waits, subsidy * fail / np.where(waits, good * (reward - subsidy), 1), 0)
    halfway = np.ceil(-np.log((1 - np.minimum(enough, 1 - 2**-53)) / 2) / _drift(change))
    after_bad = np.where(waits, np.maximum(halfway, 1), 1)
    return pays_off, np.stack([after_bad, np.where(swings, 2.0, 1.0)])


def _drift(change: FloatArray) -> FloatArray:
    """Return -log(memory) where memory >= 0, with 0 taken as 1e-16; 1 for a frozen arm."""
    return np.where(change > 0, -np.log1p(-np.minimum(change, 1 - 2**-53)), 1)


def _settled(change: FloatArray, slots: FloatArray) -> FloatArray:
    """Return 1 - memory^slots, the part of the distance to b0 covered, to full precision."""
    drifted = np.where(change > 0, -np.expm1(-slots * _drift(change)), 0)
    swung = 1 - np.where(change > 1, 1 - change, 0) ** slots
    return np.where(change > 1, swung, drifted)


def _slots_to_wait(gained: FloatArray, excess: FloatArray, change: FloatArray) -> FloatArray:
    """Return the best number of slots to wait: the first is worth `gained`, each costs `excess`."""
    more = gained > excess
    ratio = np.where(more, gained, 1) / np.where(more & (excess > 0), excess, 1)
    slots = np.where(excess > 0, np.ceil(np.log(np.maximum(ratio, 1)) / _drift(change)), np.inf)
    return np.where(more, np.where(change > 1, 1.0, np.maximum(slots, 1)), 0.0)


def _worth_once(dynamics: Dynamics, subsidy: FloatArray, change: FloatArray) -> FloatArray:
    """Return h(0) and h(1), (2, ...), where never playing is the best in the long run.

    With memory >= 0 a play may pay while good is observed, with memory < 0 while bad is.
    """
    chance = np.where(change > 1, dynamics.p01, dynamics.p11)
    stop = np.where(change > 1, dynamics.p01, 1 - dynamics.p11)
    won = np.maximum(dynamics.reward * chance - subsidy, 0) / np.where(stop > 0, stop, 1)
    return np.where(np.stack([change > 1, change <= 1]), won, 0)


def _frozen_excess(reward: FloatArray, subsidy: FloatArray, belief: npt.ArrayLike) -> FloatArray:
    """Return gain - subsidy of an arm that never changes, from any belief."""
    belief = np.asarray(belief, np.float64)
    won = belief * np.maximum(reward - subsidy, 0) + (1 - belief) * np.maximum(-subsidy, 0)
    return np.asarray(won)
