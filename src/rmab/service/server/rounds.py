"""The heart of the server: one open round, the agents in it, the database behind it.

All of it runs in one event loop. Three things leave it: jobs for the database, one after another in
the writer's thread; plans, one after another in the planner's (rmab.service.server.planning); and
nothing else.

    upload   parsed, then one job decides on it and keeps it; it is acknowledged when committed
    closing  when the coordinator says that the round is due, one task takes the merged counts,
             has the next round planned from them, and closes one and opens the other in one
             transaction. Until that is committed the old round stays open, and a plan or a commit
             that fails is tried again.
    restart  the open round is in the database with its plan and the counts it was made from. It
             goes on as it was; JAX is not loaded until a round must be planned.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from rmab.errors import ProtocolError, StorageError
from rmab.federation.config import Federation
from rmab.federation.messages import Merged, Upload
from rmab.federation.rounds import Coordinator, first_limit
from rmab.service.server.logs import Log
from rmab.service.server.metrics import Metrics
from rmab.service.server.planning import Drafts, Planning
from rmab.service.server.receiving import Received, receive
from rmab.service.server.roster import Identity, Roster
from rmab.service.server.status import Overview, Standings, agent_table
from rmab.service.server.waiting import Waiting
from rmab.service.store.returns import Returns
from rmab.service.store.rows import OpenRound
from rmab.service.store.store import Store, claimed_store
from rmab.service.store.writer import Writer

__all__ = ["Federator"]

FIRST_BACKOFF, LAST_BACKOFF = 1.0, 60.0

T = TypeVar("T")


class Federator:
    """One federation, served. Every method is called in the event loop."""

    def __init__(
        self,
        federation: Federation,
        database: str,
        *,
        planner: Planning | None = None,
        log: Log,
        metrics: Metrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.federation = federation
        self._database = database
        self._log = log
        self._metrics = metrics
        self._clock = clock
        self._drafts = Drafts(
            federation, planner, run=self._job, background=self._background, metrics=metrics
        )
        self._writer: Writer | None = None
        self._round: OpenRound | None = None
        self._coordinator = Coordinator(0, 0, federation.deadline)
        self._slots_before = 0  # agent slots told of before the open round
        self.waiting = Waiting()
        self.roster = Roster(self._job, log, clock)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing = False
        self._alarm: asyncio.TimerHandle | None = None
        self._overview = Overview(federation)

    @property
    def number(self) -> int:
        """Of the open round; 0 before the first."""
        return 0 if self._round is None else self._round.number

    @property
    def planning(self) -> bool:
        """Whether a thread is at work that cannot be stopped."""
        return self._drafts.busy

    # ------------------------------------------------------------------------- start and stop

    async def start(self) -> None:
        """Open the database, and go on with its round or open the first."""
        loop = self._loop = asyncio.get_running_loop()
        self._returns = Returns(loop)
        store = await self._drafts.in_thread(self._open_store)
        self._writer = Writer(store, self._committed)
        found, awaited, reports, slots = await self._job(self._resumed)
        if found is None:
            found = await self._first_round()
        self._slots_before = slots
        now = loop.time()
        self._enter(
            found,
            Coordinator(found.number, found.limit, self.federation.deadline, awaited, reports, now),
        )
        self._log("info", "round open", round=found.number, limit=found.limit)
        self._background(self.roster.keep_writing())
        self._consider()

    def _committed(self, jobs: int, _: float) -> None:
        self._metrics.commit_jobs.observe(jobs)

    def _open_store(self) -> Store:
        return claimed_store(self._database, self.federation)

    @staticmethod
    def _resumed(store: Store) -> tuple[OpenRound | None, set[str], Mapping[str, int], int]:
        found = store.current_round()
        awaited, reports = store.awaited(found.number) if found else (set(), {})
        slots = sum(row.slots or 0 for row in store.rewards(2**31 - 1))
        return found, awaited, reports, slots

    async def _first_round(self) -> OpenRound:
        merged = await self._job(lambda store: store.merged())
        opened = await self._drafted(1, first_limit(self.federation.schedule), merged)
        await self._job(lambda store: store.open_round(opened))
        return opened

    def release(self) -> None:
        """Let go of all that wait for a round; from now on nobody waits, and no round closes."""
        self.waiting.release()

    async def stop(self, *, patient: bool = True) -> None:
        """Finish what the database was given, and give it back.

        A plan that is being made cannot be stopped; `patient` waits for its thread.
        """
        self.release()
        if self._alarm is not None:
            self._alarm.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._writer is not None:
            with contextlib.suppress(StorageError):
                await self.roster.write()
            writer, self._writer = self._writer, None
            await asyncio.get_running_loop().run_in_executor(None, writer.close)
        self._drafts.stop(patient=patient)

    async def _job(self, job: Callable[[Store], T]) -> T:
        """Run a job in the writer's thread; returns when what it wrote is committed."""
        if self._writer is None:
            raise StorageError("the database is closed")
        return await self._returns.of(self._writer.submit(job))

    def _background(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do it while the server runs; it ends with the server."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # ---------------------------------------------------------------------------------- agents

    async def identify(
        self, key_id: str, secret_hash: bytes, *, again: bool = False
    ) -> Identity | None:
        """Whose token this is; None for an unknown or a revoked one.

        again: what is asked checks it again, so one that was good a moment ago will do.
        """
        if again and (known := self.roster.known(key_id, secret_hash)):
            return known
        found = await self.roster.identify(key_id, secret_hash)
        if isinstance(found, str):
            self._forget(found)
            return None
        return found

    def refused(self, name: str, error: ProtocolError) -> None:
        """An upload of this agent's was refused."""
        if error.status not in (410, 503):  # those are no fault of the agent's
            self.roster.refused(name)

    async def receive(self, agent: Identity, upload: Upload) -> Received:
        """Keep an upload; returns when it is committed. ProtocolError if it is refused."""
        plays, now = self.federation.plays, self._clock()

        def job(store: Store) -> Received:
            key_id, secret_hash = agent.key_id, agent.secret_hash
            current = store.open_number()
            return receive(store, key_id, secret_hash, upload, current, plays, now)

        try:
            received = await self._job(job)
        except ProtocolError as error:
            if error.status == 401:  # revoked since it was last checked
                self._forget(agent.name)
            raise
        if received.status == "new":
            self._overview.changed()
            if upload.round == self._coordinator.number:
                self._coordinator.reported(agent.name, upload.length, self._loop.time())
                self._consider()
        return received

    async def newer(self, agent: Identity, after: int, wait: float) -> bool:
        """Whether there is a round above `after`, now or within `wait` seconds."""
        if self.number > after:
            return True
        if self.number == after:
            self._coordinator.fetched(agent.name)  # it has this round, from before a restart, say
            self.roster.fetched[agent.name] = after
        return await self.waiting.wait(agent.name, wait)

    async def message(self, agent: Identity) -> bytes:
        """The open round for an agent, which takes part in it from now on."""
        number = self.number
        head, tail = await self._drafts.message(agent.lane)
        if number == self._coordinator.number:
            self._coordinator.fetched(agent.name)
        self.roster.fetched[agent.name] = number
        self.roster.met(agent)
        return head + agent.name.encode() + tail

    def leave(self, name: str) -> None:
        """The agent is not awaited until it fetches again."""
        self.waiting.wake(name, False)
        self._coordinator.left(name)
        self.roster.fetched.pop(name, None)
        self._consider()

    # ---------------------------------------------------------------------------------- rounds

    def _enter(self, opened: OpenRound, coordinator: Coordinator) -> None:
        """Make a round that is in the database the open one, and tell all that wait."""
        self._round = opened
        self._coordinator = coordinator
        self._drafts.enter(opened)
        self._closing = False
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        self._overview.enter(opened)
        self._metrics.round.set(opened.number)
        self.waiting.wake_all(True)

    def _consider(self) -> None:
        """Close the round if it is due; if not, look again at its deadline."""
        if self._closing or self.waiting.released:
            return
        loop = asyncio.get_running_loop()
        reason = self._coordinator.due(loop.time())
        if reason is not None:
            self._closing = True
            self._background(self._close(reason))
            return
        wakes = self._coordinator.wakes()
        if wakes is not None and self._alarm is None:
            self._alarm = loop.call_at(wakes + 0.001, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        self._consider()

    async def _close(self, reason: str) -> None:
        pause = FIRST_BACKOFF
        while True:
            try:
                await self._advance(reason)
                break
            except asyncio.CancelledError:
                raise
            except Exception as error:  # whatever it is, the old round goes on
                self._log(
                    "error",
                    "round not closed, trying again",
                    round=self.number,
                    error=f"{type(error).__name__}: {error}",
                    seconds=pause,
                )
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_BACKOFF)
        self._consider()

    async def _advance(self, reason: str) -> None:
        """Close the open round and open the next."""
        closing = self._round
        assert closing is not None
        number = closing.number + 1
        merged, totals = await self._job(lambda store: (store.merged(), store.totals()))
        # The limit is of what was reported until now; who reports while the plan is made is
        # awaited in the next round all the same.
        limit = self._coordinator.next(self.federation.schedule).limit
        opened = await self._drafted(number, limit, merged)
        slots = totals.slots - self._slots_before
        reward = self._overview.reward(merged.visits - closing.merged.visits, slots)
        reports = len(self._coordinator.reports)
        now = self._clock()

        def commit(store: Store) -> set[str]:
            store.close_round(closing.number, now, reason, reports, slots, reward)
            store.open_round(opened)
            return {row.name for row in store.agents() if row.revoked is not None}

        # Who was revoked by another process, and has asked for nothing since, is found here.
        for name in await self._job(commit) & (self.waiting.names | self._coordinator.awaited):
            self._forget(name)
        following = self._coordinator.next(self.federation.schedule)
        coordinator = Coordinator(number, opened.limit, self.federation.deadline, following.awaited)
        self._slots_before = totals.slots
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
        self._enter(opened, coordinator)
        self._log("info", "round open", round=number, limit=opened.limit)

    async def _drafted(self, number: int, limit: int, merged: Merged) -> OpenRound:
        return await self._drafts.draft(number, limit, merged, live=self._live, clock=self._clock)

    # ---------------------------------------------------------------------------- what is shown

    async def status(self) -> dict[str, Any]:
        """The federation in numbers."""
        assert self._round is not None
        estimates = await self._drafts.estimates.of(self._round)
        rows, totals = await self._job(lambda store: (store.agents(), store.totals()))
        return self._overview.status(rows, totals, len(self._live()), estimates)

    async def overview(self) -> bytes:
        """All that the page shows, as JSON."""
        kept = self._overview.kept()
        if kept is not None:
            return kept
        found = await self._job(Standings.of)
        seen = {row.name: self.roster.seen(row.name) for row in found.agents}
        assert self._round is not None
        reports, now = len(self._coordinator.reports), self._clock()
        estimates = await self._drafts.estimates.last(self._round)
        return self._overview.page(found, self._live(), seen, reports, now, estimates)

    def _live(self) -> set[str]:
        """Who takes part in the open round."""
        return self._coordinator.awaited | self._coordinator.reports.keys()

    async def measure(self) -> None:
        """Bring the gauges up to date, with what the database tells if it answers."""
        with contextlib.suppress(StorageError):
            rows = await self._job(lambda store: store.agents())
            revoked = [row.revoked is not None for row in rows if row.role == "agent"]
            self._metrics.agents.labels("enrolled").set(revoked.count(False))
            self._metrics.agents.labels("revoked").set(revoked.count(True))
        self._metrics.agents.labels("live").set(len(self._live()))
        self._metrics.longpolls.set(self.waiting.count)
        if self._writer is not None:
            self._metrics.queue_jobs.set(self._writer.waiting)

    async def ready(self) -> bool:
        """Whether the database answers and a round is open."""
        try:
            found = await asyncio.wait_for(self._job(lambda store: store.current_round()), 5)
        except (StorageError, TimeoutError):
            return False
        return found is not None and self._round is not None

    # ---------------------------------------------------------------------------------- admins

    async def agents(self) -> list[dict[str, Any]]:
        """All that were ever enrolled."""
        rows = await self._job(lambda store: store.agents())
        live = self._live()
        return [agent_table(row, row.name in live, self.roster.seen(row.name)) for row in rows]

    async def enroll(self, name: str, role: str) -> str:
        """A new credential's token; ProtocolError if the name has one."""
        token = await self.roster.enroll(name, role)
        self._overview.changed()
        return token

    async def revoke(self, name: str) -> bool:
        """Take a credential back; False if there is none."""
        done = await self.roster.revoke(name)
        if done:
            self._forget(name)
        return done

    def _forget(self, name: str) -> None:
        """A credential is valid no more; nobody waits for who had it."""
        self.roster.forget(name)
        self.leave(name)
        self._overview.changed()
