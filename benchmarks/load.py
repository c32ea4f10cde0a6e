"""How much a server takes: durable uploads a second, what happens beyond that, many agents at once.

The server is a process of its own on an SQLite database on the disk, synced at every commit; the
generator shares the machine with it. Three phases, on one server:

    closed    64 connections, each sends its next upload when the last is acknowledged, and the
              same one again, as agents do, where the server could not take it (503)
    overload  ten times the rate asked for is offered, on 640 connections, whether answered or not:
              a connection may have 7 uploads under way, and beyond that they are held back
    polls     1,000 agents wait for the next round, while uploads go on; then it opens

    make load                        all of it, as a table; exit code 1 if anything asked is missed
    make load ARGS=--json            the same as one JSON object
    make load ARGS='--seconds 5'     shorter phases
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import uvloop
from benchmarks.traffic import (
    Answer,
    Answered,
    Sender,
    ServerProcess,
    Wire,
    ask_for_round,
    enroll,
    round_request,
    server_command,
    write_federation,
)

from rmab.protocol.config import Federation, load_federation
from rmab.protocol.messages import parse_round

RATE, P99_MS = 2000, 100.0  # asked for in the closed loop
MOST_GROWTH_MB = 200.0  # of resident memory in the overload
TICK = 0.005  # seconds between two bursts of the open loop
AHEAD = 7  # uploads under way on one connection of the open loop
LONGEST_WAIT = 30  # seconds, of a request for a round
FIRST_PAUSE = 0.2  # seconds until a request is sent again, where the server does not say


@dataclass(frozen=True)
class Size:
    """How large the phases are."""

    seconds: float = 15.0
    connections: int = 64
    crowd: int = 640  # connections of the overload
    offered: int = 10 * RATE  # uploads a second there
    pollers: int = 1000
    policy: str = "fedtswi"


@dataclass
class Closed:
    """What the closed loop measured."""

    uploads: int
    tried_again: int  # uploads that the server could not take at once (503)
    rate: float  # a second
    p50_ms: float
    p99_ms: float
    worst_ms: float
    server_cores: float  # that the server kept busy
    by_second: list[int]


@dataclass
class Overload:
    """What came of more than can be taken."""

    due: int  # what the rate comes to
    sent: int
    held_back: int  # not sent: the connection had all it may have under way
    accepted: int
    refused: int  # 503 with Retry-After
    other: int
    accepted_rate: float
    p50_ms: float  # of those accepted, from sending
    p99_ms: float
    memory_before_mb: float
    memory_most_mb: float
    memory_after_mb: float


@dataclass
class Polls:
    """What became of those that waited for a round."""

    waiting: int
    served: int
    uploads_meanwhile: int
    tried_again: int  # requests that the server could not serve at once (503), with those uploads
    first_ms: float  # after the report that closed the round
    last_ms: float
    memory_mb: float


@dataclass
class Result:
    """All phases, and what was missed."""

    closed: Closed
    overload: Overload
    polls: Polls
    missed: list[str] = field(default_factory=list)


class Load:
    """A running server, and the phases."""

    def __init__(self, server: ServerProcess, federation: Federation, tokens: list[str]) -> None:
        self.server = server
        self.federation = federation
        self.tokens = tokens
        self.round = 1
        self.tried_again = 0  # requests that the server could not serve at once
        self._lives = itertools.count()

    def senders(self, first: int, count: int) -> list[Sender]:
        """So many agents from the first on, each in a new incarnation."""
        return [
            Sender(next(self._lives), token, self.federation, self.round)
            for token in self.tokens[first : first + count]
        ]

    async def hold(self) -> None:
        """One agent takes the round and does not report, so that it stays open."""
        wire = await Wire.connect(self.server.url)
        answer = await ask_for_round(wire, self.tokens[0])
        self.round = parse_round(answer.body).round
        wire.close()

    def send_again(self, wire: Wire, request: bytes, answered: Answered, answer: Answer) -> None:
        """Send a request again that got 503, after the pause that an agent makes."""
        self.tried_again += 1
        seconds = FIRST_PAUSE if answer.retry_after is None else answer.retry_after
        pause = seconds * random.uniform(1.0, 1.5)
        asyncio.get_running_loop().call_later(pause, wire.send, request, answered)

    async def taken(self, wire: Wire, request: bytes) -> Answer:
        """The answer to a request, which is sent again as long as the server cannot serve."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if answer.status == 503:
                self.send_again(wire, request, answered, answer)
            elif not future.done():
                future.set_result(answer)

        wire.send(request, answered)
        return await future

    async def closed(self, senders: list[Sender], seconds: float) -> Closed:
        """Each connection sends its next upload when the last is acknowledged."""
        loop = asyncio.get_running_loop()
        times: list[float] = []  # when acknowledged
        taken: list[float] = []
        tried_before = self.tried_again
        wires = [await Wire.connect(self.server.url) for _ in senders]
        done = loop.create_future()
        under_way = len(senders)
        before, started = self.server.processor_seconds(), time.perf_counter()
        until = started + seconds

        def go(wire: Wire, sender: Sender) -> None:
            sent, request = time.perf_counter(), sender.request()

            def answered(answer: Answer) -> None:
                nonlocal under_way
                now = time.perf_counter()
                if answer.status == 503:
                    self.send_again(wire, request, answered, answer)
                    return
                if answer.status not in (200, 201):  # 200: it was taken, and 503 answered
                    if not done.done():
                        done.set_exception(RuntimeError(f"refused: {answer}"))
                    return
                times.append(now)
                taken.append(now - sent)
                if now < until:
                    go(wire, sender)
                    return
                under_way -= 1
                if under_way == 0:
                    done.set_result(None)

            wire.send(request, answered)

        for wire, sender in zip(wires, senders, strict=True):
            go(wire, sender)
        try:
            await asyncio.wait_for(done, seconds + 60)
            elapsed = time.perf_counter() - started
            busy = self.server.processor_seconds() - before
        finally:
            for wire in wires:
                wire.close()
        p50, p99 = _quantiles(taken)
        return Closed(
            uploads=len(times),
            tried_again=self.tried_again - tried_before,
            rate=len(times) / elapsed,
            p50_ms=p50,
            p99_ms=p99,
            worst_ms=1000 * max(taken),
            server_cores=busy / elapsed,
            by_second=np.bincount((np.array(times) - started).astype(int)).tolist(),
        )

    async def overload(self, senders: list[Sender], offered: int, seconds: float) -> Overload:
        """Uploads at a fixed rate, whether the server keeps up or not."""
        wires = [await Wire.connect(self.server.url) for _ in senders]
        memory, _ = self.server.memory()
        codes: Counter[int] = Counter()
        taken: list[float] = []
        refused = sent = held_back = at = 0

        def listener(since: float) -> Callable[[Answer], None]:
            def answered(answer: Answer) -> None:
                nonlocal refused
                codes[answer.status] += 1
                if answer.status == 201:
                    taken.append(time.perf_counter() - since)
                elif answer.status == 503 and answer.retry_after is not None:
                    refused += 1

            return answered

        started = time.perf_counter()
        while (now := time.perf_counter()) < started + seconds:
            for _ in range(int((now - started) * offered) - sent - held_back):
                at = (at + 1) % len(wires)
                if wires[at].unanswered < AHEAD:
                    wires[at].send(senders[at].request(), listener(time.perf_counter()))
                    sent += 1
                else:
                    held_back += 1
            await asyncio.sleep(TICK)
        elapsed = time.perf_counter() - started
        accepted_in_time = codes[201]
        patience = time.perf_counter() + 30
        while any(wire.unanswered for wire in wires) and time.perf_counter() < patience:
            await asyncio.sleep(TICK)
        unanswered = sum(wire.unanswered for wire in wires)
        for wire in wires:
            wire.close()
        after, most = self.server.memory()
        p50, p99 = _quantiles(taken)
        return Overload(
            due=sent + held_back,
            sent=sent,
            held_back=held_back,
            accepted=codes[201],
            refused=refused,
            other=sum(codes.values()) - codes[201] - refused + unanswered,
            accepted_rate=accepted_in_time / elapsed,
            p50_ms=p50,
            p99_ms=p99,
            memory_before_mb=memory,
            memory_most_mb=most,
            memory_after_mb=after,
        )

    async def polls(self, pollers: int, connections: int, seconds: float) -> Polls:
        """All wait for the next round; the agent that held the open one then reports."""
        everybody = self.senders(1, pollers)
        wires = [await Wire.connect(self.server.url) for _ in everybody]
        arrived: list[float] = []
        wrong: list[Answer] = []
        tried_before = self.tried_again

        def wait_for_round(wire: Wire, agent: Sender) -> None:
            request = round_request(agent.token, self.round, LONGEST_WAIT)

            def answered(answer: Answer) -> None:
                if answer.status == 503:
                    self.send_again(wire, request, answered, answer)
                elif answer.status == 200 and parse_round(answer.body).round == self.round + 1:
                    arrived.append(time.perf_counter())
                else:
                    wrong.append(answer)

            wire.send(request, answered)

        for start in range(0, pollers, 100):  # within what the server takes at once
            part = list(zip(wires, everybody, strict=True))[start : start + 100]
            reports = await asyncio.gather(
                *(self.taken(wire, agent.request()) for wire, agent in part)
            )
            assert all(report.status in (200, 201) for report in reports)
        for wire, agent in zip(wires, everybody, strict=True):
            wait_for_round(wire, agent)
        meanwhile = await self.closed(self.senders(1, connections), min(seconds, 5.0))
        assert not arrived
        last = await Wire.connect(self.server.url)
        started = time.perf_counter()
        closing = await self.taken(last, self.senders(0, 1)[0].request())
        assert closing.status in (200, 201)
        while len(arrived) + len(wrong) < pollers and time.perf_counter() < started + 60:
            await asyncio.sleep(TICK)
        memory, _ = self.server.memory()
        for wire in (*wires, last):
            wire.close()
        return Polls(
            waiting=pollers,
            served=len(arrived),
            uploads_meanwhile=meanwhile.uploads,
            tried_again=self.tried_again - tried_before,
            first_ms=1000 * (min(arrived, default=np.nan) - started),
            last_ms=1000 * (max(arrived, default=np.nan) - started),
            memory_mb=memory,
        )


