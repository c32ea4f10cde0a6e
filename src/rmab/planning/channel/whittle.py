"""The Whittle index of a channel in closed form (average reward), eqs. (34) and (35).

The index W(b) is the subsidy for leaving the arm alone at which playing and not playing are
equally good. With memory m = p11 - p01, T(b) = p01 + m b and

    fall = b - T(b) = (1 - m)(b - b0)     where b < b0, else 0,

both printed equations become one line each. With L = L(p01, b) slots until the belief, starting
at p01, exceeds b, and since T^L(p01) = T(b) + (T^L(p01) - T(b)) for any b,

    m >= 0:   W = (x + fall (L + 1)) / (1 - p11 + x + fall L),     x = T^L(p01) for b < b0, else b
    m <  0:   W = (p01 + fall) / (1 + p01 - fall - max(b, T(p11))).

In the information state (0, k), bad k slots ago, the belief is b = T^(k-1)(p01), so L = k and
x = T(b) = b - fall, without a search. Outside (min(p01, p11), max(p01, p11)) the index
is the belief itself. Every value is multiplied by the arm's reward.

Reference: K. Liu and Q. Zhao, "Indexability of restless bandit problems and optimality of
Whittle index for dynamic multichannel access", IEEE Trans. Inf. Theory 56(11), 2010.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rmab.arrays import Array
from rmab.errors import ModelError
from rmab.linalg import array_namespace
from rmab.model.information import (
    Dynamics,
    InformationStates,
    belief_after,
    deviation,
    slots_to_cross,
    stationary_belief,
)

if TYPE_CHECKING:
    from rmab.model.arms import Arms

__all__ = ["myopic", "whittle_at", "whittle_index"]


def _closed_form(
    xp: Any, dynamics: Dynamics, belief: Array, fall: Array, crossing: Array, reached: Array
) -> Array:
    """Return W / reward, eqs. (34) and (35), from b, fall, L(p01, b) and T^L(p01)."""
    p01, p11 = dynamics.p01, dynamics.p11
    memory = p11 - p01
    kept = reached + fall * crossing
    rising = memory >= 0
    top = xp.where(rising, kept + fall, p01 + fall)
    bottom = xp.where(
        rising, 1 - p11 + kept, 1 + p01 - fall - xp.maximum(belief, p01 + memory * p11)
    )
    inside = (belief > xp.minimum(p01, p11)) & (belief < xp.maximum(p01, p11)) & (bottom > 0)
    # Rounding makes it negative where p01 and 1 - p11 are both near 0. It exceeds 1 only where
    # upper confidence bounds that are not clipped do.
    ratio = xp.maximum(top / xp.where(inside, bottom, 1), 0)
    return xp.where(inside, ratio, belief)


def whittle_at(dynamics: Dynamics, states: InformationStates) -> Array:
    """Return the index, times the reward, in information states; both arguments broadcast."""
    xp = array_namespace(dynamics.p01, states.age)
    away = deviation(dynamics, states)
    belief = stationary_belief(dynamics) + away
    fall = (1 - (dynamics.p11 - dynamics.p01)) * xp.minimum(away, 0)
    index = _closed_form(xp, dynamics, belief, fall, states.age, belief - fall)
    # A slot after an observation the belief is p01 or p11, where the closed form begins, up to
    # rounding.
    return dynamics.reward * xp.where(states.age == 1, belief, index)


def myopic(dynamics: Dynamics, states: InformationStates) -> Array:
    """Return the expected reward of a play now: reward x belief, eq. (13)."""
    return dynamics.reward * (stationary_belief(dynamics) + deviation(dynamics, states))


def whittle_index(arms: Arms, belief: Array) -> Array:
    """Return the index, times the reward, of each arm at any belief.

    `belief` has shape (..., N), arms last, or is one number for all arms.

    >>> from rmab.model.arms import channels
    >>> whittle_index(channels(0.2, 0.8, 0.4), 0.5).round(6)  # 0.4 * 0.5 / (1 - 0.8 + 0.5)
    array([0.285714])
    """
    belief = np.asarray(belief, dtype=np.float64)
    if not np.all((belief >= 0) & (belief <= 1)):
        raise ModelError(f"a belief must lie in [0, 1], got {belief.tolist()}")
    if belief.ndim and belief.shape[-1] not in (1, len(arms)):
        raise ModelError(
            f"the last axis of belief must have one value for each of {len(arms)} arms, "
            f"got shape {belief.shape}"
        )
    memory = arms.p11 - arms.p01
    away = np.minimum(belief - stationary_belief(arms), 0)
    low = (away < 0) & (arms.p01 < belief) & (memory > 0) & (memory < 1)
    crossing = slots_to_cross(arms, arms.p01, np.where(low, belief, 0))
    low = low & np.isfinite(crossing)  # rounding may put b0 itself out of reach
    crossing = np.where(low, crossing, 1)
    reached = np.where(low, belief_after(arms, arms.p01, crossing), belief)
    fall = (1 - memory) * away
    return arms.reward * _closed_form(np, arms.dynamics, belief, fall, crossing, reached)
