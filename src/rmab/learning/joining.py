"""Fed2-UCB: agents that join by phase, and arms that are dropped by the mean of their means.

In phase p = 1, 2, ... another 2^p agents join, as long as there are more; every agent that has
joined pulls every arm in play f times. An arm's mean is the mean of the agents' own means, since
agents' laws may differ: each is a draw whose deviation is sigma_c. With M agents of n_m pulls of an
arm each the bound on it is

    B = sqrt(sigma^2 eta ln T) + sqrt(sigma_c^2 ln T / M),   eta = (1 / M^2) sum over m of 1 / n_m,

and an arm is dropped whose mean + B lies under the K-th best one's mean - B. When K arms are left,
all agents play them.

Reference: C. Shi and C. Shen, "Federated multi-armed bandits", AAAI 2021.
"""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from rmab.learning.evidence import Evidence
from rmab.rng.variates import Draws

__all__ = ["joining_survivors"]

_MOST_PHASES = 20  # of which agents join: a study has no more


def joining_survivors(
    evidence: Evidence,
    draws: Draws,  # noqa: ARG001 - every learner takes it; this one is deterministic
    *,
    pulls: int,
    horizon: int,
    sigma: float,
    sigma_c: float,
) -> tuple[Array, Array]:
    """1 for the arms that an agent is to pull, 0 for the others, (N, M R) twice: nothing but 0 for
    an agent that has not joined.

    evidence: of each agent its own, `evidence.lanes` of them. All else follows from it. The number
    of the episode is the phase's, and an arm in play is one whose pulls by the first agent, which
    is there from the start, are within half a phase of the most.
    """
    n_arms, M = evidence.visits.shape[1], evidence.lanes

    def apart(numbers: Array) -> Array:
        """(N, M R) -> (N, M, R)."""
        return numbers.reshape(n_arms, M, -1)

    pulled = apart(evidence.visits.sum(0))
    paid = apart((evidence.rewards * evidence.visits).sum(0))
    phase = evidence.episode.reshape(M, -1)[0]  # (R,) that begins
    most = pulled.max(0)  # (M, R)
    joined = most > 0
    agents = jnp.maximum(joined.sum(0), 1)  # (R,)
    playing = pulled[:, 0] >= most[0] - pulls / 2  # (N, R)
    mean = jnp.where(joined, paid / jnp.maximum(pulled, 1), 0).sum(1) / agents
    level = jnp.log(float(horizon))
    eta = jnp.where(joined, 1 / jnp.maximum(most, 1), 0).sum(0) / agents**2
    width = jnp.sqrt(sigma**2 * eta * level) + jnp.sqrt(sigma_c**2 * level / agents)
    ranked = jnp.sort(jnp.where(playing, mean, -jnp.inf), axis=0)[::-1]
    kth_best = jnp.take(ranked, evidence.plays - 1, axis=0)
    alive = playing & (mean + width >= kth_best - width)
    there = 2 ** (jnp.minimum(phase, _MOST_PHASES) + 1) - 2  # who has joined when it begins
    there = jnp.where(alive.sum(0) <= evidence.plays, M, there)
    in_play = alive[:, None] & (jnp.arange(M)[:, None] < there)
    found = in_play.astype(jnp.float32).reshape(n_arms, -1)
    return found, found
