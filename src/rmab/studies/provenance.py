"""Where results come from: what must be known, beside the study, to get them again."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["Provenance"]

_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy")


def _versions() -> dict[str, str]:
    from rmab import __version__

    libraries = {name: version(name) for name in _LIBRARIES}
    return {"rmab": __version__, **libraries, "python": platform.python_version()}


def _device() -> str:
    """The kind of device that JAX computes on."""
    import jax

    device = jax.devices()[0]
    return _processor() if device.platform == "cpu" else str(device.device_kind)


def _processor() -> str:
    """The model of the CPU."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "CPU"


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

    threads: of a CPU; None on an accelerator. xla_flags: the variable XLA_FLAGS, which may change
    the last bit. command: None where the study was run from Python.
    """

    command: str | None = None
    versions: dict[str, str] = field(default_factory=_versions)
    device: str = field(default_factory=_device)
    threads: int | None = field(default_factory=_threads)
    xla_flags: str = field(default_factory=lambda: os.environ.get("XLA_FLAGS", ""))
    begun: str = field(default_factory=_now)
    seconds: float = 0.0

    @property
    def described(self) -> str:
        """The device in words."""
        if self.threads is None:
            return self.device
        return f"{self.device}, {self.threads} thread{'' if self.threads == 1 else 's'}"

    def to_json(self) -> dict[str, Any]:
        """As results.json has it."""
        return {
            "versions": self.versions,
            "device": self.device,
            "threads": self.threads,
            "xla_flags": self.xla_flags,
            "time": {"begun": self.begun, "seconds": round(self.seconds, 3)},
            "command": self.command,
        }

    @property
    def bits(self) -> dict[str, str]:
        """What the last bit of a result may depend on."""
        libraries = {k: v for k, v in self.versions.items() if k != "python"}
        return {**libraries, "device": self.device, "XLA_FLAGS": self.xla_flags}
