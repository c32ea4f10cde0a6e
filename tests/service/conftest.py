"""What the tests of the service have in common: databases, servers, agents.

The PostgreSQL is a real one, started here from the system's binaries in a folder of its own, on a
Unix socket. Where there is none, its tests are left out, unless RMAB_NO_SKIPS is set.
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from itertools import count
from pathlib import Path
from urllib.parse import quote

import psycopg
import pytest

from rmab.service.agent.agent import Agent
from rmab.service.store import database
from rmab.service.store.store import open_store
from tests.service.support.authority import Authority
from tests.service.support.fake_server import (
    QUICK,
    TOKEN,
    URL,
    PretendServer,
    RealServer,
    server_is_away,
)
from tests.service.support.serving import served, spectrum

_ORDINARY_USERS = ("postgres", "nobody")  # PostgreSQL refuses to run as root


def pytest_configure(config):
    config.addinivalue_line("markers", "postgres: needs a PostgreSQL server's programs")


def left_out(reason):
    """End a test whose tool is missing: skipped, or failed where nothing may be left out."""
    if os.environ.get("RMAB_NO_SKIPS"):
        pytest.fail(f"left out: {reason}")
    pytest.skip(reason)


# --------------------------------------------------------------------------------------- databases

SYNCHRONOUS = database._SYNCHRONOUS


@pytest.fixture(scope="session", autouse=True)
def quick_commits():
    """Commits of SQLite in this process that do not wait for the disk, but for the system only.

    A process that is killed loses nothing all the same. Promises about power are tested in
    processes of their own, `test_power_cut`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_SYNCHRONOUS", "OFF")
        yield


@pytest.fixture(scope="session")
def postgres_server():
    """The address of a running PostgreSQL."""
    programs = _postgres_programs()
    if programs is None:
        left_out("PostgreSQL not found")
    initdb, postgres = programs
    folder = Path(tempfile.mkdtemp(prefix="rmab-pg-"))  # short: a socket's path has 107 bytes
    user = _ordinary_user() if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(folder, user)
    environment = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C.UTF-8"}
    server = None
    try:
        subprocess.run(
            [initdb, "-D", folder / "data", "-U", "rmab", "--auth=trust", "-E", "UTF8", "-N"],
            user=user,
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
        )
        settings = (
            "listen_addresses=",
            f"unix_socket_directories={folder}",
            "fsync=off",  # what is tested here is what the server is told, not its disk
            "shared_buffers=16MB",
        )
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [postgres, "-D", folder / "data", *(f"--{one}" for one in settings)],
                user=user,
                cwd=folder,
                env=environment,
                stdout=log,
                stderr=log,
            )
        address = f"postgresql://rmab@/postgres?host={quote(str(folder), safe='')}"
        _wait_until_ready(server, address, folder / "log")
        yield address
    finally:
        if server is not None:
            server.send_signal(signal.SIGINT)  # ends sessions and shuts down
            server.wait(120)
        shutil.rmtree(folder, ignore_errors=True)


def _postgres_programs():
    for folder in (None, *sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)):
        found = [shutil.which(name, path=folder) for name in ("initdb", "postgres")]
        if all(found):
            return found
    return None


def _ordinary_user():
    names = {entry.pw_name for entry in pwd.getpwall()}
    for name in _ORDINARY_USERS:
        if name in names:
            return name
    return left_out("PostgreSQL not found: no ordinary user to run it")


def _wait_until_ready(server, address, log):
    until = time.monotonic() + 120
    while True:
        try:
            psycopg.connect(address).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > until:
                pytest.fail(f"PostgreSQL did not start: {log.read_text()[-500:]}")
            time.sleep(0.05)


_numbers = count()


@pytest.fixture
def postgres_url(postgres_server):
    """An empty schema of its own: made much faster than a database."""
    name = f"federation{next(_numbers)}"
    with psycopg.connect(postgres_server, autocommit=True) as admin:
        admin.execute(f"CREATE SCHEMA {name}".encode())
    return f"{postgres_server}&options=-csearch_path%3D{name}"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request, tmp_path):
    """An empty database, of each kind."""
    if request.param == "sqlite":
        return str(tmp_path / "federation.db")
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def federation():
    """Four channels, two plays, 32 gaps."""
    return spectrum(policy="fedtswi-gap")


@pytest.fixture
def opened(database_url, federation):
    """A claimed store on an empty database."""
    opened = open_store(database_url, federation)
    opened.claim()
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def authority(tmp_path_factory):
    """Whom only those trust who are told to."""
    try:
        return Authority(tmp_path_factory.mktemp("authority"))
    except FileNotFoundError:
        return left_out("openssl not found")


# --------------------------------------------------------------------------------- a running server


@pytest.fixture
def live(tmp_path):
    """A server whose rounds close when all have reported."""
    with served(tmp_path, spectrum()) as running:
        yield running


@pytest.fixture
def pair(live):
    """Two agents in round 1."""
    agents = [live.agent("a"), live.agent("b")]
    for agent in agents:
        assert agent.fetch().round == 1
    return agents


# ------------------------------------------------------------------- agents of a pretended server


@pytest.fixture
def server():
    """It keeps to the protocol until a test tells it not to."""
    return PretendServer()


@pytest.fixture
def real(server):
    """The same server at an address of its own."""
    made = RealServer(server)
    yield made
    made.close()


@pytest.fixture
def path(tmp_path):
    """Of an agent's file."""
    return tmp_path / "agent.db"


@pytest.fixture
def start(server, path):
    """Starts agents of that server and file; closes them in the end."""
    started = []

    def make(**more):
        options = {"token": TOKEN, "file": path, "patience": 20.0, "timeout": 5.0, "limits": QUICK}
        options |= more
        options.setdefault("transport", server.transport())
        agent = Agent(URL, **options)
        started.append(agent)
        return agent

    yield make
    server.always = server_is_away
    for agent in started:
        agent.close()
