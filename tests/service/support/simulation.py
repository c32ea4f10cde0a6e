"""A server and its agents in one thread, on a clock and a network that a test moves.

Everything that decides is the real thing: the application with its rounds, writer and store, and
agents with their exchange and file. Replaced are time, which stands until it is moved, the plans,
which need no JAX, and the network: requests and answers are letters that lie about until somebody
delivers, loses, repeats or delays them.

`World` does what it is told and writes into the books what every incarnation truly saw and what the
server has acknowledged. `World.look` holds the database against them.
"""

from __future__ import annotations

import asyncio
import io
import json
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from rmab.errors import FederationError, StorageError, UnreachableError
from rmab.policies.plans import IndexPlan
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.growth import Merged
from rmab.protocol.messages import parse_round
from rmab.protocol.shape import Upload
from rmab.protocol.uploads import parse_upload
from rmab.service.admin import DatabaseAdmin
from rmab.service.agent import agent as agent_module
from rmab.service.agent.agent import Agent
from rmab.service.agent.exchange import Exchange
from rmab.service.http.telemetry import Log
from rmab.service.server.identity import Access
from rmab.service.server.limits import ServerLimits
from rmab.service.server.metrics import Metrics
from rmab.service.server.planning import Planning
from rmab.service.server.rounds import Rounds
from rmab.service.server.routes import make_app
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import Store
from tests.service.support.fake_server import tally
from tests.service.support.serving import Planned

# ------------------------------------------------------------------------------------------- parts

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
Key = tuple[str, str]  # an agent and its incarnation
LONG = 1000.0  # seconds: beyond every time-out, pause and deadline
# Incarnations end, and rows are dropped, within times that a run goes through.
FOLDING = StoreLimits(
    ended_seconds=900.0,
    told_apart_seconds=500.0,
    repeat_seconds=40.0,
    fold_rows=1,
    kept_rounds=2,
)


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time stands until `now` is set."""

    now = 1000.0

    def time(self) -> float:
        return self.now

    def is_idle(self) -> bool:
        """Asked by a running task: whether it is the only one that can go on."""
        ready: Any = self._ready  # type: ignore[attr-defined]  # asyncio tells it nowhere else
        return not ready


class Drawn(Planning):
    """Tables drawn by the round and what was merged before it; they wait where `gate` is shut."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False

    def plan(
        self, merged: Merged, number: int, lane: int = 0, each: Any = None, memory: Any = None
    ) -> Planned:
        self.gate.wait()
        if self.broken:
            raise RuntimeError("the process has ended")
        rng = np.random.default_rng([number, lane, int(merged.counts.sum())])
        index = rng.random((SHAPE.n_arms, 1 + 3 * 2)).astype(np.float32)
        return Planned(IndexPlan(2, 0, index, SHAPE.states), None)

    def estimates(self, merged: Merged) -> list[dict[str, Any]]:
        return []

    def laws(self, merged: Merged, number: int, groups: Any = None) -> Any:
        raise AssertionError("agents draw nothing here")

    def remember(self, memory: Any, before: Any, now: Any, length: int) -> Any:
        raise AssertionError("nothing is forgotten here")


