"""Connections to SQLite and PostgreSQL behind one small interface.

SQL is written once, in the words that both know, with `?` for values and BLOB for bytes.
Differences of the two databases are here and in rmab.service.store.postgres:

                    SQLite                                PostgreSQL
    durable         WAL and synchronous=FULL: a commit    synchronous_commit=on
                    returns after its fsync
    one writer      BEGIN IMMEDIATE, waiting its turn     row locks
    claim           flock on FILE.lock, held for life     an advisory lock of the session
    away            does not happen                       connects again at the next transaction

A *claim* is the right to serve: one process has it at a time, and the system takes it back when
that process ends, however it ends. Commands that only write credentials need none.

Errors of operation (disk full, connection lost, lock not granted in time) come out as StorageError,
and a claim that another process has as UnavailableError: both may pass. Lasting errors (an address
that is none, rights that are missing, a wrong password) are a FederationError where the database is
opened. Errors in a statement (a constraint, a type) come out as the driver's: those are mistakes
here. No message has a password in it.
"""

from __future__ import annotations

import os
import sqlite3
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from rmab.errors import FederationError, StorageError, UnavailableError
from rmab.files import lock_file
from rmab.service.sqlite import (
    empty_log,
    log_bytes,
    open_connection,
    sqlite_trouble,
    tells_of_full_disk,
    trouble,
)

__all__ = ["ClaimLostError", "Database", "DatabaseLimits", "SqliteDatabase", "Value", "connect"]

Value = int | float | str | bytes | None
Row = tuple[Any, ...]

_PAGE = 4096  # bytes, of SQLite
_SYNCHRONOUS = "FULL"  # a commit returns once it is on the disk


class ClaimLostError(StorageError):
    """Another process serves the database, or has: this one must be started again."""


@dataclass(frozen=True)
class DatabaseLimits:
    """Times and sizes of one connection."""

    # How long a transaction waits for another process's, in seconds (SQLite).
    busy_seconds: float = 20.0
    # How long a claim waits: PostgreSQL notices a moment later that a session's process has ended.
    claim_seconds: float = 3.0
    # Pages of 4 KiB after which SQLite's log is copied into the file: 16 MB.
    checkpoint_pages: int = 4000
    # Of SQLite's cache: a batch of uploads fits, so nothing is written before the commit.
    cache_kibibytes: int = 16_384


