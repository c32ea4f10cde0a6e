"""Backups: whole, of one moment, and for their owner's eyes alone."""

import json
import os
import sqlite3
import stat
from pathlib import Path

import pytest

from rmab.cli import main
from rmab.errors import FederationError, StorageError
from rmab.service.store import schema
from rmab.service.store.database import SqliteDatabase, connect
from rmab.service.store.store import back_up, open_store
from tests.service.support.counting import Counting
from tests.service.support.processes import SPECTRUM
from tests.service.support.serving import served, spectrum
from tests.service.support.storing import enrolled, given


@pytest.fixture(autouse=True)
def _open_umask():
    """Whatever a user's files are like otherwise."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_a_backup_of_a_running_server_is_whole_and_private(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("federation.toml").write_text(SPECTRUM)
    with served(tmp_path, spectrum()) as live:
        a = live.agent("a")
        assert a.episode().status_code == 201
        Path("backup.db").write_text("an older one, open to all")
        Path("backup.db").chmod(0o666)
        assert main(["backup", "federation.toml", "backup.db", "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told == {"file": "backup.db", "bytes": Path("backup.db").stat().st_size}
        assert a.fetch(after=1, wait=10).round == 2  # the server has gone on
    assert mode("backup.db") == 0o600
    assert not list(tmp_path.glob(".backup*"))
    assert not list(tmp_path.glob("backup.db?*"))
    copy = open_store("backup.db", spectrum(), create=False)
    assert copy.uploads.totals() == (1, 2)
    assert [row.name for row in copy.agents()] == ["a"]
    copy.close()
    assert main(["backup", "federation.toml", "again.db"]) == 0
    assert capsys.readouterr().out.startswith("again.db: ")


def test_nobody_can_read_it_while_it_is_made(tmp_path, federation, monkeypatch):
    open_store(str(tmp_path / "x.db"), federation).close()
    (tmp_path / "out").mkdir(0o777)
    modes = {}
    copy = SqliteDatabase._copy

    def watched(self, name):
        copy(self, name)
        modes.update({path.name: mode(path) for path in (tmp_path / "out").iterdir()})

    monkeypatch.setattr(SqliteDatabase, "_copy", watched)
    back_up(str(tmp_path / "x.db"), federation, tmp_path / "out" / "backup.db")
    assert set(modes.values()) == {0o600}
    assert len(modes) == 1


def test_a_backup_that_fails_leaves_the_one_before(tmp_path, federation, monkeypatch):
    url, target = str(tmp_path / "x.db"), tmp_path / "backup.db"
    opened = open_store(url, federation)
    given(opened, enrolled(opened), Counting(federation.shape).upload(1))
    opened.close()
    back_up(url, federation, target)
    before = target.read_bytes()

    def full(self, name):
        Path(f"{name}-journal").touch()
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(SqliteDatabase, "_copy", full)
    with pytest.raises(StorageError, match=r"backup\.db is not made: disk full"):
        back_up(url, federation, target)
    assert target.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.db", "x.db"]


def test_what_cannot_be_backed_up_or_written(tmp_path, federation):
    url = str(tmp_path / "x.db")
    with pytest.raises(FederationError, match="there is no database"):
        back_up(url, federation, tmp_path / "b.db")
    sqlite3.connect(url).close()
    Path(url).touch()
    with pytest.raises(FederationError, match="has no federation in it yet"):
        back_up(url, federation, tmp_path / "b.db")
    open_store(url, federation).close()
    for target, words in (
        (tmp_path / "x.db", "must be another file than the database"),
        (tmp_path / "no" / "b.db", "No such file or directory"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(FederationError, match=words):
            back_up(url, federation, target)
    with pytest.raises(FederationError, match="use another database"):
        back_up(url, spectrum(), tmp_path / "b.db")
    assert not (tmp_path / "b.db").exists()


def test_a_database_of_an_older_version_is_copied_as_it_is(tmp_path, federation, monkeypatch):
    """A backup comes before a migration."""
    url, target = str(tmp_path / "x.db"), tmp_path / "backup.db"
    open_store(url, federation).close()
    newest = len(schema.MIGRATIONS)
    monkeypatch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, ()))
    back_up(url, federation, target)
    for path in (url, target):
        database = connect(str(path), create=False)
        assert schema.version_of(database) == newest
        database.close()


@pytest.mark.postgres
def test_of_postgresql_pg_dump_makes_one(postgres_url, federation, tmp_path):
    open_store(postgres_url, federation).close()
    with pytest.raises(FederationError, match="pg_dump"):
        back_up(postgres_url, federation, tmp_path / "b.db")