class WatchedRounds(Rounds):
    """Knows whether anything is under way outside the loop, and can be cut off from its disk."""

    def __init__(self, database: str, planner: Drawn, clock: Callable[[], float]) -> None:
        # A credential that was good a moment ago, however long that is: that must do no harm.
        super().__init__(
            FEDERATION,
            database,
            planner=planner,
            log=Log(io.StringIO(), "error"),
            metrics=Metrics(),
            clock=clock,
            limits=ServerLimits(credential_seconds=math.inf, tidy_seconds=20.0, store=FOLDING),
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

        self.planning.plan = counted_plan  # type: ignore[method-assign, assignment]  # the point
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


# ------------------------------------------------------------------------------------------- books


@dataclass
class Kept:
    """What the database has."""

    round: int
    merged: Merged
    records: dict[Key, tuple[int, int, int, Any, Any]]  # sequence, round, slots, counts, visits
    digests: dict[tuple[str, str, int], bytes]
    ended: dict[Key, tuple[int, bytes]]  # sequence and digest of the last upload
    floors: dict[str, int]  # rounds, by agent

    def due(self, agent: str, upload: Upload) -> int:
        """The status with which an upload of a valid credential must be answered."""
        before = self.records.get((agent, upload.incarnation))
        stored = self.digests.get((agent, upload.incarnation, upload.sequence))
        if stored is not None:
            return 200 if stored == upload.digest else 409
        if before is not None and upload.sequence < before[0]:
            return 409
        ended = self.ended.get((agent, upload.incarnation))
        if ended is not None:
            return 200 if ended == (upload.sequence, upload.digest) else 409
        if before is None and upload.round <= self.floors.get(agent, 0):
            return 409
        if upload.round != self.round:
            return 410
        if before is not None and (upload.round < before[1] or upload.slots < before[2]):
            return 409
        return 201


def kept_by(store: Store) -> Kept:
    """As the store has it; a job for the server's writer."""
    opened = store.current_round()
    assert opened is not None
    merged = store.merged()
    store.uploads.write()
    records = {
        (name, incarnation): (
            sequence,
            round_,
            slots,
            store.uploads._counts(counts),
            store.uploads._visits(visits),
        )
        for name, incarnation, sequence, round_, slots, counts, visits in store.database.rows(
            "SELECT agent, incarnation, sequence, round, slots, counts, visits FROM incarnations"
        )
    }
    digests = {
        (name, incarnation, sequence): bytes(digest)
        for name, incarnation, sequence, digest in store.database.rows(
            "SELECT agent, incarnation, sequence, digest FROM uploads"
        )
    }
    ended = {
        (name, incarnation): (sequence, bytes(digest))
        for name, incarnation, sequence, digest in store.database.rows(
            "SELECT agent, incarnation, sequence, digest FROM ended"
        )
    }
    floors = {
        name: int(floor) for name, floor in store.database.rows("SELECT agent, floor FROM folded")
    }
    return Kept(opened.number, merged, records, digests, ended, floors)


class Books:
    """What happened, as nobody in the simulation can forget it."""

    def __init__(self) -> None:
        self.newest = 0  # the last round that was open
        self._owner: dict[str, str] = {}  # incarnation -> name
        self._looks: dict[str, list[tuple[list[int], list[int]]]] = {}
        self._acknowledged: dict[Key, int] = {}  # slots
        self._new: set[tuple[str, str, int]] = set()  # keys answered with 201
        self._last: dict[Key, tuple[int, int]] = {}  # sequence and slots that the database had
        self._folded: set[Key] = set()  # those that it has only as a part of a sum
        self._given_up: set[Key] = set()  # those that agents were told have ended
        self._rounds: dict[int, tuple[bytes, ...]] = {}  # messages, but for the agent's name
        self._tallies: dict[tuple[str, int], Any] = {}

    def begin(self, name: str, incarnation: str) -> None:
        """A new incarnation of an agent."""
        self._owner[incarnation] = name
        self._looks[incarnation] = []

    def knows(self, incarnation: str) -> bool:
        """Whether it has begun."""
        return incarnation in self._owner

    def give_up(self, name: str, upload: Upload) -> None:
        """The server has told an agent that an incarnation has ended."""
        self._given_up.add((name, upload.incarnation))

    def has_ended(self, name: str, incarnation: str) -> bool:
        """Whether the server may refuse it, though its agent does nothing wrong."""
        return (name, incarnation) in self._folded | self._given_up

    def saw(self, incarnation: str, arms: list[int], states: list[int]) -> None:
        """One slot of an incarnation."""
        self._looks[incarnation].append((arms, states))

    def acknowledge(self, name: str, upload: Upload, *, new: bool) -> None:
        """The server has told an agent that it has its upload."""
        key = (name, upload.incarnation)
        self._acknowledged[key] = max(self._acknowledged.get(key, 0), upload.slots)
        if new:
            assert (*key, upload.sequence) not in self._new, "new, twice"
            self._new.add((*key, upload.sequence))

    def told_of_round(self, name: str, number: int, body: bytes) -> None:
        """The server has given an agent this message, while that round was open."""
        message = parse_round(body)
        assert message.agent == name
        assert message.round == number >= self.newest
        parts = tuple(body.split(f'"agent":"{name}"'.encode()))
        assert self._rounds.setdefault(message.round, parts) == parts, "a round has changed"

    def check(self, kept: Kept, number: int, peers: Iterable[Peer]) -> None:
        """Hold against it all what the database and the agents have; `number` is the open round."""
        assert kept.round == number >= self.newest, "the round has fallen"
        self.newest = kept.round
        counts = visits = 0
        for (name, incarnation), (sequence, _, slots, had, seen) in kept.records.items():
            assert self._owner.get(incarnation) == name, "counts of nobody"
            assert (name, incarnation) not in self._folded, "counted twice"
            self._last[name, incarnation] = (sequence, slots)
            true_counts, true_visits = self._tally(incarnation, slots)
            np.testing.assert_array_equal(had, true_counts)
            np.testing.assert_array_equal(seen, true_visits)
        self._folded |= self._last.keys() - kept.records.keys()
        for (_, incarnation), (_, slots) in self._last.items():
            true_counts, true_visits = self._tally(incarnation, slots)
            counts, visits = counts + true_counts, visits + true_visits
        np.testing.assert_array_equal(kept.merged.counts, counts)
        np.testing.assert_array_equal(kept.merged.visits, visits)
        for key, slots in self._acknowledged.items():
            assert self._last[key][1] >= slots, "acknowledged, and lost"
        for key, (sequence, _) in self._last.items():
            if key not in self._folded:
                assert (*key, sequence) in kept.digests, "the last upload is not known"
            elif key in kept.ended:
                assert kept.ended[key][0] == sequence
            else:
                assert kept.floors[key[0]] > 0
        for name, incarnation, sequence in self._new:
            assert sequence <= self._last[name, incarnation][0], "acknowledged, and lost"
        for peer in peers:
            if peer.agent is not None:
                outbox = peer.agent._exchange._outbox
                assert outbox.conflict is None or self.has_ended(peer.name, outbox.conflict)
                key = (peer.name, peer.agent._player.incarnation)
                assert outbox.acknowledged <= self._acknowledged.get(key, 0)

    def check_complete(self, kept: Kept, peers: Iterable[Peer]) -> None:
        """All that agents saw, but for files that were lost, is in the database."""
        for peer in peers:
            assert peer.agent is not None
            assert not peer.agent.unsent, "something did not arrive"
            for incarnation in peer.lives:
                seen = len(self._looks[incarnation])
                record = kept.records.get((peer.name, incarnation))
                if not self.has_ended(peer.name, incarnation):
                    assert (0 if record is None else record[2]) == seen, "something did not arrive"

    def _tally(self, incarnation: str, slots: int) -> Any:
        found = self._tallies.get((incarnation, slots))
        if found is None:
            looks = self._looks[incarnation]
            assert slots <= len(looks), "more slots than there were"
            found = self._tallies[incarnation, slots] = tally(looks[:slots], SHAPE)
        return found


# ------------------------------------------------------------------------------------------- world


class World:
    """The simulation."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder, self.database = folder, database
        self.loop = Clock()
        SteppedExchange.loop = self.loop
        self.planner = Drawn()
        self.server: WatchedRounds | None = None
        self.app: Any = None
        self.at_server: dict[asyncio.Task[None], Letter] = {}
        self.sent: list[Letter] = []  # on the way to the server
        self.answered: list[Letter] = []  # on the way back
        self.past: list[Letter] = []  # uploads that were ever delivered
        self.peers: dict[str, Peer] = {}
        self.books = Books()
        self.kept: Kept | None = None  # what the database had at the last look
        self.faults: list[BaseException] = []
        self._closing = False

    # ------------------------------------------------------------------------------------- the loop

    def settle(self) -> None:
        """Until nothing goes on by itself."""
        self.loop.run_until_complete(self._quiet())
        if self.faults and not self._closing:
            raise self.faults[0]

    async def _quiet(self) -> None:
        quiet = 0
        while quiet < 2:
            server = self.server
            if server is not None and server.busy:
                server.moved.clear()
                await server.moved.wait()
                quiet = 0
                continue
            await asyncio.sleep(0)
            quiet = quiet + 1 if self.loop.is_idle() else 0

    def pass_time(self, seconds: float) -> None:
        self.loop.now += seconds
        self.settle()

    # --------------------------------------------------------------------------------------- server

    def start_server(self) -> None:
        self.planner = Drawn()
        self.server = WatchedRounds(self.database, self.planner, self.loop.time)
        self.loop.run_until_complete(self.server.start())
        log, metrics = Log(io.StringIO(), "error"), Metrics()
        hosts = frozenset({"127.0.0.1"})
        self.app = make_app(self.server, hosts=hosts, log=log, metrics=metrics)
        self.access = Access(self.server, open=True, log=log)
        self.settle()

    def stop_server(self) -> None:
        """In order: requests under way are finished."""
        server = self.server
        assert server is not None
        self.planner.gate.set()
        server.release()
        self.settle()
        self.loop.run_until_complete(server.stop())
        self._server_is_gone()

    def crash_server(self) -> None:
        """At once: what is not committed never happened, and nobody is told anything."""
        server = self.server
        assert server is not None
        server.refusing = True
        self.planner.broken = True
        self.planner.gate.set()
        tasks = {*server._tasks._running, *self.at_server}
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks))
        if server._alarm is not None:
            server._alarm.cancel()
        assert server.jobs._writer is not None
        server.jobs._writer.close()
        server.planning.stop(patient=True)
        self._server_is_gone()

    def _server_is_gone(self) -> None:
        for letter in self.at_server.values():
            self._break(letter, httpx.RemoteProtocolError("the server is gone"))
        self.at_server.clear()
        self.server = self.app = None
        self.settle()

    # -------------------------------------------------------------------------------------- network

    def _break(self, letter: Letter, error: httpx.HTTPError) -> None:
        if letter.waited_for:
            assert letter.reply is not None
            letter.reply.set_exception(error)

    def lose(self, letter: Letter) -> None:
        """The request never arrives, and its sender is told so."""
        self.sent.remove(letter)
        self._break(letter, httpx.ConnectError("lost"))
        self.settle()

    def delay(self, letter: Letter) -> None:
        """Its sender gives up waiting, but the request is still on its way."""
        self._break(letter, httpx.ReadTimeout("late"))
        self.settle()

    def lose_answer(self, letter: Letter) -> None:
        self.answered.remove(letter)
        self._break(letter, httpx.ReadError("lost"))
        self.settle()

    def hand_answer(self, letter: Letter) -> None:
        self.answered.remove(letter)
        if letter.waited_for:
            assert letter.reply is not None
            assert letter.answer is not None
            wrong = letter.answer[0] in (409, 413, 422)  # it has done none
            assert not wrong or self._has_ended(letter), letter.answer
            letter.reply.set_result(letter.answer)
        self.settle()

    def _has_ended(self, letter: Letter) -> bool:
        return letter.path == "/v1/uploads" and self.books.has_ended(
            letter.sender, letter.upload.incarnation
        )

    def deliver(self, *letters: Letter) -> None:
        """To the server, at the same time; where it is alone, the answer is the one due."""
        for letter in letters:
            if letter in self.sent:
                self.sent.remove(letter)
        if self.server is None:
            for letter in letters:
                self._break(letter, httpx.ConnectError("nobody listens"))
            self.settle()
            return
        due = self._due(letters[0]) if len(letters) == 1 else None
        for letter in letters:
            if letter.path == "/v1/uploads":
                self.past.append(letter.copy())
            task = self.loop.create_task(self._serve(letter))
            self.at_server[task] = letter
            task.add_done_callback(self._served)
        self.settle()
        if due is not None:
            assert letters[0].answer is not None, "no answer to an upload"
            status, body = letters[0].answer
            assert status == due, (status, due, body)

    async def _serve(self, letter: Letter) -> None:
        parts = [{"type": "http.request", "body": letter.body, "more_body": False}]
        status, body = 0, b""

        async def receive() -> Any:
            if parts:
                return parts.pop()
            return await self.loop.create_future()  # the peer stays

        async def send(message: Any) -> None:
            nonlocal status, body
            status = message.get("status", status)
            body += message.get("body", b"")

        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": letter.method,
            "scheme": "http",
            "path": letter.path,
            "raw_path": letter.path.encode(),
            "root_path": "",
            "query_string": letter.query,
            "headers": [
                (b"host", b"127.0.0.1"),
                *((k, v) for k, v in letter.headers if k != b"host"),
            ],
        }
        await self.app(scope, receive, send)
        letter.answer = (status, body)
        self._note(letter, status, body)

    def _served(self, task: asyncio.Task[None]) -> None:
        letter = self.at_server.pop(task, None)
        if task.cancelled() or letter is None:
            return
        error = task.exception()
        if error is not None:
            self.faults.append(error)
        else:
            self.answered.append(letter)

    def _note(self, letter: Letter, status: int, body: bytes) -> None:
        """An answer is written: from now on the sender may have it."""
        assert self.server is not None
        if status == 500:
            raise RuntimeError(f"{letter.path}: the server does not work at all")
        valid = self._is_valid(letter)
        assert (status == 401) <= (not valid)
        if not valid:
            # Who waits for a round while its credential is replaced may be told of that round.
            replaced = letter.path == "/v1/round" and self.peers[letter.sender].enrolled
            assert status in (401, 204, 503) or replaced, (status, "to no valid credential")
        if letter.path == "/v1/uploads" and status in (200, 201):
            assert not self.server.refusing, "acknowledged, and not committed"
            self.books.acknowledge(letter.sender, letter.upload, new=status == 201)
            assert json.loads(body)["sequence"] == letter.upload.sequence
        if letter.path == "/v1/uploads" and status == 409 and json.loads(body)["error"] == "ended":
            self.books.give_up(letter.sender, letter.upload)
        if letter.path == "/v1/round" and status == 200:
            self.books.told_of_round(letter.sender, self.server.number, body)

    def _is_valid(self, letter: Letter) -> bool:
        peer = self.peers[letter.sender]
        return peer.enrolled and (
            (b"authorization", f"Bearer {peer.token}".encode()) in letter.headers
        )

    def _due(self, letter: Letter) -> int | None:
        """What is due for an upload, by what the database has now."""
        assert self.server is not None
        if letter.path != "/v1/uploads":
            return None
        if self.server.refusing:
            return 503
        self.look()
        assert self.kept is not None
        if not self._is_valid(letter):
            return 401
        return self.kept.due(letter.sender, letter.upload)

    # --------------------------------------------------------------------------------------- agents

    def enroll(self, name: str, *, elsewhere: bool) -> None:
        peer = self.peers.setdefault(name, Peer(name, self.folder / f"{name}.db"))
        if elsewhere or self.server is None:
            with DatabaseAdmin(FEDERATION, self.database) as admin:
                peer.token = admin.enroll(name, "agent")
        else:
            enrolled = self.access.enroll(name, "agent", None, "boss")
            peer.token = self.loop.run_until_complete(enrolled)
        peer.enrolled = True

    def revoke(self, peer: Peer, *, elsewhere: bool) -> None:
        if elsewhere or self.server is None:
            with DatabaseAdmin(FEDERATION, self.database) as admin:
                admin.revoke(peer.name)
            peer.enrolled = False
        else:
            peer.enrolled = False
            assert self.loop.run_until_complete(self.access.revoke(peer.name, "boss"))
        self.settle()

    def start_agent(self, peer: Peer) -> None:
        """A new process. One that has no file needs the server now."""
        try:
            peer.agent = _stepped_agent(self, peer)
        except (UnreachableError, FederationError):
            self._forget_letters(peer)
            return
        incarnation = peer.agent._player.incarnation
        self.books.begin(peer.name, incarnation)
        peer.lives.append(incarnation)
        self.settle()

    def first_round(self, peer: Peer, exchange: Exchange) -> Any:
        """The network is fast while a new agent waits for its first round."""
        for _ in range(4):
            self.settle()
            if exchange.met:
                return exchange.message
            for letter in [one for one in self.sent if one.sender == peer.name and one.waited_for]:
                self.deliver(letter)
            for letter in [one for one in self.answered if one.sender == peer.name]:
                self.hand_answer(letter)
        raise UnreachableError("no round")

    def play(self, peer: Peer, slots: int, rng: np.random.Generator) -> None:
        agent = peer.agent
        assert agent is not None
        for _ in range(slots):
            arms = self._choose(peer)
            states = [int(rng.integers(SHAPE.states[arm])) for arm in arms]
            self.books.saw(agent._player.incarnation, arms, states)
            agent.observe(states)
        self.settle()

    def _choose(self, peer: Peer) -> list[int]:
        """What the agent plays now; it may have begun a new incarnation for that."""
        assert peer.agent is not None
        arms = peer.agent.choose()
        incarnation = peer.agent._player.incarnation
        if not self.books.knows(incarnation):
            self.books.begin(peer.name, incarnation)
            peer.lives.append(incarnation)
        return arms

    def kill_agent(self, peer: Peer, *, loses_file: bool) -> None:
        agent = peer.agent
        assert agent is not None
        exchange = agent._exchange
        assert isinstance(exchange, SteppedExchange)
        exchange.kill()
        self._end(peer)
        if loses_file:
            for end in ("", "-wal", "-shm"):
                Path(f"{peer.path}{end}").unlink(missing_ok=True)
            peer.lives.clear()
        self.settle()

    def end_agent(self, peer: Peer) -> None:
        """In order: it tells the server that it leaves."""
        agent = peer.agent
        assert agent is not None
        exchange = agent._exchange
        assert isinstance(exchange, SteppedExchange)
        exchange._stop.set()
        self.settle()
        for letter in [one for one in self.sent if one.path == "/v1/leave" and one.waited_for]:
            self.deliver(letter)
        for letter in [one for one in self.answered if one.path == "/v1/leave"]:
            self.hand_answer(letter)
        self.pass_time(5.0)
        assert exchange.life.done()
        self._end(peer)

    def _end(self, peer: Peer) -> None:
        assert peer.agent is not None
        peer.agent._file.close()
        peer.agent._closed = True
        peer.agent = None

    def _forget_letters(self, peer: Peer) -> None:
        for letter in [one for one in self.sent if one.sender == peer.name and one.waited_for]:
            self.lose(letter)

    # --------------------------------------------------------------------------------------- checks

    def look(self) -> None:
        """Read the database, as the server has it, and hold it against the books."""
        server = self.server
        if server is None or server.refusing:
            return
        self.kept = self.loop.run_until_complete(server.jobs.run(kept_by))
        self.books.check(self.kept, server.number, self.peers.values())

    # -------------------------------------------------------------------------------------- the end

    def calm(self, turns: int) -> None:
        """The network loses nothing for a while."""
        for _ in range(turns):
            for letter in list(self.sent):
                if letter in self.sent:
                    self.deliver(letter)
                    self.look()
            for letter in list(self.answered):
                if letter in self.answered:
                    self.hand_answer(letter)

    def finish(self) -> None:
        """Everybody comes back, nothing is lost any more: then all that was seen is there."""
        self.planner.gate.set()
        self.settle()
        if self.server is None:
            self.start_server()
        self.server_recovers()
        self.look()
        for peer in self.peers.values():
            if not peer.enrolled:
                if peer.agent is not None:
                    self.kill_agent(peer, loses_file=False)
                self.enroll(peer.name, elsewhere=False)
            if peer.agent is None:
                self.start_agent(peer)
            assert peer.agent is not None
        for _ in range(40):
            for peer in self.peers.values():
                agent = peer.agent
                assert agent is not None
                self._choose(peer)
                if agent._player.slots > agent._offered:
                    agent._hand_over(send=True)
            self.pass_time(LONG)
            self.calm(3)
            if not any(peer.agent.unsent for peer in self.peers.values() if peer.agent):
                break
        self.look()
        assert self.kept is not None
        self.books.check_complete(self.kept, self.peers.values())

    def server_recovers(self) -> None:
        assert self.server is not None
        self.server.refusing = False

    def close(self) -> None:
        """End all there is, also where a fault was found: what is left of a world, threads and
        tasks and files, would disturb the tests after it."""
        self._closing = True
        try:
            for peer in self.peers.values():
                if peer.agent is not None:
                    self.kill_agent(peer, loses_file=False)
            if self.server is not None:
                self.crash_server()
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left))
        finally:
            self.loop.close()


def _stepped_agent(world: World, peer: Peer) -> Agent:
    class SteppedAgent(Agent):
        def _first_round(self, patience: float) -> Any:
            return world.first_round(peer, self._exchange)

    before: Any = agent_module.Exchange  # type: ignore[attr-defined]  # imported there
    agent_module.Exchange = SteppedExchange  # type: ignore[attr-defined]  # likewise
    try:
        return SteppedAgent(
            URL, token=peer.token, file=peer.path, transport=Wire(world.sent, peer.name)
        )
    finally:
        agent_module.Exchange = before  # type: ignore[attr-defined]  # likewise
