"""Uploads in the database: the ledger of all, the latest of each incarnation, and their sum.

Three things keep an upload cheap without changing what is kept:

    rows wait     they are written just before the transaction commits, or when many wait, many
                  rows to a statement; what is read here sees them all the same
    memory        inside transactions the last records and the sum of counts are remembered, by
                  the store that has the claim from one to the next: nobody else writes uploads
    forgetting    a rollback, or a new connection, drops all that was remembered
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.federation.messages import Record, Shape, Upload
from rmab.service.store.database import Database, Value
from rmab.service.store.standing import Standing

__all__ = ["Ledger", "packed"]

Ints = npt.NDArray[np.int64]
MOST_ROWS = 64  # in one statement
MOST_WAITING_BYTES = 32 * 2**20  # of rows that wait for the commit
MOST_REMEMBERED_BYTES = 64 * 2**20  # of last records

_LEDGER = (
    "INSERT INTO uploads (agent, incarnation, sequence, digest, round, length, received) VALUES"
)
_LATEST = (
    "INSERT INTO incarnations (agent, incarnation, sequence, round, slots, uploads, updated, "
    "visits, counts) VALUES"
)
_REPLACES = (
    " ON CONFLICT (agent, incarnation) DO UPDATE SET sequence = excluded.sequence, "
    "round = excluded.round, slots = excluded.slots, "
    "uploads = incarnations.uploads + excluded.uploads, updated = excluded.updated, "
    "visits = excluded.visits, counts = excluded.counts"
)


class _Latest(NamedTuple):
    """An incarnation's last upload, until its row is written."""

    upload: Upload
    uploads: int
    updated: float


class _Entry(NamedTuple):
    """A row of the ledger, until it is written."""

    agent: str
    incarnation: str
    sequence: int
    digest: bytes
    round: int
    length: int
    received: float


