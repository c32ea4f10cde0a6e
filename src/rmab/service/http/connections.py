"""Connections with limits: uvicorn's HTTP protocol that nobody can hold for nothing.

uvicorn gives a connection as long as it likes to send a request. Here each phase has its time:

    handshake of TLS, from connecting to its end
    head      from the first byte (or from connecting) to the end of the headers
    body      from there to the end of the body, or it is answered 408
    answer    written bytes must go out: the peer takes something within this time
    idle      between two requests: uvicorn's own keep-alive time-out

and its size: bytes and fields of the head, requests sent ahead of their answers. At most `most`
connections are open at once; for one more, one without a request is closed, so that idle ones
cannot keep others out. Which one is left to chance: with a rule, an attacker could aim at those of
others. A request that is on its way just then is lost, as it may be on any connection that is kept;
an agent sends it again. `HttpLimits` has the times and sizes.

A server that ends must know all of its connections, for none may be left open when uvloop's loop is
closed: it warns of each, and where warnings are errors that one stays open and the loop waits for
it without end. uvloop's own TLS server shows a connection only after its handshake. `Secured` is
therefore known from the start. TLS also has each side say goodbye, and uvloop waits half a minute
for the other's; a peer that keeps an idle connection does not read it, so `shutdown` says goodbye
and does not wait.

Times are kept as one deadline for each connection, and `Watch` checks them all once a second: that
costs a request only two assignments.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState
from uvloop.loop import SSLProtocol  # type: ignore[attr-defined]  # its stubs leave it out

from rmab.service.http.proxies import HSTS, origin
from rmab.service.http.telemetry import ConnectionMetrics

__all__ = ["Connection", "HttpLimits", "Secured", "Watch"]


@dataclass(frozen=True)
class HttpLimits:
    """Limits of connections; times in seconds, sizes in bytes."""

    # A connection: its handshake, head and body must arrive, and its answers go out, in time.
    handshake_seconds: float = 10.0
    head_seconds: float = 10.0
    body_seconds: float = 10.0
    stall_seconds: float = 30.0
    # ... which is checked for all connections this often.
    watch_seconds: float = 1.0
    # Between two requests: longer than a client keeps a connection that it does not use.
    keep_alive_seconds: int = 75
    # For what is in flight when the server ends.
    shutdown_seconds: int = 15
    # Of one request's head, and of requests that are sent ahead of their answers.
    head_bytes: int = 2**14
    head_fields: int = 100
    requests_ahead: int = 8
    # Connections at once, if there are files for them: those asked for, less our own.
    connections: int = 10_000
    open_files: int = 65_536
    own_files: int = 100
    # Connections that the system holds until they are accepted, by this many handles at once.
    backlog: int = 2048
    acceptors: int = 16

    # Days that a certificate should have left, and seconds between two times that it is checked.
    certificate_days: float = 30.0
    certificate_seconds: float = 86_400.0


class RefusedError(Exception):
    """A head or a queue of requests beyond its limit, or no request for us; `status` answers it."""

    def __init__(self, status: HTTPStatus) -> None:
        super().__init__(status.phrase)
        self.status = status


class Connection(HttpToolsProtocol):
    """One connection. `deadline` is when it must have moved on, on the loop's clock."""

    def __init__(self, *args: Any, most: int, limits: HttpLimits, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.most = most
        self.limits = limits
        self.carrier: asyncio.Transport | None = None  # with TLS, what is below it
        self.deadline = math.inf
        self.unsent = 0  # bytes that waited at the last check
        self.unsent_since = math.inf
        self._answering: RequestResponseCycle | None = None
        self._in_head = True
        self._ended = False  # whether what was received last had the end of a request
        self._head_bytes = 0  # received while the head was not complete
        self._head_size = 0  # of the parts that the parser has found
        self._foreign = False  # whether another server's address was asked for
        self._refusal = HTTPStatus.BAD_REQUEST

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        secured = transport.get_extra_info("uvloop.sslproto")
        if isinstance(secured, Secured):
            self.carrier = secured.carrier
            secured.arriving.discard(secured.carrier)
        self.deadline = self.loop.time() + self.limits.head_seconds
        if len(self.connections) > self.most:
            others = (c for c in self.connections if isinstance(c, Connection) and c is not self)
            idle = (c for c in others if c.idle and not c.transport.is_closing())
            next(idle, self).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        # With requests sent ahead uvicorn tells only the last one that nobody is there any more.
        if self._answering is not None:
            self._answering.disconnected = True
            self._answering.message_event.set()
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, app)

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete

    @property
    def waiting(self) -> int:
        """Bytes of answers that the peer has not taken yet."""
        below = 0 if self.carrier is None else self.carrier.get_write_buffer_size()
        return below + int(self.transport.get_write_buffer_size())

    def shutdown(self) -> None:
        """Close once requests in flight are answered; called when the server ends."""
        all_said = self.idle and self.waiting == 0
        super().shutdown()
        if all_said:
            self.transport.abort()  # at the loop's next turn, after TLS's goodbye has been sent

    def data_received(self, data: bytes) -> None:
        if self.deadline == math.inf and self._in_head:
            self.deadline = self.loop.time() + self.limits.head_seconds
        self._ended = False
        super().data_received(data)
        if self._in_head and not self._ended:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes and not self.transport.is_closing():
                self._refusal = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                self.send_400_response("")

    def on_message_begin(self) -> None:
        self._in_head = True
        self._head_bytes = self._head_size = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)
        if len(self.headers) >= self.limits.head_fields:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        if name.lower() == b"transfer-encoding" and value.strip().lower() != b"chunked":
            # What is packed besides would be taken for what it is not.
            self._refuse(HTTPStatus.NOT_IMPLEMENTED)
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if len(self.pipeline) >= self.limits.requests_ahead:
            self._refuse(HTTPStatus.TOO_MANY_REQUESTS)
        if not self.url.startswith(b"/") and self.url != b"*":
            self._check_absolute()
        self._in_head = False
        self._head_bytes = 0
        self.deadline = self.loop.time() + self.limits.body_seconds
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._in_head = True  # of the next request, which need not come
        self._ended = True
        self.deadline = math.inf
        super().on_message_complete()

    def _check_absolute(self) -> None:
        """A whole address in the request line must be the one that Host has: we are no proxy."""
        scheme, _, rest = self.url.partition(b"://")
        given = origin(scheme.decode("latin-1").lower(), re.split(rb"[/?#]", rest)[0])
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) != 1 or given != origin(self.scheme or "", hosts[0]):
            self._foreign = True
            self._refuse(HTTPStatus.BAD_REQUEST)

    def _count(self, more: int) -> None:
        self._head_size += more
        if self._head_size > self.limits.head_bytes:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def _refuse(self, status: HTTPStatus) -> None:
        self._refusal = status
        raise RefusedError(status)  # the parser stops, and `send_400_response` is called

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002 - uvicorn's words, not ours
        """Refuse a malformed request, in the form of all refusals, and close."""
        status, most = self._refusal, self.limits
        size = f"a head must have at most {most.head_bytes} bytes and {most.head_fields} fields"
        late = f"the body must arrive within {most.body_seconds:g} seconds"
        ahead = f"at most {most.requests_ahead} requests may wait for an answer"
        own = "the address in the request line must be this server's, as Host has it"
        detail = {
            HTTPStatus.BAD_REQUEST: own if self._foreign else "the request must be HTTP/1.1",
            HTTPStatus.NOT_IMPLEMENTED: "Transfer-Encoding must be chunked and nothing else",
            HTTPStatus.REQUEST_TIMEOUT: late,
            HTTPStatus.TOO_MANY_REQUESTS: ahead,
        }.get(status, size)
        word = "timeout" if status == HTTPStatus.REQUEST_TIMEOUT else "http"
        body = json.dumps({"error": word, "detail": detail}).encode()
        hsts = f"strict-transport-security: {HSTS}\r\n" if self.scheme == "https" else ""
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\n{hsts}connection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def watch(self, now: float) -> bool:
        """Close if the peer has used up its time; called once a second or so. Whether it had."""
        waiting = self.waiting
        if waiting == 0 or waiting < self.unsent:
            self.unsent_since = math.inf
        elif self.unsent_since == math.inf:
            self.unsent_since = now
        self.unsent = waiting
        if now > self.unsent_since + self.limits.stall_seconds:
            self.transport.abort()
        elif now > self.deadline:
            self.deadline = now + self.limits.stall_seconds
            if self._in_head or self.idle or self.cycle.response_started:
                self.transport.abort()
            else:
                self._refusal = HTTPStatus.REQUEST_TIMEOUT
                self.send_400_response("")
        else:
            return False
        return True


class Secured(SSLProtocol):  # type: ignore[misc]  # Any, for want of a stub
    """The TLS of one connection. `carrier` is below it, and in `arriving` during the handshake."""

    def __init__(
        self,
        connection: Connection,
        context: ssl.SSLContext,
        arriving: set[asyncio.Transport],
    ) -> None:
        super().__init__(
            connection.loop,
            connection,
            context,
            None,  # nobody waits for the handshake
            server_side=True,
            ssl_handshake_timeout=connection.limits.handshake_seconds,
        )
        self.arriving = arriving

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.carrier = transport
        self.arriving.add(transport)
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.arriving.discard(self.carrier)
        super().connection_lost(exc)


class Watch:
    """Checks all connections of a server, now and then, and drops those that are overdue."""

    def __init__(self, state: ServerState, metrics: ConnectionMetrics, every: float) -> None:
        self.state = state
        self.metrics = metrics
        self.every = every

    async def run(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.every)
            now = loop.time()
            self.metrics.connections.set(len(self.state.connections))
            for connection in list(self.state.connections):
                if isinstance(connection, Connection) and connection.watch(now):
                    self.metrics.dropped.inc()
