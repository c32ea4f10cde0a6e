"""What a simulated federation is made of: a clock, a planner, a network of letters, and the inner
parts of server and agent where something can be held up, cut off or killed."""

from __future__ import annotations

import asyncio
import io
import math
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from rmab.errors import StorageError
from rmab.federation.config import Federation, KnownArm
from rmab.federation.messages import Merged, Upload, parse_upload
from rmab.policies.plans import IndexPlan
from rmab.service.agent.agent import Agent
from rmab.service.agent.exchange import Exchange
from rmab.service.server.limits import ServerLimits
from rmab.service.server.rounds import Rounds
from rmab.service.server.telemetry import Log, Metrics
from rmab.service.store.store import Store
from tests.service.support.serving import Planned

URL = "http://127.0.0.1:1"
FEDERATION = Federation(
    "spectrum",
    2,
    (KnownArm(2, (0.0, 0.4)), KnownArm(2, (0.0, 0.9)), KnownArm(3, (0.0, 0.5, 1.0))),
    policy="fedts-myopic-gap",
    options={"gaps": 8},
    deadline=30.0,
)
SHAPE, NAME = FEDERATION.shape, FEDERATION.name
LONG = 1000.0  # seconds: beyond every time-out, pause and deadline


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time stands until `now` is set."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def is_idle(self) -> bool:
        """Asked by a running task: whether it is the only one that can go on."""
        ready: Any = self._ready  # type: ignore[attr-defined]  # asyncio tells it nowhere else
        return not ready


class Drawn:
    """Tables drawn by the round and what was merged before it; they wait where `gate` is shut."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False

    def plan(self, merged: Merged, number: int, lane: int = 0) -> Planned:
        self.gate.wait()
        if self.broken:
            raise RuntimeError("the process has ended")
        rng = np.random.default_rng([number, lane, int(merged.counts.sum())])
        index = rng.random((SHAPE.n_arms, 1 + 3 * 2)).astype(np.float32)
        return Planned(IndexPlan(2, 0, index, SHAPE.states), None)

    def estimates(self, merged: Merged) -> list[dict[str, Any]]:
        return []


class WatchedRounds(Rounds):
    """Knows whether anything is under way outside the loop, and can be cut off from its disk."""

    def __init__(self, database: str, planner: Drawn) -> None:
        log = Log(io.StringIO(), "error")
        # A credential that was good a moment ago, however long that is: that must do no harm.
        limits = ServerLimits(credential_seconds=math.inf)
        super().__init__(
            FEDERATION, database, planner=planner, log=log, metrics=Metrics(), limits=limits
        )
        plan, run = self.planning.plan, self.jobs.run

        async def counted_plan(*args: Any) -> Any:
            self.plans += 1
            try:
                return await plan(*args)
            finally:
                self.plans -= 1
                self.moved.set()

        async def counted_job(job: Any) -> Any:
            self.running += 1
            try:
                return await run(job)
            finally:
                self.running -= 1
                self.moved.set()

        self.planning.plan = counted_plan  # type: ignore[method-assign]  # that is the point
        self.jobs.run = counted_job  # type: ignore[method-assign]  # likewise
        self.drawn = planner
        self.running = self.plans = 0
        self.moved = asyncio.Event()
        self.refusing = False  # the disk, to commit anything

    def _open_store(self) -> Store:
        store = super()._open_store()
        commit = store.database.commit

        def committed() -> None:
            if self.refusing:
                raise StorageError("the disk refuses")
            commit()

        store.database.commit = committed  # type: ignore[method-assign]  # that is the point
        return store

    @property
    def busy(self) -> bool:
        """Whether a thread will give something back by itself."""
        return self.running > 0 or (self.plans > 0 and self.drawn.gate.is_set())


class SteppedExchange(Exchange):
    """The agent's background, in the simulation's loop."""

    loop: Clock
    worker: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._loop = self.loop
        self.life = self.loop.create_task(self._live())

    async def _work(self) -> None:
        self.worker = asyncio.current_task()
        await super()._work()

    def stop(self) -> None:
        """Only where the first contact failed; otherwise `World` ends agents."""
        self.kill()

    def kill(self) -> None:
        """End where it is: nothing more is kept or sent."""
        tasks = {task for task in (self.worker, self.life) if task is not None}
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.wait(tasks))


@dataclass(eq=False)
class Letter:
    """A request on its way to the server, and its answer on the way back."""

    sender: str
    method: str
    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    reply: asyncio.Future[tuple[int, bytes]] | None = None  # None: nobody waits for the answer
    answer: tuple[int, bytes] | None = None

    @property
    def waited_for(self) -> bool:
        return self.reply is not None and not self.reply.done()

    @property
    def upload(self) -> Upload:
        return parse_upload(self.body, SHAPE, NAME)

    def copy(self) -> Letter:
        """The same request once more, whose answer nobody waits for."""
        return replace(self, reply=None, answer=None)


class Wire(httpx.AsyncBaseTransport):
    """The agent's end of the network."""

    def __init__(self, sent: list[Letter], sender: str) -> None:
        self.sent, self.sender = sent, sender

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        letter = Letter(
            self.sender,
            request.method,
            request.url.path,
            request.url.query,
            [(name.lower(), value) for name, value in request.headers.raw],
            await request.aread(),
            asyncio.get_running_loop().create_future(),
        )
        self.sent.append(letter)
        assert letter.reply is not None
        status, body = await letter.reply
        return httpx.Response(status, content=body)


@dataclass
class Peer:
    """One agent through all its processes; `agent` is None while none runs."""

    name: str
    path: Path
    token: str = ""
    enrolled: bool = False
    agent: Agent | None = None
    lives: list[str] = field(default_factory=list)  # incarnations whose looks the file may have


def conflicting(letter: Letter) -> Letter:
    """Another body under the same key."""
    upload = letter.upload
    changed = replace(upload, length=0 if upload.length else upload.slots)
    if changed.length == upload.length:
        changed = replace(upload, round=upload.round + 1)
    return replace(letter.copy(), body=changed.to_json(SHAPE, NAME))


def from_a_backup(letter: Letter, last: int, round_: int) -> Letter:
    """Old counts under the next key."""
    changed = replace(letter.upload, sequence=last + 1, round=round_, length=0)
    return replace(letter.copy(), body=changed.to_json(SHAPE, NAME))
