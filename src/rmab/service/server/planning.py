"""Planning: from counts to the plans that the database keeps and agents are sent.

The plan of round r + 1 is a function of the seed, the counts when r closed, r + 1 and the lane. The
federation's aggregation (`rmab.policies.aggregation`) gives the evidence of a lane's learner: the
sum of all counts, or a combination of each agent's.

Plans are made one after another in a separate thread, which loads JAX and has it compile its
programs, or find them compiled (`rmab.compilation`). A round's message is the same for all agents
of a lane except for the name in it. Where lanes have different plans, the one of a lane is made
when its agent first asks, and kept.

Estimates of the arms are for people. From observations at every gap they are draws from the
posterior and may take long, the first of them for compilation. So rounds do not wait for them: they
are made in another thread, when somebody asks, once for each round, and no request waits for them.
The last ones are in the database, for a server that starts again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from rmab.errors import StorageError
from rmab.policies.aggregation import Aggregation, evidence_of
from rmab.policies.plans import Plan
from rmab.privacy.prior_summaries import SummariesMessage
from rmab.protocol.config import Federation
from rmab.protocol.growth import LaneCounts, Merged
from rmab.protocol.messages import RoundMessage, parse_plan, plan_table
from rmab.protocol.round_memory import RoundMemory
from rmab.service.server.metrics import Metrics
from rmab.service.store.store import OpenRound, Store
from rmab.service.store.writer import Jobs

__all__ = [
    "Counted",
    "Estimates",
    "PlannedRound",
    "Planning",
    "RoundPlanning",
    "Tasks",
    "plan_json",
    "sums_by_group",
    "tells_groups",
]

T = TypeVar("T")
Parts = tuple[bytes, bytes]  # of a message: what is before the agent's name, and after it
Arms = list[dict[str, Any]]  # estimates, by arm


class PlannedRound(Protocol):
    """A plan, and the slots of its episodes if the policy sets them."""

    @property
    def plan(self) -> Plan: ...

    @property
    def limit(self) -> int | None: ...


class Planning(Protocol):
    """Maker of plans and estimates: `rmab.protocol.planner.Planner`, which says more of each."""

    def plan(
        self,
        merged: Merged,
        number: int,
        lane: int = 0,
        each: LaneCounts | None = None,
        memory: RoundMemory | None = None,
    ) -> PlannedRound:
        """Return the plan of round `number` for a lane.

        each, memory: given where the policy forgets, learns its prior or compares agents.
        """

    def estimates(self, merged: Merged) -> Arms:
        """Return estimates of the arms."""

    def laws(
        self,
        merged: Merged,
        number: int,
        groups: Mapping[int, Merged] | None = None,
    ) -> SummariesMessage:
        """Return the summaries that agents draw by in round `number`."""

    def remember(
        self,
        memory: RoundMemory | None,
        before: LaneCounts | None,
        now: LaneCounts,
        length: int,
    ) -> RoundMemory:
        """Return the memory of counts that lose weight, when a round closes."""


class Counted(NamedTuple):
    """Evidence that a round is planned from: the sum of all counts, and where its aggregation needs
    them, the counts of each agent.

    memory: of counts that lose weight; groups: the sum of each group, where agents are given its
    summary; None: as they are in the database.
    """

    merged: Merged
    by_lane: LaneCounts | None
    memory: RoundMemory | None = None
    groups: Mapping[int, Merged] | None = None

    @classmethod
    def of(cls, opened: OpenRound) -> Counted:
        """Return the evidence that the open round was planned from."""
        return cls(opened.merged, opened.by_lane, opened.memory)

    def evidence(self, aggregation: Aggregation, lane: int) -> Merged:
        """Return the counts that the learner of a lane sees."""
        if self.by_lane is None:
            return self.merged
        counts, visits = ([*x, *self._nothing(x, lane)] for x in self.by_lane[:2])
        given = [np.asarray(of_agent.any(), np.int64) for of_agent in visits]
        weights = self.by_lane.weights
        if weights is not None:  # who has given nothing may have any
            weights = np.append(weights, np.ones(len(given) - len(weights)))
        return Merged(
            evidence_of(aggregation, counts, lane, weights),
            evidence_of(aggregation, visits, lane, weights),
            evidence_of(aggregation, given, lane, weights).item(),
        )

    def pooled(self, aggregation: Aggregation) -> Merged:
        """Return the counts that all learners see; where each sees its own, the sum of all."""
        if self.memory is not None:
            return Merged(*self.memory.heaviest(), self.merged.agents)
        return self.evidence(aggregation, 0) if aggregation.shared else self.merged

    @staticmethod
    def _nothing(x: npt.NDArray[np.int64], lane: int) -> npt.NDArray[np.int64]:
        """Return zeros for agents that were enrolled since, up to this lane."""
        return np.zeros((max(0, lane + 1 - len(x)), *x.shape[1:]), x.dtype)


class Tasks:
    """Work in the background that ends with the server."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin it, in the running loop."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def stop(self) -> None:
        """Cancel all of it, and wait until it has ended."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


class _LazyPlanner:
    """The planner, made by the first thread that needs it: the usual one loads JAX."""

    def __init__(self, federation: Federation, planner: Planning | None) -> None:
        self._federation = federation
        self._planner = planner
        self._making = threading.Lock()
        self.compiles = planner is None  # whether its first plan takes long

    def get(self) -> Planning:
        with self._making:
            if self._planner is None:
                from rmab.compilation import keep_compiled
                from rmab.protocol.planner import Planner

                keep_compiled()
                self._planner = Planner(self._federation)
            return self._planner


class RoundPlanning:
    """The planner of one federation, and the messages of its open round; used in one event loop.

    planner: None, for the one that loads JAX.
    """

    def __init__(
        self,
        federation: Federation,
        planner: Planning | None,
        *,
        jobs: Jobs,
        tasks: Tasks,
        metrics: Metrics,
    ) -> None:
        self._federation = federation
        self._planner = _LazyPlanner(federation, planner)
        self._estimates = Estimates(self._planner, federation.shares)
        self._jobs = jobs
        self._tasks = tasks
        self._metrics = metrics
        self._executor = ThreadPoolExecutor(1, "rmab-planner")
        self._busy = False  # whether its thread makes a plan
        self.able = not self._planner.compiles  # whether a plan is made without compiling first
        self._opened: OpenRound | None = None
        self._plan: Plan | None = None  # of lane 0
        self._messages: dict[int, asyncio.Future[Parts]] = {}  # by lane
        self._told: dict[int, bytes] = {}  # laws of the last two rounds that were planned
        self._kept_estimates: Arms | None = None  # in the database

    @property
    def busy(self) -> bool:
        """Whether a thread is at work that cannot be stopped."""
        return self._busy or self._estimates.busy

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do something else that takes time in the planner's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def stop(self, *, patient: bool) -> None:
        """Make no further plans; `patient` waits for the one that is being made."""
        self._estimates.stop(patient=patient)
        self._executor.shutdown(wait=patient, cancel_futures=True)

    async def plan(self, counted: Counted, number: int, lane: int = 0) -> PlannedRound:
        """Return the plan of round `number` for a lane, from the counts before it."""
        groups = counted.groups
        if groups is None and tells_groups(self._federation):
            groups = await self._jobs.run(lambda store: sums_by_group(store, answered=False))

        def work() -> PlannedRound:
            self._busy = True
            try:
                planner = self._planner.get()
                if self._federation.recalls:
                    return planner.plan(
                        counted.merged, number, lane, counted.by_lane, counted.memory
                    )
                evidence = counted.evidence(self._federation.shares, lane)
                if self._federation.draws == "own":
                    laws = planner.laws(evidence, number, groups)
                    kept = {key: self._told[key] for key in self._told if key == number - 1}
                    self._told = {**kept, number: laws.to_json()}
                return planner.plan(evidence, number, lane)
            finally:
                self._busy = False

        started = time.perf_counter()
        planned = await self.in_thread(work)
        self._metrics.plan_seconds.observe(time.perf_counter() - started)
        self.able = True
        return planned

    async def remembered(self, counted: Counted, closing: OpenRound | None, length: int) -> Counted:
        """Return the counts, with the memory of them where they lose weight.

        closing: the round that they were counted in, None before the first; length: its slots.
        """
        if not self._federation.forgets or counted.by_lane is None:
            return counted
        now, before = counted.by_lane, closing and closing.by_lane

        def work() -> RoundMemory:
            kept = closing and closing.memory
            return self._planner.get().remember(kept, before, now, length)

        return counted._replace(memory=await self.in_thread(work))

    async def prepare(self, counted: Counted, number: int) -> None:
        """Have all compiled that a plan needs, by making one."""
        if not self.able:
            await self.plan(counted, number)

    async def estimated(self, opened: OpenRound | None, seconds: float) -> Arms | None:
        """Return estimates of the arms in the open round, or of an earlier one where they take
        longer than `seconds`; None before there are any. Plans are compiled first."""
        if opened is None:
            return None
        found = self._estimates.known
        if self.able:
            found = await self._estimates.last(opened, seconds)
            if found is not None and found is not self._kept_estimates:
                self._kept_estimates = found
                self._tasks.start(self._keep_estimates(found))
        return found

    async def _keep_estimates(self, arms: Arms) -> None:
        """For a server that starts again: it shows these until it has computed its own."""
        text = json.dumps(arms, separators=(",", ":"))
        with contextlib.suppress(StorageError):
            await self._jobs.run(lambda store: store.keep_estimates(text))

    def resume_estimates(self, text: str) -> None:
        """Show these until others are computed."""
        self._kept_estimates = self._estimates.known = json.loads(text)

    # -------------------------------------------------------------------------------- messages

    def enter(self, opened: OpenRound, plan: Plan | None) -> None:
        """This round is the open one: messages are of it from now on; plan: None, as kept."""
        self._opened = opened
        self._plan = self._read(opened.plan_json) if plan is None else plan
        self._messages = {}

    @property
    def shown_plan(self) -> Plan | None:
        """Plan of the open round for lane 0; None before the first."""
        return self._plan

    async def message(self, lane: int) -> Parts:
        """The open round's message for a lane, before and after the agent's name."""
        if not self._federation.plan_per_agent:
            lane = 0
        if lane not in self._messages:
            work = self._tasks.start(self._written(lane))
            self._messages[lane] = work
            work.add_done_callback(partial(self._forget_failed, lane))
        return await asyncio.shield(self._messages[lane])

    async def laws(self) -> bytes:
        """Return the summaries that agents draw by in the open round: as of its plan, or made once
        more after a restart."""
        opened = self._opened
        assert opened is not None
        if opened.number not in self._told:
            await self.plan(Counted.of(opened), opened.number)
        return self._told[opened.number]

    def _forget_failed(self, lane: int, done: asyncio.Future[Parts]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if failed and self._messages.get(lane) is done:
            del self._messages[lane]

    async def _written(self, lane: int) -> Parts:
        opened, plan = self._opened, self._plan
        assert opened is not None
        assert plan is not None
        if lane:
            plan = await self._plan_of(lane, opened)
        return _message_parts(self._federation, opened, plan)

    async def _plan_of(self, lane: int, opened: OpenRound) -> Plan:
        """The plan of a lane above 0: the one that is kept, or a new one, which then is."""
        kept = await self._jobs.run(lambda store: store.plan(opened.number, lane))
        if kept is not None:
            return self._read(kept)
        counted = Counted.of(opened)
        plan = (await self.plan(counted, opened.number, lane)).plan
        text = plan_json(plan)
        await self._jobs.run(lambda store: _save_plan(store, opened.number, lane, text))
        return plan

    def _read(self, text: bytes | None) -> Plan:
        assert text is not None
        return parse_plan(json.loads(text), self._federation.shape)


class Estimates:
    """Estimates of the arms in the open round; used in one event loop."""

    def __init__(self, planner: _LazyPlanner, aggregation: Aggregation) -> None:
        self._planner = planner
        self._aggregation = aggregation
        self._executor = ThreadPoolExecutor(1, "rmab-estimates")
        self._round = 0
        self._work: asyncio.Future[Arms] | None = None
        self.known: Arms | None = None  # the last that were made

    @property
    def busy(self) -> bool:
        """Whether its thread is at work."""
        return self._work is not None and not self._work.done()

    async def last(self, opened: OpenRound, seconds: float) -> Arms | None:
        """Return those of the open round, or where they take longer, of the last that has any."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while True:
            work = self._asked(opened)
            await asyncio.wait({work}, timeout=max(0.0, until - loop.time()))
            # Of an earlier round, there may be time for this one's.
            if self._round >= opened.number or not work.done() or loop.time() >= until:
                return self.known

    def _asked(self, opened: OpenRound) -> asyncio.Future[Arms]:
        if self._work is None or (self._round < opened.number and not self.busy):
            loop = asyncio.get_running_loop()
            self._round = opened.number
            counted = Counted.of(opened)
            self._work = loop.run_in_executor(self._executor, self._make, counted)
            self._work.add_done_callback(self._made)
        return self._work

    def _make(self, counted: Counted) -> Arms:
        return self._planner.get().estimates(counted.pooled(self._aggregation))

    def _made(self, done: asyncio.Future[Arms]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._work = None  # who asks next tries again
        else:
            self.known = done.result()

    def stop(self, *, patient: bool) -> None:
        """Make no further estimates; `patient` waits for those that are being made."""
        self._executor.shutdown(wait=patient, cancel_futures=True)


def tells_groups(federation: Federation) -> bool:
    """Return whether agents are given the summary of each group beside that of all."""
    privacy = federation.privacy
    return federation.draws == "own" and privacy is not None and privacy.groups > 1


def sums_by_group(store: Store, *, answered: bool) -> dict[int, Merged]:
    """Job: the sum of each group; answered: with openings that are not added yet."""
    assert store.openings is not None
    found = store.openings.sums(answered=answered)
    return {group: Merged(each.counts, each.visits, 0) for group, each in found.items()}


def plan_json(plan: Plan) -> bytes:
    """A plan as the database keeps it: compact JSON."""
    return json.dumps(plan_table(plan), separators=(",", ":"), allow_nan=False).encode()


def _save_plan(store: Store, number: int, lane: int, text: bytes) -> None:
    """Keep a lane's plan, if its round is still the open one."""
    current = store.current_round()
    if current is not None and current.number == number:
        store.save_plan(number, lane, text)


def _message_parts(federation: Federation, opened: OpenRound, plan: Plan) -> Parts:
    """A round's message before and after the name of the agent that it is for."""
    message = RoundMessage(
        federation=federation.name,
        agent="",
        round=opened.number,
        slots=opened.limit,
        visit_factor=opened.visit_factor,
        shape=federation.shape,
        rewards=tuple(arm.reward for arm in federation.arms),
        plan=plan,
        idle_rewards=tuple(arm.reward_passive for arm in federation.arms),
        survey=federation.survey,
    )
    # Before the agent there is the federation's name, which has no quotes in it.
    head, key, tail = message.to_json().partition(b'"agent":"')
    return head + key, tail
