"""The SQLite file of one agent: locked for life, for its owner only, with small, quick writes.

Two threads use it, each with its own connection. One adds rows (`add`): each is a transaction in
the write-ahead log, which costs a write into the system's memory and outlives the process. The
other reads and writes everything else (`transaction`) and moves the log into the database (`tidy`),
which syncs to the disk and must not hold up the first.

A damaged file, or another program's, is quarantined under another name and a new one is begun. A
file that the disk or the system's rights withhold is an error.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

from rmab.errors import FederationError, UnavailableError
from rmab.files import lock_file
from rmab.service.sqlite import (
    empty_log,
    log_bytes,
    open_connection,
    sqlite_trouble,
    tells_of_full_disk,
    trouble,
)

__all__ = ["PAGE", "SqliteFile"]

log = logging.getLogger("rmab.agent")

APPLICATION = 0x726D6162  # "rmab", in the header of the file
PAGE = 512  # bytes; a row writes one page or two: small ones spare the disk

Value = int | str | bytes | None


class SqliteFile:
    """File at `path`, locked, made with these tables where there is none.

    tables: the statements that make them; version: of the tables, in the file's header;
    tidy_bytes: of log after which it is moved into the database; log_bytes: beyond which rows wait
    for that. A newer version is a FederationError; a file that another process has, or a full disk,
    may pass (`rmab.errors`).
    """

    def __init__(
        self,
        path: Path,
        *,
        tables: Sequence[str],
        version: int,
        tidy_bytes: int,
        log_bytes: int,
    ) -> None:
        self.path = path
        self._tidy_bytes, self._log_bytes = tidy_bytes, log_bytes
        self._tables, self._version = tables, version
        self._one_writer = threading.Lock()
        self._untidy = 0  # bytes of log, about, since it was moved
        self._full = False  # whether the disk was when something was last written
        self._lock = _lock(path)
        try:
            try:
                self._open()
            except sqlite3.DatabaseError as error:
                if _is_of_the_system(error):
                    raise
                _quarantine(path, str(error))
                self._open()
        except sqlite3.Error as error:
            os.close(self._lock)
            problem = sqlite_trouble(_unusable(path), error, path)
            raise FederationError(str(problem)) if problem.lasting else problem from None
        except OSError as error:
            os.close(self._lock)
            raise trouble(_unusable(path), error) from None
        except FederationError:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        self.path.chmod(0o600)  # the log beside it gets the same
        self._adder = _connect(self.path)
        try:
            self._keeper = _connect(self.path)
            try:
                self._prepare()
            except BaseException:
                self._keeper.close()
                raise
        except BaseException:
            self._adder.close()
            raise

    def _prepare(self) -> None:
        """Make the tables, or check that they are ours."""
        (tables,) = self.read("SELECT count(*) FROM sqlite_schema").fetchone()
        (application,) = self.read("PRAGMA application_id").fetchone()
        (version,) = self.read("PRAGMA user_version").fetchone()
        if tables == 0 and application == 0:
            with self.transaction() as keeper:
                for statement in self._tables:
                    keeper.execute(statement)
                keeper.execute(f"PRAGMA application_id = {APPLICATION}")
                keeper.execute(f"PRAGMA user_version = {self._version}")
            return
        if application != APPLICATION:
            raise sqlite3.DatabaseError("it is another program's database")
        if version > self._version:
            raise FederationError(
                f"{self.path}: is of version {version}, and this rmab knows versions up to "
                f"{self._version}: use a newer rmab"
            )
        (verdict,) = self.read("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)

    def add(self, sql: str, values: Sequence[Value]) -> None:
        """Run one statement that must not be held up, in its own transaction."""
        with self._one_writer:
            try:
                self._adder.execute(sql, values)
            except sqlite3.Error as error:
                self._full = self._full or tells_of_full_disk(error, self.path)
                raise

    def read(self, sql: str, values: Sequence[Value] = ()) -> sqlite3.Cursor:
        """Run a query and return its cursor."""
        return self._keeper.execute(sql, values)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit at the end, or undo all when anything is raised."""
        # SQLite lets one connection write at a time; one that finds it taken would sleep, long.
        with self._one_writer:
            self._keeper.execute("BEGIN IMMEDIATE")
            try:
                yield self._keeper
                self._keeper.execute("COMMIT")
            except BaseException as error:
                if isinstance(error, sqlite3.Error):
                    self._full = self._full or tells_of_full_disk(error, self.path)
                if self._keeper.in_transaction:  # a full disk ends it by itself
                    self._keeper.execute("ROLLBACK")
                raise

    def grew(self, size: int) -> None:
        """Note that about `size` bytes were added to the log."""
        self._untidy += size

    def tidy(self) -> None:
        """Move the log into the database where it has grown, or where the disk was full: its room
        is then given back."""
        if self._full:
            with self._one_writer:
                self._full = not empty_log(self._keeper)
        if self._untidy < log_bytes(self.path, self._tidy_bytes):
            return
        self._untidy = 0
        with suppress(sqlite3.Error):  # a full disk, say: the log stays, and is good
            self._keeper.execute("PRAGMA wal_checkpoint(PASSIVE)")
            # Rows written meanwhile keep the log from being begun anew.
            if Path(f"{self.path}-wal").stat().st_size > self._log_bytes:
                with self._one_writer:
                    self._keeper.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def quarantine(self, reason: str) -> None:
        """Rename the file, a database whose content cannot be used, and begin a new one."""
        self._adder.close()
        self._keeper.close()
        _quarantine(self.path, reason)
        self._open()

    def close(self) -> None:
        """Close the file and release its lock; SQLite moves the log into it and removes the log."""
        with suppress(sqlite3.Error):
            self._adder.close()
            self._keeper.close()
        os.close(self._lock)


def _connect(path: Path) -> sqlite3.Connection:
    return open_connection(
        f"file:{quote(os.fsencode(path.absolute()))}",
        5.0,
        f"page_size = {PAGE}",
        "journal_mode = WAL",
        "synchronous = NORMAL",
        "wal_autocheckpoint = 0",  # see `tidy`
    )


def _lock(path: Path) -> int:
    """Lock the file beside it; UnavailableError if another process holds the lock."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return lock_file(Path(f"{path}.lock"))
    except BlockingIOError:
        raise UnavailableError(
            f"{path}: another agent uses this file; each agent needs one of its own"
        ) from None
    except OSError as error:
        raise trouble(_unusable(path), error) from None


def _unusable(path: Path) -> str:
    return f"{path}: cannot be used as the agent's file"


def _is_of_the_system(error: sqlite3.DatabaseError) -> bool:
    """Return whether the disk or the rights are at fault, and not the file's content."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF
    return code not in (
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_ERROR,  # tables that are not as they should be
    )


def _quarantine(path: Path, reason: str) -> None:
    log.warning(
        "%s is no agent's file (%s): it is set aside as %s.broken, and what it had of unsent "
        "counts is not sent",
        path,
        reason,
        path.name,
    )
    for end in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            Path(f"{path}{end}").rename(f"{path}.broken{end}")
