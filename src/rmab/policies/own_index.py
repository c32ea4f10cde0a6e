"""Learners that keep their own state, per arm and agent, and give an index from it.

`OwnLearner` says what such a learner is. Those here are written for NumPy and JAX arrays alike and
import NumPy alone: the engine runs them for many trials, a served agent for itself, by the name
that `OWN_INDICES` has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from rmab.linalg import Array, array_namespace

__all__ = ["OWN_INDICES", "MeanRewards", "Observations", "OwnLearner"]


class Observations(NamedTuple):
    """What a learner with its own state is given of a slot; arrays (N, ...), arms first.

    played: which arms were played; state: the state of each arm, to be read where it was observed;
    observed: where it was; reward: what the arm paid; slot: how many slots came before.
    """

    played: Array
    observed: Array
    state: Array
    reward: Array
    slot: Array


class OwnLearner(Protocol):
    """A learner that carries its own state, per arm and agent.

    A state is a tuple of arrays that end in the shape it was made for: (N, M agents, R trials) in
    the engine, (N,) in a served agent, where it is kept in the agent's file. All methods work on
    NumPy and JAX arrays alike, element by element along agents and trials, and change nothing in
    place. Besides `init` and `update` it has one of

        index(state, slot) -> (N, ...)     what arms are played by in this slot
        dynamics(state, draws) -> Moves    what a learner gives at the start of an episode, from the
                                           state as the aggregation combines it over agents

    One with `dynamics` may also have end_episode(state), its state after an episode.
    """

    def init(self, n_states: int, shape: tuple[int, ...]) -> tuple[Array, ...]:
        """The state before the first slot; n_states: of the largest arm."""

    def update(self, state: Any, seen: Observations) -> tuple[Array, ...]:
        """The state after a slot."""


class _Sums(NamedTuple):
    plays: Array  # (N, ...) of each arm
    total: Array  # (N, ...) what they paid


@dataclass(frozen=True)
class MeanRewards:
    """UCB1: the mean reward of an arm's n plays, plus sqrt(c ln t / n) in slot t = 1, 2, ...

    An arm that was never played comes before all others. c = 2 is UCB1, c = K + 1 what client
    selection uses for K plays. Rewards are taken as independent: nothing is learnt of the
    transitions.

    References: P. Auer, N. Cesa-Bianchi, P. Fischer, "Finite-time analysis of the multiarmed bandit
    problem", Machine Learning 47, 2002; W. Xia et al., "Multi-armed bandit based client scheduling
    for federated learning", IEEE Trans. Wireless Comm. 19(11), 2020.
    """

    c: float = 2.0

    def init(self, n_states: int, shape: tuple[int, ...]) -> _Sums:  # noqa: ARG002 - every learner's
        """Nothing was played."""
        return _Sums(np.zeros(shape, np.float32), np.zeros(shape, np.float32))

    def update(self, state: _Sums, seen: Observations) -> _Sums:
        """Played arms have one more play and what it paid."""
        xp = array_namespace(state.plays, seen.played)
        paid = xp.where(seen.played, seen.reward, 0)
        return _Sums(state.plays + seen.played, state.total + paid.astype(np.float32))

    def index(self, state: _Sums, slot: Array) -> Array:
        """The upper confidence bound of every arm, (N, ...)."""
        xp = array_namespace(state.plays)
        plays = xp.maximum(state.plays, 1)
        width = xp.sqrt(self.c * xp.log(xp.asarray(slot + 1, np.float32)) / plays)
        return xp.where(state.plays > 0, state.total / plays + width, np.float32(np.inf))


# By the policy's name: what its options make.
OWN_INDICES: Mapping[str, type[Any]] = {"ucb": MeanRewards}
