"""Graphs of agents that gossip without a server, and the weights of their links.

Agents are the nodes of a graph. Along each of its links two agents take of the other's evidence the
same share w = 1 / (d + 1), d the most links that an agent has, and keep the rest of their own:

    W = I - w L,    L the Laplacian of the links that hold in this episode.

So W is symmetric and its rows and columns sum to 1, whatever links fail: nothing that was counted
is lost or doubled. Where all agents have d links, each of these and the agent itself have 1/(d+1).

    ring      an agent has the one before and the one after it
    regular   `degree` links: the nearest ones of the ring, and of an odd number the opposite one
    grid      the neighbours in a rectangle, as square as possible, filled row by row
    complete  all others
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.linalg import Array, array_namespace

__all__ = ["DEGREE", "GRAPHS", "MAX_AGENTS", "Links", "links_of"]

GRAPHS = ("ring", "regular", "grid", "complete")
DEGREE = 2  # links of an agent of a regular graph, by default
MAX_AGENTS = 1024  # who mixes takes of each agent's evidence, M^2 numbers


class Links(NamedTuple):
    """Links of M agents: ends (E, 2), the lower agent first, and the share that both take."""

    n_agents: int
    ends: npt.NDArray[np.int64]
    share: float

    def matrix(self) -> npt.NDArray[np.float64]:
        """W, (M, M), where all links hold."""
        failed = np.zeros((len(self.ends), 1), bool)
        whole: npt.NDArray[np.float64] = np.asarray(self.matrix_without(failed), np.float64)
        return whole[..., 0]

    def matrix_without(self, failed: Array) -> Array:
        """W, (M, M, R), without the links that failed, (E, R)."""
        xp = array_namespace(failed)
        M, (low, high) = self.n_agents, self.ends.T
        taken = np.zeros((M, M), np.int64)
        taken[low, high] = taken[high, low] = np.arange(len(self.ends)) + 1
        kind = np.float64 if xp is np else np.float32
        share = xp.where(failed, 0.0, self.share).astype(kind)
        none = xp.zeros((1, failed.shape[-1]), kind)
        others = xp.concatenate([none, share])[taken]  # (M, M, R)
        return others + np.eye(M, dtype=kind)[:, :, None] * (1 - others.sum(1))[:, None]


@lru_cache(maxsize=64)
def links_of(graph: str, n_agents: int, degree: int = DEGREE) -> Links:
    """Return the links of a graph; ModelError where there is none of this size."""
    if n_agents > MAX_AGENTS:
        raise ModelError(f"gossip must have at most {MAX_AGENTS} agents, got {n_agents}")
    if n_agents == 1:
        return Links(1, np.zeros((0, 2), np.int64), 0.0)
    pairs = {
        "ring": lambda: _circle(n_agents, 1),
        "regular": lambda: _regular(n_agents, degree),
        "grid": lambda: _grid(n_agents),
        "complete": lambda: _circle(n_agents, n_agents // 2),
    }[graph]()
    ends = np.array(sorted({(min(a, b), max(a, b)) for a, b in pairs}))
    most = int(np.bincount(ends.ravel()).max())
    return Links(n_agents, ends, 1 / (most + 1))


def _circle(n_agents: int, reach: int) -> list[tuple[int, int]]:
    """Links to the next ones on a ring, up to so far."""
    return [(a, (a + step) % n_agents) for a in range(n_agents) for step in range(1, reach + 1)]


def _regular(n_agents: int, degree: Any) -> list[tuple[int, int]]:
    if not 1 <= degree < n_agents:
        raise ModelError(
            f"degree must be from 1 to {n_agents - 1}, as each of {n_agents} agents has so many "
            f"others, got {degree}"
        )
    if degree * n_agents % 2:
        raise ModelError(
            f"degree must be even where the number of agents is odd, got {degree} for {n_agents}"
        )
    pairs = _circle(n_agents, degree // 2)
    if degree % 2:
        pairs += [(a, a + n_agents // 2) for a in range(n_agents // 2)]
    return pairs


def _grid(n_agents: int) -> list[tuple[int, int]]:
    rows = max(n for n in range(1, math.isqrt(n_agents) + 1) if n_agents % n == 0)
    if rows == 1:
        raise ModelError(
            f"graph 'grid' must have agents for a rectangle, 4, 6, 8, 9, ..., got {n_agents}"
        )
    columns = n_agents // rows
    right = [(a, a + 1) for a in range(n_agents) if (a + 1) % columns]
    return right + [(a, a + columns) for a in range(n_agents - columns)]
