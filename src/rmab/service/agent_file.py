"""The agent's own small file: what must outlive its process.

An agent's process may end at any moment, `kill -9` included, and no look that `Agent.observe` has
returned from may be lost. The file is SQLite's, in three tables:

    round     the last round the server gave, so that a restarted agent can play at once
    lives     each incarnation that is not wholly acknowledged: its last sequence number, the
              upload under that number where no acknowledgement has come, the slots it tells of,
              and a snapshot of the player after `slots` slots, which may be more
    slots     the looks of each slot since: the arms played and the states they showed

A slot is one row and one transaction in the write-ahead log: no more than a write into the
system's memory, which outlives the process. What the machine loses with its power is what was not
synced yet, a few thousand slots at most; such a loss is never counted wrongly, as the server
refuses an upload that does not follow what it has.

Two threads use the file, each through a connection of its own: the caller's writes slots, the
exchange's writes the rest and moves the log into the database (`tidy`), which syncs to the disk
and must not hold up a slot. Only one process may: a lock beside the file is held for life.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

from rmab.errors import FederationError, StorageError

__all__ = ["AgentFile", "Life", "Look", "default_file"]

log = logging.getLogger("rmab.agent")
T = TypeVar("T")

APPLICATION = 0x726D6162  # "rmab", in the header of the file
VERSION = 1
PAGE = 512  # a slot writes one page or two: small ones spare the disk
SLOT_BYTES = 2 * PAGE  # that a slot adds to the log, about
TIDY_BYTES = 2**21  # of log after which it is moved into the database
MOST_LOG = 2**23  # bytes of log beyond which slots wait for that

_TABLES = """
CREATE TABLE round (one INTEGER PRIMARY KEY CHECK (one = 1), message BLOB NOT NULL);
CREATE TABLE lives (
    life INTEGER PRIMARY KEY,
    incarnation TEXT NOT NULL UNIQUE,
    sequence INTEGER NOT NULL DEFAULT 0,
    upload BLOB,
    told INTEGER NOT NULL DEFAULT 0,
    slots INTEGER NOT NULL DEFAULT 0,
    snapshot BLOB
);
CREATE TABLE slots (
    life INTEGER NOT NULL, slot INTEGER NOT NULL, looks BLOB NOT NULL, PRIMARY KEY (life, slot)
) WITHOUT ROWID;
"""
_INSERT = "INSERT INTO slots VALUES (?, ?, ?)"


class Look(NamedTuple):
    """What one slot showed: arms and their states, both of length K."""

    arms: tuple[int, ...]
    states: tuple[int, ...]


@dataclass(frozen=True)
class Life:
    """What is kept of one incarnation.

    sequence: the last one used; upload: the body under it, None once acknowledged; told: the slots
    it tells of; slots: those in the snapshot; snapshot: None before the first; looks: of the slots
    since.
    """

    incarnation: str
    sequence: int
    upload: bytes | None
    told: int
    slots: int
    snapshot: bytes | None
    looks: tuple[Look, ...]

    @property
    def has_more(self) -> bool:
        """Whether it saw something that its last upload does not tell of."""
        return bool(self.looks) or self.slots > self.told


class AgentFile:
    """The file at `path`, locked, made where there is none; a broken one is set aside.

    Methods raise StorageError where the disk refuses; the file then lags behind, and the caller
    may go on.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writing = threading.Lock()
        self._life = 0  # of this process: the rows it writes
        self._untidy = 0  # bytes of log, about, since it was moved
        self._lock = _lock(path)
        try:
            try:
                self._open()
            except sqlite3.DatabaseError as error:
                if _is_of_the_system(error):
                    raise
                _set_aside(path, str(error))
                self._open()
        except (sqlite3.Error, OSError) as error:
            os.close(self._lock)
            raise FederationError(f"{path}: cannot be used as the agent's file: {error}") from None
        except FederationError:
            os.close(self._lock)
            raise

    def _open(self) -> None:
        os.close(os.open(self.path, os.O_CREAT | os.O_RDWR, 0o600))
        self.path.chmod(0o600)  # the log beside it gets the same
        self._slots = _connect(self.path)
        try:
            self._keeper = _connect(self.path)
            try:
                self._prepare()
            except BaseException:
                self._keeper.close()
                raise
        except BaseException:
            self._slots.close()
            raise

    def _prepare(self) -> None:
        """Make the tables, or check that they are ours."""
        keeper = self._keeper
        (tables,) = keeper.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        (application,) = keeper.execute("PRAGMA application_id").fetchone()
        (version,) = keeper.execute("PRAGMA user_version").fetchone()
        if tables == 0 and application == 0:
            with self._transaction():
                for statement in _TABLES.split(";"):
                    keeper.execute(statement)
                keeper.execute(f"PRAGMA application_id = {APPLICATION}")
                keeper.execute(f"PRAGMA user_version = {VERSION}")
            return
        if application != APPLICATION:
            raise sqlite3.DatabaseError("it is another program's database")
        if version > VERSION:
            raise FederationError(
                f"{self.path}: is of version {version}, and this rmab knows versions up to "
                f"{VERSION}: use a newer rmab"
            )
        (verdict,) = keeper.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise sqlite3.DatabaseError(verdict)

    # ------------------------------------------------------------------------ what was kept before

    def message(self) -> bytes | None:
        """The last round the server gave."""
        row = self._keeper.execute("SELECT message FROM round").fetchone()
        return None if row is None else bytes(row[0])

    def lives(self) -> list[Life]:
        """The earlier incarnations that left something, oldest first."""
        rows = self._keeper.execute(
            "SELECT life, incarnation, sequence, upload, told, slots, snapshot FROM lives "
            "WHERE life <> ? ORDER BY life",
            (self._life,),
        ).fetchall()
        return [
            Life(incarnation, sequence, upload, told, slots, snapshot, self._looks(life, slots))
            for life, incarnation, sequence, upload, told, slots, snapshot in rows
        ]

    def _looks(self, life: int, after: int) -> tuple[Look, ...]:
        """The looks of the slots that follow one another from the snapshot on."""
        found = []
        rows = self._keeper.execute(
            "SELECT slot, looks FROM slots WHERE life = ? AND slot > ? ORDER BY slot", (life, after)
        )
        for slot, packed in rows:
            if slot != after + 1:
                break  # the disk refused a slot: what came after it does not join on
            numbers = struct.unpack(f"<{len(packed) // 4}I", packed)
            found.append(Look(numbers[: len(numbers) // 2], numbers[len(numbers) // 2 :]))
            after = slot
        return tuple(found)

    # ------------------------------------------------------------------------------- what is kept

    def begin(self, incarnation: str, *, instead_of: str | None = None) -> None:
        """A new incarnation, which is this process's from now on."""

        def write(keeper: sqlite3.Connection) -> int:
            if instead_of is not None:
                _forget(keeper, instead_of)
            made = keeper.execute("INSERT INTO lives (incarnation) VALUES (?)", (incarnation,))
            assert made.lastrowid is not None
            return made.lastrowid

        self._life = self._write(write)

    def keep_slot(self, slot: int, arms: Sequence[int], states: Sequence[int]) -> None:
        """One slot of this process: its number, from 1, and what it showed."""
        looks = struct.pack(f"<{2 * len(arms)}I", *arms, *states)
        try:
            with self._writing:
                self._slots.execute(_INSERT, (self._life, slot, looks))
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: slot {slot} is not kept: {error}") from None
        self._untidy += SLOT_BYTES

    def keep_message(self, message: bytes) -> None:
        """The round the server gave, instead of the one before."""
        self._write(lambda keeper: keeper.execute("REPLACE INTO round VALUES (1, ?)", (message,)))
        self._untidy += len(message)

    def keep_snapshot(self, incarnation: str, slots: int, snapshot: bytes) -> None:
        """The player after so many slots, instead of those slots."""
        self._write(lambda keeper: _keep_snapshot(keeper, incarnation, slots, snapshot))
        self._untidy += len(snapshot) + SLOT_BYTES

    def keep_upload(
        self, incarnation: str, sequence: int, upload: bytes, slots: int, snapshot: bytes | None
    ) -> None:
        """An upload of so many slots that is about to be sent, instead of the one before, and the
        player as it was when the upload was made (None: as kept)."""

        def write(keeper: sqlite3.Connection) -> None:
            keeper.execute(
                "UPDATE lives SET sequence = ?, upload = ?, told = ? WHERE incarnation = ?",
                (sequence, upload, slots, incarnation),
            )
            if snapshot is not None:
                _keep_snapshot(keeper, incarnation, slots, snapshot)

        self._write(write)
        self._untidy += len(upload) + len(snapshot or b"") + SLOT_BYTES

    def acknowledge(self, incarnation: str, sequence: int) -> None:
        """The server has the upload of that number, and so all of an incarnation of the past."""

        def write(keeper: sqlite3.Connection) -> None:
            keeper.execute(
                "UPDATE lives SET upload = NULL WHERE incarnation = ? AND sequence = ?",
                (incarnation, sequence),
            )
            keeper.execute(
                "DELETE FROM lives WHERE incarnation = ? AND life <> ? AND upload IS NULL",
                (incarnation, self._life),
            )

        self._write(write)

    def forget(self, incarnations: Iterable[str]) -> None:
        """Drop all that is kept of these."""

        def write(keeper: sqlite3.Connection) -> None:
            for incarnation in incarnations:
                _forget(keeper, incarnation)

        self._write(write)

    def _write(self, write: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with self._transaction():
                return write(self._keeper)
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: not kept: {error}") from None

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # SQLite lets one connection write at a time; one that finds it taken would sleep, long.
        with self._writing:
            self._keeper.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._keeper.execute("COMMIT")
            except BaseException:
                if self._keeper.in_transaction:  # a full disk ends it by itself
                    self._keeper.execute("ROLLBACK")
                raise

    def tidy(self) -> None:
        """Move the log into the database where it has grown."""
        if self._untidy < TIDY_BYTES:
            return
        self._untidy = 0
        with suppress(sqlite3.Error):  # a full disk, say: the log stays, and is good
            self._keeper.execute("PRAGMA wal_checkpoint(PASSIVE)")
            # Slots written meanwhile keep the log from being begun anew.
            if Path(f"{self.path}-wal").stat().st_size > MOST_LOG:
                with self._writing:
                    self._keeper.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def set_aside(self, reason: str) -> None:
        """Begin anew: what is in the file cannot be used, though it is a database."""
        self._slots.close()
        self._keeper.close()
        _set_aside(self.path, reason)
        self._open()

    def close(self) -> None:
        """Close the file and let go of it; the log beside it is moved into it and removed."""
        with suppress(sqlite3.Error):
            self._slots.close()
            self._keeper.close()
        os.close(self._lock)


def default_file(url: str, key_id: str) -> Path:
    """Where the agent with that credential keeps its file unless told otherwise."""
    import hashlib

    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    name = hashlib.sha256(f"{url} {key_id}".encode()).hexdigest()[:16]
    return home / "rmab" / f"agent-{name}.db"


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=5.0, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")  # see `tidy`
    except BaseException:
        connection.close()
        raise
    return connection


def _keep_snapshot(
    keeper: sqlite3.Connection, incarnation: str, slots: int, snapshot: bytes
) -> None:
    keeper.execute(
        "UPDATE lives SET slots = ?, snapshot = ? WHERE incarnation = ?",
        (slots, snapshot, incarnation),
    )
    keeper.execute(
        "DELETE FROM slots WHERE slot <= ? AND life = "
        "(SELECT life FROM lives WHERE incarnation = ?)",
        (slots, incarnation),
    )


def _forget(keeper: sqlite3.Connection, incarnation: str) -> None:
    keeper.execute(
        "DELETE FROM slots WHERE life = (SELECT life FROM lives WHERE incarnation = ?)",
        (incarnation,),
    )
    keeper.execute("DELETE FROM lives WHERE incarnation = ?", (incarnation,))


def _lock(path: Path) -> int:
    """An open lock beside the file; FederationError if another agent holds it."""
    beside = Path(f"{path}.lock")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(beside, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise FederationError(
            f"{path}: cannot be used as the agent's file: {error.strerror}"
        ) from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise FederationError(
            f"{path}: another agent uses this file; each agent needs one of its own"
        ) from None
    return lock


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
