"""A year of 1,000 agents in some minutes: how large the database gets, how long a restart takes.

The store is the server's, and so is what it drops and when; time is compressed. Every agent starts
a new process each day, which uploads twice, each time in a round of its own. Once a day the store
is tidied, as a server does every five minutes. Now and then it is measured

    size      of the file, with its log; PostgreSQL's as it tells it itself
    rows      of incarnations that are told apart, of the ledger, and of ended incarnations
    restart   seconds until a store that is opened anew has its round, who is awaited, and the sum
              of all counts

and in the end that the sums are exactly those of what was sent.

    make year                            365 days
    make year ARGS='--days 90 --keep'    nothing is dropped, for comparison
    make year ARGS='--database postgresql://...'
    make bench ARGS=year                 365 days both ways, into docs/benchmarks.md
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from benchmarks.records import Part, Row

from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.shape import Upload
from rmab.service.http.tokens import make_token
from rmab.service.server.uploads import receive
from rmab.service.store.store import OpenRound, Store, open_store

__all__ = ["Measured", "Year", "measure"]

DAY = 86_400.0
UPLOADS_A_DAY = 2
AT_ONCE = 250  # uploads in one transaction, as under load
SLOTS = 400  # between two uploads
MEASURED_DAYS = (1, 7, 30, 60, 90, 180, 270, 365)
PAGE_DAYS = (7, 30, 90, 180, 365)


class Measured(NamedTuple):
    """A database after some days; megabytes and seconds."""

    day: int
    size: float
    incarnations: int
    ledger: int
    ended: int
    restart: float


@dataclass(frozen=True)
class Year:
    """What is simulated; keep: nothing is dropped."""

    agents: int = 1000
    days: int = 365
    keep: bool = False

    @property
    def federation(self) -> Federation:
        """Four channels with 32 gaps."""
        arms = tuple(KnownArm(2, (0.0, reward)) for reward in (0.4, 0.9, 0.7, 0.6))
        return Federation("year", 2, arms, policy="fedtswi-gap")

    def play(self, database: str, days: Sequence[int] = MEASURED_DAYS) -> Iterator[Measured]:
        """The year, measured after these days; AssertionError if a count is not what was sent."""
        store = self._opened(database)
        tokens = []
        with store.transaction():
            for n in range(self.agents):
                _, key_id, secret_hash = make_token()
                store.enroll(f"agent{n}", "agent", key_id, secret_hash, 0.0)
                tokens.append((key_id, secret_hash))
        for day in range(1, self.days + 1):
            for part in range(1, UPLOADS_A_DAY + 1):
                self._round(store, tokens, day, part)
            if not self.keep:
                left = store.retention.agents()
                while left := store.tidy(left, (day + 1) * DAY):
                    pass
                store.drop_rounds()
            if day in days or day == self.days:
                store.close()
                started = time.perf_counter()
                store = self._opened(database)
                self._restart(store, day)
                yield self._measured(store, database, day, time.perf_counter() - started)
        store.close()

    def _opened(self, database: str) -> Store:
        store = open_store(database, self.federation)
        store.claim()
        return store

    def _round(
        self, store: Store, tokens: Sequence[tuple[str, bytes]], day: int, part: int
    ) -> None:
        """Open the next round; every agent uploads in it, in the day's incarnation."""
        number, now = UPLOADS_A_DAY * (day - 1) + part, (day + part / 4) * DAY
        with store.transaction():
            merged = store.merged()
            if number > 1:
                store.close_round(number - 1, now, "all", self.agents, SLOTS * self.agents, 0.5)
            store.open_round(OpenRound(number, now, SLOTS, None, merged, b"{}"))
        shape = self.federation.shape
        counts = np.zeros((shape.kinds, 2, 2, shape.n_arms), np.int64)
        visits = np.zeros((2, shape.n_arms), np.int64)
        counts[0, 1, 1], visits[1] = part * SLOTS - 1, part * SLOTS
        for start in range(0, self.agents, AT_ONCE):
            with store.transaction():
                for n in range(start, min(start + AT_ONCE, self.agents)):
                    incarnation = f"{day:016x}{n:016x}"
                    upload = Upload(incarnation, part, number, part * SLOTS, SLOTS, counts, visits)
                    assert receive(store, *tokens[n], upload, number, 4, now) == "new"

    def _restart(self, store: Store, day: int) -> None:
        """What a server does before it can close its round; and whether the sums are right."""
        with store.transaction():
            opened = store.current_round()
            assert opened is not None
            awaited, reports = store.awaited(opened.number)
            assert len(awaited) == len(reports) == self.agents
            assert store.closed_slots() == (UPLOADS_A_DAY * day - 1) * SLOTS * self.agents
            lives = self.agents * day
            assert store.uploads.totals() == (UPLOADS_A_DAY * lives, UPLOADS_A_DAY * SLOTS * lives)
            merged = store.merged()
        slots = UPLOADS_A_DAY * SLOTS
        assert (merged.visits[1] == slots * lives).all()
        assert (merged.counts[0, 1, 1] == (slots - 1) * lives).all()

    def _measured(self, store: Store, database: str, day: int, restart: float) -> Measured:
        if database.startswith("postgres"):
            sql = (
                "SELECT CAST(SUM(pg_total_relation_size(c.oid)) AS BIGINT) FROM pg_class c "
                "WHERE relkind = 'r' AND relnamespace = CAST(current_schema() AS regnamespace)"
            )
            size = store.database.rows(sql)[0][0]
        else:
            files = (Path(database + suffix) for suffix in ("", "-wal"))
            size = sum(file.stat().st_size for file in files if file.exists())
        incarnations, ledger, ended = (
            int(store.database.rows(f"SELECT COUNT(*) FROM {table}")[0][0])
            for table in ("incarnations", "uploads", "ended")
        )
        return Measured(day, size / 1e6, incarnations, ledger, ended, restart)


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """The year as it is, and if nothing were dropped; quick: two weeks of 100 agents."""
    load = os.getloadavg()[0]
    days, agents = (14, 100) if quick else (365, 1000)
    found: list[list[Measured]] = []
    with tempfile.TemporaryDirectory(prefix="rmab-year-", dir="/var/tmp") as folder:
        for keep in (False, True):
            found.append([])
            for one in Year(agents, days, keep).play(str(Path(folder) / f"{keep}.db"), PAGE_DAYS):
                found[-1].append(one)
                say(f"day {one.day}: {one.size:.1f} MB{' if nothing is dropped' if keep else ''}")
    rows = [
        Row.of(
            f"after {one.day} days",
            [one.size],
            unit="MB",
            more={"restart": one.restart, "kept": kept.size, "kept_restart": kept.restart},
        )
        for one, kept in zip(*found, strict=True)
    ]
    return Part.now({"year": rows}, (), load)


def main() -> int:
    """Simulate, and print a line for each measurement."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--agents", type=int, default=Year.agents)
    parser.add_argument("--days", type=int, default=Year.days)
    parser.add_argument("--keep", action="store_true", help="drop nothing, for comparison")
    parser.add_argument("--database", metavar="URL", help="an empty one (default: SQLite)")
    options = parser.parse_args()
    year = Year(options.agents, options.days, options.keep)
    with tempfile.TemporaryDirectory(prefix="rmab-year-", dir="/var/tmp") as folder:
        database = options.database or str(Path(folder) / "year.db")
        print(f"{year.agents} agents{', nothing is dropped' if year.keep else ''}")
        print("  day   size MB   incarnations    ledger     ended   restart s")
        for found in year.play(database):
            print(
                f"{found.day:5d} {found.size:9.1f} {found.incarnations:14d} {found.ledger:9d} "
                f"{found.ended:9d} {found.restart:11.2f}",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
