"""Expiry of the server's certificate: a metric, and a warning while there is still time.

A client refuses a certificate that has expired, and that of an authority in the same file as well:
the first of a chain to expire counts. Reading dates out of DER is no part of running a process, so
it has a module of its own.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from rmab.service.http.connections import HttpLimits
from rmab.service.http.telemetry import ConnectionMetrics, Log

__all__ = ["CertificateWatch", "expiry"]

DAY = 86_400.0
_PEM = re.compile(f"{re.escape(ssl.PEM_HEADER)}.*?{re.escape(ssl.PEM_FOOTER)}", re.DOTALL)
# Of ASN.1, what is on the way to a certificate's dates.
_VERSION, _SHORT_YEAR = 0xA0, 0x17


class CertificateWatch:
    """Tells when a certificate expires: at once, and again from time to time."""

    def __init__(
        self, log: Log, metrics: ConnectionMetrics, limits: HttpLimits, clock: Callable[[], float]
    ) -> None:
        self._log = log
        self._metrics = metrics
        self._limits = limits
        self._clock = clock
        self._file = ""
        self._expires = float("inf")

    def loaded(self, file: str | Path) -> str:
        """The certificates in this file are in use from now on; when the first of them expires."""
        self._file, self._expires = str(file), expiry(Path(file).read_text("ascii", "replace"))
        self._metrics.certificate_expiry.set(self._expires)
        self.warn()
        return _when(self._expires)

    def warn(self) -> None:
        """Write a warning if little or no time is left."""
        days = (self._expires - self._clock()) / DAY
        if days <= self._limits.certificate_days:
            self._log(
                "warning",
                "certificate expires soon" if days > 0 else "certificate has expired",
                file=self._file,
                expires=_when(self._expires),
                days=round(days, 1),
            )

    async def run(self) -> None:
        """Warn once a day, until cancelled."""
        while True:
            await asyncio.sleep(self._limits.certificate_seconds)
            self.warn()


def expiry(pem: str) -> float:
    """When the first of these certificates expires: seconds since 1970, UTC."""
    found = (_expiry(ssl.PEM_cert_to_DER_cert(block)) for block in _PEM.findall(pem))
    return min(found, default=float("inf"))


def _expiry(der: bytes) -> float:
    """Return the second date of one certificate's validity.

    Certificate = {{[version], serial, algorithm, issuer, {not before, not after}, ...}, ...}
    """
    (_, certificate), *_ = _parts(der)
    (_, signed), *_ = _parts(certificate)
    fields = [content for kind, content in _parts(signed) if kind != _VERSION]
    (_, (kind, text)) = _parts(fields[3])
    form = "%y%m%d%H%M%SZ" if kind == _SHORT_YEAR else "%Y%m%d%H%M%SZ"
    found = datetime.strptime(text.decode("ascii"), form).replace(tzinfo=UTC)
    if kind == _SHORT_YEAR and found.year >= 2050:  # two digits stand for 1950 to 2049
        found = found.replace(year=found.year - 100)
    return found.timestamp()


def _parts(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield kind and content of each element in DER."""
    start = 0
    while start < len(der):
        kind, size, start = der[start], der[start + 1], start + 2
        if size & 0x80:  # so many bytes have the size
            more = size & 0x7F
            size, start = int.from_bytes(der[start : start + more], "big"), start + more
        yield kind, der[start : start + size]
        start += size


def _when(seconds: float) -> str:
    if seconds == float("inf"):
        return "never"
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")
