"""The log of a service, and the metrics of its connections for Prometheus.

The log has one JSON object a line, on standard error.

    {"time": "2026-01-31T12:00:00.123Z", "level": "info", "event": "round closed", "round": 7, ...}

An event is a few fixed words; everything that varies stands in separate fields. Only fields named
by the caller are written: never a request's headers, hence never a credential; and should somebody
put a token where a name belongs, its secret is left out.

Refusals, which a broken or hostile peer can cause at any rate, are written at most
`REFUSALS_A_SECOND` times a second, and the first one after a pause tells how many were left out.

Each metric is explained in docs/operations.md.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from datetime import UTC, datetime
from typing import IO, Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from rmab.service.http.tokens import without_secrets

__all__ = ["REFUSALS_A_SECOND", "ConnectionMetrics", "Log", "quieten"]

REFUSALS_A_SECOND = 20
_LEVELS = ("debug", "info", "warning", "error")


class Log:
    """Writes events at or above `level` to a stream (standard error, as it is when written)."""

    def __init__(self, stream: IO[str] | None = None, level: str = "info") -> None:
        self._stream = stream
        self._least = _LEVELS.index(level)
        self.verbose = level == "debug"  # whether every request is worth a line
        self._second = 0
        self._refusals = 0
        self._left_out = 0

    def __call__(self, level: str, event: str, **fields: Any) -> None:
        """Write one event; None fields are left out."""
        if _LEVELS.index(level) < self._least:
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        entry = {"time": now, "level": level, "event": event}
        entry |= {key: value for key, value in fields.items() if value is not None}
        stream = sys.stderr if self._stream is None else self._stream
        try:
            stream.write(without_secrets(json.dumps(entry, default=str)) + "\n")
            stream.flush()
        except (OSError, ValueError):  # a full disk or a closed pipe must not stop the server
            pass

    def refused(self, **fields: Any) -> None:
        """A request that was refused, or one of many."""
        second = int(time.monotonic())
        if second != self._second:
            self._second, self._refusals = second, 0
        self._refusals += 1
        if self._refusals > REFUSALS_A_SECOND:
            self._left_out += 1
            return
        left_out, self._left_out = self._left_out, 0
        self("warning", "refused", left_out=left_out or None, **fields)


class _Forward(logging.Handler):
    """Handler that passes libraries' log records to the server's log."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._log(
            record.levelname.lower() if record.levelname.lower() in _LEVELS else "error",
            "message",
            logger=record.name,
            text=record.getMessage().strip(),
            error=None if error is None else f"{type(error).__name__}: {error}",
        )


def quieten(log: Log) -> None:
    """Send errors of uvicorn and asyncio to the log, and nothing else of theirs anywhere."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = False
        logger.setLevel(logging.ERROR)
    for name in ("uvicorn", "uvicorn.error", "asyncio"):
        logging.getLogger(name).addHandler(_Forward(log))
    logging.getLogger("uvicorn.error").propagate = False


class ConnectionMetrics:
    """Metrics of every service, in a registry of its own."""

    media_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        self.requests = Counter(
            "rmab_http_requests",
            "Requests by route and status code",
            ["route", "code"],
            registry=self.registry,
        )
        self.connections = Gauge("rmab_connections", "Open connections", registry=self.registry)
        self.dropped = Counter(
            "rmab_dropped_connections",
            "Connections closed because their peer was too slow",
            registry=self.registry,
        )
        self.certificate_expiry = Gauge(
            "rmab_certificate_expiry_timestamp_seconds",
            "When the certificate expires, in seconds since 1970; NaN without TLS",
            registry=self.registry,
        )
        self.certificate_expiry.set(float("nan"))

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)
