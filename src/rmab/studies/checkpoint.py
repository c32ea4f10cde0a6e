"""Checkpoints: a job that goes on after its process has ended, with the same numbers.

A *job* is one study, or several *points* of a sweep, a study each with a label. A checkpoint has
the sums of the first n trials of each point. They are whole numbers and exact however the trials
are batched, so a resumed job ends with the same numbers, bit for bit, as an uninterrupted one, and
a checkpoint does not grow with the trials.

A folder DIR has

    checkpoint/job.json       the sweep, and its provenance
    checkpoint/point-1.npz    n and the sums of the first point's first n trials, and so on
    checkpoint/lock           held by the process that uses it, until that ends

Every file is replaced as a whole and is on the disk then. A point's is written after its first
batch, then every few seconds, and at the end. It carries a digest of the study and of itself: a
file that is torn, of another study, or changed is refused.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np

from rmab.engine.tally import Batch, Simulated, Sums
from rmab.errors import (
    ModelError,
    StorageError,
    StudyError,
    UnavailableError,
    is_lasting,
    system_reason,
)
from rmab.files import lock_file, replaced
from rmab.studies.provenance import Provenance
from rmab.studies.study import Study
from rmab.studies.sweep import Sweep, sweep_of
from rmab.text import shown

__all__ = ["Checkpoint", "Job", "StoredPoint", "differences"]

FORMAT = 1
_FOLDER = "checkpoint"
_INTERVAL = 2.0  # least seconds between two writes
_SHARE = 20  # least time between two writes, in durations of the last one
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of a file system without locks


@dataclass(frozen=True)
class Job:
    """Points of a sweep to run; a study is a sweep of one point.

    provenance: as the job began; file: the study file, "" for a study of Python; changes: settings
    of the command line that replace the file's, by key.
    """

    sweep: Sweep
    provenance: Provenance = field(default_factory=Provenance)
    file: str = ""
    changes: Mapping[str, int] = field(default_factory=dict)

    @property
    def points(self) -> dict[str, Study]:
        """Study of each point by label."""
        return {point.label: point.study for point in self.sweep.points}

    def to_json(self) -> dict[str, Any]:
        """Table of job.json."""
        return {
            "format": FORMAT,
            "study": self.sweep.to_table(),
            "file": self.file,
            "changes": dict(self.changes),
            **self.provenance.to_json(),
        }

    @classmethod
    def from_json(cls, table: Any) -> Self:
        """Read the table of `to_json`; ValueError, KeyError or TypeError for any other."""
        if table["format"] != FORMAT:
            raise ValueError(f"its format is {shown(table['format'])}, and {FORMAT} is known")
        sweep = sweep_of(table["study"])
        if not all(isinstance(each, str) for each in (table["file"], *table["versions"].values())):
            raise TypeError("a name is no text")
        made = Provenance(
            table["command"],
            dict(table["versions"]),
            str(table["device"]),
            table["threads"],
            table["workers"],
            str(table["xla_flags"]),
            str(table["time"]["begun"]),
        )
        changes = {key: int(value) for key, value in table["changes"].items()}
        return cls(sweep, made, table["file"], changes)


class Checkpoint:
    """Checkpoint in a folder, locked against other processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / _FOLDER
        self._job_file = self._path / "job.json"
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock: int | None = lock_file(self._path / "lock")
        except BlockingIOError:
            raise UnavailableError(f"{folder}: another process runs a study there") from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise self._trouble("cannot be used", error) from None
            self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _trouble(self, what: str, error: OSError) -> StorageError:
        said = f"{self._path}: {what}: {system_reason(error)}"
        return StorageError(said, lasting=is_lasting(error))

    def _unusable(self, path: Path, why: str) -> StudyError:
        return StudyError(f"{path}: {why}; to begin anew, remove {self._path}")

    # ------------------------------------------------------------------------------------- the job

    def job(self) -> Job | None:
        """Job that was begun here; None if there is none."""
        try:
            text = self._job_file.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._trouble("cannot be read", error) from None
        try:
            return Job.from_json(json.loads(text))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, ModelError) as why:
            said = f"no key {why}" if isinstance(why, KeyError) else str(why)
            raise self._unusable(self._job_file, f"is no checkpoint: {shown(said)}") from None

    def begin(self, job: Job) -> None:
        """Begin a new job; StudyError if an earlier one is not done."""
        before = self.job()
        if before is not None:
            done, wanted = self.n_trials(before), before.sweep.n_trials
            if 0 < done < wanted:
                raise StudyError(
                    f"{self.folder}: has a run of which {done} of {wanted} trials are done; "
                    f"rmab run --resume {self.folder} goes on with it; to begin anew, remove "
                    f"{self._path}"
                )
        text = json.dumps(job.to_json(), indent=2, allow_nan=False) + "\n"
        try:
            # In this order, so that points never stand beside another job.
            self._job_file.unlink(missing_ok=True)
            for old in self._path.glob("point-*"):
                old.unlink()
            with replaced(self._job_file) as file:
                file.write(text.encode())
        except OSError as error:
            raise self._trouble("cannot be written", error) from None

    def resume(self, here: Provenance | None = None) -> Job:
        """Job that was begun here; StudyError if it cannot end with the same numbers.

        here: provenance of the continuation; this process's if it is not given.
        """
        job = self.job()
        if job is None:
            raise StudyError(f"{self.folder}: has no checkpoint to go on from")
        differ = differences(job.provenance.bits, (here or Provenance()).bits, "here")
        if differ:
            raise StudyError(
                f"{self.folder}: cannot go on with the same numbers: {'; '.join(differ)}; to begin "
                f"anew, remove {self._path}"
            )
        return job

    def resume_or_begin(self, job: Job) -> Job:
        """Resume an equal job or begin it; StudyError if another one was begun here."""
        if self.job() is None:
            self.begin(job)
            return job
        begun = self.resume(job.provenance)
        self.refuse_changes(begun, job.sweep, lambda _: "now")
        return begun

    def refuse_changes(self, job: Job, sweep: Sweep, where: Callable[[str], str]) -> None:
        """Refuse a sweep that is not the job's; where: the source of a key's new value."""
        differ = differences(job.sweep.to_table(), sweep.to_table(), where)
        if not differ and list(job.sweep.values) != list(sweep.values):
            differ = [f"sweep: keys in another order {where('sweep')}"]
        if differ:
            raise StudyError(
                f"{self.folder}: the study has changed: {_some(differ)}; put it back, or begin "
                "anew in another folder"
            )

    def n_trials(self, job: Job) -> int:
        """Number of stored trials, of all points."""
        return sum(self.point(job, label).n_trials for label in job.points)

    def point(self, job: Job, label: str) -> StoredPoint:
        """Stored sums of a point."""
        points = job.points
        place = list(points).index(label) + 1
        return StoredPoint(self, self._path / f"point-{place}.npz", points[label])


