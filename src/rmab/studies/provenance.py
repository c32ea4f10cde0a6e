"""Where results come from: what must be known, beside the study, to get them again."""

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
    """Made on `device` with these versions, from `begun` (UTC) on, in `seconds`; a run that was
    resumed has the seconds of all its parts.

    threads: of a CPU; None on an accelerator or a cluster. workers: of a Ray cluster, else None.
    xla_flags: the variable XLA_FLAGS, which may change the last bit. command: None where the study
    was run from Python.
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
        """The device in words."""
        counted = [(self.threads, "thread"), (self.workers, "worker")]
        parts = [f"{n} {name}{'' if n == 1 else 's'}" for n, name in counted if n is not None]
        return ", ".join([self.device, *parts])

    def to_json(self) -> dict[str, Any]:
        """As results.json has it."""
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
        """What the last bit of a result may depend on."""
        libraries = {k: v for k, v in self.versions.items() if k != "python"}
        return {**libraries, "device": self.device, "XLA_FLAGS": self.xla_flags}
