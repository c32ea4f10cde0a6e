"""The blocks of the page for whoever runs a federation, as written."""

from __future__ import annotations

import shutil
import subprocess

import psycopg
import pytest

from rmab.cli import main
from tests.service.conftest import left_out
from tests.service.pages.blocks import blocks_of
from tests.service.pages.machine import NEEDED, Machine

OPERATIONS = [block for block in blocks_of("docs/operations.md") if block.shown is None]
ON_POSTGRES = ("pg_dump", "--database postgresql")


@pytest.fixture
def machine(tmp_path, tmp_path_factory, monkeypatch):
    """A machine with a federation in the user's folder."""
    for name in NEEDED:
        if shutil.which(name) is None:
            left_out(f"{name} not found")
    made = Machine(tmp_path, tmp_path_factory.getbasetemp() / "compiled")
    monkeypatch.chdir(made.home)
    assert main(["new", "federation", "spectrum"]) == 0
    assert main(["enroll", "spectrum.toml", "radio-1"]) == 0
    yield made
    made.close()


def blocks(*, postgres):
    """Those with commands, on PostgreSQL or on SQLite."""
    shell = [block for block in OPERATIONS if block.kind == "shell"]
    return [block for block in shell if any(w in block.text for w in ON_POSTGRES) == postgres]


def test_every_block_is_run_here_or_with_the_tutorial():
    """Units are written and started with the tutorial."""
    kinds = {block.kind for block in OPERATIONS}
    assert kinds == {"shell", "ini"}
    assert len(blocks(postgres=True)) == 2
    assert len(blocks(postgres=False)) == 4


def test_what_is_run_on_sqlite_does_what_the_page_says(machine):
    server = machine.folder / "etc/systemd/system/rmab-server.service"
    server.write_text(
        "[Service]\nUser=rmab\nUMask=0077\nStateDirectory=rmab\n"
        f"WorkingDirectory={machine.folder}/var/lib/rmab\n"
        f"ExecStart={machine.folder}/opt/rmab/bin/rmab server {machine.home}/spectrum.toml "
        f"--database {machine.folder}/var/lib/rmab/other.db\n"
    )
    subprocess.run(
        ["systemctl", "enable", "--now", "rmab-server"], env=machine.environment, check=True
    )
    printed = []
    for block in blocks(postgres=False):
        printed += machine.do(block)
    assert (machine.home / "spectrum-backup.db").stat().st_mode & 0o777 == 0o600
    integrity, schema = printed[1].strip(), printed[2].strip()
    assert integrity == "ok"
    assert int(schema) > 1
    assert '"event": "reloaded"' in (machine.run / "rmab-server.log").read_text()


@pytest.mark.postgres
def test_what_is_run_on_postgresql_does_what_the_page_says(machine, postgres_server):
    for name in ("pg_dump", "pg_restore", "createdb"):
        if shutil.which(name) is None:
            left_out(f"{name} not found")
    folder = postgres_server.partition("?host=")[2]
    at = f"rmab@{folder}"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute("CREATE DATABASE spectrum")
    machine.keep_address("rmab@db.example", at)
    try:
        backup, serve = blocks(postgres=True)
        machine.do(serve)
        machine.wait_for_log('"event": "listening"')
        ended = machine.stop_started()
        assert [code for code, _ in ended] == [0]
        machine.do(backup)
        with psycopg.connect(f"postgresql://{at}/spectrum2") as copy:
            found = copy.execute("SELECT value FROM meta WHERE name = 'federation'").fetchall()
        assert len(found) == 1
    finally:
        with psycopg.connect(postgres_server, autocommit=True) as admin:
            admin.execute("DROP DATABASE IF EXISTS spectrum WITH (FORCE)")
            admin.execute("DROP DATABASE IF EXISTS spectrum2 WITH (FORCE)")
