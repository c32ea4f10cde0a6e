"""What agents share: their counts in, the evidence that each agent's learner sees out.

Agent m has counted x_m: transitions, visits, any array of numbers that add up. An aggregation turns
x_1, ..., x_M into the evidence y_1, ..., y_M of the agents' learners,

    sum     y_a = sum over m of w_m x_m, the same for all: the paper's merging, eq. (38)
    none    y_a = x_a: every agent learns alone
    pairs   y_a = sum over m of w_am w_m x_m, w_am the probability that agents a and m have the same
            law, by all that both have counted (`rmab.learning.population`), and w_aa = 1

and is an object of one class. Another one is another class here, or anywhere: whatever is put into
`AGGREGATIONS` may be named by a study, a federation or a policy's options. It is an immutable value
with a hash, as compiled programs are found by it, and its `combine` is written for NumPy and JAX
arrays alike (`rmab.linalg.array_namespace`): the engine and a server call the same one.

Where agents share one evidence (`shared`), they also share a draw of the dynamics unless draws are
per agent. Where each has its own, each draws for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rmab.linalg import Array, array_namespace

__all__ = [
    "AGGREGATIONS",
    "Aggregation",
    "Alone",
    "Pairs",
    "Sum",
    "capped",
    "compares_agents",
    "evidence_of",
]


class Aggregation(Protocol):
    """How the counts of M agents become the evidence of their learners."""

    @property
    def shared(self) -> bool:
        """Whether all agents see the same evidence."""

    @property
    def running(self) -> bool:
        """Whether the evidence is sum over m of w_m x_m, so that it may be added up as it comes."""

    def combine(self, counts: Array, weights: Array) -> Array:
        """From each agent's numbers (..., M, R) to the evidence (..., A, R).

        A = 1 if it is shared, else M; R: trials. weights: (M,).
        """


@dataclass(frozen=True)
class Sum:
    """All agents see the weighted sum of all counts."""

    shared: bool = True
    running: bool = True

    def combine(self, counts: Array, weights: Array) -> Array:
        """Eq. (38)."""
        return (counts * weights[:, None]).sum(-2)[..., None, :]


@dataclass(frozen=True)
class Alone:
    """Every agent sees its own counts alone; weights have no meaning."""

    shared: bool = False
    running: bool = False

    def combine(self, counts: Array, weights: Array) -> Array:  # noqa: ARG002 - nothing is weighed
        """The counts as they are."""
        return counts


@dataclass(frozen=True)
class Pairs:
    """Every agent sees its own counts, and of each other's as much as they are likely to have the
    same law. Agents are compared, so it needs the counts of each."""

    shared: bool = False
    running: bool = False
    compares: bool = True

    def combine(self, counts: Array, weights: Array) -> Array:
        """weights: (M, M, R), what an agent takes of each one's counts."""
        xp = array_namespace(counts, weights)
        return xp.einsum("...br,abr->...ar", counts, weights)


AGGREGATIONS: dict[str, Aggregation] = {"sum": Sum(), "none": Alone(), "pairs": Pairs()}


def compares_agents(aggregation: Aggregation) -> bool:
    """Whether it weighs agents by how alike their counts are, and so needs those of each."""
    return getattr(aggregation, "compares", False)


def capped(
    weights: npt.NDArray[np.float64], sizes: npt.NDArray[Any], cap: float
) -> npt.NDArray[np.float64]:
    """The weights (M,) of agents, lowered where an agent would weigh more than cap times the
    median one.

    sizes: (M,), how many counts each has; it weighs weight times size. The median is that of the
    agents that weigh anything, of an even number the lower one of the two in the middle, so that
    of two agents the larger cannot be its own measure.
    """
    held = weights * sizes
    some = np.sort(held[held > 0])
    if not some.size:
        return weights
    most = cap * float(some[(some.size - 1) // 2])
    kept: npt.NDArray[np.float64] = np.minimum(1.0, most / np.where(held > 0, held, most))
    return weights * kept


def evidence_of(
    aggregation: Aggregation,
    counts: Sequence[npt.NDArray[Any]],
    agent: int,
    weights: npt.NDArray[np.float64] | None = None,
) -> npt.NDArray[Any]:
    """The evidence of one agent, from the counts (...) of each of M agents.

    weights: (M,), 1 for each where none are given; then sums of whole numbers are whole.
    """
    stacked = np.stack(counts, -1)[..., None]  # (..., M, 1)
    ones = np.ones(len(counts), stacked.dtype)
    combined = np.asarray(aggregation.combine(stacked, ones if weights is None else weights))
    found: npt.NDArray[Any] = combined[..., 0 if aggregation.shared else agent, 0]
    return found
