"""SQLite files: how they are locked and opened, and the file of one agent.

The server's database (`rmab.service.store.database`) and the agent's file take the same lock and
open their connections in the same way. `SqliteFile` is the agent's: locked for life, for its owner
alone, with small writes that wait for nothing.

Two threads use it, each through a connection of its own. One adds rows (`add`): each is a
transaction in the write-ahead log, no more than a write into the system's memory, which outlives
the process. The other reads and writes all else (`transaction`) and moves the log into the database
(`tidy`), which syncs to the disk and must not hold up the first.

A file that is damaged, or another program's, is set aside under another name, and a new one is
begun; one that the disk or the system's rights keep from us is an error.
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

from rmab.errors import (
    FederationError,
    RmabError,
    StorageError,
    UnavailableError,
    is_lasting,
    system_reason,
)
from rmab.files import lock_file

__all__ = [
    "PAGE",
    "SqliteFile",
    "empty_log",
    "log_bytes",
    "open_connection",
    "sqlite_trouble",
    "tells_of_full_disk",
    "trouble",
]

log = logging.getLogger("rmab.agent")

APPLICATION = 0x726D6162  # "rmab", in the header of the file
_LEAST_LOG = 2**15  # bytes
PAGE = 512  # bytes; a row writes one page or two: small ones spare the disk

Value = int | str | bytes | None


def open_connection(uri: str, busy_seconds: float, *pragmas: str) -> sqlite3.Connection:
    """A connection with these settings; transactions begin and end where the caller says.

    It may be opened in one thread and used in another, but never in two at once.
    """
    connection = sqlite3.connect(
        uri, uri=True, timeout=busy_seconds, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in pragmas:
            connection.execute(f"PRAGMA {pragma}")
    except BaseException:
        connection.close()
        raise
    return connection


def sqlite_trouble(place: str, error: sqlite3.Error, path: Path) -> StorageError:
    """What SQLite's error on the file at `path` means; place: what the message calls it.

    Where the disk is full SQLite may say so, or that the disk failed, or that a file beside the
    database could not be made. It does not say why it may not write.
    """
    code = _code(error)
    reason, lasting = str(error), code in _LASTING_CODES
    if tells_of_full_disk(error, path):
        reason, lasting = f"disk full: {reason}", False
    elif code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        if _is_mounted_read_only(path):
            reason, lasting = f"it is read-only, as its file system is: {reason}", False
        elif not _may_write(path):
            rights = "this user may not write the file, its log or its folder"
            reason, lasting = f"it is read-only, as {rights}: {reason}", True
        elif path.exists() and not path.is_file():
            lasting = True
    return StorageError(f"{place}: {reason}", lasting=lasting)


def trouble(place: str, error: OSError) -> RmabError:
    """What the system's error means: StorageError if it may pass."""
    kind = FederationError if is_lasting(error) else StorageError
    return kind(f"{place}: {system_reason(error)}")


def tells_of_full_disk(error: sqlite3.Error, path: Path) -> bool:
    """Return whether SQLite's error on the file at `path` means that the disk is full."""
    code = _code(error)
    if code in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
        return _is_full(path)
    return code == sqlite3.SQLITE_FULL


def log_bytes(path: Path, most: int) -> int:
    """Return the bytes after which the log of the database at `path` is moved into it: `most`, or
    on a small disk a quarter of those that there is room for.

    A log that is moved seldom fills a small disk, and then there is no room to move it.
    """
    try:
        disk = os.statvfs(path.absolute().parent)
        log = Path(f"{path}-wal")
        room = disk.f_bavail * disk.f_frsize + (log.stat().st_size if log.exists() else 0)
    except OSError:
        return most
    return max(_LEAST_LOG, min(most, room // 4))


def empty_log(connection: sqlite3.Connection) -> bool:
    """Move the log into the database and give its room back to the disk; whether that was done."""
    try:
        ((busy, *_),) = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error:  # there is no room yet: the log stays, and is good
        return False
    return not busy


def _code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)) & 0xFF


_LASTING_CODES = (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_PERM)


def _is_full(path: Path) -> bool:
    with suppress(OSError):
        return os.statvfs(path.absolute().parent).f_bavail == 0
    return False


def _is_mounted_read_only(path: Path) -> bool:
    with suppress(OSError):
        return bool(os.statvfs(path.absolute().parent).f_flag & os.ST_RDONLY)
    return False


def _may_write(path: Path) -> bool:
    """Whether SQLite's log can be made beside the file, and all of them be written."""
    files = [each for end in ("", "-wal", "-shm") if (each := Path(f"{path}{end}")).exists()]
    folder = path.absolute().parent
    return all(os.access(each, os.W_OK, effective_ids=True) for each in (folder, *files))


class SqliteFile:
    """The file at `path`, locked, made with these tables where there is none.

    tables: the statements that make them; version: of the tables, in the file's header;
    tidy_bytes: of log after which it is moved into the database; log_bytes: beyond which rows wait
    for that. A newer version than this is a FederationError; a file that another process has, and
    a full disk, which may pass, are others (`rmab.errors`).
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
        self._writing = threading.Lock()
        self._untidy = 0  # bytes of log, about, since it was moved
        self._full = False  # whether the disk was when something was last written
        self._lock = _lock(path)
        try:
            try:
                self._open()
            except sqlite3.DatabaseError as error:
                if _is_of_the_system(error):
                    raise
                _set_aside(path, str(error))
                self._open()
        except sqlite3.Error as error:
            os.close(self._lock)
            found = sqlite_trouble(_unusable(path), error, path)
            raise FederationError(str(found)) if found.lasting else found from None
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
        """One statement that must not be held up, in a transaction of its own."""
        with self._writing:
            try:
                self._adder.execute(sql, values)
            except sqlite3.Error as error:
                self._full = self._full or tells_of_full_disk(error, self.path)
                raise

    def read(self, sql: str, values: Sequence[Value] = ()) -> sqlite3.Cursor:
        """What a query finds."""
        return self._keeper.execute(sql, values)

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commit at the end, or undo all when anything is raised."""
        # SQLite lets one connection write at a time; one that finds it taken would sleep, long.
        with self._writing:
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
        """About `size` bytes were added to the log."""
        self._untidy += size

    def tidy(self) -> None:
        """Move the log into the database where it has grown, or where the disk was full: what it
        takes of the disk is then given back."""
        if self._full:
            with self._writing:
                self._full = not empty_log(self._keeper)
        if self._untidy < log_bytes(self.path, self._tidy_bytes):
            return
        self._untidy = 0
        with suppress(sqlite3.Error):  # a full disk, say: the log stays, and is good
            self._keeper.execute("PRAGMA wal_checkpoint(PASSIVE)")
            # Rows written meanwhile keep the log from being begun anew.
            if Path(f"{self.path}-wal").stat().st_size > self._log_bytes:
                with self._writing:
                    self._keeper.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def set_aside(self, reason: str) -> None:
        """Begin anew: what is in the file cannot be used, though it is a database."""
        self._adder.close()
        self._keeper.close()
        _set_aside(self.path, reason)
        self._open()

    def close(self) -> None:
        """Close the file and let go of it; the log beside it is moved into it and removed."""
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
    """The lock beside the file; UnavailableError if another process holds it."""
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
    """Whether the disk or the rights are at fault rather than what is in the file."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_NOTADB) & 0xFF
    return code not in (
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_ERROR,  # tables that are not as they should be
    )


def _set_aside(path: Path, reason: str) -> None:
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
