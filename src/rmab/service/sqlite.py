"""Connections to SQLite, its errors and its log, for the server's database and the agent's file."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

from rmab.errors import FederationError, RmabError, StorageError, is_lasting, system_reason

__all__ = [
    "empty_log",
    "log_bytes",
    "open_connection",
    "sqlite_trouble",
    "tells_of_full_disk",
    "trouble",
]

_LEAST_LOG = 2**15  # bytes


def open_connection(uri: str, busy_seconds: float, *pragmas: str) -> sqlite3.Connection:
    """Open a connection with these settings; the caller begins and ends transactions.

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
    """Translate SQLite's error on the file at `path`; place: its name in the message.

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
    """Translate an error of the system: StorageError if it may pass."""
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
    """Return whether SQLite's log can be made beside the file, and all of them be written."""
    files = [each for end in ("", "-wal", "-shm") if (each := Path(f"{path}{end}")).exists()]
    folder = path.absolute().parent
    return all(os.access(each, os.W_OK, effective_ids=True) for each in (folder, *files))