def _quantiles(taken: list[float]) -> tuple[float, float]:
    """The median and the 99th percentile, in ms."""
    if not taken:
        return float("nan"), float("nan")
    p50, p99 = 1000 * np.quantile(taken, (0.5, 0.99))
    return float(p50), float(p99)


async def measure(size: Size, folder: Path, command: list[str]) -> Result:
    """Run all phases on a new server."""
    file = folder / "federation.toml"
    write_federation(file, size.policy)
    federation, database = load_federation(file), str(folder / "federation.db")
    count = 1 + max(size.connections, size.crowd, size.pollers)
    tokens = enroll(database, federation, (f"agent{n}" for n in range(count)))
    server = ServerProcess(command, file, database, folder)
    await server.start()
    try:
        if not await server.ready():
            raise RuntimeError((folder / "server.log").read_text()[-2000:])
        load = Load(server, federation, list(tokens.values()))
        await load.hold()
        await load.closed(load.senders(1, size.connections), min(1.0, size.seconds))  # warm up
        result = Result(
            await load.closed(load.senders(1, size.connections), size.seconds),
            await load.overload(load.senders(1, size.crowd), size.offered, size.seconds),
            await load.polls(size.pollers, size.connections, size.seconds),
        )
        await server.stop()
    finally:
        if server.running:
            server.kill()
            await server.ended()
    result.missed = _missed(result)
    return result


