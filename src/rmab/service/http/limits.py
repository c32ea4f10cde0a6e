"""Limits of every process that listens: connections, requests, certificate."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["HttpLimits"]


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
