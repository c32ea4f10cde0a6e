"""Rounds in the making: from merged counts to what the database keeps and what agents are told.

Round r + 1's plan is a function of the seed, the counts that were merged when r closed, r + 1 and
the lane. Plans are made one after another in a thread of their own; JAX is not loaded until the
first one is. A round's message is the same for all agents of a lane but for the name in it. Where
agents draw for themselves, the plan of a lane is made when its agent first asks, and kept.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Collection, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from rmab.federation.config import Federation
from rmab.federation.messages import Merged, RoundMessage, parse_plan, plan_table
from rmab.federation.rounds import LONGEST, visits_can_end
from rmab.policies.plans import Plan
from rmab.service.server.estimates import Estimates
from rmab.service.server.metrics import Metrics
from rmab.service.store.rows import OpenRound
from rmab.service.store.store import Store
from rmab.service.store.writer import Run

__all__ = ["Drafts", "Planned", "Planning"]

T = TypeVar("T")
Parts = tuple[bytes, bytes]  # of a message: what is before the agent's name, and after it
Background = Callable[[Coroutine[Any, Any, Parts]], asyncio.Task[Parts]]

_NAME = "agent-name-goes-here"  # its place in a round's message


class Planned(Protocol):
    """A plan, and the slots of its episodes if the policy sets them."""

    @property
    def plan(self) -> Plan: ...

    @property
    def limit(self) -> int | None: ...


class Planning(Protocol):
    """What makes plans and estimates; `rmab.federation.planner.Planner` in earnest."""

    def plan(self, merged: Merged, number: int, lane: int = 0) -> Planned: ...

    def estimates(self, merged: Merged) -> list[dict[str, Any]]: ...


class Drafts:
    """The planner of one federation, and the messages of its open round; used in one event loop.

    planner: None, for the one that loads JAX; run: runs a job of the writer; background: does what
    ends with the server.
    """

    def __init__(
        self,
        federation: Federation,
        planner: Planning | None,
        *,
        run: Run,
        background: Background,
        metrics: Metrics,
    ) -> None:
        self._federation = federation
        self._planner = planner
        self._run = run
        self._background = background
        self._metrics = metrics
        self._executor = ThreadPoolExecutor(1, "rmab-planner")
        self._planning = False  # whether its thread makes a plan
        self._making = threading.Lock()
        self.estimates = Estimates(lambda merged: self._made_planner().estimates(merged))
        self._opened: OpenRound | None = None
        self._messages: dict[int, asyncio.Future[Parts]] = {}  # by lane

    @property
    def busy(self) -> bool:
        """Whether a thread is at work that cannot be stopped."""
        return self._planning or self.estimates.busy

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do something else that takes time in the planner's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    def stop(self, *, patient: bool) -> None:
        """Make no more; `patient` waits for what is being made."""
        self.estimates.stop(patient=patient)
        self._executor.shutdown(wait=patient, cancel_futures=True)

    # ---------------------------------------------------------------------------------- rounds

    async def draft(
        self,
        number: int,
        limit: int,
        merged: Merged,
        *,
        live: Callable[[], Collection[str]],
        clock: Callable[[], float],
    ) -> OpenRound:
        """Round `number`, planned from these counts, as it would open now.

        limit: its slots, unless the policy sets them; live: who takes part, once it is planned.
        """
        planned = await self._plan(merged, number, 0)
        schedule = self._federation.schedule
        # A policy with lengths of its own has no other rule.
        own = planned.limit is not None
        return OpenRound(
            number=number,
            opened=clock(),
            limit=limit if planned.limit is None else planned.limit,
            visit_factor=None if own else _visit_factor(schedule, live()),
            merged=merged,
            plan_json=_as_json(plan_table(planned.plan)),
        )

    async def _plan(self, merged: Merged, number: int, lane: int) -> Planned:
        started = time.perf_counter()
        planned = await self._in_planner(lambda planner: planner.plan(merged, number, lane))
        self._metrics.plan_seconds.observe(time.perf_counter() - started)
        return planned

    async def _in_planner(self, work: Callable[[Planning], T]) -> T:
        def run() -> T:
            self._planning = True
            try:
                return work(self._made_planner())
            finally:
                self._planning = False

        return await self.in_thread(run)

    def _made_planner(self) -> Planning:
        """In the planner's thread or that of the estimates."""
        with self._making:
            if self._planner is None:
                from rmab.federation.planner import Planner

                self._planner = Planner(self._federation)
            return self._planner

    # -------------------------------------------------------------------------------- messages

    def enter(self, opened: OpenRound) -> None:
        """This round is the open one: messages are of it from now on."""
        self._opened = opened
        self._messages = {}

    async def message(self, lane: int) -> Parts:
        """The open round's message for a lane, before and after the agent's name."""
        if self._federation.draws == "shared":
            lane = 0
        if lane not in self._messages:
            work = self._background(self._written(lane))
            self._messages[lane] = work
            work.add_done_callback(lambda done: self._forget_failed(lane, done))
        return await asyncio.shield(self._messages[lane])

    def _forget_failed(self, lane: int, done: asyncio.Future[Parts]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if failed and self._messages.get(lane) is done:
            del self._messages[lane]

    async def _written(self, lane: int) -> Parts:
        opened = self._opened
        assert opened is not None
        plan_json = opened.plan_json
        if lane:
            plan_json = await self._run(lambda store: store.plan(opened.number, lane))
            if plan_json is None:
                planned = await self._plan(opened.merged, opened.number, lane)
                plan_json = _as_json(plan_table(planned.plan))
                kept = plan_json
                await self._run(lambda store: _save_plan(store, opened.number, lane, kept))
        assert plan_json is not None
        return _message_parts(self._federation, opened, plan_json)


def _save_plan(store: Store, number: int, lane: int, plan_json: bytes) -> None:
    """Keep a lane's plan, if its round is still the open one."""
    current = store.current_round()
    if current is not None and current.number == number:
        store.save_plan(number, lane, plan_json)


def _visit_factor(schedule: str, live: Collection[str]) -> int | None:
    """2^M of the paper's stop rule for M agents; None where it never ends an episode."""
    agents = max(1, len(live))
    return 2**agents if visits_can_end(schedule, agents, LONGEST) else None


def _message_parts(federation: Federation, opened: OpenRound, plan_json: bytes) -> Parts:
    """A round's message before and after the name of the agent that it is for."""
    message = RoundMessage(
        federation=federation.name,
        agent=_NAME,
        round=opened.number,
        slots=opened.limit,
        visit_factor=opened.visit_factor,
        shape=federation.shape,
        rewards=tuple(arm.reward for arm in federation.arms),
        plan=parse_plan(json.loads(plan_json), federation.shape),
    )
    key = b'"agent":"'
    head, _, tail = message.to_json().partition(key + _NAME.encode())
    return head + key, tail


def _as_json(table: Any) -> bytes:
    """Compact JSON."""
    return json.dumps(table, separators=(",", ":"), allow_nan=False).encode()
