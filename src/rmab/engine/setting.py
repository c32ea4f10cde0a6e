"""Setting that a batch of trials is compiled for, and its outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from jax import Array

from rmab.engine.environment import Truth, differing
from rmab.learning.channel.local_posterior import VAGUE_WEIGHT
from rmab.model.arms import ArmKind, Arms
from rmab.policies.aggregation import AGGREGATIONS, Aggregation
from rmab.privacy.accounting import Budget

__all__ = ["Outcome", "Setting", "Simulate"]


@dataclass(frozen=True)
class Setting:
    """Everything that shapes a program; all else is an argument of it."""

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
    laws_differ: bool = False  # between agents
    rewards_differ: bool = False
    budget: Budget | None = None  # of sums that are released with noise; None: they have none
    groups: int = 1  # of agents whose sums are opened apart: agent m is in group m modulo this
    survey: int = 0  # slots of each log that are counted for others, 0: all

    @classmethod
    def of(
        cls, arms: Arms, n_agents: int, horizon: int, each: Sequence[Arms] = (), **others: Any
    ) -> Setting:
        """Return the setting for these arms; each: of each agent, of the same kinds."""
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


class Outcome(NamedTuple):
    """Outcome of R trials; L bounds the number of episodes."""

    rewards: Array  # (T, R) summed over agents, or as the environment adds them up
    episodes: Array  # (R,)
    lengths: Array  # (L, R) slots of each episode, 0 past the last
    error: Array  # (L, N, R) squared error of the transition probabilities


class Simulate(Protocol):
    """A compiled batch: seed words, trial numbers, truth, K, data of known arms -> outcome."""

    def __call__(
        self, seed: Array, trials: Array, truth: Truth, plays: Array, known: Any, /
    ) -> Outcome: ...
