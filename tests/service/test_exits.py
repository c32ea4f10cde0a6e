"""How commands end: with 1 where it may pass, so that a supervisor starts them again, and with 2
where it will not; one line says why."""

from __future__ import annotations

import errno
import logging
import os
import re
import socket
import sqlite3
import sys
from pathlib import Path

import pytest

from rmab.cli import main
from rmab.service.agent.state_file import AgentFile
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import claimed_store
from tests.service.support.fake_server import TOKEN, answers, index_message, server_is_away
from tests.service.support.processes import SPECTRUM
from tests.service.support.serving import spectrum

ON_DATABASES = ("server", "enroll", "revoke", "agents", "backup")
MORE = {
    "server": ("--port", "0"),
    "enroll": ("radio",),
    "revoke": ("radio",),
    "backup": ("backup.db",),
}
CHANNEL = "[[arm]]\np01 = 0.2\np11 = 0.8\nreward = 0.4\n"
STUDY = f"""\
plays = 2
{3 * CHANNEL}
[[arm]]
passive = [[0.9, 0.1, 0.0], [0.2, 0.6, 0.2], [0.0, 0.3, 0.7]]
reward = [0.0, 0.5, 1.0]
"""


@pytest.fixture
def ended(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder of its own: how it ended, and the one line that it wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    Path("spectrum.toml").write_text(SPECTRUM)
    Path("study.toml").write_text(STUDY)
    Path("my.token").touch(0o600)
    Path("my.token").write_text(TOKEN)

    def run(*words):
        code = main(list(words))
        told = capsys.readouterr().err
        assert told.startswith(f"rmab {words[0]}: ")
        assert told.count("\n") == 1, told
        return code, told

    return run


def on_database(ended, command, *more):
    return ended(command, "spectrum.toml", *MORE.get(command, ()), *more)


def full(*_, **__):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


# ------------------------------------------------------------------------- commands on the database


@pytest.mark.parametrize("command", [name for name in ON_DATABASES if name != "backup"])
@pytest.mark.parametrize("host", ["127.0.0.1:1", "no.such.host.invalid"])
def test_a_database_that_is_not_up_may_come(ended, command, host):
    code, told = on_database(ended, command, "--database", f"postgresql://rmab@{host}/spectrum")
    assert (code, "cannot be reached" in told) == (1, True)


@pytest.mark.parametrize("command", ON_DATABASES)
def test_files_that_are_bad_stay_so(ended, command):
    for file, words in (("none.toml", "no such file"), ("my.token", "not valid TOML")):
        code, told = ended(command, file, *MORE.get(command, ()))
        assert (code, words in told) == (2, True)
    Path("text.db").write_text("no database " * 100)
    for database, words in (
        ("text.db", "file is not a database"),
        ("mysql://x/y", "must be a path"),
        ("no/such/folder/x.db", "No such file|there is no database"),
    ):
        code, told = on_database(ended, command, "--database", database)
        assert (code, bool(re.search(words, told))) == (2, True), told


@pytest.mark.parametrize("command", ["server", "enroll", "revoke", "agents"])
def test_a_disk_that_is_full_may_have_room_again(ended, command, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    code, told = on_database(ended, command)
    assert (code, "spectrum.db: disk full" in told) == (1, True)


def test_a_lock_that_another_holds_may_be_let_go(ended, monkeypatch):
    claimed_store("spectrum.db", spectrum()).close()
    impatient = StoreLimits(busy_seconds=0.05)
    monkeypatch.setattr("rmab.service.store.store.StoreLimits", lambda: impatient)
    other = sqlite3.connect("spectrum.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    code, told = on_database(ended, "enroll")
    other.close()
    assert (code, "database is locked" in told) == (1, True)


def test_a_database_that_is_served_may_be_given_back(ended):
    store = claimed_store("spectrum.db", spectrum())
    try:
        code, told = on_database(ended, "server")
    finally:
        store.close()
    assert (code, "served by another process" in told) == (1, True)


def test_a_federation_that_the_database_is_not_of(ended):
    claimed_store("spectrum.db", spectrum()).close()
    Path("spectrum.toml").write_text(SPECTRUM.replace("reward = 0.4", "reward = 0.5"))
    for command in ON_DATABASES:
        code, told = on_database(ended, command)
        assert (code, "use another database" in told) == (2, True)


# ------------------------------------------------------------------------------------ the server


def test_a_port_in_use_may_become_free(ended):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, told = ended("server", "spectrum.toml", "--port", port)
        assert (code, "Address already in use" in told) == (1, True)


def test_a_host_that_does_not_resolve_may_later(ended):
    code, told = on_database(ended, "server", "--host", "no.such.host.invalid")
    assert (code, "is no address of this machine" in told) == (1, True)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--host", "0.0.0.0"), "needs --tls-cert"),
        (("--tls-cert", "none.pem", "--tls-key", "none.pem"), "cannot be read"),
        (("--tls-cert", "study.toml", "--tls-key", "study.toml"), "must be a certificate"),
    ],
)
def test_certificates_that_are_bad_stay_so(ended, more, words):
    code, told = on_database(ended, "server", *more)
    assert (code, words in told) == (2, True)


def test_a_package_that_is_missing(ended, monkeypatch):
    ours = ("rmab.service.server.", "rmab.service.http.")
    for name in [name for name in sys.modules if name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, told = on_database(ended, "server")
    assert (code, "pip install '.[server]'" in told) == (2, True)


# ------------------------------------------------------------------------ commands on a server


@pytest.mark.parametrize("command", ["enroll", "revoke", "agents"])
def test_a_server_that_is_away_may_come_back(ended, command):
    name = () if command == "agents" else ("radio",)
    for url in ("http://127.0.0.1:1", "https://no.such.host.invalid"):
        code, told = ended(command, url, *name, "--token-file", "my.token")
        assert (code, "could not be reached" in told) == (1, True)


@pytest.mark.parametrize("command", ["enroll", "revoke", "agents"])
def test_keys_that_are_bad_stay_so(ended, command):
    name = () if command == "agents" else ("radio",)
    Path("bad.token").write_text("no token")
    for more, words in (
        (("--token-file", "none.token"), "cannot be read"),
        (("--token-file", "bad.token"), "must have one line"),
        (("--token-file", "my.token", "--ca", "none.pem"), "--ca none.pem"),
        ((), "needs --token-file"),
    ):
        code, told = ended(command, "https://127.0.0.1:1", *name, *more)
        assert (code, words in told) == (2, True)


# --------------------------------------------------------------------------------------- the agent


@pytest.fixture(autouse=True)
def _no_warnings(monkeypatch):
    """Of an agent on its way: what is looked at is the line that it ends with."""
    monkeypatch.setattr(logging.getLogger("rmab.agent"), "disabled", True)


def agent(ended, url, *more):
    return ended("agent", url, "--token-file", "my.token", "--simulate", "study.toml", *more)


def test_an_agents_server_that_is_away_may_come_back(ended, server, real):
    server.always = server_is_away
    code, told = agent(ended, real.url, "--patience", "0.2")
    assert (code, "gave no round within 0.2 s" in told) == (1, True)


def test_a_credential_that_is_refused_stays_so(ended, server, real):
    server.always = answers(401, {"error": "credential", "detail": "unknown or revoked"})
    code, told = agent(ended, real.url)
    assert (code, "refuses the credential" in told) == (2, True)


def test_another_agents_file_ends_with_2_and_says_whose_it_is(ended, real):
    file = AgentFile(Path("other.db"), key_id="1" * 16)
    file.keep_message(index_message(1, 3, agent="radio-7").to_json())
    code, told = agent(ended, real.url, "--state", "other.db")  # in use
    assert (code, "another agent uses this file" in told) == (2, True)
    file.close()
    code, told = agent(ended, real.url, "--state", "other.db")
    assert code == 2
    assert "other.db is of agent radio-7 in federation spectrum, but this credential is" in told


def test_its_own_file_that_another_process_has_may_be_let_go(ended, real):
    file = AgentFile(Path("own.db"), key_id="0" * 16)
    file.keep_message(index_message(1, 3).to_json())
    code, told = agent(ended, real.url, "--state", "own.db")
    assert (code, "another agent uses this file" in told) == (1, True)
    file.close()
    words = "--token-file my.token --simulate study.toml --state own.db --slots 2"
    assert main(["agent", real.url, *words.split()]) == 0


def test_an_agents_disk_that_is_full_may_have_room_again(ended, real, monkeypatch):
    monkeypatch.setattr("rmab.service.sqlite.os.open", full)
    code, told = agent(ended, real.url, "--state", "own.db")
    assert (code, "own.db: cannot be used as the agent's file: disk full" in told) == (1, True)


SECURE = '[privacy]\nhelper = "https://helper.example:9443"\n'


@pytest.mark.parametrize(
    ("head", "table", "said"),
    [
        ("", SECURE.replace("https", "http"), "privacy.helper must begin with https:// unless"),
        ("", SECURE + "least = 2\n", "privacy.least must be a whole number from 3"),
        ("", SECURE + "groups = 0\n", "privacy.groups must be a whole number from 1"),
        ("", SECURE + "epsilon = 0\n", "privacy.epsilon must be a number above 0 and at most 100"),
        ("", SECURE + "epsilon = 100.5\n", "privacy.epsilon must be"),
        ("", SECURE + "epsilon = nan\n", "privacy.epsilon must be"),
        ("", SECURE + "epsilon = 1\ndelta = 0.002\n", "privacy.delta must be a number above 0"),
        ("", SECURE + "epsilon = 1\ndelta = 0\n", "privacy.delta must be"),
        ("", "[privacy]\nepsilon = -1\n", "privacy.epsilon must be"),
        ("", "[privacy]\nepsilon = 1\nleast = 3\n", "privacy.least must not be given without"),
        ("", "[privacy]\ndelta = 1e-6\n", "privacy.helper is missing"),
        ("doubt = 0\n", "", "doubt must be a number above 0 and at most 1, got 0"),
        ("doubt = 1.1\n", "", "doubt must be a number above 0 and at most 1, got 1.1"),
        ("", SECURE, "needs --helper-token-file"),
    ],
)
def test_bad_privacy_ends_with_2_and_one_line(ended, head, table, said):
    Path("spectrum.toml").write_text(head + SPECTRUM + table)
    code, told = ended("server", "spectrum.toml", "--port", "0")
    assert code == 2
    assert said in told


def test_a_database_of_the_other_mode_ends_with_2(ended):
    claimed_store("spectrum.db", spectrum()).close()
    Path("spectrum.toml").write_text(SPECTRUM + "[privacy]\nepsilon = 1\n")
    code, told = ended("server", "spectrum.toml", "--port", "0")
    assert code == 2
    assert "has counts of single agents, but 'spectrum' is to have counts that are released" in told


def test_what_was_released_is_not_forgotten_but_the_agent_is_revoked(ended):
    Path("spectrum.toml").write_text(SPECTRUM + "[privacy]\nepsilon = 1\n")
    assert main(["enroll", "spectrum.toml", "radio"]) == 0
    code, told = ended("revoke", "spectrum.toml", "radio", "--forget")
    assert code == 2
    assert "radio is revoked, but what radio gave is released in sums" in told
