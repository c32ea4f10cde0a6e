"""UCB1: the mean reward of an arm's n plays, plus sqrt(c ln t / n) in slot t = 1, 2, ...

An arm that was never played comes before all others. c = 2 is UCB1, c = K + 1 the index of client
selection with K plays. Rewards are taken as independent: nothing is learnt of the transitions.

References: P. Auer, N. Cesa-Bianchi, P. Fischer, "Finite-time analysis of the multiarmed bandit
problem", Machine Learning 47, 2002; W. Xia et al., "Multi-armed bandit based client scheduling for
federated learning", IEEE Trans. Wireless Comm. 19(11), 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rmab.linalg import Array, array_namespace
from rmab.policies.capabilities import Capabilities
from rmab.policies.entry import BROKEN, Entry
from rmab.policies.options import number
from rmab.policies.own_index import Observations
from rmab.policies.policy import OwnIndexRule, Policy

__all__ = ["ENTRIES", "MeanRewards"]


class _Sums(NamedTuple):
    plays: Array  # (N, ...) of each arm
    total: Array  # (N, ...) their pay


@dataclass(frozen=True)
class MeanRewards:
    """Index of UCB1; c: factor of ln t / n."""

    c: float = 2.0

    def init(self, _n_states: int, shape: tuple[int, ...]) -> _Sums:
        """Return the sums before any play."""
        return _Sums(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def update(self, state: _Sums, seen: Observations) -> _Sums:
        """Add a play, and its pay, to the arms that were played."""
        xp = array_namespace(state.plays, seen.played)
        paid = xp.where(seen.played, seen.reward, 0)
        return _Sums(state.plays + seen.played, state.total + paid.astype(np.float32))

    def index(self, state: _Sums, slot: Array) -> Array:
        """Return the upper confidence bound of every arm, (N, ...)."""
        xp = array_namespace(state.plays)
        plays = xp.maximum(state.plays, 1)
        width = xp.sqrt(self.c * xp.log(xp.asarray(slot + 1, np.float32)) / plays)
        return xp.where(state.plays > 0, state.total / plays + width, np.float32(np.inf))


def ucb(name: str, _horizon: int, *, c: float = 2.0) -> Policy:
    """Return UCB1; c: factor of ln t / n."""
    return Policy(name, rule=OwnIndexRule(MeanRewards(c)))


ENTRIES = {
    "ucb": Entry(
        "published", f"{__name__}:ucb",
        {"c": number("2", 1e6, "how much an arm gains by being played seldom")},
        "mean reward plus sqrt(c ln t / plays), each agent alone, every slot",
        "UCB", "#999999", BROKEN, ">", capabilities=Capabilities("own"),
    ),
}  # fmt: skip
