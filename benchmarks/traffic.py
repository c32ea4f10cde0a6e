"""A server as a process of its own, and raw HTTP/1.1 connections to it that cost little.

What `crash` and `load` share. The server is the program `rmab server`, in a session of its own, so
that a kill takes nothing else with it. A `Wire` is one connection: requests are bytes, answers are
matched to them in order, and there is no more to it, since whoever makes the load must not need
the processor that the server is measured on.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlsplit

import numpy as np

from rmab.protocol.config import Federation
from rmab.protocol.shape import Upload
from rmab.service.http.tokens import make_token
from rmab.service.store.store import open_store

__all__ = [
    "Answer",
    "Answered",
    "Sender",
    "ServerProcess",
    "Wire",
    "ask_for_round",
    "enroll",
    "round_request",
    "server_command",
    "upload_head",
    "write_federation",
]

READY_SECONDS = 300.0  # that a server may take to start, on a busy machine
REWARDS = (0.4, 0.9, 0.7, 0.6)


class Answer(NamedTuple):
    """What came back; retry_after: seconds until the request may be sent again, None: not told."""

    status: int
    retry_after: float | None
    body: bytes


Answered = Callable[[Answer], None]


class Wire(asyncio.Protocol):
    """One connection; requests may be sent ahead of their answers."""

    def __init__(self, closed: Callable[[], None] = lambda: None) -> None:
        self._closed = closed
        self._asked: asyncio.Future[Answer] | None = None
        self._waiting: deque[Answered] = deque()
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, url: str, closed: Callable[[], None] = lambda: None) -> Wire:
        """A connection to the server at http://HOST:PORT; OSError if there is none."""
        host, port = urlsplit(url).hostname, urlsplit(url).port
        assert host is not None
        assert port is not None
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: cls(closed), host, port)
        return wire

    @property
    def unanswered(self) -> int:
        """Requests that wait for an answer."""
        return len(self._waiting)

    def send(self, request: bytes, answered: Answered) -> None:
        """Send a request; `answered` is called with its answer, if one comes."""
        if self._transport is None:
            raise ConnectionError("the connection is closed")
        self._waiting.append(answered)
        self._transport.write(request)

    async def ask(self, request: bytes, at_once: Answered = lambda _: None) -> Answer:
        """Send a request and wait for its answer; ConnectionError if none comes.

        at_once: called at the moment that the answer arrives; what it raises is raised here.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def answered(answer: Answer) -> None:
            if future.done():  # whoever asked was cancelled
                return
            try:
                at_once(answer)
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(answer)

        self.send(request, answered)
        self._asked = future
        return await future

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are of no such class

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        if self._asked is not None and not self._asked.done():
            self._asked.set_exception(ConnectionError("the connection was lost"))
        self._closed()

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        while True:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                break
            head = buffer[: end + 2].lower()
            at = head.find(b"\r\ncontent-length: ")
            size = int(head[at + 18 : head.index(b"\r\n", at + 18)]) if at >= 0 else 0
            if len(buffer) < end + 4 + size:
                break
            body = buffer[end + 4 : end + 4 + size]
            buffer = buffer[end + 4 + size :]
            answered = self._waiting.popleft()
            answered(Answer(int(head[9:12]), _retry_after(head), body))
        self._buffer = buffer


def _retry_after(head: bytes) -> float | None:
    _, found, rest = head.partition(b"\r\nretry-after: ")
    return float(rest[: rest.index(b"\r\n")]) if found else None


def upload_head(token: str) -> bytes:
    """The head of an upload's request, but for its end: the body's size and an empty line."""
    return (
        f"POST /v1/uploads HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    ).encode()


def round_request(token: str, after: int = 0, wait: int = 0) -> bytes:
    """The request for the open round."""
    return (
        f"GET /v1/round?after={after}&wait={wait} HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {token}\r\n\r\n"
    ).encode()


async def ask_for_round(wire: Wire, token: str) -> Answer:
    """The answer to the request for the open round, once there is one."""
    while (answer := await wire.ask(round_request(token))).status == 503:
        await asyncio.sleep(0.05)
    return answer


class Sender:
    """An agent whose arms 0 and 1 are always good: its n-th upload tells of n slots.

    The body is a text with holes for the numbers, so that making one costs next to nothing.
    """

    def __init__(self, number: int, token: str, federation: Federation, round: int) -> None:
        self.token = token
        self.sequence = 0
        self._head = upload_head(token)
        self._body = _body(federation, f"{number:032x}", round)

    def request(self) -> bytes:
        """The next upload."""
        self.sequence += 1
        n = self.sequence
        body = self._body % (n, n, n, n - 1, n - 1, n, n)
        return b"%b%d\r\n\r\n%b" % (self._head, len(body), body)


def _body(federation: Federation, incarnation: str, round: int) -> bytes:
    """Holes for: sequence, slots, length, pairs of arms 0 and 1, visits of arms 0 and 1."""
    hole = 2**40 - 1  # a number that nothing else has
    shape = federation.shape
    S = max(shape.states)
    counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
    visits = np.zeros((S, shape.n_arms), np.int64)
    counts[0, 1, 1, :2] = visits[1, :2] = hole
    upload = Upload(incarnation, hole, round, hole, hole, counts, visits)
    return upload.to_json(shape, federation.name).replace(str(hole).encode(), b"%d")


# ----------------------------------------------------------------------------------- federations


def write_federation(path: Path, policy: str) -> None:
    """Four channels, two plays; a round closes when all have reported, however long that takes."""
    lines = ['name = "spectrum"', "plays = 2", f'policy = "{policy}"', "deadline = 86400"]
    lines += [f"[[arm]]\nreward = {reward}" for reward in REWARDS]
    path.write_text("\n".join(lines) + "\n")


def enroll(database: str, federation: Federation, names: Iterable[str]) -> dict[str, str]:
    """Tokens by name, of agents that are enrolled in one transaction."""
    tokens = {}
    store = open_store(database, federation)
    try:
        with store.transaction():
            for name in names:
                tokens[name], key_id, secret_hash = make_token()
                store.enroll(name, "agent", key_id, secret_hash, time.time())
    finally:
        store.close()
    return tokens


# --------------------------------------------------------------------------------------- servers


def server_command(file: str | Path | None = None) -> list[str]:
    """How a server is started: the program, or a Python file in its place."""
    if file is not None:
        return [sys.executable, str(file)]
    return [str(Path(sys.executable).with_name("rmab"))]


class ServerProcess:
    """`rmab server` on a database; its log is appended to FOLDER/server.log."""

    def __init__(
        self, command: Sequence[str], federation: Path, database: str, folder: Path
    ) -> None:
        self._command = [*command, "server", str(federation), "--database", database]
        self._command += ["--port", "0", "--json"]
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.url = ""

    @property
    def running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> None:
        """Start the process; it is not yet `ready`."""
        self.url = ""
        with (self._folder / "server.log").open("ab") as log:
            # Not the loop's way to start one: it forks, which a process with JAX in it must not.
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._environment(),
                start_new_session=True,
            )

    def _environment(self) -> dict[str, str]:
        """Restarts are quick as what was compiled, by Python or by JAX, is kept."""
        kept = {
            "JAX_COMPILATION_CACHE_DIR": str(self._folder / "jax"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        }
        inherited = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        return kept | inherited | {"JAX_PLATFORMS": "cpu"}

    async def ready(self) -> bool:
        """Wait until it answers, at `url`, round or no round; False if it ended before that."""
        assert self._process is not None
        assert self._process.stdout is not None
        reading = asyncio.to_thread(self._process.stdout.readline)
        line = await asyncio.wait_for(reading, READY_SECONDS)
        if not line:
            await self.ended()
            return False
        self.url = json.loads(line)["url"]
        return True

    def kill(self) -> None:
        """kill -9, now."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to its whole session."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    async def ended(self) -> int:
        """Wait until it has ended; its exit status."""
        assert self._process is not None
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            with self._process.stdout as output:
                await asyncio.to_thread(output.read)
        return await asyncio.to_thread(self._process.wait)

    async def stop(self) -> int:
        """SIGTERM, and wait."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    def memory(self) -> tuple[float, float]:
        """Resident memory now and at its most, in MB."""
        assert self._process is not None
        found = {}
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("VmRSS", "VmHWM"):
                found[name] = int(value.split()[0]) / 1024
        return found["VmRSS"], found["VmHWM"]

    def processor_seconds(self) -> float:
        """That it has used, in all threads."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
