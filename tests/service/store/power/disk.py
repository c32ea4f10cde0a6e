"""A disk that loses its power: what may be left of a folder, from the records of tracing.c.

What was synced is there. Of what was written since, any part may be, down to single sectors of 512
bytes, in any order; and a name that was given or taken since the folder was last synced may or may
not have been.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

SECTOR = 512
_HEAD = struct.Struct("<cIqI")


@dataclass
class Record:
    """One thing that was done."""

    what: str
    file: int
    offset: int
    data: bytes


def read_trace(path: Path) -> list[Record]:
    """All records, in order."""
    content, at, records = path.read_bytes(), 0, []
    while at < len(content):
        what, file, offset, length = _HEAD.unpack_from(content, at)
        at += _HEAD.size
        records.append(Record(what.decode(), file, offset, content[at : at + length]))
        at += length
    return records


@dataclass
class _File:
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Record] = field(default_factory=list)

    def sync(self) -> None:
        for record in self.pending:
            _apply(self.durable, record)
        self.pending.clear()


class Disk:
    """The folder as records are done to it."""

    def __init__(self) -> None:
        self._files: dict[int, _File] = {}
        self._names: dict[str, int] = {}
        self._pending: list[Record] = []  # of names

    def do(self, record: Record) -> None:
        """Take the next record."""
        if record.what == "C":
            self._files[record.file] = _File()
        if record.what in "CUR":
            self._pending.append(record)
        elif record.what == "D":
            for pending in self._pending:
                _rename(self._names, pending)
            self._pending.clear()
        elif record.what == "S":
            self._files[record.file].sync()
        else:
            self._files[record.file].pending.append(record)

    def now(self) -> dict[str, bytes]:
        """Files by name as programs see them."""
        names = dict(self._names)
        for record in self._pending:
            _rename(names, record)
        contents = {}
        for name, number in names.items():
            content = bytearray(self._files[number].durable)
            for record in self._files[number].pending:
                _apply(content, record)
            contents[name] = bytes(content)
        return contents

    def after_power_cut(self, rng: np.random.Generator) -> dict[str, bytes]:
        """Files that may be found now, by name: everything synced, some of the rest."""
        names = dict(self._names)
        share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])  # how much of the rest got to the disk
        for record in self._pending:
            if rng.random() < share:
                _rename(names, record)
        contents = {}
        for number in set(names.values()):
            file = self._files[number]
            content = bytearray(file.durable)
            share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
            for record in file.pending:
                for part in _sectors(record):
                    if rng.random() < share:
                        _apply(content, part)
            contents[number] = bytes(content)
        return {name: contents[number] for name, number in names.items()}


def _apply(content: bytearray, record: Record) -> None:
    end = record.offset + len(record.data)
    if record.what == "T":
        del content[record.offset :]
    if len(content) < end:
        content.extend(bytes(end - len(content)))
    content[record.offset : end] = record.data


def _sectors(record: Record) -> Iterator[Record]:
    """What of a write can get to the disk by itself."""
    if record.what == "T":
        yield record
        return
    at = 0
    while at < len(record.data):
        size = SECTOR - (record.offset + at) % SECTOR
        yield Record("W", record.file, record.offset + at, record.data[at : at + size])
        at += size


def _rename(names: dict[str, int], record: Record) -> None:
    name = record.data.decode()
    if record.what == "C":
        names[name] = record.file
    elif record.what == "U":
        names.pop(name, None)
    else:
        old, new = name.split("\0")
        names.pop(old, None)
        names[new] = record.file
