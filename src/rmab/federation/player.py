"""An agent without input or output: it chooses by a plan, observes, and counts.

Of each arm it keeps the state last observed and the slots since, and counts every pair of
successive observations by their gap (`rmab.federation.messages`). An episode ends by its round's
rule: after its number of slots or, where the round has a visit factor, when for some arm and state

    N_t(s, a = 1) > factor max(1, N_{t_l}(s, a = 1)),                              eq. (22)

with N_{t_l} the visits when the episode began. The agent goes on by the plan it has until the next
round is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.federation.messages import RoundMessage, Upload
from rmab.federation.schedule import LONGEST, visit_limit
from rmab.model.beliefs import NEVER, InformationStates
from rmab.policies.plans import OwnPlan, largest

__all__ = ["Player"]


class Player:
    """One incarnation of an agent.

    last_seen, age: (N,) each, the information states, age 0 where an arm was never observed; counts
    and visits as in `Upload`.
    """

    def __init__(self, message: RoundMessage, incarnation: str) -> None:
        shape = message.shape
        S = max(shape.states)
        self.incarnation = incarnation
        self.slots = 0
        self.reward = 0.0  # in all
        self.counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
        self.visits = np.zeros((S, shape.n_arms), np.int64)
        self.last_seen = np.zeros(shape.n_arms, np.int64)
        self.age = np.full(shape.n_arms, NEVER, np.int64)
        self._own: tuple[Any, ...] | None = None  # the state of a learner that keeps its own
        self._own_slots = 0  # that it was updated with, of earlier incarnations too
        self._start(message)

    def begin(self, message: RoundMessage) -> None:
        """A new episode, of this round; what was observed and counted stays."""
        if message.shape != self.message.shape or message.federation != self.message.federation:
            raise ModelError(
                f"round {message.round} must be of the same federation and arms as before: "
                f"{self.message.federation} with {self.message.shape}, got {message.federation} "
                f"with {message.shape}"
            )
        self._start(message)

    def _start(self, message: RoundMessage) -> None:
        self.message = message
        self.length = 0
        self.over = False
        if isinstance(message.plan, OwnPlan) and self._own is None:
            S = max(message.shape.states)
            self._own = message.plan.own.init(S, (message.shape.n_arms,))
        factor = message.visit_factor
        self._caps = None if factor is None else visit_limit(self.visits, factor, LONGEST)
        self._chosen: npt.NDArray[np.intp] | None = None

    @property
    def round(self) -> int:
        """The round that is played."""
        return self.message.round

    def choose(self) -> npt.NDArray[np.intp]:
        """The K arms to play in this slot, in ascending order."""
        if self._chosen is None:
            plan, plays = self.message.plan, self.message.shape.plays
            if isinstance(plan, OwnPlan):
                self._chosen = largest(plan.own.index(self._own, self._own_slots), plays)
            else:
                observed = InformationStates(self.last_seen, self.age)
                self._chosen = plan.choose(observed, plays)
        return self._chosen

    def observe(self, arms: Sequence[int], states: Sequence[int]) -> None:
        """What a slot's plays showed: a state for each arm, in the order of the arms.

        An arm that was played and could not be read is left out: its age grows as if unplayed.
        """
        shape = self.message.shape
        if len(states) != len(arms) or len(arms) > shape.plays:
            raise ModelError(
                f"a slot must show one state for each of at most {shape.plays} arms, got "
                f"{len(states)} for {len(arms)}"
            )
        seen = list(zip(map(index, arms), map(index, states), strict=True))
        for arm, state in seen:
            if not 0 <= arm < shape.n_arms or len(set(arms)) < len(arms):
                raise ModelError(f"arms must be different ones below {shape.n_arms}, got {arms}")
            if not 0 <= state < shape.states[arm]:
                raise ModelError(
                    f"arm {arm + 1}: the state must lie from 0 to {shape.states[arm] - 1}, "
                    f"got {state}"
                )
        self._remember(seen)
        for arm, state in seen:
            age = int(self.age[arm])
            if age != NEVER:
                kind = min(age, shape.kinds) - 1
                self.counts[kind, self.last_seen[arm], state, arm] += 1
            self.visits[state, arm] += 1
            if self._caps is not None and self.visits[state, arm] > self._caps[state, arm]:
                self.over = True
            self.reward += self.message.rewards[arm][state]
        self.age[self.age != NEVER] += 1
        for arm, state in seen:
            self.last_seen[arm], self.age[arm] = state, 1
        self.slots += 1
        self.length += 1
        self.over = self.over or self.length >= self.message.slots
        self._chosen = None

    def _remember(self, seen: list[tuple[int, int]]) -> None:
        """Update a learner that keeps its own state with the slot."""
        plan, N = self.message.plan, self.message.shape.n_arms
        if not isinstance(plan, OwnPlan):
            return
        from rmab.policies.own_index import Observations

        played, state, reward = np.zeros(N, bool), np.zeros(N, np.int64), np.zeros(N)
        for arm, shown in seen:
            played[arm], state[arm] = True, shown
            reward[arm] = self.message.rewards[arm][shown]
        slot = Observations(played, played, state, reward, self._own_slots)
        self._own = plan.own.update(self._own, slot)
        self._own_slots += 1

    @property
    def learner_state(self) -> npt.NDArray[np.float64] | None:
        """What a learner with a state of its own remembers, (X,); None where there is none."""
        if self._own is None:
            return None
        parts = [np.ravel(np.asarray(x, np.float64)) for x in self._own]
        return np.concatenate([[float(self._own_slots)], *parts])

    def resume_learner(self, numbers: npt.NDArray[np.float64] | None) -> None:
        """Go on with what an earlier incarnation's learner remembered, (X,), if it is of this one's
        shape; a learner that the federation has had no longer is forgotten."""
        mine = self.learner_state
        if numbers is None or mine is None or numbers.shape != mine.shape:
            return
        if not 0 <= numbers[0] <= LONGEST:
            return
        assert self._own is not None
        ends = np.cumsum([1, *(np.size(x) for x in self._own)])
        parts = [numbers[a:b] for a, b in pairwise(ends)]
        leaves = [
            part.reshape(np.shape(old)).astype(np.asarray(old).dtype)
            for part, old in zip(parts, self._own, strict=True)
        ]
        make = getattr(type(self._own), "_make", tuple)  # named tuples stay what they are
        self._own, self._own_slots = make(leaves), int(numbers[0])

    def upload(self, sequence: int) -> Upload:
        """All that was counted, as an upload of this round."""
        return Upload(
            incarnation=self.incarnation,
            sequence=sequence,
            round=self.round,
            slots=self.slots,
            length=self.length,
            counts=self.counts.copy(),
            visits=self.visits.copy(),
        )
