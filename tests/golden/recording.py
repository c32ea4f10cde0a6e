"""Entries that were recorded, and how they are compared with what is found now.

The same program gives the same bits on the same kind of machine: CPU, libraries and compiler flags.
Where these are the recorded ones, an entry must be equal, its digest `sha256` of raw bytes
included. Elsewhere the last bit of a number may differ, and with it the choice between two arms of
nearly equal index; the trial then takes another course. So there `sha256` is left out, whole
numbers and words must be equal, and other numbers must be close, see `difference`.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
from fnmatch import fnmatch
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["compare", "digest"]

DATA = Path(__file__).parent / "data"
DIGEST = "sha256"
LIBRARIES = ("jax", "jaxlib", "numpy", "scipy")
# One of 32 trials that takes another course moves a mean by 0.18 of its standard error, about.
STANDARD_ERRORS = 0.5
RELATIVE, ABSOLUTE = 0.02, 1e-5  # of numbers that have no standard error


def compare(file: str, entry: str, found: Any) -> None:
    """Fail unless the entry is as recorded; record it instead where RMAB_RECORD names it."""
    found = json.loads(json.dumps(found, allow_nan=False))
    patterns = os.environ.get("RMAB_RECORD", "").split(",")
    if any(fnmatch(f"{file}/{entry}", pattern.strip()) for pattern in patterns):
        _record(file, entry, found)
        return
    stored = _read(file)
    assert entry in stored["entries"], f"{file}/{entry} was never recorded"
    one = stored["entries"][entry]
    same = stored["machines"][one["machine"]] == machine()
    differing = difference(one["value"], found, exact=same)
    assert not differing, "\n  ".join([f"{file}/{entry} is not as recorded:", *differing[:20]])


def digest(content: bytes) -> str:
    """Of raw bytes."""
    return hashlib.sha256(content).hexdigest()


def difference(
    stored: Any, found: Any, *, exact: bool, place: str = "", se: Any = None
) -> list[str]:
    """Where two values differ, a line each.

    Unless they must be exact, a number that stands beside its standard error (mean and se, final
    and final_se) may be off by half of that, others by 2 percent or 1e-5; decimal numbers within a
    text may be any.
    """
    if not exact and place.endswith(DIGEST):
        return []
    if isinstance(stored, dict) and isinstance(found, dict):
        lines = [
            f"{place}.{key}: {'no longer there' if key in stored else 'new'}"
            for key in sorted(stored.keys() ^ found.keys())
        ]
        for key in stored.keys() & found.keys():
            spread = stored.get("se" if key == "mean" else f"{key}_se")
            lines += difference(
                stored[key], found[key], exact=exact, place=f"{place}.{key}", se=spread
            )
        if list(stored) != list(found) and not lines:
            lines.append(f"{place}: keys are in another order: {list(found)}")
        return lines
    if isinstance(stored, list) and isinstance(found, list) and len(stored) == len(found):
        return [
            line
            for i, (one, other) in enumerate(zip(stored, found, strict=True))
            for line in difference(one, other, exact=exact, place=f"{place}[{i}]")
        ]
    if type(stored) is type(found) and stored == found:
        return []
    texts = isinstance(stored, str) and isinstance(found, str)
    if not exact and texts and _without_decimals(stored) == _without_decimals(found):
        return []
    if isinstance(stored, float) and isinstance(found, float):
        slack = max(ABSOLUTE, RELATIVE * abs(stored), STANDARD_ERRORS * se if se else 0.0)
        if not exact and abs(stored - found) <= slack:
            return []
        off = f" (off by {found - stored:.3g}" + (f", standard error {se:.3g})" if se else ")")
        return [f"{place}: {stored!r} was recorded, now {found!r}{off}"]
    return [f"{place}: {_shown(stored)} was recorded, now {_shown(found)}"]


def _without_decimals(text: str) -> str:
    """A line for people, whose numbers need not be exact."""
    return " ".join(re.sub(r"-?[0-9]+\.[0-9]+", "#", text).split())


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}... ({len(text)} characters)"


@cache
def machine() -> dict[str, Any]:
    """What the last bit of a result may depend on."""
    described = {"architecture": platform.machine(), "python": platform.python_version()[:4]}
    found: dict[str, str] = {}
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    flags = [
        flag
        for flag in sorted(found.get("flags", "").split())
        if flag.startswith(("avx", "fma", "f16c", "sse", "bmi", "amx"))
    ]
    described["cpu"] = " ".join((found.get("vendor_id", "?"), found.get("cpu family", "?"), *flags))
    for library in LIBRARIES:
        try:
            described[library] = version(library)
        except PackageNotFoundError:
            described[library] = "none"
    return described | {"XLA_FLAGS": os.environ.get("XLA_FLAGS", "")}


def _path(file: str) -> Path:
    return DATA / f"{file}.json"


def _read(file: str) -> dict[str, Any]:
    if not _path(file).exists():
        return {"machines": {}, "entries": {}}
    stored: dict[str, Any] = json.loads(_path(file).read_text(encoding="utf-8"))
    return stored


def _record(file: str, entry: str, found: Any) -> None:
    stored = _read(file)
    here = digest(json.dumps(machine(), sort_keys=True).encode())[:8]
    stored["machines"][here] = machine()
    stored["entries"][entry] = {"machine": here, "value": found}
    used = {one["machine"] for one in stored["entries"].values()}
    stored["machines"] = {name: of for name, of in stored["machines"].items() if name in used}
    DATA.mkdir(exist_ok=True)
    text = json.dumps(stored, indent=1, ensure_ascii=False)
    _path(file).write_text(text + "\n", encoding="utf-8")