class StoredPoint:
    """Sums of a point's first trials in a file; see rmab.engine.montecarlo.SumsStore.

    before: sums of an earlier process; seconds: duration so far, of all processes.
    """

    def __init__(self, checkpoint: Checkpoint, path: Path, study: Study) -> None:
        self.before: Batch | None = None
        self.n_trials = 0  # in the file
        self._checkpoint = checkpoint
        self._path = path
        self._study = study
        self._next = self._begun = time.monotonic()
        self._earlier = 0.0
        if path.exists():
            self.before, self._earlier = self._read()
            self.n_trials = self.before.n_trials

    @property
    def seconds(self) -> float:
        if self.before is not None and self.before.n_trials == self._study.trials:
            return self._earlier
        return self._earlier + time.monotonic() - self._begun

    def _read(self) -> tuple[Batch, float]:
        try:
            with self._path.open("rb") as raw, np.load(raw, allow_pickle=False) as file:
                arrays = {name: file[name] for name in file.files}
            digest = arrays.pop("digest").tobytes()
        except (zipfile.BadZipFile, zlib.error, ValueError, TypeError, KeyError, EOFError):
            digest, arrays = b"", {}  # no archive, a torn one, or one without a digest
        except OSError as error:
            raise self._checkpoint._trouble(f"{self._path.name} cannot be read", error) from None
        if not arrays or digest != _digest(self._study, arrays):
            raise self._checkpoint._unusable(
                self._path, "is torn, of another study, or was changed"
            )
        parts: dict[str, dict[str, Sums]] = {}
        for name, array in arrays.items():
            if name.startswith("sums/"):
                _, place, key = name.split("/")
                of_policy = parts.setdefault(self._study.policy_names[int(place)], {})
                of_policy[key] = Sums(*array)
        total, high, low = (arrays[f"joint/{key}"] for key in _JOINT)
        batch = Batch(int(arrays["trials"]), (total, high, low), parts)
        return batch, float(arrays["seconds"])

    def keep(self, done: Simulated, *, last: bool) -> None:
        """Write the sums, unless they were written a moment ago."""
        now = time.monotonic()
        if done.n_trials == self.n_trials or (now < self._next and not last):
            return
        batch = done.as_batch()
        arrays: dict[str, Any] = {"trials": np.int64(batch.n_trials)}
        arrays["seconds"] = np.float64(self.seconds)
        arrays |= {f"joint/{key}": sums for key, sums in zip(_JOINT, batch.joint, strict=True)}
        for place, part in enumerate(batch.parts.values()):
            arrays |= {f"sums/{place}/{key}": np.stack(sums) for key, sums in part.items()}
        arrays["digest"] = np.frombuffer(_digest(self._study, arrays), np.uint8)
        try:
            with replaced(self._path) as file:
                np.savez(file, **arrays)
        except OSError as error:
            kept = f"{self.n_trials} trials are kept" if self.n_trials else "no trials are kept yet"
            folder = self._checkpoint.folder
            raise self._checkpoint._trouble(
                f"{self._path.name} cannot be written ({kept}; rmab run --resume {folder} goes on)",
                error,
            ) from None
        self.n_trials = batch.n_trials
        took = time.monotonic() - now
        self._next = now + took + max(_INTERVAL, _SHARE * took)


