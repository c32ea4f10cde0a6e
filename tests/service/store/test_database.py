"""Opening a store: claims, versions, whose database it is; and where it lies, as a file or not."""

import errno
import os
import sqlite3
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmab.errors import FederationError, StorageError, UnavailableError
from rmab.service.http.tokens import make_token
from rmab.service.store import database, schema
from rmab.service.store.database import connect
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import claimed_store, default_database, open_store
from tests.service.conftest import SYNCHRONOUS
from tests.service.support.counting import Counting
from tests.service.support.disks import small_disk
from tests.service.support.storing import IMPATIENT, enrolled, given, some_round

# ----------------------------------------------------------------------- opening, claims, versions


def test_a_restart_finds_everything(database_url, federation):
    opened = open_store(database_url, federation)
    token = enrolled(opened)
    counting = Counting(federation.shape)
    upload = counting.upload(1)
    given(opened, token, upload)
    opened.open_round(some_round(1, federation))
    before = (opened.agents(), opened.uploads.totals(), opened.awaited(1))
    opened.close()
    again = open_store(database_url, federation, create=False)
    assert (again.agents(), again.uploads.totals(), again.awaited(1)) == before
    assert [row.number for row in again.rounds(5)] == [1]
    assert given(again, token, upload) == "repeat"
    assert given(again, token, counting.upload(2)) == "new"
    again.close()


def test_one_server_at_a_time(opened, database_url, federation):
    opened.claim()  # twice is once
    second = open_store(database_url, federation, limits=IMPATIENT)
    with pytest.raises(UnavailableError, match="is served by another process already"):
        second.claim()
    opened.close()
    second.claim()
    second.close()


def test_a_claim_ends_with_its_process(database_url, federation):
    open_store(database_url, federation).close()
    program = (
        "import os, sys\n"
        "from rmab.service.store.database import connect\n"
        "database = connect(sys.argv[1], create=False)\n"
        "database.claim()\n"
        "print('claimed', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", program, database_url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "claimed\n"
        opened = open_store(database_url, federation, limits=IMPATIENT)
        with pytest.raises(UnavailableError, match="is served by another process already"):
            opened.claim()
        opened.close()
        holder.kill()
        holder.wait()
    opened = open_store(database_url, federation)
    opened.claim()
    opened.close()


def test_another_federation_s_database_is_refused(database_url, federation):
    open_store(database_url, federation).close()
    open_store(database_url, replace(federation, deadline=5.0, seed=9)).close()
    for other in (
        replace(federation, name="other"),
        replace(federation, plays=1),
        replace(federation, arms=federation.arms[:3]),
        replace(federation, policy="fedtswi"),
    ):
        with pytest.raises(FederationError, match="has the counts of federation 'spectrum'"):
            open_store(database_url, other)


def test_no_federation_yet(database_url, federation):
    with pytest.raises(FederationError, match=r"rmab server` makes one"):
        open_store(database_url, federation, create=False)


def test_a_newer_schema_is_refused(database_url, federation):
    opened = open_store(database_url, federation)
    newest = len(schema.MIGRATIONS)
    opened.database.run("UPDATE meta SET value = ? WHERE name = 'schema'", (str(newest + 1),))
    opened.close()
    told = rf"has schema version {newest + 1}, but this rmab knows versions up to {newest}"
    with pytest.raises(FederationError, match=told):
        open_store(database_url, federation)


def test_foreign_tables_are_refused(database_url, federation):
    database = connect(database_url, create=True)
    database.run("CREATE TABLE recipes (name TEXT)")
    database.close()
    with pytest.raises(FederationError, match="has tables that are no federation's"):
        open_store(database_url, federation)


def test_a_foreign_table_of_the_same_name_is_refused(database_url, federation):
    database = connect(database_url, create=True)
    database.run("CREATE TABLE meta (title TEXT)")
    database.close()
    with pytest.raises(FederationError, match="cannot be prepared"):
        open_store(database_url, federation)


NOW = len(schema.MIGRATIONS)


def with_one_more(monkeypatch, step):
    """A program that knows one version more."""
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, step))


# A migration as there may be one.
ADD_SITE = ("ALTER TABLE agents ADD COLUMN site TEXT", "UPDATE agents SET site = 'old'")


