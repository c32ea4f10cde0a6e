"""Versions of libraries that results depend on, and the kind of device."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

__all__ = ["device", "versions"]

_LIBRARIES = ("jax", "jaxlib", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Return the versions by library."""
    from rmab import __version__

    libraries = {name: version(name) for name in _LIBRARIES}
    return {"rmab": __version__, **libraries, "python": platform.python_version()}


def device() -> str:
    """The kind of device that JAX computes on: "NVIDIA H200", say, or the model of the CPU."""
    import jax

    found = jax.devices()[0]
    return _processor() if found.platform == "cpu" else str(found.device_kind)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name" and value.strip():
                return value.strip()
    return platform.processor() or platform.machine() or "CPU"
