"""Provenance of results: versions, device and time, which reproduce them with the study."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rmab.engine.device import device, versions

__all__ = ["Provenance"]


def _threads() -> int | None:
    import jax

    from rmab.engine.montecarlo import default_threads

    return default_threads() if jax.default_backend() == "cpu" else None


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


@dataclass(frozen=True)
class Provenance:
    """Provenance of a run.

    Parameters
    ----------
    command
        Command line; None for a study run from Python.
    versions
        Versions by package.
    device
        Name of the device.
    threads
        Threads of a CPU; None on an accelerator or a cluster.
    workers
        Workers of a Ray cluster, else None.
    xla_flags
        Environment variable XLA_FLAGS, which may change the last bit.
    begun
        Start, as UTC time in ISO 8601.
    seconds
        Duration; a resumed run has the seconds of all its parts.
    """

    command: str | None = None
    versions: dict[str, str] = field(default_factory=versions)
    device: str = field(default_factory=device)
    threads: int | None = field(default_factory=_threads)
    workers: int | None = None
    xla_flags: str = field(default_factory=lambda: os.environ.get("XLA_FLAGS", ""))
    begun: str = field(default_factory=_now)
    seconds: float = 0.0

    @property
    def described(self) -> str:
        """Device in words."""
        counted = [(self.threads, "thread"), (self.workers, "worker")]
        parts = [f"{n} {name}{'' if n == 1 else 's'}" for n, name in counted if n is not None]
        return ", ".join([self.device, *parts])

    def to_json(self) -> dict[str, Any]:
        """Table for results.json."""
        return {
            "versions": self.versions,
            "device": self.device,
            "threads": self.threads,
            "workers": self.workers,
            "xla_flags": self.xla_flags,
            "time": {"begun": self.begun, "seconds": round(self.seconds, 3)},
            "command": self.command,
        }

    @property
    def bits(self) -> dict[str, str]:
        """Settings that the last bit of a result may depend on."""
        libraries = {k: v for k, v in self.versions.items() if k != "python"}
        return {**libraries, "device": self.device, "XLA_FLAGS": self.xla_flags}
