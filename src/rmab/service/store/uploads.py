"""Uploads in the database: the ledger, the latest of each incarnation, and their sum.

Counts are cumulative, so the evidence of a federation is the sum over incarnations of the last
upload of each; of those that have ended the database has only the sum, by agent
(rmab.service.store.retention). Reading all of it whenever a round closes or the page is opened
would take long. So the sum is made once, and each upload then adds its increment.

Three things keep an upload cheap:

    rows wait     they are written just before the transaction commits, or when many wait, many
                  rows to a statement; reading here sees them all the same
    memory        inside transactions the last records and the sum of counts are remembered, by
                  the store that has the claim from one to the next: no other writes uploads
    forgetting    a rollback, or a new connection, drops all that was remembered

An agent's counts can be taken out. The names of its incarnations are kept, so that an upload, which
always has all counts of its incarnation, does not bring them back.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.protocol.growth import Credit, LaneCounts, Merged, Record
from rmab.protocol.shape import Shape, Upload
from rmab.service.store.database import Database, Value
from rmab.service.store.limits import StoreLimits

__all__ = [
    "AgentTally",
    "AgentTotals",
    "IncarnationTotals",
    "UploadLedger",
    "UploadTotals",
    "packed",
]

Ints = npt.NDArray[np.int64]

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


class AgentTotals(NamedTuple):
    """Sum of one agent's uploads."""

    incarnations: int
    uploads: int
    slots: int
    visits: Ints  # (S, N)
    idle: Ints | None  # (S, N), see Shape.idle; None where no arm is always observed


class UploadTotals(NamedTuple):
    """Over all agents: uploads accepted, and slots that they tell of."""

    uploads: int
    slots: int


class IncarnationTotals(NamedTuple):
    """Sum of one incarnation's uploads; counts: (C, S, S, N), visits: (S, N)."""

    uploads: int
    slots: int
    counts: Ints
    visits: Ints


@dataclass
class AgentTally:
    """Running sum of one agent's uploads; counts: None where only the sum of all agents is held."""

    uploads: int
    slots: int
    visits: Ints  # (S, N)
    counts: Ints | None  # (C, S, S, N)
    last_upload: float
    last_round: int
    idle: Ints | None = None  # (S, N), see Shape.idle; None where no arm is always observed


class EndedIncarnation(NamedTuple):
    """The last upload of an incarnation that has ended."""

    sequence: int
    digest: bytes


class _RunningTotals:
    """The sum of counts, and a tally for every agent that has given any.

    by_agent: whether tallies have counts, which are much larger than all else.
    """

    def __init__(
        self,
        counts_shape: tuple[int, ...],
        visits_shape: tuple[int, ...],
        shape: Shape,
        *,
        by_agent: bool,
    ) -> None:
        self.by_agent = by_agent
        self._shape = shape
        self.counts: Ints = np.zeros(counts_shape, np.int64)  # (C, S, S, N)
        self.visits: Ints = np.zeros(visits_shape, np.int64)  # (S, N)
        self.tallies: dict[str, AgentTally] = {}

    def add(
        self,
        agent: str,
        *,
        uploads: int,
        slots: int,
        counts: Ints,
        visits: Ints,
        at: float,
        round: int,
    ) -> None:
        """Add an upload's increment, or an incarnation as a whole."""
        self.counts += counts
        self.visits += visits
        tally = self.tallies.get(agent)
        idle = self._shape.idle(counts) if self._shape.always else None
        if tally is None:
            of_agent = counts.copy() if self.by_agent else None
            self.tallies[agent] = AgentTally(
                uploads, slots, visits.copy(), of_agent, at, round, idle
            )
            return
        tally.uploads += uploads
        tally.slots += slots
        tally.visits += visits
        if tally.counts is not None:
            tally.counts += counts
        if tally.idle is not None and idle is not None:
            tally.idle += idle
        tally.last_upload = max(tally.last_upload, at)
        tally.last_round = max(tally.last_round, round)

    def by_lane(self, lanes: Mapping[str, int]) -> LaneCounts:
        """Return copies of each agent's counts; lanes: of all agents, by name."""
        L = 1 + max(lanes.values(), default=0)
        counts = np.zeros((L, *self.counts.shape), np.int64)
        visits = np.zeros((L, *self.visits.shape), np.int64)
        for name, tally in self.tallies.items():
            assert tally.counts is not None
            counts[lanes[name]], visits[lanes[name]] = tally.counts, tally.visits
        return LaneCounts(counts, visits)