class Ledger:
    """The uploads of one federation; `inside`, set by the store: whether a transaction is open."""

    def __init__(self, database: Database, shape: Shape) -> None:
        S = max(shape.states)
        self._database = database
        self.counts_shape = (shape.kinds, S, S, shape.n_arms)
        self.visits_shape = (S, shape.n_arms)
        size = 8 * (shape.kinds * S + 1) * S * shape.n_arms
        self._most_waiting = max(1, min(MOST_ROWS, MOST_WAITING_BYTES // size))
        self._most_remembered = max(1, MOST_REMEMBERED_BYTES // size)
        self.inside = False
        self.forget()

    def forget(self) -> None:
        """Drop all that is not in the database."""
        self._latest: dict[tuple[str, str], _Latest] = {}
        self._entries: dict[tuple[str, str, int], _Entry] = {}
        self._records: dict[tuple[str, str], Record] = {}
        self._standing: Standing | None = None

    def record(self, agent: str, incarnation: str) -> Record | None:
        """The last upload accepted of an incarnation."""
        key = (agent, incarnation)
        known = self._records.get(key) if self.inside else None
        if known is not None:
            return known
        found = self._database.rows(
            "SELECT sequence, round, slots, counts, visits FROM incarnations "
            "WHERE agent = ? AND incarnation = ?",
            key,
        )
        if not found:
            return None
        ((sequence, round_, slots, counts, visits),) = found
        known = Record(sequence, round_, slots, self.counts(counts), self.visits(visits))
        if self.inside:
            self._remember(key, known)
        return known

    def _remember(self, key: tuple[str, str], record: Record) -> None:
        """Keep a record, at the end of the queue; of the oldest ones there are too many."""
        self._records.pop(key, None)
        self._records[key] = record
        if len(self._records) > self._most_remembered:
            self.write()  # a record may be dropped only when the database has it
            del self._records[next(iter(self._records))]

    def digest(self, agent: str, incarnation: str, sequence: int) -> bytes | None:
        """Of the upload accepted under a key."""
        key = (agent, incarnation, sequence)
        entry = self._entries.get(key)
        if entry is not None:
            return entry.digest
        found = self._database.rows(
            "SELECT digest FROM uploads WHERE agent = ? AND incarnation = ? AND sequence = ?", key
        )
        return found[0][0] if found else None

    def accept(self, agent: str, upload: Upload, now: float) -> None:
        """Count an upload, in a transaction: a row of the ledger, and the incarnation's latest."""
        if not self.inside:
            raise RuntimeError("uploads are accepted inside a transaction")
        key = (agent, upload.incarnation)
        if self._standing is not None:
            before = self.record(*key)
            self._standing.add(
                agent,
                uploads=1,
                slots=upload.slots - (before.slots if before else 0),
                counts=upload.counts - before.counts if before else upload.counts,
                visits=upload.visits - before.visits if before else upload.visits,
                at=now,
                round=upload.round,
            )
        waiting = self._latest.get(key)
        self._latest[key] = _Latest(upload, waiting.uploads + 1 if waiting else 1, now)
        self._entries[*key, upload.sequence] = _Entry(
            *key, upload.sequence, upload.digest, upload.round, upload.length, now
        )
        self._remember(
            key, Record(upload.sequence, upload.round, upload.slots, upload.counts, upload.visits)
        )
        if len(self._entries) >= self._most_waiting:
            self.write()

    def write(self) -> None:
        """Write the rows that wait."""
        if not self._entries:
            return
        latest = [
            (
                *key,
                upload.sequence,
                upload.round,
                upload.slots,
                uploads,
                updated,
                packed(upload.visits),
                packed(upload.counts),
            )
            for key, (upload, uploads, updated) in self._latest.items()
        ]
        self._insert(_LATEST, latest, _REPLACES)
        self._insert(_LEDGER, list(self._entries.values()), "")
        self._latest.clear()
        self._entries.clear()

    def _insert(self, head: str, rows: Sequence[tuple[Value, ...]], tail: str) -> None:
        """Many rows to a statement; a power of two of them, so that few statements are prepared."""
        start = 0
        while start < len(rows):
            size = min(MOST_ROWS, 1 << ((len(rows) - start).bit_length() - 1))
            part = rows[start : start + size]
            sql = _many(head, len(part[0]), size, tail)
            self._database.run(sql, [value for row in part for value in row])
            start += size

    def standing(self) -> Standing:
        """The sum over all incarnations of all agents."""
        if self._standing is not None:
            return self._standing
        self.write()
        standing = Standing(self.counts_shape, self.visits_shape)
        for agent, uploads, slots, counts, visits, at, round_ in self._incarnations():
            standing.add(
                agent,
                uploads=uploads,
                slots=slots,
                counts=self.counts(counts),
                visits=self.visits(visits),
                at=at,
                round=round_,
            )
        if self.inside:
            self._standing = standing
        return standing

    def _incarnations(self) -> Iterator[tuple[str, int, int, bytes, bytes, float, int]]:
        """Every incarnation, a bounded number in memory at a time."""
        agent = incarnation = ""
        while True:
            rows = self._database.rows(
                "SELECT agent, incarnation, uploads, slots, counts, visits, updated, round "
                "FROM incarnations WHERE (agent, incarnation) > (?, ?) "
                f"ORDER BY agent, incarnation LIMIT {self._most_waiting}",
                (agent, incarnation),
            )
            if not rows:
                return
            for agent, incarnation, *rest in rows:  # noqa: B007 - the last ones are where to go on
                yield (agent, *rest)

    def reports(self, number: int) -> list[tuple[str, int, int]]:
        """Agent, round and longest episode of those who reported in round `number` or before it."""
        self.write()
        return [
            (agent, round_, length)
            for agent, round_, length in self._database.rows(
                "SELECT agent, round, MAX(length) FROM uploads WHERE round >= ? AND length > 0 "
                "GROUP BY agent, round",
                (number - 1,),
            )
        ]

    def counts(self, data: bytes) -> Ints:
        """Counts (C, S, S, N) from a column."""
        return _unpacked(data, self.counts_shape)

    def visits(self, data: bytes) -> Ints:
        """Visits (S, N) from a column."""
        return _unpacked(data, self.visits_shape)


@cache
def _many(head: str, columns: int, rows: int, tail: str) -> str:
    one = "(" + ", ".join("?" * columns) + ")"
    return f"{head} {', '.join([one] * rows)}{tail}"


def packed(numbers: Ints) -> bytes:
    """Numbers as a column has them."""
    return np.ascontiguousarray(numbers, "<i8").tobytes()


def _unpacked(data: bytes, shape: tuple[int, ...]) -> Ints:
    return np.frombuffer(data, "<i8").reshape(shape).astype(np.int64, copy=False)