class Database(ABC):
    """A connection; one thread at a time."""

    place: str  # what messages call it
    sessions: int = 0  # connections made: what was read in an earlier one may be out of date

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        """Return the rows of a query."""

    @abstractmethod
    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        """Change rows; how many were."""

    @abstractmethod
    def begin(self) -> None:
        """Start a transaction that may write."""

    @abstractmethod
    def commit(self) -> None:
        """End it. When this returns, its changes outlive a power cut."""

    @abstractmethod
    def rollback(self) -> None:
        """Undo it. Never fails: at worst the next transaction is on a new connection."""

    @abstractmethod
    def claim(self) -> None:
        """Become the one server on this database; UnavailableError if another is."""

    @abstractmethod
    def release(self) -> None:
        """Give the claim back."""

    @abstractmethod
    def tables(self) -> set[str]:
        """Names of the tables that are there."""

    @abstractmethod
    def lock_schema(self) -> None:
        """Keep others from preparing tables until the transaction ends."""

    @abstractmethod
    def back_up(self, target: Path) -> None:
        """Copy all that is committed into a file that only its owner can read."""

    @abstractmethod
    def change_check(self, table: str, column: str, before: str, after: str) -> None:
        """Inside a transaction: the rule that a column keeps to becomes another one."""

    @abstractmethod
    def lock_counts(self) -> None:
        """Keep others from adding to counts or taking them out until the transaction ends."""

    @abstractmethod
    def close(self) -> None:
        """Release the connection and the claim."""

    def meta(self, name: str) -> str | None:
        """Return a text in the table `meta`; None where there is none."""
        rows = self.rows("SELECT value FROM meta WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    def set_meta(self, name: str, value: str) -> None:
        """Insert or replace a text in `meta`."""
        self.run(
            "INSERT INTO meta (name, value) VALUES (?, ?) "
            "ON CONFLICT (name) DO UPDATE SET value = excluded.value",
            (name, value),
        )

    def count_up(self, name: str, by: int = 1) -> None:
        """Add to a counter in `meta`."""
        self.run(
            "UPDATE meta SET value = CAST(CAST(value AS BIGINT) + ? AS TEXT) WHERE name = ?",
            (by, name),
        )


def connect(url: str, *, create: bool, limits: DatabaseLimits | None = None) -> Database:
    """The database at a path, sqlite:///PATH or postgresql://...; `create`: a file may be made."""
    limits = limits or DatabaseLimits()
    scheme, colon, rest = url.partition("://")
    if colon and scheme in ("postgresql", "postgres"):
        try:
            from rmab.service.store.postgres import PostgresDatabase
        except ImportError:
            raise FederationError(
                "a PostgreSQL database needs psycopg: install rmab[postgres]"
            ) from None
        return PostgresDatabase(url, limits)
    if colon and scheme != "sqlite":
        raise FederationError(
            f"the database must be a path, sqlite:///PATH or postgresql://..., got {scheme!r}://..."
        )
    if colon and not rest.startswith("/"):
        raise FederationError("an SQLite address must be sqlite:///PATH, with three slashes")
    path = rest[1:] if colon else url
    if not path or path.startswith((":memory:", "file:")):
        raise FederationError(f"an SQLite database must be a file on a disk, got {path!r}")
    return SqliteDatabase(Path(path), limits, create=create)


class SqliteDatabase(Database):
    """File, with its log FILE-wal and its lock FILE.lock, readable by their owner only."""

    def __init__(self, path: Path, limits: DatabaseLimits, *, create: bool) -> None:
        self.place = str(path)
        self._limits = limits
        self._path = path
        self._lock: int | None = None
        self._full = False  # whether the disk was when something was last written
        try:
            if create:
                _create(path)
            elif not path.exists():
                raise FederationError(f"there is no database at {path}; `rmab server` makes one")
            self._connection = self._connect()
        except OSError as error:
            raise trouble(f"database {path}", error) from None
        except sqlite3.Error as error:
            found = sqlite_trouble(f"database {path} cannot be opened", error, path)
            raise FederationError(str(found)) if found.lasting else found from None

    def _connect(self) -> sqlite3.Connection:
        connection = open_connection(
            f"file:{quote(os.fsencode(self._path.absolute()))}?mode=rw",
            self._limits.busy_seconds,
            f"synchronous = {_SYNCHRONOUS}",
            "journal_mode = WAL",
            "foreign_keys = ON",
            f"wal_autocheckpoint = {self._log_pages()}",
            f"cache_size = -{self._limits.cache_kibibytes}",
        )
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            connection.close()
            raise FederationError(
                f"database {self._path}: its file system must allow SQLite's log (WAL)"
            )
        self.sessions += 1
        return connection

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        try:
            return self._connection.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            if _is_mistake(error):
                raise
            raise self._trouble("failed", error) from error

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        try:
            return self._connection.execute(sql, values).rowcount
        except sqlite3.DatabaseError as error:
            if _is_mistake(error):
                raise
            raise self._trouble("failed", error) from error

    def _trouble(self, what: str, error: sqlite3.Error) -> StorageError:
        self._full = self._full or tells_of_full_disk(error, self._path)
        return sqlite_trouble(f"database {self.place} {what}", error, self._path)

    def begin(self) -> None:
        if self._full:
            self._empty_log()
        self.run("BEGIN IMMEDIATE")

    def _empty_log(self) -> None:
        """Give the room that the log takes back to a disk that was full, as soon as that is
        possible: the log would take all that is freed."""
        if empty_log(self._connection):
            self._full = False
            with suppress(sqlite3.Error):
                self._connection.execute(f"PRAGMA wal_autocheckpoint = {self._log_pages()}")

    def _log_pages(self) -> int:
        """Pages after which the log is moved into the file."""
        return log_bytes(self._path, self._limits.checkpoint_pages * _PAGE) // _PAGE

    def commit(self) -> None:
        try:
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._trouble("did not commit", error) from error

    def rollback(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._connection.close()
            self._connection = self._connect()

    def claim(self) -> None:
        if self._lock is not None:
            return
        path = Path(f"{self.place}.lock")
        try:
            descriptor = lock_file(path)
        except BlockingIOError:
            holder = path.read_bytes()[:20].decode("ascii", "replace").strip() or "unknown"
            raise UnavailableError(
                f"database {self.place} is served by another process already ({holder})"
            ) from None
        except OSError as error:
            raise trouble(f"lock {path}", error) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"process {os.getpid()}\n".encode(), 0)
        self._lock = descriptor

    def release(self) -> None:
        # The file stays: whoever removed it could take it from under one who is just opening it.
        if self._lock is not None:
            os.ftruncate(self._lock, 0)
            os.close(self._lock)
            self._lock = None

    def tables(self) -> set[str]:
        return {
            name for (name,) in self.rows("SELECT name FROM sqlite_master WHERE type = 'table'")
        }

    def lock_schema(self) -> None:
        """BEGIN IMMEDIATE has done it."""

    def back_up(self, target: Path) -> None:
        if target.exists() and target.samefile(self._path):
            raise FederationError(f"backup {target}: must be another file than the database")
        try:
            # Made for its owner alone, as are the files that SQLite puts beside it.
            descriptor, name = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
            try:
                os.close(descriptor)
                self._copy(name)
                _sync(Path(name))
                Path(name).replace(target)
            except BaseException:
                for end in ("", "-journal", "-wal", "-shm"):
                    Path(f"{name}{end}").unlink(missing_ok=True)
                raise
            _sync(target.absolute().parent)
        except OSError as error:
            raise trouble(f"backup {target}", error) from None
        except sqlite3.Error as error:
            raise sqlite_trouble(f"backup {target} is not made", error, target) from None

    def _copy(self, name: str) -> None:
        copy = sqlite3.connect(name, isolation_level=None)
        try:
            self._connection.backup(copy)  # one moment's state; writers go on meanwhile
            copy.execute("PRAGMA journal_mode = DELETE")  # a backup is one file
        finally:
            copy.close()

    def change_check(self, table: str, column: str, before: str, after: str) -> None:  # noqa: ARG002 - PostgreSQL names a rule by its column
        # A table's rules cannot be changed, so the table is made anew and filled. Rows of other
        # tables that refer to it are without what they refer to in between, and only there.
        self.run("PRAGMA defer_foreign_keys = ON")
        made = [
            sql
            for (sql,) in self.rows(
                "SELECT sql FROM sqlite_master WHERE tbl_name = ? AND sql IS NOT NULL "
                "ORDER BY type DESC",  # the table, then its indices
                (table,),
            )
        ]
        assert before in made[0], made[0]
        self.run(f"CREATE TEMPORARY TABLE kept AS SELECT * FROM main.{table}")
        self.run(f"DROP TABLE main.{table}")
        for sql in (made[0].replace(before, after), *made[1:]):
            self.run(sql)
        self.run(f"INSERT INTO main.{table} SELECT * FROM temp.kept")
        self.run("DROP TABLE temp.kept")

    def lock_counts(self) -> None:
        """BEGIN IMMEDIATE has done it."""

    def close(self) -> None:
        self._connection.close()
        self.release()


def _is_mistake(error: sqlite3.DatabaseError) -> bool:
    """Return whether the statement is wrong, and not the disk, the file or a lock.

    A damaged file is a DatabaseError itself. SQL that makes no sense is an OperationalError too,
    with a code of its own.
    """
    if type(error) not in (sqlite3.OperationalError, sqlite3.DatabaseError):
        return True
    return getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_ERROR


def _create(path: Path) -> None:
    """An empty file that others cannot read and that is still there after a power cut."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    os.close(descriptor)
    _sync(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Make a file, or a folder's entries, outlive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
