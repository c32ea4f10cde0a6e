"""Retention of uploads: which rows are compacted, and when.

Of an incarnation the last upload counts; a row of the ledger records that an upload was accepted,
so that a repeat is answered as one. Rows are dropped when no answer depends on them:

    an upload      a later one of its incarnation was accepted, which includes it; it was received
                   over `repeat_seconds` ago; its round is none of the last two, whose reports a
                   restart reads. Should it come again it is 409 backwards, and its sender loses
                   nothing: the server has more.
    an incarnation `ended_seconds` after its last upload its agent has uploaded under another one
                   (which a process does after it has sent the unsent counts of the one before),
                   and its round is none of the last two. Its counts are added to the agent's row
                   of `folded`. Its last upload stays known, for a repeat; any other upload of it
                   is 409: its increment could not be told from counts that were added.
    an ended one   its agent has uploaded `told_apart_seconds` after it was folded, and in a later
                   round than was open then, the *floor*. It is no longer told apart from
                   incarnations that were never heard of; but an upload of such a one, of a round
                   up to the floor, is 409. An ended incarnation's uploads all are: their sender
                   knows of no later round, as the answers were 200 or 409.

The last incarnation of an agent is never folded, however long ago it was heard of. So nothing is
counted twice, and a refused upload was counted, or was held back by an ended incarnation for a day
while another one of the same agent uploaded.

Times are compared with those of the agent's own uploads rather than with now: an agent that is away
for a year finds its rows as it left them. Uploads that seem to be of the future, of a clock that
was set back, end nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rmab.service.store.database import Database
from rmab.service.store.limits import StoreLimits
from rmab.service.store.uploads import UploadLedger, packed

__all__ = ["Retention"]


class _Row(NamedTuple):
    """Incarnation without its counts."""

    incarnation: str
    sequence: int
    round: int
    updated: float


class Retention:
    """Makes the rows of one federation fewer; whatever writes is called inside a transaction."""

    def __init__(self, database: Database, ledger: UploadLedger, limits: StoreLimits) -> None:
        self._database = database
        self._ledger = ledger
        self._limits = limits

    def agents(self) -> list[str]:
        """Return names of agents that have uploaded."""
        self._ledger.write()
        return [name for (name,) in self._database.rows("SELECT DISTINCT agent FROM incarnations")]

    def tidy(self, agent: str, open_round: int, now: float) -> bool:
        """Drop rows of an agent that can no longer matter; whether some may be left."""
        self._ledger.write()
        rows = [
            _Row(*row)
            for row in self._database.rows(
                "SELECT incarnation, sequence, round, updated FROM incarnations WHERE agent = ?",
                (agent,),
            )
        ]
        self._prune(agent, rows, open_round, now)
        past = [row for row in rows if row.updated <= now]
        if not past:
            return False
        last = max(past, key=lambda row: row.updated)
        most = self._limits.fold_rows
        over = [
            row
            for row in past
            if last.updated - row.updated >= self._limits.ended_seconds
            and row.round < open_round - 1
        ]
        if over:
            self._fold(agent, over[:most], open_round, now)
        self._tell_apart_no_more(agent, last)
        return len(over) > most

    def _fold(self, agent: str, rows: Sequence[_Row], open_round: int, now: float) -> None:
        """Add incarnations to the agent's sum, and keep only the last upload of each."""
        counts, visits = self._ledger.folded(agent)
        uploads = slots = 0
        for row in rows:
            digest = self._ledger.digest(agent, row.incarnation, row.sequence)
            assert digest is not None  # of the last one it is always there
            given = self._ledger.take(agent, row.incarnation)
            uploads += given.uploads
            slots += given.slots
            counts += given.counts
            visits += given.visits
            self._database.run(
                "INSERT INTO ended (agent, incarnation, sequence, digest, round, folded) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (agent, row.incarnation, row.sequence, digest, open_round, now),
            )
        last_round, updated = max(row.round for row in rows), max(row.updated for row in rows)
        self._database.run(
            "INSERT INTO folded (agent, incarnations, uploads, slots, round, updated, floor, "
            "visits, counts) VALUES (?, ?, ?, ?, ?, ?, 0, ?, ?) ON CONFLICT (agent) DO UPDATE SET "
            "incarnations = folded.incarnations + excluded.incarnations, "
            "uploads = folded.uploads + excluded.uploads, slots = folded.slots + excluded.slots, "
            "round = CASE WHEN folded.round > excluded.round THEN folded.round "
            "ELSE excluded.round END, "
            "updated = CASE WHEN folded.updated > excluded.updated THEN folded.updated "
            "ELSE excluded.updated END, visits = excluded.visits, counts = excluded.counts",
            (
                agent,
                len(rows),
                uploads,
                slots,
                last_round,
                updated,
                packed(visits),
                packed(counts),
            ),
        )

    def _prune(self, agent: str, rows: Sequence[_Row], open_round: int, now: float) -> None:
        """Drop uploads that a later one of the same incarnation has made good."""
        for row in rows:
            self._database.run(
                "DELETE FROM uploads WHERE agent = ? AND incarnation = ? AND sequence < ? "
                "AND round < ? AND received <= ?",
                (
                    agent,
                    row.incarnation,
                    row.sequence,
                    open_round - 1,
                    now - self._limits.repeat_seconds,
                ),
            )

    def _tell_apart_no_more(self, agent: str, last: _Row) -> None:
        """Drop incarnations that ended long ago, and raise the floor instead."""
        which = "FROM ended WHERE agent = ? AND folded <= ? AND round < ?"
        values = (agent, last.updated - self._limits.told_apart_seconds, last.round)
        ((floor,),) = self._database.rows(f"SELECT MAX(round) {which}", values)
        if floor is not None:
            self._database.run(
                "UPDATE folded SET floor = ? WHERE agent = ? AND floor < ?", (floor, agent, floor)
            )
            self._database.run(f"DELETE {which}", values)
