"""Thompson sampling of channels on a grid: the posterior of (p01, p11) on finitely many points.

The prior is uniform on n x n points, both coordinates at 1/(n + 1), ..., n/(n + 1): with n = 9
these are .1, ..., .9. With counts by gap up to G (`rmab.learning.evidence`) the weight of a point
theta is

    ln w(theta) = sum over g <= G, s, x of counts[g - 1, s, x] ln P_theta^g(s, x)
                  + sum over s, x of counts[G, s, x] ln pi_theta(x),

a product of a fixed matrix and the counts: exact except for gaps above G, which are taken to show
the stationary distribution pi. A draw takes one uniform number.

References: Y. H. Jung, A. Tewari, "Regret bounds for Thompson sampling in episodic restless bandit
problems", NeurIPS 2019; Y. H. Jung, M. Abeille, A. Tewari, "Thompson sampling in non-episodic
restless bandits", arXiv 1910.05654, 2019.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rmab.linalg import Array, array_namespace
from rmab.model.arms import Moves
from rmab.policies.capabilities import Capabilities, channels_only
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.options import GAPS, choice, shared, whole
from rmab.policies.policy import Policy

if TYPE_CHECKING:
    from rmab.learning.evidence import Evidence
    from rmab.rng.variates import Draws

__all__ = ["ENTRIES", "grid", "log_weights", "points"]

_MAX_SUPPORT = 49  # points a side: the weights of 64 trials and 256 arms take 200 MB on a server
_PLANNERS = ("whittle", "myopic", "fixed")


def points(support: int) -> npt.NDArray[np.float64]:
    """Return the grid of each coordinate, (support,).

    >>> points(4).round(6).tolist()
    [0.2, 0.4, 0.6, 0.8]
    """
    return np.arange(1, support + 1) / (support + 1)


def log_weights(counts: Array, support: int) -> Array:
    """Return ln w of every point, (support^2, N, trials), p11 running first.

    Parameters
    ----------
    counts : Array, (G + 1, 2, 2, N, trials)
        Pairs of observations by gap.
    """
    p01, p11 = (x.ravel() for x in np.meshgrid(points(support), points(support), indexing="ij"))
    from rmab.learning.channel.log_odds import Channel, log_probabilities

    channel = Channel(p01, 1 - p01, p11, 1 - p11, p11 - p01)
    chances = log_probabilities(channel, counts.shape[0]).reshape(support**2, -1).T
    counts = counts.reshape(-1, *counts.shape[3:])
    import jax.numpy as jnp
    from jax import lax

    return jnp.einsum(
        "cp,cnr->pnr",
        jnp.asarray(chances, jnp.float32),
        counts.astype(jnp.float32),
        precision=lax.Precision.HIGHEST,
    )


def grid(evidence: Evidence, draws: Draws, *, support: int = 9, gaps: int) -> Moves:
    """Draw each channel from its posterior on the grid."""
    logs = log_weights(evidence.counts[: gaps + 1], support)
    xp = array_namespace(logs)
    mass = xp.cumsum(xp.exp(logs - logs.max(0)), axis=0)
    chance = draws.uniform(logs.shape[1]) * mass[-1]
    which = xp.minimum((mass <= chance).sum(0), support**2 - 1)  # (N, trials)
    coordinate = xp.asarray(points(support), xp.float32)
    p01, p11 = coordinate[which // support], coordinate[which % support]
    moves = xp.stack([xp.stack([1 - p01, p01]), xp.stack([1 - p11, p11])])
    return Moves(moves, moves)


def ts_grid(
    name: str, _horizon: int, *, support: int = 9, planner: str = "whittle", gaps: int = GAPS
) -> Policy:
    """Return Thompson sampling on the grid."""
    from rmab.policies.planners import FIXED_BEST, MYOPIC, WHITTLE

    rules = dict(zip(_PLANNERS, (WHITTLE, MYOPIC, FIXED_BEST), strict=True))
    return Policy(
        name,
        rule=rules[planner],
        learner=partial(grid, support=support, gaps=gaps),
        gaps=gaps,
        reads_visits=False,
    )


_OWN_OPTIONS = {
    "planner": choice(
        "whittle",
        _PLANNERS,
        '"whittle", "myopic" or "fixed"',
        "what a draw is planned by: Whittle indices, expected rewards, or the best fixed arms",
    ),
    "support": whole(
        "9", 2, _MAX_SUPPORT, "n, the grid has p01 and p11 at 1/(n + 1), ..., n/(n + 1)"
    ),
}
ENTRIES = {
    "ts-grid": Entry(
        "published", f"{__name__}:ts_grid", {**shared("aggregation", "gaps"), **_OWN_OPTIONS},
        "Thompson sampling on a grid of channels, from observations at any gap",
        "TS on a grid", "#6699cc", BROKEN, "8",
        capabilities=Capabilities(arms=(channels_only,), served=False),
    ),
}  # fmt: skip
