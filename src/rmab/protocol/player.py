"""Agent without input or output: it chooses by a plan, observes, and counts.

Of each arm it keeps the state last observed and the slots since, and counts every pair of
successive observations by their gap (`rmab.protocol.messages`). An episode ends by its round's
rule: after its number of slots or, where the round has a visit factor, when for some arm and state

    N_t(s, a = 1) > factor max(1, N_{t_l}(s, a = 1)),                              eq. (22)

with N_{t_l} the visits when the episode began. The agent goes on by the plan it has until the next
round is there.

Where rounds ask for a survey (`rmab.privacy.survey`), an incarnation begins with it: arms are
played by its schedule, and `counts` and `visits`, which are given, are of its slots only.

A slot is a look at the arms that are always observed, where there are any (`look`), a choice of K
arms (`choose`), and the states that they showed (`observe`). A reading that is missing is None. An
arm that moves alike is then observed later. One that moves otherwise when it is played has moved in
a way that no count tells of: its next observation is as the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError
from rmab.model.information import NEVER, InformationStates
from rmab.policies.constraint import Constraint
from rmab.policies.episodes import LONGEST, visit_limit
from rmab.policies.plans import Plan
from rmab.privacy.survey import first_turn, scheduled
from rmab.protocol.messages import RoundMessage
from rmab.protocol.shape import Upload

__all__ = ["Player"]


class Player:
    """Incarnation of an agent.

    last_seen, age: (N,) each, the information states, age 0 where an arm was never observed. Of an
    arm that is always observed: the state s in which it was last read, ~s if that was not in the
    slot before, and the slots since its last play. counts and visits as in `Upload`: where there is
    a survey, of its slots only.
    """

    def __init__(self, message: RoundMessage, incarnation: str) -> None:
        shape = message.shape
        S = max(shape.states)
        self.incarnation = incarnation
        self.slots = 0
        self.reward = 0.0  # in all
        self.counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
        self.visits = np.zeros((S, shape.n_arms), np.int64)
        # Later rounds cannot change it: what was played after the survey is never given.
        self._survey = message.survey
        self._all_counts = np.zeros_like(self.counts) if self._survey else None
        self.last_seen = np.zeros(shape.n_arms, np.int64)
        self._always = np.array(shape.always, np.intp)
        self.last_seen[self._always] = ~0
        self.age = np.full(shape.n_arms, NEVER, np.int64)
        self._controlled = frozenset(shape.controlled)
        self._looked: dict[int, int | None] = dict.fromkeys(shape.always)
        self._own: tuple[Any, ...] | None = None  # the state of a learner that keeps its own
        self._own_slots = 0  # that it was updated with, of earlier incarnations too
        self._plan: Plan = message.plan
        self._chosen: npt.NDArray[np.intp] | None = None
        self._start(message)

    def begin(self, message: RoundMessage) -> None:
        """Begin an episode of this round; observations and counts stay."""
        if message.shape != self.message.shape or message.federation != self.message.federation:
            raise ModelError(
                f"round {message.round} must be of the same federation and arms as before: "
                f"{self.message.federation} with {self.message.shape}, got {message.federation} "
                f"with {message.shape}"
            )
        self._start(message)

    def play_by(self, plan: Plan) -> None:
        """Play the rest of the round by a plan of the agent's own."""
        self._plan = plan
        self._chosen = None

    def _start(self, message: RoundMessage) -> None:
        self.message = message
        self._plan = message.plan
        self.length = 0
        self.over = False
        if message.plan.own is not None and self._own is None:
            S = max(message.shape.states)
            self._own = message.plan.own.init(S, (message.shape.n_arms,))
        factor = message.visit_factor
        self._caps = None if factor is None else visit_limit(self.visits, factor, LONGEST)
        self._chosen = None

    @property
    def round(self) -> int:
        """The round that is played."""
        return self.message.round

    @property
    def surveys(self) -> bool:
        """Whether the next slot is one of the survey."""
        return self.slots < self._survey

    @property
    def own_counts(self) -> npt.NDArray[np.int64]:
        """Pairs of all slots, as counts."""
        return self.counts if self._all_counts is None else self._all_counts

    def look(self, states: Sequence[int | None]) -> None:
        """The states that the arms that are always observed are in now, in ascending order."""
        always = self.message.shape.always
        if len(states) != len(always):
            raise ModelError(
                f"a look must give one state for each of {len(always)} arms that are always "
                f"observed, got {len(states)}"
            )
        self._looked = dict(self._readings(always, states))
        self._chosen = None

    def choose(self) -> npt.NDArray[np.intp]:
        """The K arms to play in this slot, in ascending order."""
        if self._chosen is None:
            plan, plays = self._plan, self.message.shape.plays
            if self.surveys:
                turn = first_turn(self.incarnation)
                arms = scheduled(self.slots, turn, self.message.shape.n_arms, plays)
                self._chosen = np.flatnonzero(arms)
            elif plan.own is not None:
                self._chosen = np.sort(Constraint(plays).ranked(self._own_index(plan)))
            else:
                observed = InformationStates(self.last_seen, self.age)
                if self._looked and plan.looks:
                    observed = self._with_look(observed)
                self._chosen = plan.choose(observed, plays)
        return self._chosen

    def _own_index(self, plan: Plan) -> npt.NDArray[np.floating[Any]]:
        """Return the index of a learner that keeps its own state in this slot, (N,)."""
        from rmab.policies.own_index import index_now, looked

        state = looked(plan.own, self._own, self._now)
        found: npt.NDArray[np.floating[Any]]
        found = index_now(plan.own, state, self._own_slots, self._now)
        return found

    def _now(self) -> Any:
        """Return the inputs of such a learner. Its random numbers are the incarnation's and the
        slot's, so that a choice that is asked for again is the same."""
        from rmab.policies.own_index import Now

        N = self.message.shape.n_arms
        state, age = self._with_look(InformationStates(self.last_seen, self.age))
        stepped = np.zeros(N, bool)
        for arm, look in self._looked.items():
            stepped[arm] = look is not None and self.last_seen[arm] >= 0
        seed = [*self.incarnation.encode(), self._own_slots]
        uniforms = np.random.default_rng(seed).random((2, N))
        return Now(state, age, stepped, np.int64(self._own_slots), uniforms)

    def _with_look(self, observed: InformationStates) -> InformationStates:
        """Arms that are always observed are in (state now, 1), or in the last state that was
        read."""
        last_seen, age = observed.last_seen.copy(), observed.age.copy()
        for arm, state in self._looked.items():
            before = last_seen[arm]
            last_seen[arm] = max(before, ~before) if state is None else state
        age[self._always] = 1
        return InformationStates(last_seen, age)

    def observe(self, arms: Sequence[int], states: Sequence[int | None]) -> None:
        """Take the states that a slot's plays showed, one for each arm, in the order of the arms.

        None is for an arm that was played and could not be read.
        """
        shape = self.message.shape
        if len(states) != len(arms) or len(arms) > shape.plays:
            raise ModelError(
                f"a slot must show one state for each of at most {shape.plays} arms, got "
                f"{len(states)} for {len(arms)}"
            )
        played = dict(self._readings(arms, states))
        if len(played) < len(arms):
            raise ModelError(f"arms must be different ones below {shape.n_arms}, got {arms}")
        # What a play shows is newer than what was seen before it.
        looks = {
            arm: look if (shown := played.get(arm)) is None else shown
            for arm, look in self._looked.items()
        }
        seen = {
            arm: state
            for arm, shown in played.items()
            if (state := looks.get(arm, shown)) is not None
        }
        self._remember(seen, looks)
        given = self.surveys or not self._survey
        for arm, state in seen.items():
            if arm not in looks and (age := int(self.age[arm])) != NEVER:
                pair = min(age, shape.kinds) - 1, self.last_seen[arm], state, arm
                self.counts[pair] += given
                if self._all_counts is not None:
                    self._all_counts[pair] += 1
            self.visits[state, arm] += given
            if self._caps is not None and self.visits[state, arm] > self._caps[state, arm]:
                self.over = True
            self.reward += self.message.rewards[arm][state]
        for arm, look in looks.items():
            before = int(self.last_seen[arm])
            if look is None:
                self.last_seen[arm] = min(before, ~before)
                continue
            if before >= 0:
                self.counts[0 if self.age[arm] == 1 else 1, before, look, arm] += 1
            if arm not in played:
                self.reward += self._idle_reward(arm, look)
            self.last_seen[arm] = look
        self.age[self.age != NEVER] += 1
        for arm in played:
            if arm in seen or arm in looks:
                self.age[arm] = 1
            elif arm in self._controlled:
                self.age[arm] = NEVER
        for arm, state in seen.items():
            self.last_seen[arm] = state
        self._looked = dict.fromkeys(shape.always)
        self.slots += 1
        self.length += 1
        self.over = self.over or self.length >= self.message.slots
        self._chosen = None

    def _readings(
        self, arms: Sequence[int], states: Sequence[int | None]
    ) -> Iterator[tuple[int, int | None]]:
        """Each arm and its state, checked."""
        shape = self.message.shape
        for arm, state in zip(map(index, arms), states, strict=True):
            if not 0 <= arm < shape.n_arms:
                raise ModelError(f"arms must be different ones below {shape.n_arms}, got {arms}")
            if state is not None and not 0 <= index(state) < shape.states[arm]:
                raise ModelError(
                    f"arm {arm + 1}: the state must lie from 0 to {shape.states[arm] - 1}, "
                    f"got {state}"
                )
            yield arm, state if state is None else index(state)

    def _idle_reward(self, arm: int, state: int) -> float:
        idle = self.message.idle_rewards
        return 0.0 if idle is None else idle[arm][state]

    def _remember(self, seen: Mapping[int, int], looks: Mapping[int, int | None]) -> None:
        """Update a learner that keeps its own state with the slot."""
        plan, N = self.message.plan, self.message.shape.n_arms
        if plan.own is None:
            return
        from rmab.policies.own_index import Observations, looked

        played, observed = np.zeros(N, bool), np.zeros(N, bool)
        state, reward = np.zeros(N, np.int64), np.zeros(N)
        for arm, look in looks.items():
            if look is not None:
                observed[arm], state[arm], reward[arm] = True, look, self._idle_reward(arm, look)
        for arm, shown in seen.items():
            played[arm] = observed[arm] = True
            state[arm], reward[arm] = shown, self.message.rewards[arm][shown]
        slot = Observations(played, observed, state, reward, self._own_slots)
        self._own = plan.own.update(looked(plan.own, self._own, self._now), slot)
        self._own_slots += 1

    def go_on(self, before: Player) -> None:
        """Add to the counts of a player before it, whose arms were observed too long ago."""
        self.slots = before.slots
        self.counts, self.visits = before.counts.copy(), before.visits.copy()

    @property
    def learner_state(self) -> npt.NDArray[np.float64] | None:
        """State of a learner with a state of its own, (X,); None where there is none."""
        if self._own is None:
            return None
        parts = [np.ravel(np.asarray(x, np.float64)) for x in self._own]
        return np.concatenate([[float(self._own_slots)], *parts])

    def resume_learner(self, numbers: npt.NDArray[np.float64] | None) -> None:
        """Resume the state of an earlier incarnation's learner, (X,), if it is of this one's
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
