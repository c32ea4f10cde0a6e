"""Client of an agent's server: one request, one answer, each bounded in time and size.

Trouble on the network is one exception, `NotReachedError`; the caller interprets the answer.
Redirects are not followed, as the credential is for this server only.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, NamedTuple

import httpx

from rmab.errors import FederationError, ProtocolError
from rmab.protocol.checks import read_object
from rmab.service.agent.limits import AgentLimits
from rmab.text import shown

__all__ = ["Answer", "Client", "NotReachedError", "make_client"]

_LONGEST_SLOT = 86_400.0  # seconds, the most that a federation's file may say


class NotReachedError(Exception):
    """No answer, or none that could be read to its end."""


class Answer(NamedTuple):
    """Answer of the server. retry_after: seconds, where it asks for them; own_draws: agents may
    draw for themselves; slot_seconds: the shortest slot, where the server names one."""

    status: int
    body: bytes
    retry_after: float | None
    own_draws: bool = False
    slot_seconds: float | None = None

    def number(self, key: str) -> int | None:
        """The whole number of that name in it, None if there is none."""
        try:
            value = read_object(self.body).get(key)
        except ProtocolError:
            return None
        return value if type(value) is int else None

    @property
    def detail(self) -> str:
        """Status and the server's explanation, on one line and not long."""
        try:
            detail = read_object(self.body).get("detail")
        except ProtocolError:
            detail = None
        said = f": {shown(detail)}" if isinstance(detail, str) else ""
        return f"status {self.status}{said}"


class Client:
    """Requests over HTTP. timeout: seconds for each step of a request."""

    def __init__(self, http: httpx.AsyncClient, timeout: float, limits: AgentLimits) -> None:
        self.http = http
        self._timeout = timeout
        self._limits = limits

    async def ask(self, method: str, path: str, *, longer: float = 0.0, **more: Any) -> Answer:
        """The answer to a request, for which the server may take `longer` seconds."""
        steps = httpx.Timeout(self._timeout, read=self._timeout + longer)
        most = self._limits.answer_bytes
        try:
            async with (
                asyncio.timeout(self._limits.answer_timeouts * self._timeout + longer),
                self.http.stream(
                    method, path, timeout=steps, extensions={"trace": _Handshake()}, **more
                ) as response,
            ):
                body = bytearray()
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > most:
                        raise NotReachedError(f"an answer has over {most} bytes")
                own = response.headers.get("rmab-draws") == "own"
                pace = _slot_seconds(response)
                return Answer(response.status_code, bytes(body), _retry_after(response), own, pace)
        except (TimeoutError, httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise NotReachedError(f"the server is not reached: {reason}") from None


class _Handshake:
    """Observer of a request's steps that closes a connection whose TLS handshake is not completed.

    httpcore does so where the handshake fails, but not where the request is cancelled meanwhile:
    such a connection would stay open, at both ends, until the garbage collector finds it.
    """

    def __init__(self) -> None:
        self._stream: Any = None

    async def __call__(self, step: str, info: dict[str, Any]) -> None:
        if step == "connection.connect_tcp.complete":
            self._stream = info["return_value"]
        elif step == "connection.start_tls.failed" and self._stream is not None:
            await self._stream.aclose()


def make_client(
    url: str,
    token: str,
    timeout: float,
    limits: AgentLimits,
    *,
    ca: str | None,
    loopback: bool,
    transport: httpx.AsyncBaseTransport | None,
) -> Client:
    """A client of that server. ca: a file of certificates to trust instead of the usual ones."""
    verify: ssl.SSLContext | bool = True
    if ca is not None:
        try:
            verify = ssl.create_default_context(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            raise FederationError(f"{ca}: no certificates can be read from it: {error}") from None
    http = httpx.AsyncClient(
        base_url=url,
        headers={"authorization": f"Bearer {token}", "accept": "application/json"},
        verify=verify,
        trust_env=not loopback,  # a proxy of the environment is not for this machine itself
        transport=transport,
    )
    return Client(http, timeout, limits)


def _slot_seconds(response: httpx.Response) -> float | None:
    """The shortest slot, in seconds; None where there is none that can be."""
    try:
        seconds = float(response.headers.get("rmab-slot-seconds", ""))
    except ValueError:
        return None
    return seconds if 0 < seconds <= _LONGEST_SLOT else None


def _retry_after(response: httpx.Response) -> float | None:
    """The seconds that the server asks for."""
    text = response.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 10 else None