_JOINT = ("total", "high", "low")


def _digest(study: Study, arrays: Mapping[str, Any]) -> bytes:
    """Digest of a study and its sums."""
    found = hashlib.sha256(json.dumps(study.to_table(), sort_keys=True).encode())
    for name in sorted(arrays):
        array = np.asarray(arrays[name])
        found.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        found.update(np.ascontiguousarray(array).data)
    return found.digest()


def differences(
    before: Mapping[str, Any], now: Mapping[str, Any], where: str | Callable[[str], str]
) -> list[str]:
    """Differences of two tables, a line for each key; where: place of the second, or of its key."""
    lines = []
    for key in dict.fromkeys((*before, *now)):
        for place, one, other in _unlike(key, before.get(key), now.get(key)):
            said = where if isinstance(where, str) else where(key)
            one, other = ("none" if each is None else shown(each) for each in (one, other))
            lines.append(f"{place}: {one} in the checkpoint, {other} {said}")
    return lines


def _unlike(place: str, one: Any, other: Any) -> list[tuple[str, Any, Any]]:
    """Differences of two values; tables and lists of tables are followed, arms count from 1."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        keys = dict.fromkeys((*one, *other))
        return [x for key in keys for x in _unlike(f"{place}.{key}", one.get(key), other.get(key))]
    tables = [
        isinstance(each, list) and all(isinstance(row, Mapping) for row in each) and bool(each)
        for each in (one, other)
    ]
    if all(tables):
        if len(one) != len(other):
            return [(f"{place}s", len(one), len(other))]
        both = enumerate(zip(one, other, strict=True), start=1)
        return [x for number, rows in both for x in _unlike(f"{place} {number}", *rows)]
    return [] if one == other else [(place, one, other)]


def _some(lines: list[str], most: int = 8) -> str:
    """Join the first lines into one."""
    more = len(lines) - most
    return "; ".join(lines[:most]) + (f"; and {more} more" if more > 0 else "")
