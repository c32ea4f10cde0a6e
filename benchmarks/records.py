"""What was measured, as plain records: rows in tables, tables in parts, parts in one JSON file.

A part is what is measured together: the engine, the indices, ... Each part says when it was
measured, on what kind of machine, with which versions and how often, so parts can come from
different days and machines. The page is made from these records alone (`benchmarks.page`).

Python and NumPy are all that is needed here: a machine with a GPU may have no more.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import numpy as np

__all__ = [
    "NotHere",
    "Part",
    "Row",
    "machine_kind",
    "ratios",
    "read",
    "slope",
    "store",
    "today",
    "versions",
]


class NotHere(Exception):  # noqa: N818 - it is no mistake
    """What cannot be measured on this machine, and why."""


Value = float | int | str | None


@dataclass(frozen=True)
class Row:
    """One measurement: the best of its repetitions, and from where to where they ranged.

    limit: the most, or with sense "least" the least, that the value may be; None where nothing is
    asked. more: what belongs to it besides, by name.
    """

    case: str
    value: float
    low: float
    high: float
    repetitions: int
    unit: str = ""  # empty for a ratio
    limit: float | None = None
    sense: Literal["most", "least"] = "most"
    more: Mapping[str, Value] = field(default_factory=dict)

    @property
    def missed(self) -> bool:
        """Whether the limit is not kept; what is no number keeps none."""
        if self.limit is None:
            return False
        kept = self.value <= self.limit if self.sense == "most" else self.value >= self.limit
        return not kept

    def number(self, key: str) -> float:
        """One of the numbers that belong to it besides."""
        value = self.more[key]
        assert isinstance(value, int | float), f"{self.case}: {key} is {value!r}"
        return float(value)

    @classmethod
    def of(cls, case: str, values: Sequence[float], **others: Any) -> Row:
        """The best of these values is the smallest, with sense "least" the largest."""
        best = max if others.get("sense") == "least" else min
        return cls(case, best(values), min(values), max(values), len(values), **others)


@dataclass(frozen=True)
class Part:
    """What was measured together, and under which circumstances."""

    measured: str  # the day
    machine: str
    versions: Mapping[str, str]
    tables: Mapping[str, Sequence[Row]]
    load: float  # processes that wanted a core when it began
    notes: Mapping[str, Value] = field(default_factory=dict)

    @classmethod
    def now(
        cls,
        tables: Mapping[str, Sequence[Row]],
        packages: Iterable[str],
        load: float,
        machine: str | None = None,
        **notes: Value,
    ) -> Part:
        """A part of today on this machine."""
        kind = machine or machine_kind()
        return cls(today(), kind, versions(packages), tables, round(load, 1), notes)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Part:
        """From what `asdict` made of one."""
        tables = {name: [Row(**row) for row in rows] for name, rows in data["tables"].items()}
        return cls(**{**data, "tables": tables})

    @property
    def missed(self) -> list[str]:
        """The cases that do not keep their limit, each after the name of its table."""
        return [
            f"{table}: {row.case}"
            for table, rows in self.tables.items()
            for row in rows
            if row.missed
        ]


def ratios(case: str, times: Sequence[float], beside: Sequence[float], **others: Any) -> Row:
    """Times over what was measured in turn with them: the best of each, and the range of pairs.

    The first is always within the second.
    """
    pairs = [one / other for one, other in zip(times, beside, strict=True)]
    value = min(times) / min(beside)
    return Row(case, value, min(pairs), max(pairs), len(pairs), **others)


def slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """b of times ~ a sizes^b, by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


# -------------------------------------------------------------------------------- circumstances


def today() -> str:
    """The day, as 2026-01-31."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def machine_kind() -> str:
    """Cores and processor: what times depend on, and nothing that tells which machine it is."""
    cores = len(os.sched_getaffinity(0))
    model = platform.processor()
    info = Path("/proc/cpuinfo")
    if info.exists():
        lines = (line.partition(":") for line in info.read_text(encoding="utf-8").splitlines())
        named = [value.strip() for key, _, value in lines if key.strip() == "model name"]
        model = named[0] if named else model
    counted = "1 core" if cores == 1 else f"{cores} cores"
    return f"{counted} of {model or 'an unknown processor'} ({platform.machine()})"


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Of Python and of these packages, as far as they are installed."""
    found = {"Python": platform.python_version()}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


# ------------------------------------------------------------------------------------- the file


def read(path: Path) -> dict[str, Part]:
    """All parts of a file by name; none where there is no file."""
    if not path.exists():
        return {}
    parts = json.loads(path.read_text(encoding="utf-8"))
    return {name: Part.from_json(part) for name, part in parts.items()}


def store(path: Path, parts: Mapping[str, Part]) -> None:
    """Write parts by name; numbers keep five digits, which is more than repeats."""
    data = {name: _rounded(asdict(parts[name])) for name in sorted(parts)}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(each) for each in value]
    return value
