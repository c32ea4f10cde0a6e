"""Life of a round: open, collect, close, plan, commit.

All of it runs in one event loop, except jobs for the database, one after another in the writer's
thread (`rmab.service.store.writer`), and plans, one after another in the planner's
(`rmab.service.server.planning`).

    closing  when the round is due (`rmab.protocol.rounds`), one task takes the merged counts,
             has the next round planned from them, and closes one and opens the other in one
             transaction. Until that is committed the old round stays open, and a plan or a commit
             that fails is tried again. Where counts of an agent were taken out meanwhile, it is
             planned once more: no round opens with them. Where the server learns only sums,
             they are unmasked first (`rmab.service.server.unmasking`) and added in that
             transaction. Where it draws noise, the sum is released first, if that is due: agents
             and people see only released sums (`rmab.service.store.noisy_sums`).
    restart  the open round is in the database with its plan and the counts it was made from. It
             goes on as it was. The planner, which takes long to load and to compile, is made ready
             meanwhile.
    start    of a federation without a round: the first is planned while requests are answered.
    tidying  now and then the database drops rows by the rules of retention, a few agents at a time.

`Rounds` makes its parts and calls them; none of them knows it. Modules that serve requests
(`identity`, `uploads`, `status`, `routes`) know `Rounds`, which knows none of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import numpy as np

from rmab.errors import FederationError, ModelError, ProtocolError, StorageError, StudyError
from rmab.policies.episodes import LONGEST, first_limit, round_length, visits_can_end
from rmab.policies.plans import Plan
from rmab.privacy.noise import discrete_gaussian
from rmab.protocol.config import Federation
from rmab.protocol.correlation import AgentCorrelation
from rmab.protocol.growth import Merged
from rmab.protocol.rounds import Coordinator
from rmab.protocol.shape import Upload
from rmab.service.http.telemetry import Log
from rmab.service.server.limits import ServerLimits
from rmab.service.server.metrics import Metrics
from rmab.service.server.planning import (
    Counted,
    Planning,
    RoundPlanning,
    Tasks,
    plan_json,
    sums_by_group,
    tells_groups,
)
from rmab.service.server.unmasking import HelperAccess, SumOpening
from rmab.service.store.credentials import Sighting
from rmab.service.store.noisy_sums import ReleaseSummary
from rmab.service.store.store import (
    CLOCK_SECONDS,
    AgentRow,
    Erased,
    Erasure,
    OpenRound,
    Store,
    claimed_store,
)
from rmab.service.store.uploads import UploadTotals
from rmab.service.store.writer import Jobs

__all__ = ["RELOADED", "LongPolls", "Presence", "Rounds"]

UNPACED = (
    "slot_seconds is not set: one agent may claim any number of slots, and what all others have "
    "counted is then next to nothing. Set it to the shortest slot, in seconds."
)
# Keys of a federation that may change while it is served; the others are in plans and messages.
RELOADED = (
    "schedule",
    "deadline",
    "live_seconds",
    "slot_seconds",
    "reference",
    "uploads_per_second",
    "incarnations_per_hour",
)

N = TypeVar("N", int, float)
T = TypeVar("T")


class Rounds:
    """Rounds of one federation, served. Every method is called in the event loop.

    changes: goes up whenever something happens that the page shows; lost: called when another
    process has taken the database, after which this one cannot go on.
    """

    def __init__(
        self,
        federation: Federation,
        database: str,
        *,
        planner: Planning | None = None,
        log: Log,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
        limits: ServerLimits | None = None,
        helper: HelperAccess | None = None,
    ) -> None:
        self.federation = federation
        self.limits = limits or ServerLimits()
        self.clock = clock
        self.changes = 0
        self._database = database
        self._log = log
        self._metrics = metrics
        self._rewards = federation.rewards
        self._idle_rewards = federation.idle_rewards
        self._tasks = Tasks()
        self.lost: Callable[[StorageError], None] = lambda _: None
        self.jobs = Jobs(lambda error: self.lost(error))
        self.planning = RoundPlanning(
            federation, planner, jobs=self.jobs, tasks=self._tasks, metrics=metrics
        )
        # Where the server learns sums alone; None: it is told counts.
        self.opening = (
            SumOpening(
                federation,
                helper,
                jobs=self.jobs,
                log=log,
                metrics=metrics,
                limits=self.limits,
                clock=clock,
            )
            if federation.masks
            else None
        )
        self.polls = LongPolls(self.limits)
        self.presence = Presence(self.jobs, log, clock)
        self.together = AgentCorrelation(np.asarray(federation.rewards).argmax(0))
        self._round: OpenRound | None = None
        self._coordinator = Coordinator(0, 0, federation.deadline)
        self._slots_before = 0  # agent slots told of before the open round
        self._behind = 0.0  # seconds that the clock is behind the newest time stored
        self._closing = False
        self._alarm: asyncio.TimerHandle | None = None
        # Ends once a plan can be made; what fails for good is raised there.
        self.preparing: asyncio.Task[None] | None = None

    def reconfigure(self, federation: Federation) -> tuple[dict[str, Any], list[str]]:
        """Take over settings that may change while serving: the schedule from the next round on.

        Return the changes, and the names of other differences, which need a restart.
        """
        current = self.federation
        different = [
            key.name
            for key in fields(Federation)
            if getattr(federation, key.name) != getattr(current, key.name)
        ]
        changed = {key: getattr(federation, key) for key in different if key in RELOADED}
        self.federation = replace(current, **changed)
        self.changes += 1
        if self._round is not None:
            self._coordinator.deadline = self.federation.deadline
            if self._alarm is not None:
                self._alarm.cancel()
            self._ring()
        return changed, [key for key in different if key not in RELOADED]

    @property
    def number(self) -> int:
        """Number of the open round; 0 before the first."""
        return 0 if self._round is None else self._round.number

    @property
    def current(self) -> OpenRound | None:
        """The open round; None before the first."""
        return self._round

    @property
    def opened(self) -> OpenRound:
        """The open round, where there is one."""
        assert self._round is not None
        return self._round

    def warnings(self) -> list[str]:
        """Return the page's warnings, in sentences."""
        found = []
        if not self.federation.paces:
            found.append(UNPACED)
        if self._behind:
            found.append(
                f"The clock is {_told_seconds(self._behind)} behind the newest time in the "
                "database: it is wrong now, or was ahead before."
            )
        return found

    def live(self, rows: Iterable[AgentRow]) -> set[str]:
        """Return agents of these rows that were heard of lately, or wait for a round now."""
        now, seconds = self.clock(), self.federation.heard_seconds
        waiting = self.polls.names
        return {
            row.name
            for row in rows
            if row.is_live(now, seconds) or (row.name in waiting and row.revoked is None)
        }

    @property
    def reports(self) -> int:
        """How many agents have reported in the open round."""
        return len(self._coordinator.reports)

    # ------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Open the database, and go on with its round; all that takes long goes on afterwards."""
        loop = self._loop = asyncio.get_running_loop()
        store = await self.planning.in_thread(self._open_store)
        self.jobs.start(store, self._metrics.commit_jobs.observe)
        if self.opening is not None:
            await self.opening.check()
        resumed = await self.jobs.run(_resumed)
        found, awaited, reports, self._slots_before, estimates = resumed
        if estimates is not None:
            self.planning.resume_estimates(estimates)
        await self.audit()
        await self._check_clock()
        if not self.federation.paces:
            self._log("warning", "slots are not limited", detail=UNPACED)
        if self.federation.weights:
            await self._check_weights()
        if self.federation.budget is not None:
            agents = await self.jobs.run(_enrolled)
            detail = self.federation.cost_warning(agents)
            if detail is not None:
                self._log("warning", "much noise for few agents", agents=agents, detail=detail)
        # Often enough for whoever reads the database to know who is live.
        often = max(0.5, self.federation.heard_seconds / 4)
        self._tasks.start(self.presence.keep_writing(min(self.limits.sightings_seconds, often)))
        self._tasks.start(self._keep_tidy())
        if found is None:
            self.preparing = self._tasks.start(self._first_round())
            return
        self._enter(
            found,
            None,
            Coordinator(
                found.number, found.limit, self.federation.deadline, awaited, reports, loop.time()
            ),
        )
        self._log("info", "round open", round=found.number, limit=found.limit)
        self._consider()
        self.preparing = self._tasks.start(self._prepare(found))

    def _open_store(self) -> Store:
        if self.federation.draws_noise:  # what draws it must be there before it is needed
            self._noise(1)
        return claimed_store(self._database, self.federation, self.limits.store)

    async def _first_round(self) -> None:
        """Open round 1, in the end."""

        async def attempt() -> None:
            counted, *_ = await self.jobs.run(self._counted)
            counted = await self.planning.remembered(counted, None, 0)
            limit = first_limit(self.federation.schedule, self.federation.longest)
            opened, plan = await self._draft(1, limit, counted)
            await self.jobs.run(lambda store: store.open_round(opened))
            self._enter(opened, plan, Coordinator(1, opened.limit, self.federation.deadline))
            self._log("info", "round open", round=1, limit=opened.limit)

        await self._insist(attempt, "round not opened, trying again")

    async def _prepare(self, opened: OpenRound) -> None:
        """Make the planner ready for the round after this one. The first moments after a restart
        are for agents that come back."""
        if self.planning.able:
            return
        await asyncio.sleep(self.limits.prepare_seconds)
        counted = Counted.of(opened)
        await self._insist(
            lambda: self.planning.prepare(counted, opened.number + 1),
            "planner not ready, trying again",
        )

    async def _insist(
        self,
        attempt: Callable[[], Awaitable[T]],
        event: str,
        lasting: tuple[type[Exception], ...] = (FederationError, ModelError, StudyError),
    ) -> T:
        """Try until it works; errors that are `lasting`, of the federation's file, are raised."""
        pause = self.limits.first_retry_seconds
        while True:
            try:
                return await attempt()
            except Exception as error:
                if isinstance(error, lasting):
                    raise
                self._log_trouble(event, error, pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, self.limits.last_retry_seconds)

    def _log_trouble(self, event: str, error: Exception, pause: float) -> None:
        self._log(
            "error",
            event,
            round=self.number,
            error=f"{type(error).__name__}: {error}",
            seconds=pause,
        )

    def release(self) -> None:
        """Release waiting requests; from now on none waits, and no round closes."""
        self.polls.release()

    async def stop(self, *, patient: bool = True) -> None:
        """Finish pending jobs, and release the database.

        A plan that is being made cannot be stopped; `patient` waits for its thread.
        """
        self.release()
        if self._alarm is not None:
            self._alarm.cancel()
        await self._tasks.stop()
        if self.opening is not None:
            await self.opening.stop()
        if self.jobs.running:
            with contextlib.suppress(StorageError):
                await self.presence.write()
        await self.jobs.stop()
        self.planning.stop(patient=patient)

    async def waits_for(self) -> str | None:
        """Return the server's missing part, before it is complete; None: nothing is missing."""
        if self._round is None:
            return "the first round is being planned"
        if self.preparing is not None and not self.preparing.done() and not self.planning.able:
            return "the planner is being compiled"
        try:
            found = await asyncio.wait_for(self.jobs.run(Store.current_round), 5)
        except (StorageError, TimeoutError):
            return "the database does not answer"
        return None if found is not None else "no round is open"

    def check_open(self) -> None:
        """ProtocolError 503 before the first round."""
        if self._round is None:
            raise ProtocolError(503, "unready", "the first round is being planned; try again")

    async def _keep_tidy(self) -> None:
        """Drop rows by the rules of retention, soon after the start and then again and again."""
        pause = min(self.limits.first_tidy_seconds, self.limits.tidy_seconds)
        while True:
            await asyncio.sleep(pause)
            pause = self.limits.tidy_seconds
            try:
                await self._tidy()
            except Exception as error:  # nothing depends on it but the database's size
                self._log_trouble("rows not dropped, trying again", error, self.limits.tidy_seconds)

    async def _tidy(self) -> None:
        now, few = self.clock(), self.limits.tidy_agents
        names = await self.jobs.run(lambda store: store.retention.agents())
        for start in range(0, len(names), few):
            left = names[start : start + few]
            while left:
                left = await self.jobs.run(partial(_tidied, left, now))
        await self.jobs.run(Store.drop_rounds)
        await self._check_clock()

    # ---------------------------------------------------------------------------------- agents

    async def newer(self, name: str, after: int, wait: float) -> bool:
        """Whether there is a round above `after`, now or within `wait` seconds, for an agent."""
        if self._round is None:
            await self.polls.wait(name, max(wait, self.limits.first_round_seconds))
            self.check_open()
        if self.number > after:
            return True
        if self.number == after:
            self._coordinator.fetched(name)  # it has this round, from before a restart, say
            self.presence.fetched[name] = after
        return await self.polls.wait(name, wait)

    async def message(self, name: str, lane: int) -> bytes:
        """The open round for an agent, which takes part in it from now on."""
        number = self.number
        head, tail = await self.planning.message(lane)
        if number == self._coordinator.number:
            self._coordinator.fetched(name)
        self.presence.fetched[name] = number
        self.presence.met(name)
        return head + name.encode() + tail

    def accepted(self, name: str, upload: Upload) -> None:
        """An upload of this agent's was new, and is committed."""
        self.changes += 1
        if upload.round == self._coordinator.number:
            self._coordinator.reported(name, upload.length, self._loop.time())
            self._consider()

    def leave(self, name: str) -> None:
        """The agent is not awaited until it fetches again."""
        self.polls.wake(name, False)
        self._coordinator.left(name)
        self.presence.fetched.pop(name, None)
        self._consider()

    def forget(self, name: str) -> None:
        """Stop waiting for an agent whose credential was revoked."""
        self.leave(name)
        self.changes += 1

    async def _check_weights(self) -> None:
        """Warn of weights that no owner has: a name may be misspelt, or be enrolled yet."""
        owners = await self.jobs.run(lambda store: store.credentials.owners())
        strangers = sorted(self.federation.weights.keys() - set(owners.values()))
        if strangers:
            self._log("warning", "weights of agents that are not enrolled", agents=strangers)

    async def _check_clock(self) -> None:
        """Warn where the clock is behind the newest time that is stored."""
        newest, now = await self.jobs.run(Store.newest), self.clock()
        before, behind = self._behind, newest - now
        self._behind = behind if behind > CLOCK_SECONDS else 0.0
        if self._behind and not before:
            self._log(
                "warning",
                "clock is behind",
                seconds=round(self._behind),
                newest=_utc(newest),
                now=_utc(now),
            )
        if bool(self._behind) != bool(before):
            self.changes += 1

    async def audit(self) -> None:
        """Log erasures, and enrolments and revocations by commands on the database."""
        for act in await self.jobs.run(Store.acts):
            self._log(
                "info", act.act, agent=act.name, role=act.role, owner=act.owner, by=act.by_whom
            )
            self.changes += 1
        for erasure in await self.jobs.run(Store.audit):
            self._log(
                "warning",
                "forgotten",
                agent=erasure.agent,
                **_audited(erasure),
                by=erasure.by_whom,
            )
            self.changes += 1

    # ---------------------------------------------------------------------------------- rounds

    def _enter(self, opened: OpenRound, plan: Plan | None, coordinator: Coordinator) -> None:
        """Make a round that is in the database the open one, and tell all that wait."""
        self._round = opened
        self._coordinator = coordinator
        self.planning.enter(opened, plan)
        self._closing = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self.changes += 1
        self._metrics.round.set(opened.number)
        self.polls.wake_all(True)

    def _consider(self) -> None:
        """Close the round if it is due; if not, consider it again at its deadline."""
        if self._closing or self.polls.released:
            return
        reason = self._coordinator.due(self._loop.time())
        if reason is not None:
            self._closing = True
            self._coordinator.close(reason)
            self._tasks.start(self._close(reason))
            return
        wakes = self._coordinator.wakes()
        if wakes is not None and self._alarm is None:
            self._alarm = self._loop.call_at(wakes + 0.001, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._consider()

    async def _close(self, reason: str) -> None:
        advance = partial(self._advanced, reason)
        # Until it works, whatever the error is, the old round goes on.
        while not await self._insist(advance, "round not closed, trying again", lasting=()):
            pass
        self._consider()

    async def _advanced(self, reason: str) -> bool:
        """Close the open round and open the next, unless counts were taken out meanwhile."""
        closing = self.opened
        number = closing.number + 1
        if self.opening is not None:
            await self.opening.open(closing.number)
        elif self.federation.draws_noise:
            await self._release(closing.number)
        counted, totals, erased = await self.jobs.run(self._counted)
        # The limit is of what was reported until now; who reports while the plan is made is
        # awaited in the next round all the same.
        schedule, longest = self.federation.schedule, self.federation.longest
        limit = self._coordinator.next(schedule, longest).limit
        length = round_length(schedule, closing.limit, self._coordinator.reports.values())
        counted = await self.planning.remembered(counted, closing, length)
        opened, plan = await self._draft(number, limit, counted)
        # What was taken out has been brought all the same, and some of it in this round.
        brought = totals.slots + erased.slots
        slots = brought - self._slots_before
        paid_slots = slots
        if self.federation.budget is not None:  # where sums have noise, visits are not released
            paid_slots = 0
        elif self.opening is not None:  # a reward is known of what is opened now
            paid_slots = await self.jobs.run(_answered_slots)
        reward = self._mean_reward(counted.merged, closing.merged, paid_slots, erased.paid)
        reports, now = self.reports, self.clock()

        def commit(store: Store) -> set[str] | None:
            if store.last_erasure() != erased.last:
                return None
            if store.openings is not None:
                store.openings.add()
            store.close_round(closing.number, now, reason, reports, slots, reward)
            store.open_round(opened)
            return {row.name for row in store.agents() if row.revoked is not None}

        # Who was revoked by another process, and has asked for nothing since, is found here.
        revoked = await self.jobs.run(commit)
        if revoked is None:
            return False
        for name in revoked & (self.polls.names | self._coordinator.awaited):
            self.forget(name)
        following = self._coordinator.next(schedule, longest)
        coordinator = Coordinator(
            number,
            opened.limit,
            self.federation.deadline,
            following.awaited,
            missed=following.missed,
        )
        self._slots_before = brought
        self._metrics.rounds_closed.labels(reason).inc()
        self._log(
            "info",
            "round closed",
            round=closing.number,
            reason=reason,
            reports=reports,
            slots=slots,
            reward=None if reward is None else round(reward, 6),
        )
        self.together.add(await self.jobs.run(Store.visits_by_agent))
        self._enter(opened, plan, coordinator)
        self._log("info", "round open", round=number, limit=opened.limit)
        await self.audit()
        return True

    async def _release(self, round: int) -> None:
        """Release the sum of all counts, if that is due; it is durable when this returns."""
        if not await self.jobs.run(_is_due):
            return
        z = await self.planning.in_thread(lambda: self._noise(self.federation.shape.size))
        told = await self.jobs.run(partial(_released, z, round, self.clock()))
        if told is not None:
            self._metrics.openings.labels("released").inc()
            self._log("info", "sum released", **told._asdict())

    def _noise(self, size: int) -> Sequence[int]:
        """Draw the noise of a release; FederationError where its library is missing."""
        assert self.federation.budget is not None
        return discrete_gaussian(self.federation.budget, self.federation.plays, size)

    def _counted(self, store: Store) -> tuple[Counted, UploadTotals, Erased]:
        """A job: all that the next plan is made from, as of one moment."""
        each = self.federation.needs_each or (
            self.federation.privacy is None and store.has_owners()
        )
        by_lane = store.counts_by_lane() if each else None
        groups = sums_by_group(store, answered=True) if tells_groups(self.federation) else None
        counted = Counted(store.merged(), by_lane, groups=groups)
        return counted, store.uploads.totals(), store.erased()

    async def _draft(self, number: int, limit: int, counted: Counted) -> tuple[OpenRound, Plan]:
        """Round `number` as it would open now; limit: its slots, unless the policy sets them."""
        planned = await self.planning.plan(counted, number)
        # A policy with lengths of its own has no other rule.
        own = planned.limit is not None
        taking_part = len(self._coordinator.awaited | self._coordinator.reports.keys())
        opened = OpenRound(
            number=number,
            opened=self.clock(),
            limit=limit if planned.limit is None else planned.limit,
            visit_factor=None if own else _visit_factor(self.federation.schedule, taking_part),
            merged=counted.merged,
            plan_json=plan_json(planned.plan),
            by_lane=counted.by_lane,
            memory=counted.memory,
        )
        return opened, planned.plan

    def _mean_reward(
        self, now: Merged, before: Merged, slots: int, taken_out: float
    ) -> float | None:
        """Return the mean reward of a slot: of plays since, and of idle slots of arms that are
        always observed; None without slots. taken_out: reward of counts that are in `before`, but
        no longer in `now`."""
        if slots < 1:
            return None
        idle = self.federation.shape.idle(now.counts - before.counts)
        paid = (now.visits - before.visits) * self._rewards + idle * self._idle_rewards
        return (float(paid.sum()) + taken_out) / slots


def _resumed(
    store: Store,
) -> tuple[OpenRound | None, set[str], Mapping[str, int], int, str | None]:
    """Job: the round to go on with, awaited agents, reports, slots of closed rounds, estimates."""
    found = store.current_round()
    awaited, reports = store.awaited(found.number) if found else (set(), {})
    return found, awaited, reports, store.closed_slots(), store.estimates()


def _enrolled(store: Store) -> int:
    """A job: how many agents have a credential."""
    return sum(row.role == "agent" and row.revoked is None for row in store.agents())


def _answered_slots(store: Store) -> int:
    """A job: slots in sums that the next round is planned from and this one was not."""
    assert store.openings is not None
    return store.openings.answered_slots()


def _is_due(store: Store) -> bool:
    """A job: whether the sum of all counts would be released now."""
    assert store.releases is not None
    return store.releases.is_due()


def _released(z: Sequence[int], round: int, now: float, store: Store) -> ReleaseSummary | None:
    """A job: the sum of all counts, released with this noise; None if that is not due."""
    assert store.releases is not None
    return store.releases.release(z, round, now)


def _tidied(agents: list[str], now: float, store: Store) -> list[str]:
    """A job: drop rows of these agents; those that may have more of them."""
    return store.tidy(agents, now)


def _audited(erasure: Erasure) -> dict[str, int]:
    """Return the log's fields of an erasure."""
    found = erasure._asdict()
    return {key: found[key] for key in ("round", "incarnations", "uploads", "slots")}


def _utc(at: float) -> str:
    """A time, as the log has it."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _told_seconds(seconds: float) -> str:
    """A duration in the largest unit of which there are two or more."""
    for unit, size in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _visit_factor(schedule: str, agents: int) -> int | None:
    """2^M of the paper's stop rule for M agents; None where it never ends an episode."""
    agents = max(1, agents)
    return 2**agents if visits_can_end(schedule, agents, LONGEST) else None


class Presence:
    """When agents were seen, which round they fetched and how often they were refused.

    It is written down every few seconds: it is for people to read, and no round depends on it.
    """

    def __init__(self, jobs: Jobs, log: Log, clock: Callable[[], float]) -> None:
        self._jobs = jobs
        self._log = log
        self._clock = clock
        self.fetched: dict[str, int] = {}  # the round that an agent has, by name
        self._seen: dict[str, float] = {}
        self._refused: defaultdict[str, int] = defaultdict(int)
        self._unwritten: set[str] = set()

    def met(self, name: str) -> None:
        """The agent has asked for something."""
        if name not in self._seen:
            self._log("info", "agent seen first since start", agent=name)
        self._seen[name] = self._clock()
        self._unwritten.add(name)

    def refused(self, name: str) -> None:
        """Something of it was refused."""
        self._refused[name] += 1
        self._unwritten.add(name)

    def updated(self, row: AgentRow) -> AgentRow:
        """Return a row with sightings that the database may not have yet, unless of a clock that
        was ahead."""
        seen = self._seen.get(row.name)
        if seen is not None and seen > self._clock() + CLOCK_SECONDS:
            seen = None
        return row._replace(
            last_seen=_later(row.last_seen, seen),
            last_round=_later(row.last_round, self.fetched.get(row.name)),
            refused=row.refused + self._refused.get(row.name, 0),
        )

    async def write(self) -> None:
        """Write unwritten sightings."""
        if not self._unwritten:
            return
        names, self._unwritten = self._unwritten, set()
        refused, self._refused = self._refused, defaultdict(int)
        sightings = [
            Sighting(name, self._seen.get(name, 0.0), self.fetched.get(name), refused[name])
            for name in names
        ]
        await self._jobs.run(lambda store: store.credentials.sighted(sightings))

    async def keep_writing(self, seconds: float) -> None:
        """Write sightings again and again; those that the database does not take are lost."""
        while True:
            await asyncio.sleep(seconds)
            with contextlib.suppress(StorageError):
                await self.write()


def _later(one: N | None, other: N | None) -> N | None:
    return max((x for x in (one, other) if x is not None), default=None)


class LongPolls:
    """Requests that wait for a round: bounded, of all agents and of each, and released together.

    count: how many there are; released: no request may wait any longer.
    """

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self.count = 0
        self.released = False
        self._turns: dict[str, set[asyncio.Future[bool]]] = {}

    @property
    def names(self) -> set[str]:
        """Agents that wait."""
        return set(self._turns)

    async def wait(self, name: str, seconds: float) -> bool:
        """Wait until woken; return the value passed to `wake`, or False when the time is over."""
        if seconds <= 0 or self.released:
            return False
        turns = self._turns.setdefault(name, set())
        if (
            self.count >= self._limits.round_waits
            or len(turns) >= self._limits.round_waits_of_agent
        ):
            raise ProtocolError(503, "overload", "too many requests wait for a round; try again")
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[bool] = loop.create_future()
        alarm = loop.call_later(seconds, _wake, (turn,), False)
        turns.add(turn)
        self.count += 1
        try:
            return await turn
        finally:
            alarm.cancel()
            self.count -= 1
            turns.discard(turn)
            if not turns and self._turns.get(name) is turns:
                del self._turns[name]

    def wake(self, name: str, newer: bool) -> None:
        """Wake an agent's requests; newer: there is a round for it."""
        _wake(self._turns.get(name, ()), newer)

    def wake_all(self, newer: bool) -> None:
        """Wake all requests."""
        for turns in list(self._turns.values()):
            _wake(turns, newer)

    def release(self) -> None:
        """Release all requests; from now on none waits."""
        self.released = True
        self.wake_all(False)


def _wake(turns: Iterable[asyncio.Future[bool]], newer: bool) -> None:
    for turn in list(turns):
        if not turn.done():
            turn.set_result(newer)
