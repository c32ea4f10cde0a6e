"""Bodies of requests: their type, their size, and reading them within it."""

from __future__ import annotations

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from rmab.errors import ProtocolError

__all__ = ["announced_size", "check_type", "read_body"]


def check_type(headers: dict[bytes, bytes]) -> None:
    """Refuse a body that is not plain JSON."""
    kind = headers.get(b"content-type", b"")
    if kind != b"application/json":
        kind = kind.partition(b";")[0].strip().lower()
    if kind != b"application/json" or b"content-encoding" in headers:
        raise ProtocolError(
            415, "type", "the body must be application/json without a content-encoding"
        )


def announced_size(headers: dict[bytes, bytes], most: int) -> int:
    """Return a body's Content-Length in bytes, `most` without one; ProtocolError 413 above it."""
    text = headers.get(b"content-length")
    if text is None:
        return most
    size = int(text)  # the parser of requests lets nothing but digits through
    if size > most:
        raise _too_large(most)
    return size


async def read_body(receive: Receive, most: int) -> bytes:
    """Read a body of at most `most` bytes; ProtocolError 413 if it has more."""
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
