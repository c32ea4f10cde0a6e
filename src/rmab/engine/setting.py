"""What a compiled batch of trials is made for, what it takes and what it gives.

A `Setting` holds all that shapes the program; the rest is passed to it when it runs. A policy that
knows the dynamics of arms that are not all channels, that plays the joint optimum, or that plays on
a recording is given what it looks up: its `Guide`, a tree of arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from jax import Array

from rmab.engine.world import Truth, differing
from rmab.learning.channel.local_posterior import VAGUE_WEIGHT
from rmab.model.arms import ArmKind, Arms
from rmab.planning.joint.chain import Layout
from rmab.policies.aggregation import AGGREGATIONS, Aggregation
from rmab.privacy.accounting import Budget

__all__ = ["Fitted", "Guide", "Joint", "Lookup", "Outcome", "Setting", "Simulate"]


@dataclass(frozen=True)
class Setting:
    """What a compiled simulator is made for; all else is an argument."""

    n_agents: int
    kinds: tuple[ArmKind, ...]  # of each arm
    horizon: int
    channels: bool = True  # whether p01, p11 and reward describe all arms
    idle_pay: bool = False  # whether an arm left alone may pay
    shared: bool = False
    schedule: str = "paper"
    draws: str = "shared"  # of the dynamics: one for all agents, "per-agent" or "own"
    doubt: float = VAGUE_WEIGHT  # of draws = "own"
    aggregation: Aggregation = AGGREGATIONS["sum"]  # what agents share
    weights: tuple[float, ...] | None = None  # None: 1 for every agent
    longest: int | None = None  # slots of an episode; a policy's own may be shorter
    max_age: int = 32  # ages that tables filled from learnt dynamics distinguish
    windows: int = 0  # W of a recording, by which rewards are added up; 0: states are drawn
    laws_differ: bool = False  # between agents
    rewards_differ: bool = False
    budget: Budget | None = None  # of sums that are released with noise; None: they have none
    groups: int = 1  # of agents whose sums are opened apart: agent m is in group m modulo this
    survey: int = 0  # slots of each log that are counted for others, 0: all

    @classmethod
    def of(
        cls, arms: Arms, n_agents: int, horizon: int, each: Sequence[Arms] = (), **others: Any
    ) -> Setting:
        """The setting for these arms; each: those of each agent, of the same kinds, where they
        differ."""
        laws, rewards = differing(each)
        return cls(
            n_agents,
            arms.kinds,
            horizon,
            channels=all(own.are_channels for own in each or [arms]),
            idle_pay=any(bool(own.reward_passive.any()) for own in each or [arms]),
            laws_differ=laws,
            rewards_differ=rewards,
            **others,
        )

    @property
    def n_arms(self) -> int:
        """N."""
        return len(self.kinds)

    @property
    def n_states(self) -> int:
        """S of the largest arm."""
        return max(kind.states for kind in self.kinds)


class Joint(NamedTuple):
    """The exact optimum of an agent as a lookup: see rmab.planning.joint.optimum."""

    actions: Array  # (codes,) row of `subsets` to play
    subsets: Array  # (A, N) bool
    layout: Layout  # of the joint code


class Lookup(NamedTuple):
    """Tables over information states, for known dynamics."""

    tables: Any  # (N, 1 + S max_age) indices, or the tables of a lookahead; (..., M) by agent
    wraps: Array  # (N,) or (N, M): how far ages past max_age fall back, 0: to never observed


class Fitted(NamedTuple):
    """Plans from laws that were fitted to a recording, G of them, each for some of the slots."""

    plan: Any  # arrays (G, ...), where ... is a plan of `rmab.engine.agents`
    which: Array  # (T,) the plan of each slot
    wraps: Array  # (N,) as those of a Lookup


Guide = Joint | tuple[Joint, ...] | Lookup | Fitted | None  # joint optima by agent


class Outcome(NamedTuple):
    """What R trials gave; L bounds the number of episodes."""

    rewards: Array  # (T, R) summed over agents; of a recording (W, M, R), by window and agent
    episodes: Array  # (R,)
    lengths: Array  # (L, R) slots of each episode, 0 past the last
    error: Array  # (L, N, R) squared error of the transition probabilities


class Simulate(Protocol):
    """A compiled batch: seed words, trial numbers, truth, K, what is looked up -> outcome."""

    def __call__(
        self, seed: Array, trials: Array, truth: Truth, plays: Array, guide: Guide, /
    ) -> Outcome: ...
