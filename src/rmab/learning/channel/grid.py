"""Thompson sampling of channels on a grid: the posterior of (p01, p11) on finitely many points.

The prior is uniform on n x n points, both coordinates at 1/(n + 1), ..., n/(n + 1): with n = 9
these are .1, ..., .9. With counts by gap up to G (`rmab.learning.learners`) the weight of a point
theta is

    ln w(theta) = sum over g <= G, s, x of counts[g - 1, s, x] ln P_theta^g(s, x)
                  + sum over s, x of counts[G, s, x] ln pi_theta(x),

a product of a fixed matrix and the counts: exact except for gaps above G, where the chain counts as
stationary. A draw takes one uniform number.

Reference: Y. H. Jung, A. Tewari, "Regret bounds for Thompson sampling in episodic restless bandit
problems", NeurIPS 2019; Y. H. Jung, M. Abeille, A. Tewari, "Thompson sampling in non-episodic
restless bandits", arXiv 1910.05654, 2019.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array, lax

from rmab.learning.channel.log_odds import Channel, log_probabilities
from rmab.learning.learners import Evidence
from rmab.model.arms import Moves
from rmab.rng.variates import Draws

__all__ = ["grid", "log_weights", "points"]


def points(support: int) -> npt.NDArray[np.float64]:
    """Return the values of each coordinate, (support,).

    >>> points(4).round(6).tolist()
    [0.2, 0.4, 0.6, 0.8]
    """
    return np.arange(1, support + 1) / (support + 1)


def log_weights(counts: Array, support: int) -> Array:
    """Return ln w of every point, (support^2, N, trials), p11 running first.

    counts: (G + 1, 2, 2, N, trials).
    """
    p01, p11 = (x.ravel() for x in np.meshgrid(points(support), points(support), indexing="ij"))
    channel = Channel(p01, 1 - p01, p11, 1 - p11, p11 - p01)
    chances = log_probabilities(channel, counts.shape[0]).reshape(support**2, -1).T
    counts = counts.reshape(-1, *counts.shape[3:])
    return jnp.einsum(
        "cp,cnr->pnr",
        jnp.asarray(chances, jnp.float32),
        counts.astype(jnp.float32),
        precision=lax.Precision.HIGHEST,
    )


def grid(evidence: Evidence, draws: Draws, *, support: int = 9, gaps: int) -> Moves:
    """Draw each channel from its posterior on the grid."""
    logs = log_weights(evidence.counts[: gaps + 1], support)
    mass = jnp.cumsum(jnp.exp(logs - logs.max(0)), axis=0)
    chance = draws.uniform(logs.shape[1]) * mass[-1]
    which = jnp.minimum((mass <= chance).sum(0), support**2 - 1)  # (N, trials)
    place = jnp.asarray(points(support), jnp.float32)
    p01, p11 = place[which // support], place[which % support]
    moves = jnp.stack([jnp.stack([1 - p01, p01]), jnp.stack([1 - p11, p11])])
    return Moves(moves, moves)
