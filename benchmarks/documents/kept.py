"""Records: what one command measured, in docs/records/NAME.json."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from benchmarks.records import machine_kind, today, versions

__all__ = ["Json", "Record", "number", "read", "store"]

Json = dict[str, Any]
_DIGITS = 8  # significant digits of a number that is kept


@dataclass(frozen=True)
class Record:
    """What was measured, and under which circumstances.

    command: what measures it again; version: of rmab; date: as 2026-01-31; seed, trials: None where
    nothing is random, trials in words where they differ; unit: of trials; seconds: how long it
    took; data: plain numbers, by names that the page's module knows. A number that is unknown is
    None.
    """

    command: str
    version: str
    date: str
    device: str
    seed: int | None
    trials: int | str | None
    seconds: float
    data: Json
    unit: str = "trials"

    @classmethod
    def now(cls, command: str, data: Json, seconds: float, **others: Any) -> Record:
        """A record of today on this machine; others: seed, trials and their unit."""
        return cls(
            command=command,
            version=versions(["rmab"])["rmab"],
            date=today(),
            device=machine_kind(),
            data=data,
            seconds=round(seconds, 1),
            **others,
        )

    @property
    def source(self) -> str:
        """One line: command, trials, seed, version and date."""
        often = f"{self.trials:,} {self.unit}" if isinstance(self.trials, int) else self.trials
        seed = None if self.seed is None else f"seed {self.seed}"
        how = ", ".join(part for part in (often, seed) if part)
        made = f"rmab {self.version}, {self.date}"
        return f"`{self.command}`: {f'{how}; ' if how else ''}{made}"


def read(folder: Path) -> dict[str, Record]:
    """All records of a folder, by name; none where there is no folder."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        table = json.loads(path.read_text(encoding="utf-8"))
        if set(table) != {field.name for field in fields(Record)}:
            raise ValueError(f"{path}: is no record: its keys are {', '.join(table)}")
        found[path.stem] = Record(**table)
    return found


def store(folder: Path, name: str, record: Record) -> Record:
    """Write a record and return it as it will be read."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(_plain(asdict(record)), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    return Record(**json.loads(text))


def number(value: Any) -> float:
    """A number of a record; NaN where it is unknown."""
    return math.nan if value is None else float(value)


def _plain(value: Any) -> Any:
    """Numbers with few digits; NaN and infinity are unknown."""
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, bool | int | str) or value is None:
        return value
    value = float(value)
    return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
