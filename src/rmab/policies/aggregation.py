"""Aggregations: agents' counts in, the evidence of each agent's learner out.

Agent m has counted x_m: transitions, visits, any array of numbers that add up. An aggregation turns
x_1, ..., x_M into the evidence y_1, ..., y_M of the agents' learners,

    sum     y_a = sum over m of w_m x_m, the same for all: the paper's merging, eq. (38)
    none    y_a = x_a: every agent learns alone
    pairs   y_a = sum over m of w_am w_m x_m, w_am the probability that agents a and m have the same
            law, by all that both have counted (`rmab.learning.population`), and w_aa = 1
    gossip  y_a <- sum over m of W_am (y_m + M w_m d_m) after every episode, d_m the counts of
            agent m in it: agents tell their neighbours in a graph, and there is no server
            (`rmab.policies.gossip` has W)

and is an object of one class. Another one is another class here, or anywhere: whatever is put into
`AGGREGATIONS` may be named by a study, a federation or a policy's options. It is an immutable value
with a hash, as compiled programs are found by it, and its `combine` is written for NumPy and JAX
arrays alike (`rmab.linalg.array_namespace`): the engine and a server call the same one.

Where agents share one evidence (`shared`), they also share a draw of the dynamics unless draws are
per agent. Where each has its own, each draws for itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from rmab.linalg import Array, array_namespace
from rmab.policies.gossip import DEGREE, GRAPHS, Links, links_of

__all__ = [
    "AGGREGATIONS",
    "Aggregation",
    "Alone",
    "Gossip",
    "Pairs",
    "Sum",
    "aggregation_of",
    "capped",
    "compares_agents",
    "evidence_of",
    "mixes_evidence",
    "owner_weights",
]


class Aggregation(Protocol):
    """Map from the counts of M agents to the evidence of their learners."""

    @property
    def shared(self) -> bool:
        """Whether all agents see the same evidence."""

    @property
    def running(self) -> bool:
        """Whether the evidence is sum over m of w_m x_m, so that it may be added up as it comes."""

    def combine(self, counts: Array, weights: Array) -> Array:
        """Return the evidence (..., A, R) of each agent's numbers (..., M, R).

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
    """Every agent sees only its own counts; weights have no meaning."""

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
        """Mix the counts; weights: (M, M, R), shares that an agent takes of each one's."""
        xp = array_namespace(counts, weights)
        return xp.einsum("...br,abr->...ar", counts, weights)


@dataclass(frozen=True)
class Gossip:
    """Every agent sees a mixture that it and its neighbours made of theirs, episode by episode.

    The evidence is a state: it is kept from episode to episode and mixed with new counts
    (`mixed`), so nothing is left to `combine`. graph: one of GRAPHS; degree: of a regular graph;
    failure: the chance that a link fails in an episode.

    Reference: A. Lalitha and A. Goldsmith, "Bayesian algorithms for decentralized stochastic
    bandits", IEEE Journal on Selected Areas in Information Theory 2, 2021.
    """

    graph: str = GRAPHS[0]
    degree: int = DEGREE
    failure: float = 0.0
    shared: bool = False
    running: bool = False
    mixes: bool = True

    def links(self, n_agents: int) -> Links:
        """Return the links of the graph; ModelError where there is none of this size."""
        return links_of(self.graph, n_agents, self.degree)

    def factor(self, n_agents: int) -> float:
        """Return the factor of an agent's own counts, by which all agents' mean evidence is the sum
        of their counts."""
        return float(n_agents)

    def combine(self, counts: Array, weights: Array) -> Array:  # noqa: ARG002 - mixed already
        """Return the counts, which were mixed when an episode ended."""
        return counts

    def mixed(self, kept: Array, new: Array, weights: Array, chances: Array | None) -> Array:
        """Return the evidence of agents after an episode, (..., M, B, R).

        kept: their evidence before it, (..., M, B, R), B experts; new: the counts of each in it,
        (..., M, 1, R); weights: (M,), of agents; chances: uniform numbers (links, R), None where
        no link fails.
        """
        xp = array_namespace(kept, new)
        n_agents = kept.shape[-3]
        mixed = kept + self.factor(n_agents) * weights[:, None, None] * new
        if chances is None:
            whole = xp.asarray(self.links(n_agents).matrix(), mixed.dtype)
            return xp.einsum("ij,...jbr->...ibr", whole, mixed, **_exact(xp))
        some = self.links(n_agents).matrix_without(chances < self.failure)
        return xp.einsum("ijr,...jbr->...ibr", some, mixed, **_exact(xp))


def _exact(xp: Any) -> dict[str, Any]:
    """Return options of a product whose terms no accelerator rounds."""
    return {} if xp is np else {"precision": "highest"}


AGGREGATIONS: dict[str, Aggregation] = {
    "sum": Sum(),
    "none": Alone(),
    "pairs": Pairs(),
    "gossip": Gossip(),
}


def aggregation_of(name: str, **settings: Any) -> Aggregation:
    """Return the aggregation of that name; settings: graph, degree and failure of gossip."""
    found = AGGREGATIONS[name]
    return replace(found, **settings) if isinstance(found, Gossip) else found


def compares_agents(aggregation: Aggregation) -> bool:
    """Whether it weighs agents by how alike their counts are, and so needs those of each."""
    return getattr(aggregation, "compares", False)


def mixes_evidence(aggregation: Aggregation) -> bool:
    """Whether evidence is kept from episode to episode and mixed, as by gossip."""
    return getattr(aggregation, "mixes", False)


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


def owner_weights(
    weights: npt.NDArray[np.float64],
    sizes: npt.NDArray[Any],
    owners: npt.NDArray[np.intp],
    cap: float | None = None,
) -> npt.NDArray[np.float64]:
    """Return the weights (M,) of agents of which several may count for one owner.

    weights: (M,), of each agent's owner; sizes: (M,), how many counts each agent has; owners:
    (M,), a number for each owner, from 0 to M - 1; cap: most that an owner weighs, as a multiple of
    the median one, None for no limit. All agents of an owner together weigh as much as the one of
    them that has counted most: whoever enrols ten names has one voice.
    """
    M = len(weights)
    total, largest = np.zeros(M), np.zeros(M)
    np.add.at(total, owners, sizes)
    np.maximum.at(largest, owners, sizes)
    share = (largest / np.where(total > 0, total, 1.0))[owners]
    share[total[owners] == 0] = 1.0
    if cap is None:
        return weights * share
    of_owner = np.zeros(M)
    of_owner[owners] = weights
    found: npt.NDArray[np.float64] = capped(of_owner, largest, cap)[owners] * share
    return found


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
