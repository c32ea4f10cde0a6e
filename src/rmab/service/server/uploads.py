"""POST /v1/uploads, the one route that must be fast: thousands a second, whoever sends them.

The order is the bound on uploads in flight, credential, type, size, body, the bound once more, and
only then is the body parsed, so that what is refused costs little. Memory is bounded: BODY_ROOM
bytes of bodies at once and a quarter of them of one agent, and MOST_IN_FLIGHT uploads that are
parsed and not yet committed; beyond that the answer is 503, try again. A body that does not come is
the business of `rmab.service.server.process.connections`.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from rmab.errors import ProtocolError
from rmab.federation.messages import Upload, most_bytes, parse_upload
from rmab.service.server.identity import Access
from rmab.service.server.metrics import Metrics
from rmab.service.server.rounds import Federator

__all__ = ["Uploads", "check_type", "read_body"]

MOST_IN_FLIGHT = 256
BODY_ROOM = 64 * 2**20
PARSED_ASIDE = 2**16  # bytes: larger bodies are parsed in a thread


_OVERLOAD = json.dumps(
    {"error": "overload", "detail": f"{MOST_IN_FLIGHT} uploads are being committed; try again"}
).encode()


class Uploads:
    """The handler."""

    def __init__(self, federator: Federator, access: Access, metrics: Metrics) -> None:
        self._federator = federator
        self._access = access
        self._metrics = metrics
        self._shape = federator.federation.shape
        self._name = federator.federation.name
        self._most = most_bytes(self._shape)
        self._room = max(BODY_ROOM, 4 * self._most)
        self._held = 0
        self._held_of: Counter[str] = Counter()
        self._in_flight = 0
        self._results: dict[str, Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._in_flight >= MOST_IN_FLIGHT:
            await self._turn_away(send)
            return
        agent = None
        try:
            headers = dict(scope["headers"])
            agent = await self._access.agent(scope, headers, again=True)
            check_type(headers)
            size = self._take(agent.name, headers)
            try:
                body = await read_body(receive, self._most)
                if self._in_flight >= MOST_IN_FLIGHT:
                    await self._turn_away(send)
                    return
                started = time.perf_counter()
                self._in_flight += 1
                try:
                    upload = await self._parsed(body)
                    received = await self._federator.receive(agent, upload)
                finally:
                    self._in_flight -= 1
            finally:
                self._give_back(agent.name, size)
        except ProtocolError as error:
            self._count(error.code)
            if agent is not None:
                self._federator.refused(agent.name, error)
            raise
        self._metrics.upload_seconds.observe(time.perf_counter() - started)
        self._count(received.status)
        status = 201 if received.status == "new" else 200
        answer = (
            f'{{"status":"{received.status}","sequence":{upload.sequence},'
            f'"round":{self._federator.number}}}'
        ).encode()
        await _send_json(send, status, answer)

    async def _turn_away(self, send: Send) -> None:
        """In the fewest steps: under overload this is what most requests get."""
        self._count("overload")
        await _send_json(send, 503, _OVERLOAD, (b"retry-after", b"1"))

    async def _parsed(self, body: bytes) -> Upload:
        if len(body) <= PARSED_ASIDE:
            return parse_upload(body, self._shape, self._name)
        return await asyncio.to_thread(parse_upload, body, self._shape, self._name)

    def _take(self, agent: str, headers: dict[bytes, bytes]) -> int:
        """Room for a body of the size that is announced, else of the most it may be."""
        size = announced(headers, self._most)
        of_agent = self._held_of[agent] + size
        if self._held + size > self._room or of_agent > self._room // 4:
            raise ProtocolError(503, "overload", "too many bodies are being received; try again")
        self._held += size
        self._held_of[agent] = of_agent
        return size

    def _give_back(self, agent: str, size: int) -> None:
        self._held -= size
        left = self._held_of[agent] - size
        if left:
            self._held_of[agent] = left
        else:
            del self._held_of[agent]

    def _count(self, result: str) -> None:
        counter = self._results.get(result)
        if counter is None:
            counter = self._results[result] = self._metrics.uploads.labels(result)
        counter.inc()


async def _send_json(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def check_type(headers: dict[bytes, bytes]) -> None:
    """Refuse a body that is not plain JSON."""
    kind = headers.get(b"content-type", b"")
    if kind != b"application/json":
        kind = kind.partition(b";")[0].strip().lower()
    if kind != b"application/json" or b"content-encoding" in headers:
        raise ProtocolError(
            415, "type", "the body must be application/json without a content-encoding"
        )


def announced(headers: dict[bytes, bytes], most: int) -> int:
    """The size of a body by its Content-Length, or `most` without one; refused if too large."""
    text = headers.get(b"content-length")
    if text is None:
        return most
    size = int(text)  # the parser of requests lets nothing but digits through
    if size > most:
        raise _too_large(most)
    return size


async def read_body(receive: Receive, most: int) -> bytes:
    """The body, within its size."""
    body: bytes = b""
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        body += bytes(message.get("body", b""))
        if len(body) > most:
            raise _too_large(most)
        if not message.get("more_body", False):
            return body


def _too_large(most: int) -> ProtocolError:
    return ProtocolError(413, "size", f"the body must have at most {most} bytes")
