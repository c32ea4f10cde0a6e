"""The agent's own small file: its state that must outlive the process.

An agent's process may end at any moment, `kill -9` included, and no observation that
`Agent.observe` has returned from may be lost. The file is SQLite's, in three tables:

    round     the last round the server gave, so that a restarted agent can play at once
    lives     each incarnation that is not wholly acknowledged: its last sequence number, the
              upload under that number where no acknowledgement has come, the slots in it,
              and a snapshot of the player after `slots` slots, which may be more
    slots     the observations of each slot since: the arms played and the states they showed, and
              likewise those that are always observed; and under life 0, which no incarnation has:
              in slot 0 the state of the agent's learner, in slot 1 the key id of the credential
              that the round was given to, in slot 2 the name of the mask key that the agent has
              had, in slot 3 all counts of one that draws for itself when its last round
              began, in slot 4 the incarnation of an agent with a mask key and the position at
              which it began. Under life -n are masked uploads of life n at marks, by sequence,
              that are not acknowledged

A slot is one transaction in the write-ahead log, which outlives the process. The state of a learner
that keeps its own is stored with each slot, and the file has both or neither; unlike counts it
stays through restarts and new incarnations. A power cut loses slots that were not synced yet, a few
thousand at most; such a loss is never counted wrongly, as the server refuses an upload that does
not follow the ones before.

Two threads use the file: the caller's writes slots, the exchange's the rest. Only one process may.
`rmab.service.agent.sqlite_file` does both.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

from rmab.errors import FederationError, StorageError, UnavailableError
from rmab.service.agent.limits import AgentLimits
from rmab.service.agent.sqlite_file import PAGE, SqliteFile
from rmab.service.sqlite import open_connection, sqlite_trouble

__all__ = ["AgentFile", "KeptIncarnation", "Observation", "default_file"]

VERSION = 1  # of the tables
SLOT_BYTES = 2 * PAGE  # that a slot adds to the log, about

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
_INSERT_WITH_STATE = "REPLACE INTO slots VALUES (?, ?, ?), (0, 0, ?)"
_OWNER = "SELECT looks FROM slots WHERE life = 0 AND slot = 1"
_MASKS = "SELECT looks FROM slots WHERE life = 0 AND slot = 2"
_MARKS_OF = "SELECT slot FROM slots WHERE life = ?"


_LOOKED = 1 << 31  # in a row of `slots`: added to the number of an arm that was looked at
_UNREAD = 2**32 - 1  # there: instead of a state that was not read


class Observation(NamedTuple):
    """Observations of one slot.

    arms, states: of the arms played, both of length K; looks: of the arms that are always observed,
    in their order. A state that was not read is None.
    """

    arms: tuple[int, ...]
    states: tuple[int | None, ...]
    looks: tuple[int | None, ...] = ()

    def pack(self) -> bytes:
        """Return the file's form: numbers of arms, then as many of states."""
        arms = (*self.arms, *(_LOOKED + place for place in range(len(self.looks))))
        states = (_UNREAD if s is None else s for s in (*self.states, *self.looks))
        return struct.pack(f"<{2 * len(arms)}I", *arms, *states)

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Return the observations that `pack` was given."""
        numbers = struct.unpack(f"<{len(packed) // 4}I", packed)
        half = len(numbers) // 2
        states = [None if state == _UNREAD else state for state in numbers[half:]]
        arms = tuple(arm for arm in numbers[:half] if arm < _LOOKED)
        return cls(arms, tuple(states[: len(arms)]), tuple(states[len(arms) :]))


@dataclass(frozen=True)
class KeptIncarnation:
    """Kept state of one incarnation.

    sequence: the last one used; upload: the body under it, None once acknowledged; told: slots in
    that upload; slots: those in the snapshot; snapshot: None before the first; observations: of the
    slots since.
    """

    incarnation: str
    sequence: int
    upload: bytes | None
    told: int
    slots: int
    snapshot: bytes | None
    observations: tuple[Observation, ...]

    @property
    def has_more(self) -> bool:
        """Whether it saw something that its last upload does not tell of."""
        return bool(self.observations) or self.slots > self.told


class AgentFile(SqliteFile):
    """The file at `path`, locked, made where there is none; a broken one is set aside.

    key_id: of the credential that it is used with. A file that another process uses is an
    UnavailableError, or, where that one has another credential, a FederationError. Methods raise
    StorageError where the disk refuses; the file then lags behind, and the caller may go on.
    """

    def __init__(
        self, path: Path, limits: AgentLimits | None = None, key_id: str | None = None
    ) -> None:
        limits = limits or AgentLimits()
        self._key_id = key_id
        try:
            super().__init__(
                path,
                tables=_TABLES.split(";"),
                version=VERSION,
                tidy_bytes=limits.tidy_bytes,
                log_bytes=limits.log_bytes,
            )
        except StorageError:
            raise
        except UnavailableError as error:  # another process has it, which may end; or another agent
            if _kept_owner(path) in (None, key_id):
                raise
            raise FederationError(str(error)) from None
        self._life = 0  # of this process: the rows it writes

    # ------------------------------------------------------------------------ what was kept before

    def message(self) -> bytes | None:
        """The last round the server gave."""
        row = self.read("SELECT message FROM round").fetchone()
        return None if row is None else bytes(row[0])

    def of_another_key(self) -> bool:
        """Whether the round was given to a credential that is known, and not this one."""
        row = self.read(_OWNER).fetchone()
        return row is not None and row[0] != (self._key_id or "").encode()

    def learner_state(self) -> npt.NDArray[np.float64] | None:
        """The state of the agent's learner after its last slot, (X,); None where none was kept.

        Whoever asks checks its size: the file may be of another federation.
        """
        row = self.read("SELECT looks FROM slots WHERE life = 0 AND slot = 0").fetchone()
        if row is None or len(row[0]) % 8:
            return None
        return np.frombuffer(row[0], "<f8").astype(np.float64)

    def masked_by(self) -> bytes | None:
        """The name of the mask key with which the file was used last; None if with none."""
        row = self.read(_MASKS).fetchone()
        return None if row is None else bytes(row[0])

    def masked(self) -> tuple[KeptIncarnation, int] | None:
        """The incarnation that an agent with a mask key goes on with, and the position at which it
        began; None if there is none."""
        row = self.read("SELECT looks FROM slots WHERE life = 0 AND slot = 4").fetchone()
        if row is None:
            return None
        incarnation, _, since = row[0].decode().partition(" ")
        found = [kept for kept in self.earlier() if kept.incarnation == incarnation]
        return (found[0], int(since)) if found else None

    def marks(self, incarnation: str) -> list[tuple[bytes, bytes]]:
        """Uploads at marks that are not acknowledged, and the player at each, in their order."""
        rows = self.read(
            "SELECT looks FROM slots WHERE life = "
            "(SELECT -life FROM lives WHERE incarnation = ?) ORDER BY slot",
            (incarnation,),
        )
        found = []
        for (packed,) in rows:
            end = 4 + struct.unpack_from("<I", packed)[0]
            found.append((packed[4:end], packed[end:]))
        return found

    def own_counts(self, size: int) -> npt.NDArray[np.int64] | None:
        """Return the counts of all incarnations when the last round began that the agent drew for,
        (size,); None where none of that size was kept."""
        row = self.read("SELECT looks FROM slots WHERE life = 0 AND slot = 3").fetchone()
        if row is None or len(row[0]) != 8 * size:
            return None
        return np.frombuffer(row[0], "<i8").astype(np.int64)

    def earlier(self) -> list[KeptIncarnation]:
        """The earlier incarnations that left something, oldest first."""
        rows = self.read(
            "SELECT life, incarnation, sequence, upload, told, slots, snapshot FROM lives "
            "WHERE life <> ? ORDER BY life",
            (self._life,),
        ).fetchall()
        earlier = []
        for life, incarnation, sequence, upload, told, slots, snapshot in rows:
            seen = self._observations(life, slots)
            earlier.append(
                KeptIncarnation(incarnation, sequence, upload, told, slots, snapshot, seen)
            )
        return earlier

    def _observations(self, life: int, after: int) -> tuple[Observation, ...]:
        """Return the observations of slots that follow one another from the snapshot on."""
        found = []
        rows = self.read(
            "SELECT slot, looks FROM slots WHERE life = ? AND slot > ? ORDER BY slot", (life, after)
        )
        for slot, packed in rows:
            if slot != after + 1:
                break  # the disk refused a slot: what came after it does not join on
            found.append(Observation.unpack(packed))
            after = slot
        return tuple(found)

    # ------------------------------------------------------------------------------- what is kept

    def begin(self, incarnation: str, *, instead_of: str | None = None) -> None:
        """A new incarnation, which is this process's from now on."""
        with self._writing() as keeper:
            if instead_of is not None:
                _forget(keeper, instead_of)
            made = keeper.execute("INSERT INTO lives (incarnation) VALUES (?)", (incarnation,))
            assert made.lastrowid is not None
        self._life = made.lastrowid

    def begin_masked(
        self, incarnation: str, since: int, key: bytes, slots: int = 0, snapshot: bytes = b""
    ) -> None:
        """Begin an incarnation of an agent with a mask key, instead of all that were kept.

        since: the position at which it begins; key: the name of the mask key; slots, snapshot: the
        slots it begins with, and the player after them.
        """
        with self._writing() as keeper:
            keeper.execute("DELETE FROM slots WHERE life <> 0")
            keeper.execute("DELETE FROM lives")
            made = keeper.execute(
                "INSERT INTO lives (incarnation, slots, snapshot) VALUES (?, ?, ?)",
                (incarnation, slots, snapshot or None),
            )
            for place, told in ((2, key), (4, f"{incarnation} {since}".encode())):
                keeper.execute("REPLACE INTO slots VALUES (0, ?, ?)", (place, told))
            assert made.lastrowid is not None
        self._life = made.lastrowid

    def go_on(self, incarnation: str, slots: int, snapshot: bytes) -> None:
        """An earlier incarnation is this process's from now on, and its player as it is then."""
        with self._writing() as keeper:
            _keep_snapshot(keeper, incarnation, slots, snapshot)
            which = "SELECT life FROM lives WHERE incarnation = ?"
            ((life,),) = keeper.execute(which, (incarnation,))
        self._life = int(life)
        self.grew(len(snapshot) + SLOT_BYTES)

    def keep_slot(
        self,
        slot: int,
        arms: Sequence[int],
        states: Sequence[int | None],
        learner_state: npt.NDArray[np.float64] | None = None,
        looks: Sequence[int | None] = (),
    ) -> None:
        """Add one slot of this process: its number, from 1, its observations, and the learner's
        state (X,) after it, where it has one."""
        seen = Observation(tuple(arms), tuple(states), tuple(looks))
        row: tuple[int | bytes, ...] = (self._life, slot, seen.pack())
        try:
            if learner_state is None:
                self.add(_INSERT, row)
            else:
                packed = learner_state.astype("<f8").tobytes()
                self.add(_INSERT_WITH_STATE, (*row, packed))
                self.grew(len(packed))
        except sqlite3.Error as error:
            raise sqlite_trouble(
                f"{self.path}: slot {slot} is not kept", error, self.path
            ) from None
        self.grew(SLOT_BYTES)

    def keep_message(self, message: bytes) -> None:
        """The round the server gave to this credential, instead of the one before."""
        with self._writing() as keeper:
            keeper.execute("REPLACE INTO round VALUES (1, ?)", (message,))
            if self._key_id is not None:
                keeper.execute("REPLACE INTO slots VALUES (0, 1, ?)", (self._key_id.encode(),))
        self.grew(len(message))

    def keep_own_counts(self, counts: npt.NDArray[np.int64]) -> None:
        """Replace the counts of all incarnations."""
        packed = counts.astype("<i8").tobytes()
        with self._writing() as keeper:
            keeper.execute("REPLACE INTO slots VALUES (0, 3, ?)", (packed,))
        self.grew(len(packed))

    def keep_snapshot(self, incarnation: str, slots: int, snapshot: bytes) -> None:
        """The player after that many slots, instead of those slots."""
        with self._writing() as keeper:
            _keep_snapshot(keeper, incarnation, slots, snapshot)
        self.grew(len(snapshot) + SLOT_BYTES)

    def keep_upload(
        self, incarnation: str, sequence: int, upload: bytes, slots: int, snapshot: bytes | None
    ) -> None:
        """An upload of that many slots that is about to be sent, instead of the one before, and the
        player as it was when the upload was made (None: as kept)."""
        with self._writing() as keeper:
            keeper.execute(
                "UPDATE lives SET sequence = ?, upload = ?, told = ? WHERE incarnation = ?",
                (sequence, upload, slots, incarnation),
            )
            if snapshot is not None:
                _keep_snapshot(keeper, incarnation, slots, snapshot)
        self.grew(len(upload) + len(snapshot or b"") + SLOT_BYTES)

    def keep_marks(
        self,
        incarnation: str,
        uploads: Sequence[tuple[int, bytes, bytes]],
        last: tuple[int, bytes] | None,
    ) -> None:
        """The uploads at marks that are not acknowledged, of each its sequence, body and player;
        last: the slots and the player of the last one where it is new."""
        sequences = [sequence for sequence, *_ in uploads]

        with self._writing() as keeper:
            which = "SELECT life FROM lives WHERE incarnation = ?"
            ((life,),) = keeper.execute(which, (incarnation,))
            kept = {slot for (slot,) in keeper.execute(_MARKS_OF, (-life,))}
            for slot in kept.difference(sequences):
                keeper.execute("DELETE FROM slots WHERE life = ? AND slot = ?", (-life, slot))
            for sequence, body, snapshot in uploads:
                if sequence not in kept:
                    row = (-life, sequence, struct.pack("<I", len(body)) + body + snapshot)
                    keeper.execute(_INSERT, row)
            keeper.execute(
                "UPDATE lives SET sequence = max(sequence, ?) WHERE life = ?",
                (max(sequences, default=0), life),
            )
            if last is not None:
                _keep_snapshot(keeper, incarnation, *last)
        if uploads:
            self.grew(2 * len(uploads[-1][2]) + len(uploads[-1][1]) + SLOT_BYTES)

    def acknowledge(self, incarnation: str, sequence: int) -> None:
        """The server has the upload of that number, and so all of an earlier incarnation."""
        with self._writing() as keeper:
            keeper.execute(
                "UPDATE lives SET upload = NULL WHERE incarnation = ? AND sequence = ?",
                (incarnation, sequence),
            )
            keeper.execute(
                "DELETE FROM slots WHERE slot <= ? AND life = "
                "(SELECT -life FROM lives WHERE incarnation = ?)",
                (sequence, incarnation),
            )
            keeper.execute(
                "DELETE FROM lives WHERE incarnation = ? AND life <> ? AND upload IS NULL",
                (incarnation, self._life),
            )

    def forget(self, incarnations: Iterable[str]) -> None:
        """Drop all that is kept of these."""
        with self._writing() as keeper:
            for incarnation in incarnations:
                _forget(keeper, incarnation)

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Commit at the end; StorageError where SQLite does not keep it."""
        try:
            with self.transaction() as keeper:
                yield keeper
        except sqlite3.Error as error:
            raise sqlite_trouble(f"{self.path}: not kept", error, self.path) from None


def default_file(url: str, key_id: str) -> Path:
    """Return the default path of the file of the agent with that credential."""
    import hashlib

    state = os.environ.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path.home() / ".local" / "state"
    name = hashlib.sha256(f"{url} {key_id}".encode()).hexdigest()[:16]
    return home / "rmab" / f"agent-{name}.db"


def _kept_owner(path: Path) -> str | None:
    """The key id in a file that another process has locked; None if it has none."""
    try:
        reader = open_connection(f"file:{quote(os.fsencode(path.absolute()))}?mode=ro", 1.0)
    except sqlite3.Error:
        return None
    try:
        row = reader.execute(_OWNER).fetchone()
        return None if row is None else bytes(row[0]).decode("ascii", "replace")
    except sqlite3.Error:
        return None
    finally:
        reader.close()


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
        "DELETE FROM slots WHERE abs(life) = (SELECT life FROM lives WHERE incarnation = ?)",
        (incarnation,),
    )
    keeper.execute("DELETE FROM lives WHERE incarnation = ?", (incarnation,))
