"""Evidence: merged counts of observations, the only input of learners beside random numbers.

counts[c, s, s', n] are pairs of successive observations of arm n, in state s and then in s':

- c = 0: one slot apart, and the arm was played at the first. The step is by P_1, whose rows have
  Dirichlet posteriors: Beta where there are two states. For an uncontrolled arm (P_0 = P_1) these
  counts determine the posterior. If it is fully observed, every slot gives such a pair.
- a fully observed, action-dependent arm, c = 1: one slot apart, not played at the first. The step
  is by P_0, learnt in the same way.
- an action-dependent arm observed when played, 0 < c < WAITS: played, then not played for c slots,
  observed in the next. The steps are P_1 P_0^c: see `hidden_steps`.

With gaps = G learners use all pairs of observations of uncontrolled arms observed when played:
counts[c] are the pairs c + 1 slots apart up to G, and counts[G] those further apart, which show the
stationary distribution. The likelihood of a gap g is P^g, and the posterior is no longer a product
of Dirichlets: `channel` draws from it for two states, `hidden_steps` for more. An agent's first
observation of an arm is taken as given: it completes no pair.

Action-dependent arms observed when played are learnt only from waits. Waits of one slot show
P_1 P_0: where P_1 can be inverted that determines P_0. Where it cannot (a restart: P_1 has equal
rows) all waits show the distributions along one path, P_1 P_0, P_1 P_0^2, ..., and rows of P_0 that
this path does not distinguish keep the prior; so do all rows while no agent waits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from jax import Array

from rmab.arrays import Bool, BoolArray, Float, Int, Real
from rmab.model.arms import WAITS, ArmKind

__all__ = [
    "BAD",
    "GOOD",
    "WAITS",
    "Evidence",
    "Prior",
    "Weights",
    "beta_of",
    "count_kinds",
    "next_state_weights",
    "state_weights",
    "valid_states",
]

BAD, GOOD = 0, 1  # states of a channel, and so the order of every axis over next states

Prior = float | tuple[float, float]  # Dirichlet(a, ..., a), or Beta(a, b) for two states
# Prior weights of next states: (1, S, 1, 1) of a given prior, (2, 2, 1, R) of a learnt one.
Weights = Float[npt.NDArray[np.float32] | Array, "#S S 1 #R"]


class Evidence(NamedTuple):
    """Counts at the start of an episode, merged over agents, and facts about the arms.

    counts: pairs of observations, see the module; visits: plays by observed state; episode: counted
    from 1; rewards, idle_rewards: reward of a play and of no play, by state, one for all trials
    unless agents' differ; plays: arms that an agent plays in a slot; agents: number of agents, each
    counted by its weight; kinds: (N,); prior: weights of next states learnt from all arms, in place
    of the learner's own; slot: slots played before, in the engine; lanes: A agents with evidence of
    their own, whose trials follow each other on the last axis, the first agent's first.
    """

    counts: Real[Array, "C S S N R"]
    visits: Real[Array, "S N R"]
    episode: Int[Array, " R"]
    rewards: Float[Array, "S N #R"]
    idle_rewards: Float[Array, "S N #R"]
    plays: Array
    agents: float
    kinds: tuple[ArmKind, ...]
    prior: Float[Array, "2 2 1 R"] | None = None
    slot: Array | None = None
    lanes: int = 1

    @property
    def transitions(self) -> Real[Array, "S S N R"]:
        """Observations in two consecutive slots, by state and next state."""
        return self.counts[0]

    @property
    def reward(self) -> Float[Array, " N #R"]:
        """Reward of a play of each channel in its good state."""
        return self.rewards[1]


def count_kinds(kinds: tuple[ArmKind, ...], gaps: int = 0) -> int:
    """Return C, the number of kinds of pairs that are informative about these arms.

    With gaps = G > 0 all pairs of observations of arms observed when played are: those 1 to G slots
    apart by their gap, and those further apart.
    """
    least = gaps + 1 if gaps else 1
    if not any(kind.action_dependent for kind in kinds):
        return least
    hidden = any(kind.action_dependent and not kind.fully_observed for kind in kinds)
    return max(least, WAITS if hidden else 2)


def state_weights(prior: Prior, n_states: int = 2) -> list[float]:
    """Return a prior as weights of next states, bad before good; a Beta(a, b) has good first."""
    return [prior[1], prior[0]] if isinstance(prior, tuple) else [prior] * n_states


def beta_of(weights: Array | npt.NDArray[np.float32]) -> tuple[Any, Any]:
    """Return (a, b) of Beta(a, b), good first, of weights with next states on the second axis."""
    return weights[:, GOOD], weights[:, BAD]


def next_state_weights(prior: Prior, evidence: Evidence) -> Weights:
    """Return prior weights of next states: the learnt ones, or those of a learner's prior."""
    if evidence.prior is not None:
        return evidence.prior
    weights = state_weights(prior, evidence.visits.shape[0])
    return np.array(weights, np.float32)[None, :, None, None]


def valid_states(kinds: tuple[ArmKind, ...], n_states: int) -> Bool[BoolArray, "1 S N 1"] | None:
    """Return a mask of the states that each arm has, None where all arms have n_states."""
    sizes = np.array([kind.states for kind in kinds])
    if (sizes == n_states).all():
        return None
    return (np.arange(n_states)[:, None] < sizes)[None, :, :, None]
