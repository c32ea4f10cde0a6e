"""PostgreSQL behind the interface of rmab.service.store.database.

One session does everything. It may be lost at any time: the network fails, the server restarts. The
server then undoes uncommitted changes, the jobs in them fail, and the next transaction begins on a
new session, with the claim taken anew. If another process has had it meanwhile, nothing is written.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.types.numeric import Int8Dumper

from rmab.errors import FederationError, StorageError, UnavailableError
from rmab.service.store.database import ClaimLostError, Database, DatabaseLimits, Row, Value

__all__ = ["PostgresDatabase"]

# No wait is without end, and a peer that has vanished is noticed. An address may say otherwise.
# Seconds, but for tcp_user_timeout.
_CONNECTION: dict[str, str | int | None] = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "application_name": "rmab",
}
_SESSION = (
    b"SET synchronous_commit = on",
    b"SET lock_timeout = '20s'",
    b"SET statement_timeout = '60s'",
    b"SET idle_in_transaction_session_timeout = '60s'",
    # The server's side of it: a session whose client has vanished must not keep the claim.
    b"SET tcp_keepalives_idle = 10",
    b"SET tcp_keepalives_interval = 5",
    b"SET tcp_keepalives_count = 3",
)
_CLAIM = 0x726D6162  # "rmab": the first key of the advisory lock that is the claim
_TABLES = _CLAIM + 1  # ... and of the one that whoever prepares tables has
_COUNTS = _CLAIM + 2  # ... and of the one that whoever adds to counts, or takes them out, has
# Of a session that is refused libpq has no code. What stays until somebody mends it says one of
# these; whatever says none of them may pass.
_LASTING_WORDS = (
    "no password supplied",
    "authentication failed for user",
    "no pg_hba.conf entry",
    "is not permitted to log in",
    "does not exist",  # a role, a database, a file of certificates
    "invalid connection option",
    "invalid sslmode value",
)
# What fails because of the server's state, though the driver does not class it so.
_TROUBLE = (
    psycopg.OperationalError,
    psycopg.InterfaceError,
    psycopg.errors.ReadOnlySqlTransaction,
)


class PostgresDatabase(Database):
    """A session of a PostgreSQL server; tables are in the first schema of its search path."""

    def __init__(self, url: str, limits: DatabaseLimits) -> None:
        self._limits = limits
        try:
            told = conninfo_to_dict(url)
        except psycopg.Error:  # its text may quote a part of the address, and so of the password
            raise FederationError(
                "the database's address must be postgresql://USER:PASSWORD@HOST:PORT/NAME, with "
                "special characters percent-encoded; it cannot be read as one"
            ) from None
        silent = {key: value for key, value in _CONNECTION.items() if key not in told}
        self._conninfo = make_conninfo(url, **silent)
        self._password = str(told.get("password") or "")
        self.place = f"postgresql://{told.get('host', '')}/{told.get('dbname', '')}"
        self._claimed = False
        self._connection = self._connect()

    def _connect(self) -> psycopg.Connection[Row]:
        try:
            connection = psycopg.connect(self._conninfo, autocommit=True)
        except psycopg.Error as error:
            lasting = any(words in str(error) for words in _LASTING_WORDS)
            kind = FederationError if lasting else StorageError
            raise kind(f"database {self.place} cannot be reached: {self._text(error)}") from None
        # Numbers of one type whatever their size, so that a statement is prepared once.
        connection.adapters.register_dumper(int, Int8Dumper)
        try:
            for statement in _SESSION:
                connection.execute(statement)
        except psycopg.Error as error:
            connection.close()
            raise StorageError(
                f"database {self.place} cannot be used: {self._text(error)}"
            ) from None
        self.sessions += 1
        return connection

    def rows(self, sql: str, values: Sequence[Value] = ()) -> list[Row]:
        try:
            with self._connection.cursor(binary=True) as cursor:
                return cursor.execute(_dialect(sql), values).fetchall()
        except _TROUBLE as error:
            raise self._failed(error) from error

    def run(self, sql: str, values: Sequence[Value] = ()) -> int:
        try:
            with self._connection.cursor() as cursor:
                return cursor.execute(_dialect(sql), values).rowcount
        except _TROUBLE as error:
            raise self._failed(error) from error

    def begin(self) -> None:
        # A session that was lost while idle is found out here, before anything was done in it.
        if not self._connection.closed:
            try:
                self.run("BEGIN")
                return
            except StorageError:
                if not self._connection.closed:
                    raise
        try:
            self._connection = self._connect()
            if self._claimed:
                self._claim_again()
        except ClaimLostError:
            self._connection.close()
            raise
        except (FederationError, UnavailableError) as error:
            self._connection.close()
            raise StorageError(str(error)) from None
        self.run("BEGIN")

    def commit(self) -> None:
        try:
            with self._connection.cursor() as cursor:
                done = cursor.execute(b"COMMIT").statusmessage
        except psycopg.Error as error:
            raise StorageError(
                f"database {self.place} did not commit: {self._text(error)}"
            ) from error
        if done != "COMMIT":  # a transaction with an error in it is rolled back without another
            raise StorageError(f"database {self.place} did not commit: it answered {done}")

    def rollback(self) -> None:
        try:
            self._connection.execute(b"ROLLBACK")
        except psycopg.Error:
            self._connection.close()

    def claim(self) -> None:
        until = time.monotonic() + self._limits.claim_seconds
        while not self._try_claim():
            if time.monotonic() > until:
                raise UnavailableError(
                    f"database {self.place} is served by another process already"
                )
            time.sleep(0.05)
        self._claimed = True

    def _claim_again(self) -> None:
        try:
            self.claim()
        except StorageError:
            raise
        except UnavailableError as error:
            raise ClaimLostError(str(error)) from None

    def _try_claim(self) -> bool:
        ((granted,),) = self.rows(
            "SELECT pg_try_advisory_lock(CAST(? AS INTEGER), hashtext(current_schema()))",
            (_CLAIM,),
        )
        return bool(granted)

    def release(self) -> None:
        if self._claimed:
            self._claimed = False
            self.run(
                "SELECT pg_advisory_unlock(CAST(? AS INTEGER), hashtext(current_schema()))",
                (_CLAIM,),
            )

    def tables(self) -> set[str]:
        found = self.rows(
            "SELECT CAST(table_name AS TEXT) FROM information_schema.tables "
            "WHERE table_schema = current_schema()"
        )
        return {name for (name,) in found}

    def lock_schema(self) -> None:
        self.run(
            "SELECT pg_advisory_xact_lock(CAST(? AS INTEGER), hashtext(current_schema()))",
            (_TABLES,),
        )

    def back_up(self, target: Path) -> None:
        raise FederationError(
            f"backup {target}: of a PostgreSQL database pg_dump makes one; rmab does of SQLite's"
        )

    def change_check(self, table: str, column: str, before: str, after: str) -> None:  # noqa: ARG002 - SQLite finds a rule by its words
        rule = f"{table}_{column}_check"  # as PostgreSQL calls it
        self.run(f"ALTER TABLE {table} DROP CONSTRAINT {rule}")
        self.run(f"ALTER TABLE {table} ADD CONSTRAINT {rule} CHECK ({after})")

    def lock_counts(self) -> None:
        self.run(
            "SELECT pg_advisory_xact_lock(CAST(? AS INTEGER), hashtext(current_schema()))",
            (_COUNTS,),
        )

    def close(self) -> None:
        with contextlib.suppress(StorageError):  # a session that is lost has lost its claim too
            self.release()
        self._connection.close()

    def _failed(self, error: psycopg.Error) -> StorageError:
        return StorageError(f"database {self.place} failed: {self._text(error)}")

    def _text(self, error: psycopg.Error) -> str:
        """The driver's first line, without the password, and in plain words what it is about."""
        line = next(iter(str(error).splitlines()), type(error).__name__)
        if isinstance(error, psycopg.errors.DiskFull):
            line = f"disk full: {line}"
        elif isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
            line = f"it is read-only: {line}"
        return line.replace(self._password, "...") if self._password else line


@lru_cache(maxsize=256)
def _dialect(sql: str) -> bytes:
    """Our SQL in PostgreSQL's and the driver's words."""
    return sql.replace("?", "%s").replace("BLOB", "BYTEA").encode()