def test_migration_of_this_version(database_url, federation, monkeypatch):
    opened = open_store(database_url, federation)
    token = enrolled(opened)
    upload = Counting(federation.shape).upload(1)
    given(opened, token, upload)
    opened.close()
    with_one_more(monkeypatch, ADD_SITE)
    again = open_store(database_url, federation)
    assert schema.version_of(again.database) == NOW + 1
    assert again.database.rows("SELECT name, site FROM agents") == [("alice", "old")]
    assert given(again, token, upload) == "repeat"
    again.claim()  # the migration's own claim was given back and can be taken
    again.close()
    open_store(database_url, federation).close()
    monkeypatch.undo()
    with pytest.raises(FederationError, match=f"has schema version {NOW + 1}, but this rmab knows"):
        open_store(database_url, federation)


def test_version_1_becomes_this_one_and_keeps_everything(database_url, federation, monkeypatch):
    """Version 1 knows agents and admins alone."""
    insert = "INSERT INTO agents (name, role, lane, enrolled, refused) VALUES (?, ?, ?, 1, 0)"
    with monkeypatch.context() as older:
        older.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:1])
        opened = open_store(database_url, federation)
        opened.database.run(insert, ("alice", "agent", 0))
        opened.database.run(insert, ("boss", "admin", -1))
        opened.database.run(
            "INSERT INTO credentials (key_id, agent, secret_hash, created) VALUES (?, ?, ?, 1)",
            ("0" * 16, "alice", b"digest"),
        )
        with pytest.raises(Exception, match=r"(?i)check constraint"):
            opened.database.run(insert, ("eye", "viewer", -1))
        opened.close()
    opened = open_store(database_url, federation)
    assert schema.version_of(opened.database) == NOW
    assert opened.credentials.credential("0" * 16) == (
        *("alice", "agent", 0, b"digest", False, 1.0),
        "alice",
    )
    enrolled(opened, "eye", "viewer")
    enrolled(opened, "bob")
    assert {row.name: (row.role, row.lane) for row in opened.agents()} == {
        "alice": ("agent", 0),
        "bob": ("agent", 1),
        "boss": ("admin", -1),
        "eye": ("viewer", -1),
    }
    for nonsense in (("k", "king", 9), ("k", "agent", 0)):
        with pytest.raises(Exception, match=r"(?i)constraint"):
            opened.database.run(insert, nonsense)
    with pytest.raises(Exception, match=r"(?i)foreign key"):
        opened.database.run("DELETE FROM agents WHERE name = 'alice'")
    opened.close()


def test_a_new_database_has_the_newest_version(database_url, federation, monkeypatch):
    with_one_more(monkeypatch, ADD_SITE)
    opened = open_store(database_url, federation)
    assert schema.version_of(opened.database) == NOW + 1
    enrolled(opened)
    assert opened.database.rows("SELECT site FROM agents") == [(None,)]
    opened.close()


def test_a_failed_migration_changes_nothing(database_url, federation, monkeypatch):
    opened = open_store(database_url, federation)
    enrolled(opened)
    opened.close()

    def broken():
        yield from ADD_SITE
        raise ZeroDivisionError

    with_one_more(monkeypatch, broken())
    with pytest.raises(FederationError, match="cannot be prepared: ZeroDivisionError"):
        open_store(database_url, federation)
    monkeypatch.undo()
    opened = open_store(database_url, federation)
    assert schema.version_of(opened.database) == NOW
    assert [row.name for row in opened.agents()] == ["alice"]
    opened.claim()
    opened.close()


def test_no_migration_under_a_running_server(opened, database_url, federation, monkeypatch):
    with_one_more(monkeypatch, ADD_SITE)
    with pytest.raises(UnavailableError, match="is served by another process already"):
        open_store(database_url, federation, limits=IMPATIENT)
    assert schema.version_of(opened.database) == NOW


def test_servers_that_start_at_once_make_one_database(database_url, federation):
    def start(_):
        open_store(database_url, federation).close()

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(start, range(6)))


# ------------------------------------------------------------------------------- addresses, SQLite


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://root:hunter2@host/db", "must be a path, sqlite:///PATH or postgresql://"),
        ("sqlite://relative.db", "with three slashes"),
        ("sqlite:///", "must be a file on a disk, got ''"),
        ("sqlite:///:memory:", "must be a file on a disk"),
        (":memory:", "must be a file on a disk"),
        ("file:x?mode=memory", "must be a file on a disk"),
        ("", "must be a file on a disk, got ''"),
        ("postgresql://alice:hunt@er2@:x:/db?nonsense=1", "cannot be read as one"),
    ],
)
def test_addresses_that_cannot_be_used(url, message, federation):
    with pytest.raises(FederationError, match=message) as caught:
        open_store(url, federation)
    assert "hunt" not in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_database_that_is_not_up_may_come(federation):
    for url in (
        "postgresql://alice:hunter2@127.0.0.1:1/db",
        "postgresql://alice:hunter2@no.such.host.invalid/db",
    ):
        with pytest.raises(StorageError, match="cannot be reached") as caught:
            open_store(url, federation)
        assert "hunt" not in str(caught.value)
        assert "\n" not in str(caught.value)