def _missed(result: Result) -> list[str]:
    closed, overload, polls = result.closed, result.overload, result.polls
    growth = overload.memory_most_mb - overload.memory_before_mb
    asked = {
        f"at least {RATE} uploads a second": closed.rate >= RATE,
        f"p99 under {P99_MS:g} ms": closed.p99_ms < P99_MS,
        "503s under overload": overload.refused > 0,
        "nothing but 201 and 503 under overload": overload.other == 0,
        "uploads accepted under overload": overload.accepted > 0,
        f"memory grows by at most {MOST_GROWTH_MB:g} MB under overload": growth <= MOST_GROWTH_MB,
        "all that wait get the next round": polls.served == polls.waiting,
    }
    return [name for name, holds in asked.items() if not holds]


def table(result: Result, size: Size) -> str:
    """The result for people."""
    closed, overload, polls = result.closed, result.overload, result.polls
    return "\n".join(
        [
            f"closed loop, {size.connections} connections, {size.policy}",
            f"  durable uploads a second  {closed.rate:10.0f}   (at least {RATE})",
            f"  503, sent again           {closed.tried_again:10d}",
            f"  latency p50, p99, worst   {closed.p50_ms:10.1f} {closed.p99_ms:.1f} "
            f"{closed.worst_ms:.1f} ms   (p99 under {P99_MS:g})",
            f"  by second                 {closed.by_second}",
            f"  cores the server kept busy{closed.server_cores:10.2f}",
            f"overload, {size.offered} uploads a second offered on {size.crowd} connections",
            f"  due, sent, held back      {overload.due:10d} {overload.sent} {overload.held_back}",
            f"  201, 503, other           {overload.accepted:10d} {overload.refused} "
            f"{overload.other}",
            f"  accepted a second         {overload.accepted_rate:10.0f}",
            f"  their p50, p99            {overload.p50_ms:10.1f} {overload.p99_ms:.1f} ms",
            f"  memory before, most, after{overload.memory_before_mb:10.1f} "
            f"{overload.memory_most_mb:.1f} {overload.memory_after_mb:.1f} MB",
            f"polls, {polls.waiting} agents that wait for a round",
            f"  got the next one          {polls.served:10d}",
            f"  first, last after closing {polls.first_ms:10.0f} {polls.last_ms:.0f} ms",
            f"  uploads meanwhile         {polls.uploads_meanwhile:10d}",
            f"  503, sent again           {polls.tried_again:10d}",
            f"  memory                    {polls.memory_mb:10.1f} MB",
            *(f"missed: {name}" for name in result.missed),
        ]
    )


def main() -> int:
    """Measure, print, and tell by the exit code whether all that is asked was met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--seconds", type=float, default=Size.seconds, help="of a phase")
    parser.add_argument("--policy", default=Size.policy, help="a learner's name")
    parser.add_argument("--server", help="a Python file to start in place of rmab")
    options = parser.parse_args()
    size = Size(seconds=options.seconds, policy=options.policy)
    gc.disable()  # the generator's own pauses are not the server's
    with (
        tempfile.TemporaryDirectory(prefix="rmab-load-", dir="/var/tmp") as folder,
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        result = runner.run(measure(size, Path(folder), server_command(options.server)))
    print(json.dumps(asdict(result)) if options.json else table(result, size))
    return 1 if result.missed else 0


if __name__ == "__main__":
    sys.exit(main())
