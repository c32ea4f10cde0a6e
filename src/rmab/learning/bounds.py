"""Guarantees of the paper for learning: Lemma 1 on the number of episodes, Theorem 1 on the regret.

Both use the natural logarithm and S states in each arm. They are public names, and this module
loads no JAX, as learners do.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["episode_bound", "regret_bound"]

FloatArray = npt.NDArray[np.float64]


def episode_bound(
    n_agents: int, n_arms: int, n_plays: int, horizon: npt.ArrayLike, n_states: int = 2
) -> FloatArray:
    """Return the most episodes up to each horizon, Lemma 1: eq. (24); of the shape of horizon."""
    horizon = np.asarray(horizon, np.float64)
    spread = n_arms / (n_plays * n_agents)  # slots per observation of an arm
    return np.asarray(np.sqrt(4 * spread * n_states * horizon * np.log(horizon + 1)))


def regret_bound(
    n_agents: int,
    n_arms: int,
    n_plays: int,
    horizon: npt.ArrayLike,
    span: float,
    n_states: int = 2,
) -> FloatArray:
    """Return Theorem 1's bound on the regret up to each horizon, eq. (25) without its O(epsilon T).

    `span` is D, the bound on the span of the relative values (Assumption 1). The shape is that
    of horizon.
    """
    horizon = np.asarray(horizon, np.float64)
    spread = n_arms / (n_plays * n_agents)
    episodes = episode_bound(n_agents, n_arms, n_plays, horizon, n_states)
    estimation = 49 * span * n_states * np.sqrt(2 * spread * horizon * np.log(2 * horizon))
    return np.asarray(n_arms * ((span + 1) * episodes + estimation))
