"""What no policy can exceed, and what the theory promises.

The Lagrangian bound. Ask for K plays a slot only in the long run, eq. (9), and pay a subsidy
lambda for every slot an arm is left alone: the arms part, and

    L(lambda) = sum over n of gain_n(lambda) - lambda (N - K)                      eq. (10)

is at least the best average reward of K plays a slot, for every lambda. gain_n is the best
average reward of arm n alone, eq. (11), convex and piecewise linear in lambda; its slope is the
share of slots in which the arm is left alone. The bound is the smallest L: where the shares pass
N - K. As rewards of channels are not negative, nothing is gained by lambda < 0 (all arms are always
played) or by lambda above the largest reward (none is). For other arms the smallest L is a linear
programme, `rmab.planning.exact.relaxed`.

The paper's promises, with the natural logarithm and S states in each arm: Lemma 1 for the number
of episodes and Theorem 1 for the regret.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rmab.model.arms import Arms, FloatArray
from rmab.planning.channel.values import SubsidyProblem, solve

__all__ = ["episode_bound", "regret_bound", "upper_bound"]


def upper_bound(arms: Arms, plays: int) -> float:
    """The smallest L(lambda) of eq. (10): no policy's average reward per agent and slot exceeds it.

    Of channels it is exact. For other arms beliefs are rounded, at 1e-9 or as finely as fits.

    >>> from rmab.model.arms import channels
    >>> round(upper_bound(channels([0.2, 0.2], [0.8, 0.8], 1.0), plays=1), 5)
    0.68772
    """
    arms.check_plays(plays)
    if not arms.are_channels:
        from rmab.planning.exact.relaxed import relaxed_value

        return relaxed_value(arms, plays)
    passive = len(arms) - plays

    def relaxed(subsidy: float) -> SubsidyProblem:
        return solve(arms.p01, arms.p11, arms.reward, subsidy)

    low, high = 0.0, float(arms.reward.max())
    for _ in range(60):
        middle = (low + high) / 2
        if relaxed(middle).passive_share.sum() < passive:
            low = middle
        else:
            high = middle
    return float(min(relaxed(x).gain.sum() - x * passive for x in (low, high)))


def episode_bound(
    n_agents: int, n_arms: int, n_plays: int, horizon: npt.ArrayLike, n_states: int = 2
) -> FloatArray:
    """The most episodes up to each horizon, Lemma 1: eq. (24); the shape is that of horizon."""
    horizon = np.asarray(horizon, np.float64)
    spread = n_arms / (n_plays * n_agents)  # slots per look at an arm
    return np.asarray(np.sqrt(4 * spread * n_states * horizon * np.log(horizon + 1)))


def regret_bound(
    n_agents: int,
    n_arms: int,
    n_plays: int,
    horizon: npt.ArrayLike,
    span: float,
    n_states: int = 2,
) -> FloatArray:
    """Theorem 1's bound on the regret up to each horizon, eq. (25) without its O(epsilon T).

    `span` is D, the bound on the span of the relative values (Assumption 1). The shape is that
    of horizon.
    """
    horizon = np.asarray(horizon, np.float64)
    spread = n_arms / (n_plays * n_agents)
    episodes = episode_bound(n_agents, n_arms, n_plays, horizon, n_states)
    estimation = 49 * span * n_states * np.sqrt(2 * spread * horizon * np.log(2 * horizon))
    return np.asarray(n_arms * ((span + 1) * episodes + estimation))
