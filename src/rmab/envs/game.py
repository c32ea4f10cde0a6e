"""Games: a few trials of a study, played from outside, for environments and evaluation.

Every agent knows the information states of its arms, (last seen, age). An arm that is always
observed is in (state now, 1), as in tables (`rmab.model.information`). A choice of K arms is said
in one of two ways:

    sets     a whole number: which of the sets of K arms, in lexicographic order. Where K is 1 it is
             the arm, from 0
    scores   a number for each arm: the K largest are played, ties to the lower arm
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.errors import StudyError
from rmab.model.arms import Arm, Arms
from rmab.model.information import NEVER
from rmab.model.realisation import RealisedArms
from rmab.policies.constraint import Constraint
from rmab.studies.study import Study, load
from rmab.text import one_of, shown

__all__ = ["ACTIONS", "Choices", "Game", "Source", "check_actions", "scene_of", "study_of"]

ACTIONS = ("sets", "scores")
_MAX_SETS = 100_000

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Source = Study | Arms | Sequence[Arm] | str | PathLike[str]


def study_of(source: Source) -> Study:
    """Return a study, from its file or its bundled name too, or arms as one."""
    if isinstance(source, str | PathLike):
        return load(source)
    if isinstance(source, Study):
        return source
    return Study(arms=source)  # type: ignore[arg-type]  # which makes Arms of a list


def scene_of(source: Source, **changes: Any) -> Study:
    """Return a study's arms, agents and slots, without its policies.

    changes: keys that are to be other than it says; None: as it says.
    """
    given = {key: value for key, value in changes.items() if value is not None}
    study = study_of(source)
    return replace(study, policies=("random",), options={}, weights=None, **given)


@dataclass(frozen=True)
class Choices:
    """Choices of K = `plays` of N arms."""

    n_arms: int
    plays: int

    @property
    def n_sets(self) -> int:
        """Number of sets of K arms."""
        return Constraint(self.plays).n_subsets(self.n_arms)

    @cached_property
    def sets(self) -> Bools:
        """(sets, N) which arms each has, in lexicographic order."""
        if self.n_sets > _MAX_SETS:
            raise StudyError(
                f"actions must be 'scores', as there are {self.n_sets} sets of {self.plays} of "
                f"{self.n_arms} arms and {_MAX_SETS} at most can be numbered; got 'sets'"
            )
        masks = np.zeros((self.n_sets, self.n_arms), bool)
        np.put_along_axis(masks, Constraint(self.plays).subsets(self.n_arms), True, axis=1)
        return masks

    def played(self, actions: npt.ArrayLike, lead: tuple[int, ...]) -> Bools:
        """Return the mask of arms played, (*lead, N), by (*lead,) sets or (*lead, N) scores."""
        try:
            given = np.asarray(actions)
        except ValueError:  # rows of different lengths
            given = np.empty(0, object)
        if given.shape == (*lead, self.n_arms) and given.dtype.kind in "biuf":
            if np.isnan(given).any():
                raise StudyError("action: a score must be a number for each arm, got NaN")
            return np.asarray(Constraint(self.plays).select(given.astype(np.float64), axis=-1))
        if given.shape != lead or not np.issubdtype(given.dtype, np.integer):
            raise StudyError(
                f"action must be the number of a set of arms, from 0 to {self.n_sets - 1}, or "
                f"{self.n_arms} scores, got {shown(actions)}"
            )
        if given.size and not 0 <= given.min() <= given.max() < self.n_sets:
            raise StudyError(
                f"action must be from 0 to {self.n_sets - 1}, the last set of {self.plays} of "
                f"{self.n_arms} arms, got {shown(actions)}"
            )
        return np.asarray(self.sets[given])


class Game:
    """R trials of a study, for the agents of some lanes: their knowledge, plays and rewards.

    last_seen, age: (R, M, N), the information states before the next choice; fully_observed: every
    arm shows its state before every choice; pays: the precision of rewards.
    """

    def __init__(
        self,
        study: Study,
        seed: int,
        trials: Sequence[int],
        agents: Sequence[int],
        *,
        fully_observed: bool = False,
        pays: type[np.floating[Any]] = np.float64,
    ) -> None:
        arms = study.arms
        shared = study.realisations == "shared"
        self.horizon = study.horizon
        self.trials = tuple(trials)
        each = [study.agent_arms[agent] for agent in agents] if study.agent_arms else []
        own = [] if shared else each  # agents that share realisations differ only in rewards
        self._arms = RealisedArms(arms, seed, trials, (0,) if shared else agents, own)
        always = [kind.fully_observed or fully_observed for kind in arms.kinds]
        self._always = np.array(always)
        paid = [np.stack([mine.reward_passive, mine.reward_active]) for mine in each or [arms]]
        self._pays = np.stack(paid).astype(pays)  # (M or 1, 2, N, S)
        self._agent = np.arange(len(paid))[:, None]
        self._each = np.arange(len(arms))
        self._shape = (len(trials), len(agents), len(arms))
        self.age = np.where(always, 1, NEVER) * np.ones(self._shape, np.int64)
        self.last_seen = np.where(always, self.states, 0)

    @property
    def slot(self) -> int:
        """The slot that comes next, from 0."""
        return self._arms.slot

    @property
    def over(self) -> bool:
        """Whether the last slot was played."""
        return self.slot >= self.horizon

    @property
    def states(self) -> Ints:
        """The true states in the slot that comes next, (R, M, N)."""
        return np.broadcast_to(self._arms.states, self._shape)

    def play(self, played: Bools) -> npt.NDArray[Any]:
        """Play these arms (R, M, N) for a slot and return the reward of each, (R, M, N)."""
        states = self.states
        paid: npt.NDArray[Any] = self._pays[self._agent, played.astype(np.intp), self._each, states]
        self._arms.move(played[:, : self._arms.states.shape[1]])
        aged = np.where(self.age == NEVER, NEVER, self.age + 1)
        self.age = np.where(self._always, 1, np.where(played, 1, aged))
        self.last_seen = np.where(played, states, self.last_seen)
        self.last_seen = np.where(self._always, self.states, self.last_seen)
        return paid


def check_actions(actions: str, choices: Choices) -> None:
    """Refuse a way to say choices that there is none of, or that is too large."""
    one_of("actions", actions, ACTIONS)
    if actions == "sets":
        _ = choices.sets
