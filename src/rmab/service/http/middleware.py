"""Checks and headers of every request, whatever its route.

host      a request of HTTP/1.1 without exactly one Host is refused (400): a proxy and the server
          could read it differently. A server on loopback answers only requests that call it by a
          name of loopback (else 421): a page from elsewhere, whose name was made to point here,
          reads nothing. A proxy that is trusted may pass on any name
origin    changes are refused (403) where a browser asks for a page from elsewhere
headers   a browser may load nothing from elsewhere for an answer, keep nothing, show it in no
          frame, and once it has come by TLS never ask without (HSTS)
errors    every refusal is {"error": word, "detail": one sentence}; a fault of ours is 500 and
          says only that
measures  a count by route and code; with verbose logs a line for each request
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rmab.errors import Overloaded, ProtocolError, StorageError
from rmab.service.http.proxies import HSTS, Caller, Proxies, origin
from rmab.service.http.telemetry import ConnectionMetrics, Log
from rmab.service.http.tokens import without_secrets

__all__ = ["Middleware", "json_answer"]

_SAFETY = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
        b"img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_SAFETY_BY_TLS = [*_SAFETY, (b"strict-transport-security", HSTS.encode())]
_READING = ("GET", "HEAD")
_READINESS = "/readyz"


def json_answer(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON body; bytes are JSON already."""
    if not isinstance(content, bytes):
        content = json.dumps(content, separators=(",", ":"), allow_nan=False).encode()
    return Response(content, status, headers, "application/json")


class _Refusal(NamedTuple):
    """Answer to a request that was refused or failed; word: for programs."""

    status: int
    word: str
    detail: str
    headers: dict[str, str] | None = None
    extra: Mapping[str, Any] = MappingProxyType({})

    def answer(self) -> Response:
        table = {"error": self.word, "detail": self.detail, **self.extra}
        return json_answer(table, self.status, self.headers)


_AGAIN = {"Retry-After": "1"}
_ROUTING = {
    404: ("path", "there is nothing under this path"),
    405: ("method", "not with this method"),
}


def _refusal(error: Exception) -> _Refusal:
    match error:
        case ProtocolError():
            headers = {}
            if error.status == 401:
                headers["WWW-Authenticate"] = error.extra.get("challenge", 'Bearer realm="rmab"')
            if error.status == 413:
                headers["Connection"] = "close"  # the rest of the body is not waited for
            if error.status == 503:
                headers |= _AGAIN
            if "retry_after" in error.extra:
                headers["Retry-After"] = str(error.extra["retry_after"])
            in_headers = ("challenge", "retry_after")
            extra = {key: value for key, value in error.extra.items() if key not in in_headers}
            # The message quotes the request, which may have a token where a name belongs.
            detail = without_secrets(str(error))
            return _Refusal(error.status, error.code, detail, headers, extra)
        case Overloaded():
            detail = "more is waiting than the server takes; try again"
            return _Refusal(503, "overload", detail, _AGAIN)
        case StorageError():
            detail = "the database did not keep it; nothing was acknowledged; try again"
            return _Refusal(503, "storage", detail, _AGAIN)
        case HTTPException():
            word, detail = _ROUTING.get(error.status_code, ("http", str(error.detail)))
            return _Refusal(error.status_code, word, detail, dict(error.headers or {}))
        case _:
            return _Refusal(500, "fault", "a fault of the server; its log has more")


class Middleware:
    """Wraps the routes.

    fast: routes by method and path that need no search; hosts: names that a loopback server goes
    by; None: any, it is public.
    """

    def __init__(
        self,
        routes: ASGIApp,
        *,
        fast: Mapping[tuple[str, str], Route],
        hosts: frozenset[str] | None,
        proxies: Proxies,
        log: Log,
        metrics: ConnectionMetrics,
    ) -> None:
        self._routes = routes
        self._fast = fast
        self._hosts = hosts
        self._proxies = proxies
        self._log = log
        self._requests = metrics.requests
        self._good_hosts: set[bytes] = set()
        self._counters: dict[tuple[str, int], Any] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        scope["app"] = self  # so that the router raises what it refuses, for us to answer
        started = time.perf_counter()
        status = 0
        caller = self._proxies.caller(scope)
        safety = _SAFETY_BY_TLS if caller.scheme == "https" else _SAFETY

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *safety]
            await send(message)

        problem: Exception | None = None
        try:
            if caller.hosts != 1 and scope.get("http_version", "1.1") != "1.0":
                raise ProtocolError(
                    400,
                    "host",
                    f"an HTTP/1.1 request must have one Host header, got {caller.hosts}",
                )
            if self._hosts is not None and not caller.proxied:
                self._check_host(caller.host)
            if scope["method"] not in _READING:
                _check_origin(scope, caller)
            fast = self._fast.get((scope["method"], scope["path"]))
            if fast is None:
                await self._routes(scope, receive, answer)
            else:
                scope["route"] = fast
                await fast.app(scope, receive, answer)
        except ClientDisconnect:
            status = status or 499  # nobody is left to answer
        except Exception as error:
            problem = error
            if status == 0:
                await _refusal(error).answer()(scope, receive, answer)
            known = isinstance(error, ProtocolError | Overloaded | HTTPException | StorageError)
            if not known:
                self._log(
                    "error",
                    "fault",
                    error=f"{type(error).__name__}: {error}",
                    path=scope["path"][:200],
                    where=_where(error),
                )
        self._finish(scope, caller, status, problem, started)

    def _finish(
        self,
        scope: Scope,
        caller: Caller,
        status: int,
        problem: Exception | None,
        started: float,
    ) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self._count(route, status)
        # Whoever asks whether the server is ready expects to hear that it is not.
        if (problem is not None or status == 503) and route != _READINESS:
            self._log.refused(
                status=status,
                route=route,
                agent=scope.get("rmab.agent"),
                client=caller.client,
                reason="overload" if problem is None else _refusal(problem).word,
                detail=str(problem)[:300]
                if isinstance(problem, ProtocolError | StorageError)
                else None,
            )
        elif self._log.verbose:
            self._log(
                "debug",
                "request",
                method=scope["method"],
                route=route,
                status=status,
                agent=scope.get("rmab.agent"),
                client=caller.client,
                ms=round(1000 * (time.perf_counter() - started), 1),
            )

    def _count(self, route: str, status: int) -> None:
        counter = self._counters.get((route, status))
        if counter is None:
            counter = self._requests.labels(route, str(status))
            self._counters[route, status] = counter
        counter.inc()

    def _check_host(self, host: bytes) -> None:
        if host in self._good_hosts:
            return
        text = host.decode("latin-1").lower()
        name = re.sub(r":[0-9]*$", "", text).removeprefix("[").removesuffix("]").removesuffix(".")
        if self._hosts is None or name not in self._hosts:
            raise ProtocolError(
                421, "host", "a server on loopback answers to localhost, 127.0.0.1 and ::1 alone"
            )
        if len(self._good_hosts) < 16:
            self._good_hosts.add(host)


def _check_origin(scope: Scope, caller: Caller) -> None:
    """ProtocolError 403 where a browser asks for a page that is not the server's own."""
    for name, value in scope["headers"]:
        if name == b"origin":
            scheme, _, host = value.partition(b"://")
            given = origin(scheme.decode("latin-1").lower(), host)
            if not caller.host or given != origin(caller.scheme, caller.host):
                raise ProtocolError(
                    403,
                    "origin",
                    "Origin must be this server's own: pages from elsewhere may not "
                    "change anything here",
                )


def _where(error: Exception) -> str | None:
    """The place in the code, without values."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return None
    return f"{trace.tb_frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
