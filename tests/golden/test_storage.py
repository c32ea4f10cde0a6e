"""Versions and tables of a server's database and of an agent's own file."""

import sqlite3
import zlib
from pathlib import Path
from typing import Any

import rmab
from tests.golden.commands import call, normal, rows, server
from tests.golden.recording import compare

FEDERATION = """\
name = "spectrum"
plays = 1
policy = "fed1-ucb"
seed = 3
[[arm]]
reward = 0.4
[[arm]]
reward = 0.9
"""
STUDY = """\
agents = 1
plays = 1
[[arm]]
p01 = 0.2
p11 = 0.8
reward = 0.4
[[arm]]
p01 = 0.89
p11 = 0.17
reward = 0.9
"""


def tables(file: Path) -> dict[str, Any]:
    """The pragmas of an SQLite file that tell its version, and its tables and indices."""
    connection = sqlite3.connect(file)
    try:
        pragmas = {
            name: connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in ("user_version", "application_id", "journal_mode", "page_size", "encoding")
        }
        rows = connection.execute(
            "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY type DESC, name"
        ).fetchall()
    finally:
        connection.close()
    return pragmas | {"tables": {name: " ".join(sql.split()) for name, sql in rows}}


def test_a_database_and_an_agents_file_are_as_recorded(tmp_path):
    (tmp_path / "spectrum.toml").write_text(FEDERATION)
    (tmp_path / "study.toml").write_text(STUDY)
    token = call("enroll", "spectrum.toml", "radio", "--json", folder=tmp_path)["out"]["token"]
    (tmp_path / "radio.token").write_text(token)
    (tmp_path / "radio.token").chmod(0o600)
    with server(tmp_path, "spectrum.toml") as ready:
        words = ["--token-file", "radio.token", "--simulate", "study.toml", "--slots", "12"]
        ran = call("agent", ready["url"], *words, "--state", "radio.db", "--json", folder=tmp_path)
        _play_by_hand(ready["url"], tmp_path)
    database, own = tmp_path / "spectrum.db", tmp_path / "radio.db"
    compare("storage", "database", tables(database))
    meta = "SELECT name, value FROM meta WHERE name <> 'claims' ORDER BY name"
    compare("storage", "meta of a database", rows(database, meta))
    compare("storage", "agent's file", tables(own))
    assert isinstance(ran["out"]["reward"], float)  # by the credential, which is random
    ran["out"]["reward"] = "REWARD"
    compare("storage", "agent's command", normal(ran, tmp_path))
    left = sorted(p.name for p in tmp_path.iterdir())
    compare("storage", "files beside one another", left)


def _play_by_hand(url: str, folder: Path) -> None:
    """What an agent's file has of slots and of the player, as bytes, where states are known."""
    token = call("enroll", "spectrum.toml", "by-hand", "--json", folder=folder)["out"]["token"]
    with rmab.Agent(url, token=token, file=folder / "by-hand.db", patience=60) as agent:
        for state in (0, 1, 1, 0, 1):
            agent.choose()
            agent.observe([state])
        slots = rows(
            folder / "by-hand.db",
            "SELECT slot, hex(looks) FROM slots WHERE life > 0 ORDER BY slot",
        )
        owner = rows(folder / "by-hand.db", "SELECT looks FROM slots WHERE life = 0 AND slot = 1")
        assert owner == [[token.split("_")[1].encode()]]
        assert agent.flush(60)
        ((sequence, told, kept, snapshot),) = rows(
            folder / "by-hand.db", "SELECT sequence, told, slots, snapshot FROM lives"
        )
    found = {"slots": slots, "sequence": sequence, "told": told, "kept": kept}
    found["snapshot, inflated"] = zlib.decompress(snapshot).hex()
    compare("storage", "rows of an agent's file", found)