@pytest.mark.postgres
@pytest.mark.parametrize("wrong", ["//nobody@/postgres", "//rmab@/no_such"])
def test_a_user_and_a_database_that_there_are_not(postgres_url, federation, wrong):
    with pytest.raises(FederationError, match=r"cannot be reached: .*does not exist"):
        open_store(postgres_url.replace("//rmab@/postgres", wrong), federation)


def test_both_forms_of_a_path(tmp_path, federation):
    open_store(f"sqlite:///{tmp_path}/a b%20?.db", federation).close()
    assert (tmp_path / "a b%20?.db").exists()
    open_store(f"{tmp_path}/a b%20?.db", federation, create=False).close()
    assert default_database(tmp_path / "spectrum.toml") == str(tmp_path / "spectrum.db")


def test_files_that_cannot_be_databases(tmp_path, federation):
    for path, message in (
        (tmp_path / "no" / "x.db", "No such file or directory"),
        (tmp_path, "cannot be opened"),
    ):
        with pytest.raises(FederationError, match=message):
            open_store(str(path), federation)
    (tmp_path / "text.db").write_text("not a database " * 100)
    with pytest.raises(FederationError, match="cannot be opened: file is not a database"):
        open_store(str(tmp_path / "text.db"), federation)


def test_only_the_owner_can_read_the_files(tmp_path, federation):
    before = os.umask(0)
    try:
        opened = open_store(str(tmp_path / "x.db"), federation)
        opened.claim()
        enrolled(opened)
        modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
    assert modes == dict.fromkeys(("x.db", "x.db-wal", "x.db-shm", "x.db.lock"), 0o600)
    opened.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.db", "x.db.lock"]


def test_sqlite_is_set_to_keep_what_it_commits(tmp_path, federation, monkeypatch):
    monkeypatch.setattr(database, "_SYNCHRONOUS", SYNCHRONOUS)
    opened = open_store(str(tmp_path / "x.db"), federation)
    asked = {
        name: opened.database.rows(f"PRAGMA {name}")[0][0]
        for name in ("journal_mode", "synchronous", "foreign_keys")
    }
    assert asked == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}
    opened.close()


def test_secrets_are_not_in_the_file(tmp_path, federation):
    opened = open_store(str(tmp_path / "x.db"), federation)
    token, key_id, secret_hash = make_token()
    opened.enroll("alice", "agent", key_id, secret_hash, 1.0)
    opened.close()
    content = (tmp_path / "x.db").read_bytes()
    assert key_id.encode() in content
    assert token.split("_", 2)[2].encode() not in content


def test_a_full_disk_loses_only_what_was_not_committed(tmp_path, federation):
    opened = open_store(str(tmp_path / "x.db"), federation)
    opened.claim()
    token = enrolled(opened)
    counting = Counting(federation.shape)
    given(opened, token, counting.upload(1))
    ((pages,),) = opened.database.rows("PRAGMA page_count")
    opened.database.rows(f"PRAGMA max_page_count = {pages}")
    filling = [Counting(federation.shape, f"life {n}").upload(1) for n in range(50)]

    def fill():
        for upload in filling:
            given(opened, token, upload)

    with pytest.raises(StorageError, match="disk full: database or disk is full"):
        fill()
    kept = opened.uploads.totals()
    opened.database.rows("PRAGMA max_page_count = 1000000")
    fill()
    assert opened.uploads.totals() == (51, 51 * 3)
    assert 1 <= kept.uploads < 51
    opened.close()


