"""Dynamics that rules plan by: those that a learner gave, and those of known arms.

A learner's dynamics come in single precision, trials last, and are planned from anew in every
episode. Tables of known arms are filled once, in double precision.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy.typing as npt

from rmab.errors import ModelError
from rmab.linalg import Array
from rmab.markov import period
from rmab.model.arms import ArmKind, Arms, Intervals, Moves, Uncertain
from rmab.model.expansion import settled_age
from rmab.planning.tables import Model

__all__ = [
    "MAX_KNOWN_AGES",
    "KnownTables",
    "LearnedArms",
    "LearnerOutput",
    "channel_pair",
    "known_ages",
    "matrices",
    "no_table",
    "table_ages",
    "wide",
]

KNOWN_TOLERANCE, MAX_KNOWN_AGES = 1e-6, 512
LEARNT_TOLERANCE, MAX_LEARNT_AGES = 0.08, 64  # tables filled anew in every episode


class ExploringDynamics(NamedTuple):
    """Dynamics with the arms that are played before all others, whatever their index.

    first is (N, ...): where it holds, the arm is explored; lower arms come first.
    """

    moves: Moves
    first: Array


# Dynamics (S, S, N, R) each, or (N, R) each, perhaps with more that a rule reads.
LearnerOutput = Moves | Uncertain | Intervals | ExploringDynamics | tuple[Array, Array]


class LearnedArms(NamedTuple):
    """Arms as a server has learnt them, for A agents in R trials.

    output ends in A R; rewards are (S, N), or (S, N, A R) where agents' differ; kinds: (N,);
    channels: p01, p11 and a reward describe all arms.
    """

    output: LearnerOutput
    reward_passive: Array
    reward_active: Array
    kinds: tuple[ArmKind, ...]
    channels: bool

    def model(self, name: str) -> Model:
        """Return whole matrices, for arms that are not channels; name: of the policy."""
        moves, width = self.output, None
        if isinstance(moves, Uncertain):
            moves, width = moves
        if not isinstance(moves, Moves):
            raise ModelError(
                f"policy {name}: its learner must return rmab.Moves for arms that are not channels"
            )
        return Model(moves, self.idle_pays, self.pays, self.kinds, width)

    @property
    def idle_pays(self) -> Array:
        """Rewards without a play, (S, N, 1 or A R)."""
        rewards = self.reward_passive
        return rewards if rewards.ndim == 3 else rewards[:, :, None]

    @property
    def pays(self) -> Array:
        """Rewards of a play, (S, N, 1 or A R)."""
        rewards = self.reward_active
        return rewards if rewards.ndim == 3 else rewards[:, :, None]


def matrices(output: LearnerOutput) -> Any:
    """Return the dynamics themselves: Moves, or p01 and p11."""
    return output.moves if isinstance(output, Uncertain | ExploringDynamics) else output


def channel_pair(output: LearnerOutput) -> tuple[Array, Array]:
    """Return p01 and p11, each (N, ...)."""
    moves = matrices(output)
    if isinstance(moves, Moves):
        return moves.passive[0, 1], moves.passive[1, 1]
    return moves[0], moves[1]


def wide(values: Array) -> Array:
    """Shape values (N,), or (N, M) by agent, for arrays (N, M, R)."""
    return values[:, None, None] if values.ndim == 1 else values[..., None]


def no_table(name: str) -> ModelError:
    """Return the error of a policy for channels that meets other arms."""
    return ModelError(
        f"policy {name} is for channels alone; for these arms it needs a table, see "
        "docs/own-policy.md"
    )


class KnownTables(NamedTuple):
    """Tables of known arms, and how far ages past their highest fall back.

    tables: (N, I), or several of a lookahead, and (..., M) where agents differ; wraps: (N,) or
    (N, M), 0 where they become never observed.
    """

    tables: Any
    wraps: npt.NDArray[Any] | Array


def table_ages(arms: Arms, tolerance: float = LEARNT_TOLERANCE, most: int = MAX_LEARNT_AGES) -> int:
    """Return the ages that tables of these arms distinguish.

    Until beliefs are within the tolerance, and one period more where they go on swinging.
    """
    ages = (
        settled_age(arm, tolerance, most) + period(arm.passive) - 1
        for arm in arms
        if arm.observed == "when_played"
    )
    return max(ages, default=1)


def known_ages(arms: Arms, most: int = MAX_KNOWN_AGES) -> int:
    """Return the ages for tables that are filled once."""
    return table_ages(arms, KNOWN_TOLERANCE, most)