class UploadLedger:
    """The uploads of one federation; `inside`, set by the store: whether a transaction is open."""

    def __init__(self, database: Database, shape: Shape, limits: StoreLimits) -> None:
        S = max(shape.states)
        self._database = database
        self._limits = limits
        self._shape = shape
        self._counts_shape = (shape.kinds, S, S, shape.n_arms)
        self._visits_shape = (S, shape.n_arms)
        size = 8 * (shape.kinds * S + 1) * S * shape.n_arms
        self._most_waiting = max(1, min(limits.statement_rows, limits.waiting_bytes // size))
        self._most_remembered = max(1, limits.remembered_bytes // size)
        self.inside = False
        self.forget()

    def forget(self) -> None:
        """Drop all that is not in the database."""
        # Uploads whose rows are not written yet, and when each was received, in their order.
        self._waiting: dict[tuple[str, str, int], tuple[Upload, float]] = {}
        self._records: dict[tuple[str, str], Record] = {}
        self._totals: _RunningTotals | None = None

    # ------------------------------------------------------------------------------ one upload

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
        known = Record(sequence, round_, slots, self._counts(counts), self._visits(visits))
        if self.inside:
            self._remember(key, known)
        return known

    def _remember(self, key: tuple[str, str], record: Record) -> None:
        """Keep a record, at the end of the queue; where there are too many, the oldest goes."""
        self._records.pop(key, None)
        self._records[key] = record
        if len(self._records) > self._most_remembered:
            self.write()  # a record may be dropped only when the database has it
            del self._records[next(iter(self._records))]

    def digest(self, agent: str, incarnation: str, sequence: int) -> bytes | None:
        """Return the digest of the upload accepted under a key."""
        key = (agent, incarnation, sequence)
        waiting = self._waiting.get(key)
        if waiting is not None:
            return waiting[0].digest
        found = self._database.rows(
            "SELECT digest FROM uploads WHERE agent = ? AND incarnation = ? AND sequence = ?", key
        )
        return found[0][0] if found else None

    def accept(self, agent: str, upload: Upload, now: float) -> None:
        """Count an upload, in a transaction: a row of the ledger, and the incarnation's latest."""
        if not self.inside:
            raise RuntimeError("uploads are accepted inside a transaction")
        key = (agent, upload.incarnation)
        if self._totals is not None:
            before = self.record(*key)
            self._totals.add(
                agent,
                uploads=1,
                slots=upload.slots - (before.slots if before else 0),
                counts=upload.counts - before.counts if before else upload.counts,
                visits=upload.visits - before.visits if before else upload.visits,
                at=now,
                round=upload.round,
            )
        self._waiting[*key, upload.sequence] = (upload, now)
        self._remember(
            key, Record(upload.sequence, upload.round, upload.slots, upload.counts, upload.visits)
        )
        if len(self._waiting) >= self._most_waiting:
            self.write()

    def write(self) -> None:
        """Write the rows that wait."""
        if not self._waiting:
            return
        entries: list[tuple[Value, ...]] = []
        latest: dict[tuple[str, str], tuple[Value, ...]] = {}
        uploads: dict[tuple[str, str], int] = {}
        for (agent, incarnation, sequence), (upload, now) in self._waiting.items():
            key = (agent, incarnation)
            entries.append((*key, sequence, upload.digest, upload.round, upload.length, now))
            uploads[key] = uploads.get(key, 0) + 1
            latest[key] = (
                *key,
                sequence,
                upload.round,
                upload.slots,
                uploads[key],
                now,
                packed(upload.visits),
                packed(upload.counts),
            )
        self._insert(_LATEST, list(latest.values()), _REPLACES)
        self._insert(_LEDGER, entries, "")
        self._waiting.clear()

    def _insert(self, head: str, rows: Sequence[tuple[Value, ...]], tail: str) -> None:
        """Many rows to a statement; a power of two of them, so that few statements are prepared."""
        start = 0
        while start < len(rows):
            left = len(rows) - start
            size = min(self._limits.statement_rows, 1 << (left.bit_length() - 1))
            part = rows[start : start + size]
            sql = _many(head, len(part[0]), size, tail)
            self._database.run(sql, [value for row in part for value in row])
            start += size

    # ------------------------------------------------------------------------------- one agent

    def take_out(self, agent: str) -> AgentTotals:
        """Delete all uploads of an agent, in a transaction; return their sum."""
        self.write()
        rows = self._database.rows(
            "SELECT 1, uploads, slots, visits FROM incarnations WHERE agent = ? UNION ALL "
            "SELECT incarnations, uploads, slots, visits FROM folded WHERE agent = ?",
            (agent, agent),
        )
        tally = self.tallies().get(agent) if self._shape.always else None
        visits = np.zeros(self._visits_shape, np.int64)
        for *_, data in rows:
            visits += self._visits(data)
        for table in ("incarnations", "ended"):
            self._database.run(
                "INSERT INTO gone (agent, incarnation) "
                f"SELECT agent, incarnation FROM {table} WHERE agent = ?",
                (agent,),
            )
        for table in ("uploads", "incarnations", "ended"):
            self._database.run(f"DELETE FROM {table} WHERE agent = ?", (agent,))
        shapes = (self._visits_shape, self._counts_shape)
        # Its row stays for the floor, below which incarnations are no longer told apart.
        self._database.run(
            "UPDATE folded SET incarnations = 0, uploads = 0, slots = 0, visits = ?, counts = ? "
            "WHERE agent = ?",
            (*(packed(np.zeros(shape, np.int64)) for shape in shapes), agent),
        )
        self.forget()
        incarnations, uploads, slots = (sum(row[column] for row in rows) for column in range(3))
        idle = None if tally is None else tally.idle
        return AgentTotals(incarnations, uploads, slots, visits, idle)

    def is_gone(self, agent: str, incarnation: str) -> bool:
        """Whether the counts of an incarnation were taken out."""
        return bool(
            self._database.rows(
                "SELECT agent FROM gone WHERE agent = ? AND incarnation = ?", (agent, incarnation)
            )
        )

    def ended(self, agent: str, incarnation: str) -> EndedIncarnation | None:
        """Return the last upload of an incarnation that has ended; None where it is not known."""
        rows = self._database.rows(
            "SELECT sequence, digest FROM ended WHERE agent = ? AND incarnation = ?",
            (agent, incarnation),
        )
        return EndedIncarnation(*rows[0]) if rows else None

    def floor(self, agent: str) -> int:
        """Return the round up to which an unknown incarnation of an agent may have ended."""
        rows = self._database.rows("SELECT floor FROM folded WHERE agent = ?", (agent,))
        return int(rows[0][0]) if rows else 0

    # ----------------------------------------------------------------------------- all uploads

    def merged(self) -> Merged:
        """The sum over all incarnations of all agents."""
        running = self._running()
        return Merged(running.counts.copy(), running.visits.copy(), len(running.tallies))

    def totals(self) -> UploadTotals:
        """Uploads and slots of all agents."""
        tallies = self._running().tallies.values()
        return UploadTotals(
            sum(tally.uploads for tally in tallies), sum(tally.slots for tally in tallies)
        )

    def tallies(self) -> Mapping[str, AgentTally]:
        """Return each agent's running sum by name."""
        return self._running().tallies

    def by_lane(self, lanes: Mapping[str, int]) -> LaneCounts:
        """Return the counts of each lane's agent; lanes: of all agents, by name."""
        return self._running(by_agent=True).by_lane(lanes)

    def by_agent(self) -> dict[str, Ints]:
        """Return each agent's counts, (C, S, S, N) by name; nothing where that is too much.

        It is read from the database: between two times that somebody asks, it need not be held.
        """
        agents = self.tallies().keys()
        size = 8 * math.prod(self._counts_shape)
        if len(agents) * size > self._limits.compared_bytes:
            return {}
        self.write()
        found: dict[str, Ints] = {name: np.zeros(self._counts_shape, np.int64) for name in agents}
        for agent, _, _, counts, *_ in self._all_given():
            found[agent] += self._counts(counts)
        return found

    def _running(self, *, by_agent: bool = False) -> _RunningTotals:
        """The sums, remembered; counts by agent only once somebody has asked for them."""
        if self._totals is not None and self._totals.by_agent >= by_agent:
            return self._totals
        self.write()
        totals = _RunningTotals(
            self._counts_shape, self._visits_shape, self._shape, by_agent=by_agent
        )
        for agent, uploads, slots, counts, visits, at, round_ in self._all_given():
            totals.add(
                agent,
                uploads=uploads,
                slots=slots,
                counts=self._counts(counts),
                visits=self._visits(visits),
                at=at,
                round=round_,
            )
        if self.inside:
            self._totals = totals
        return totals

    def _all_given(self) -> Iterator[tuple[str, int, int, bytes, bytes, float, int]]:
        """Every incarnation, and the sums of those that have ended, a bounded number in memory at
        a time."""
        agent = incarnation = ""
        while rows := self._database.rows(
            "SELECT agent, incarnation, uploads, slots, counts, visits, updated, round "
            "FROM incarnations WHERE (agent, incarnation) > (?, ?) "
            f"ORDER BY agent, incarnation LIMIT {self._most_waiting}",
            (agent, incarnation),
        ):
            for agent, incarnation, *rest in rows:  # noqa: B007 - the last ones are where to go on
                yield (agent, *rest)
        agent = ""
        while rows := self._database.rows(
            "SELECT agent, uploads, slots, counts, visits, updated, round FROM folded "
            f"WHERE agent > ? AND uploads > 0 ORDER BY agent LIMIT {self._most_waiting}",
            (agent,),
        ):
            yield from rows
            agent = rows[-1][0]

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

    # --------------------------------------------------------------------------------- folding

    def take(self, agent: str, incarnation: str) -> IncarnationTotals:
        """Drop an incarnation's rows and return its sum; the sums stay as they are."""
        key = (agent, incarnation)
        ((uploads, slots, counts, visits),) = self._database.rows(
            "SELECT uploads, slots, counts, visits FROM incarnations "
            "WHERE agent = ? AND incarnation = ?",
            key,
        )
        for table in ("uploads", "incarnations"):
            self._database.run(f"DELETE FROM {table} WHERE agent = ? AND incarnation = ?", key)
        self._records.pop(key, None)
        return IncarnationTotals(uploads, slots, self._counts(counts), self._visits(visits))

    def folded(self, agent: str) -> tuple[Ints, Ints]:
        """Counts and visits of an agent's incarnations that have ended, to be added to."""
        found = self._database.rows("SELECT counts, visits FROM folded WHERE agent = ?", (agent,))
        if not found:
            return np.zeros(self._counts_shape, np.int64), np.zeros(self._visits_shape, np.int64)
        ((counts, visits),) = found
        return self._counts(counts).copy(), self._visits(visits).copy()

    # --------------------------------------------------------------------------------- columns

    def pack(self, merged: Merged, by_lane: LaneCounts | None) -> tuple[bytes, bytes]:
        """Counts and visits as a round keeps them: the sum, and then, where there are any, those
        of lane 0, 1, ..."""
        if by_lane is None:
            return packed(merged.counts), packed(merged.visits)
        return (
            packed(merged.counts) + packed(by_lane.counts),
            packed(merged.visits) + packed(by_lane.visits),
        )

    def unpack(self, counts: bytes, visits: bytes, agents: int) -> tuple[Merged, LaneCounts | None]:
        """Return the counts that `pack` was given."""
        all_counts = _unpacked(counts, (-1, *self._counts_shape))
        all_visits = _unpacked(visits, (-1, *self._visits_shape))
        merged = Merged(all_counts[0], all_visits[0], agents)
        if len(all_counts) == 1:
            return merged, None
        return merged, LaneCounts(all_counts[1:], all_visits[1:])

    def _counts(self, data: bytes) -> Ints:
        return _unpacked(data, self._counts_shape)

    def _visits(self, data: bytes) -> Ints:
        return _unpacked(data, self._visits_shape)


class Pace:
    """Credit for slots of all owners; whatever writes is called inside a transaction.

    An owner has a row once its agents have uploaded where `slot_seconds` limits them. Credit that
    was read is remembered, so that it grows also for an owner enrolled by a clock that was ahead.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.forget()

    def forget(self) -> None:
        """Drop all that is not in the database."""
        self._known: dict[str, Credit] = {}
        self._changed: set[str] = set()

    def credit(self, owner: str, now: float, slot_seconds: float, names: int) -> Credit | None:
        """Return an owner's credit now; None where nothing is kept. names: its agents."""
        known = self._known.get(owner)
        if known is None:
            rows = self._database.rows("SELECT seconds, at FROM pace WHERE owner = ?", (owner,))
            if not rows:
                return None
            known = Credit(*rows[0])
        self._known[owner] = known.filled(now, slot_seconds, names)
        return self._known[owner]

    def keep(self, owner: str, credit: Credit, *, changed: bool = True) -> Credit:
        """Remember an owner's credit, and write it when the transaction ends, if it changed."""
        self._known[owner] = credit
        if changed:
            self._changed.add(owner)
        return credit

    def write(self) -> None:
        """Write credit that has changed."""
        for owner in self._changed:
            self._database.run(
                "INSERT INTO pace (owner, seconds, at) VALUES (?, ?, ?) ON CONFLICT (owner) "
                "DO UPDATE SET seconds = excluded.seconds, at = excluded.at",
                (owner, *self._known[owner]),
            )
        self._changed.clear()


@cache
def _many(head: str, columns: int, rows: int, tail: str) -> str:
    one = "(" + ", ".join("?" * columns) + ")"
    return f"{head} {', '.join([one] * rows)}{tail}"


def packed(numbers: Ints) -> bytes:
    """Numbers as columns have them."""
    return np.ascontiguousarray(numbers, "<i8").tobytes()


def _unpacked(data: bytes, shape: tuple[int, ...]) -> Ints:
    return np.frombuffer(data, "<i8").reshape(shape).astype(np.int64, copy=False)
