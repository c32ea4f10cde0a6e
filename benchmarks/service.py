"""What a server takes, beside one that does nothing and beside a disk that syncs.

`rmab server` and `bare_server` get the same uploads from the same generator, in turn: 64
connections, each of which sends its next upload when the last is acknowledged. Servers and
generator share the machine. Then the same body is committed to SQLite, one commit after the other,
as durable as the server's. What happens under overload and to 1,000 agents that wait is as in
`load`, in short.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, closing
from pathlib import Path

import uvloop
from benchmarks.load import MOST_GROWTH_MB, P99_MS, RATE, Closed, Load, Size
from benchmarks.records import Part, Row
from benchmarks.traffic import (
    Sender,
    ServerProcess,
    enroll,
    server_command,
    write_federation,
)

from rmab.protocol.config import load_federation

__all__ = ["PACKAGES", "measure"]

PACKAGES = ("numpy", "starlette", "uvicorn", "uvloop", "httptools")
COMMIT_SECONDS = 0.5


def commits_a_second(folder: Path, body: bytes) -> float:
    """One row in one transaction after the other, each synced to the disk."""
    with closing(sqlite3.connect(folder / "commits.db", isolation_level=None)) as database:
        for setting in ("journal_mode = WAL", "synchronous = FULL"):
            database.execute(f"PRAGMA {setting}")
        database.execute("CREATE TABLE IF NOT EXISTS uploads (body BLOB)")
        begun, commits = time.perf_counter(), 0
        while (took := time.perf_counter() - begun) < COMMIT_SECONDS:
            database.execute("INSERT INTO uploads VALUES (?)", (body,))
            commits += 1
    return commits / took


async def tables(
    size: Size, rounds: int, folder: Path, say: Callable[[str], None]
) -> dict[str, list[Row]]:
    """All phases, on a new server and a bare one."""
    file = folder / "federation.toml"
    write_federation(file, size.policy)
    federation, database = load_federation(file), str(folder / "federation.db")
    count = 1 + max(size.connections, size.crowd, size.pollers)
    tokens = list(enroll(database, federation, (f"agent{n}" for n in range(count))).values())
    async with AsyncExitStack() as stack:
        loads = []
        for command in (server_command(), server_command(Path(__file__).parent / "bare_server.py")):
            server = ServerProcess(command, file, database, folder)
            await server.start()
            stack.push_async_callback(_ended, server)
            if not await server.ready():
                raise RuntimeError((folder / "server.log").read_text()[-2000:])
            loads.append(Load(server, federation, tokens))
        load, bare = loads
        await load.hold()
        bare.round = load.round
        for each in loads:
            await each.closed(each.senders(1, size.connections), 0.5)  # warm up
        ours: list[Closed] = []
        theirs: list[Closed] = []
        commits: list[float] = []
        body = Sender(0, tokens[0], federation, load.round).request().partition(b"\r\n\r\n")[2]
        for _ in range(rounds):
            ours.append(await load.closed(load.senders(1, size.connections), size.seconds))
            theirs.append(await bare.closed(bare.senders(1, size.connections), size.seconds))
            commits.append(commits_a_second(folder, body))
            say(f"{ours[-1].rate:.0f} uploads a second, {theirs[-1].rate:.0f} by a bare server")
        overload = await load.overload(load.senders(1, size.crowd), size.offered, size.seconds)
        say(f"{overload.accepted_rate:.0f} accepted a second under overload")
        polls = await load.polls(size.pollers, size.connections, size.seconds)
        say(f"{polls.served} of {polls.waiting} that wait have the next round")
    rates = [each.rate for each in ours]
    growth = overload.memory_most_mb - overload.memory_before_mb
    return {
        "rates": [
            Row.of("durable uploads", rates, unit="/s", limit=float(RATE), sense="least"),
            _share(
                "share of what a server takes that only acknowledges",
                rates,
                [each.rate for each in theirs],
            ),
            _share("times as many as SQLite commits one by one", rates, commits),
        ],
        "waits": [
            Row.of("median until acknowledged", [each.p50_ms for each in ours], unit="ms"),
            Row.of("99 of 100 within", [each.p99_ms for each in ours], unit="ms", limit=P99_MS),
            Row.of("processor cores of the server", [each.server_cores for each in ours]),
        ],
        "overload": [
            Row.of("accepted", [overload.accepted_rate], unit="/s"),
            Row.of("99 of 100 of them within", [overload.p99_ms], unit="ms"),
            Row.of("neither taken nor told to come again", [float(overload.other)], limit=0.0),
            Row.of("growth of memory", [growth], unit="MB", limit=MOST_GROWTH_MB),
        ],
        "polls": [
            Row.of(
                "that wait and get the next round",
                [polls.served / polls.waiting],
                limit=1.0,
                sense="least",
                more={"waiting": polls.waiting},
            ),
            Row.of("the last of them after", [polls.last_ms], unit="ms"),
        ],
    }


async def _ended(server: ServerProcess) -> None:
    if server.running:
        await server.stop()


def _share(case: str, rates: list[float], beside: list[float]) -> Row:
    """Best over best, and the range of pairs."""
    pairs = [one / other for one, other in zip(rates, beside, strict=True)]
    more = {"beside": max(beside)}
    value = max(rates) / max(beside)
    return Row(case, value, min(pairs), max(pairs), len(pairs), sense="least", more=more)


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """All tables."""
    load = os.getloadavg()[0]
    size = Size(seconds=1.0 if quick else 4.0, pollers=100 if quick else 1000)
    gc.disable()  # the generator's own pauses are not the server's
    try:
        with (
            tempfile.TemporaryDirectory(prefix="rmab-bench-", dir="/var/tmp") as folder,
            asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
        ):
            found = runner.run(tables(size, 2 if quick else 3, Path(folder), say))
    finally:
        gc.enable()
    return Part.now(found, PACKAGES, load)