def test_a_lock_that_is_not_granted_is_a_storage_error(tmp_path, federation):
    opened = open_store(str(tmp_path / "x.db"), federation, limits=StoreLimits(busy_seconds=0.05))
    other = sqlite3.connect(tmp_path / "x.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StorageError, match="database is locked"):
        enrolled(opened)
    other.execute("ROLLBACK")
    other.close()
    enrolled(opened)
    opened.close()


def test_a_disk_without_room_says_so_however_sqlite_puts_it(tmp_path, federation, monkeypatch):
    """Where it cannot make its log, SQLite says that the disk failed, or that it cannot open it."""
    opened: Any = open_store(str(tmp_path / "x.db"), federation)
    statvfs = os.statvfs

    def no_room(path):
        return os.statvfs_result((*statvfs(path)[:4], 0, *statvfs(path)[5:10]))

    for code, text in (
        (sqlite3.SQLITE_IOERR_SHMSIZE, "disk I/O error"),
        (sqlite3.SQLITE_CANTOPEN, "unable to open database file"),
    ):
        error = sqlite3.OperationalError(text)
        error.sqlite_errorcode = code
        assert str(opened.database._trouble("failed", error)) == (
            f"database {tmp_path}/x.db failed: {text}"
        )
        with monkeypatch.context() as full:
            full.setattr(os, "statvfs", no_room)
            assert str(opened.database._trouble("failed", error)) == (
                f"database {tmp_path}/x.db failed: disk full: {text}"
            )
    opened.close()


def test_a_full_disk_at_the_start_may_pass(tmp_path, federation, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"x\.db: disk full: No space left on device"):
        open_store(str(tmp_path / "x.db"), federation)


# --------------------------------------------------------------------------------------- read-only


@contextmanager
def as_nobody():
    """As a user without rights."""
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
@pytest.mark.parametrize("closed", ["file", "folder"])
def test_a_database_that_may_not_be_written_is_refused(federation, closed):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o555 if closed == "folder" else 0o777)
        path = folder / "x.db"
        open_store(str(path), federation).close()
        path.chmod(0o444 if closed == "file" else 0o666)
        with as_nobody(), pytest.raises((FederationError, StorageError)) as caught:
            claimed_store(str(path), federation)
    rights = "this user may not write the file, its log or its folder"
    assert f"it is read-only, as {rights}" in str(caught.value)
    assert "x.db" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert getattr(caught.value, "lasting", True)


def test_a_file_system_that_is_mounted_read_only_may_pass(tmp_path, federation, monkeypatch):
    """As after an error of the disk, until somebody mounts it again."""
    opened = open_store(str(tmp_path / "x.db"), federation)
    opened.close()
    statvfs = os.statvfs

    def mounted(path):
        found = statvfs(path)
        return os.statvfs_result((*found[:8], found.f_flag | os.ST_RDONLY, *found[9:10]))

    monkeypatch.setattr(os, "statvfs", mounted)
    connect = sqlite3.connect

    def only_read(address, **more):
        return connect(address.replace("mode=rw", "mode=ro"), **more)

    monkeypatch.setattr(sqlite3, "connect", only_read)
    opened = open_store(str(tmp_path / "x.db"), federation)
    assert opened.agents() == []  # to read it is enough
    with pytest.raises(StorageError, match="it is read-only, as its file system is") as caught:
        opened.claim()
    assert not caught.value.lasting
    opened.close()


@pytest.mark.postgres
def test_a_postgresql_that_is_read_only_may_pass(postgres_url, federation):
    """A standby, say, that becomes the primary."""
    only_read = postgres_url.replace("options=", "options=-cdefault_transaction_read_only%3Don%20")
    with pytest.raises(StorageError, match="it is read-only: cannot execute") as caught:
        open_store(only_read, federation)
    assert not caught.value.lasting
    opened: Any = open_store(postgres_url, federation)
    opened.database._connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(StorageError, match="it is read-only: cannot execute"):
        enrolled(opened)
    opened.database._connection.execute("SET default_transaction_read_only = off")
    enrolled(opened)
    opened.close()


def test_a_small_disk_that_was_full_goes_on_when_there_is_room(tmp_path, federation):
    """The log must not fill again what was freed: it is emptied as soon as there is room."""
    with small_disk(tmp_path / "disk") as disk:
        opened = claimed_store(str(disk / "x.db"), federation)
        token = enrolled(opened)
        filler = disk / "other"
        filler.write_bytes(bytes(150_000))
        lives = (Counting(federation.shape, f"life {n}") for n in range(1000))
        sent = refused = 0

        def send():
            """Send one upload of a new incarnation, which is tried three times."""
            nonlocal sent, refused
            upload = next(lives).upload(1)
            for _ in range(3):
                try:
                    given(opened, token, upload)
                    sent += 1
                    return True
                except StorageError as error:
                    if "disk full" not in str(error):
                        raise
                    refused += 1
            return False

        with suppress(OSError), (disk / "more").open("wb", buffering=0) as more:
            while True:  # all that is left
                more.write(bytes(4096))
        while send():
            pass
        filler.unlink()
        (disk / "more").unlink()
        before = refused
        for _ in range(20):
            assert send()
        assert refused == before  # nor does the log grow until the disk is full again
        assert opened.uploads.totals() == (sent, 3 * sent)
        opened.close()
