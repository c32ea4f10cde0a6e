"""The server as a process and as a peer: addresses, TLS, signals, restarts, and hostile clients."""

import contextlib
import errno
import json
import os
import re
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from rmab.errors import FederationError, ModelError, UnavailableError
from rmab.service.admin import HttpAdmin
from rmab.service.http.listener import most_connections
from rmab.service.server.limits import ServerLimits
from rmab.service.server.process import Server, Settings
from tests.service.support.processes import Machine
from tests.service.support.serving import PATIENCE, ByHand, Flat, served, spectrum, until

# ---------------------------------------------------------------------------------------- processes


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path, dict(os.environ))


@pytest.fixture
def prepared(machine):
    """Its database has a round planned, so that no process loads JAX before it answers."""
    database = str(machine.folder / "spectrum.db")
    with served(machine.folder, spectrum(), database=database) as live:
        token = live.enroll("a")
    yield live, token
    live.close_clients()


def test_a_process_says_where_it_is_and_ends_in_order(machine, prepared):
    _, token = prepared
    with machine.serve(plain=True) as one:
        assert one.said == f"rmab server: federation spectrum at {one.url}"
        answer = httpx.get(f"{one.url}/readyz", timeout=PATIENCE)
        assert (answer.status_code, answer.json()["detail"]) == (
            503,
            "the planner is being compiled",
        )
        again = machine.rmab("server", "spectrum.toml", "--port", "0")
        assert again.returncode == 1  # the other may end
        assert "served by another process" in again.stderr
        assert len(again.stderr.splitlines()) == 1
    others = ("refused", "enrolled", "slots are not limited")
    told = [event["event"] for event in machine.events() if event["event"] not in others]
    assert told == ["round open", "listening", "stopped"]
    with machine.serve("--open") as two:
        ready = json.loads(two.said)
        assert set(ready) == {"url", "federation", "pid"}
        assert ready["pid"] == two.process.pid
        client = httpx.Client(headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)
        with client, ThreadPoolExecutor() as pool:
            # Somebody waits for a round as the server is told to end: it is let go, with an answer.
            waiting = pool.submit(client.get, f"{two.url}/v1/round?after=1&wait=30")
            metrics = f"{two.url}/metrics"
            until(lambda: "rmab_longpolls 1.0" in httpx.get(metrics, timeout=PATIENCE).text)
            assert two.end(signal.SIGINT) == 0
            assert waiting.result(PATIENCE).status_code == 204
            assert waiting.result().elapsed.total_seconds() < 30


def test_a_killed_process_goes_on_where_it_was(machine, prepared):
    here, token = prepared
    with machine.serve("--verbose") as one:
        here.url = one.url
        agent = ByHand(here, "a", token)
        other = ByHand(here, "b", here.enroll("b"))
        other.fetch()
        assert agent.episode().status_code == 201
        assert one.end(signal.SIGKILL) == -signal.SIGKILL
    log = machine.log.read_text()
    assert '"route": "/v1/round"' in log
    for secret in (agent.token, other.token):
        assert secret not in log
    with machine.serve("--open") as two:
        status = httpx.get(f"{two.url}/v1/status", timeout=PATIENCE).json()
        assert (status["uploads"], status["slots"]) == (1, 2)
        assert status["round"] in (1, 2)  # b is not known to take part: a's report closes round 1


def test_a_process_told_to_end_while_it_plans_ends(machine):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = machine.start("server", "spectrum.toml", "--port", "0", **pipes)
    lock = machine.folder / "spectrum.db.lock"
    until(lambda: lock.exists() and lock.read_text())  # it has the database, and plans round 1
    started.send_signal(signal.SIGTERM)
    out, err = started.communicate(timeout=300)
    assert started.returncode == 0
    due = {"slots are not limited", "enrolled", "listening", "stopped"}
    assert {json.loads(line)["event"] for line in err.splitlines()} <= due
    assert len(out.splitlines()) <= 1


def test_a_server_that_resumes_does_not_load_jax(machine, prepared):
    code = (
        "import sys, threading\n"
        "from rmab.protocol.config import load_federation\n"
        "from rmab.service.http.listener import in_thread\n"
        "from rmab.service.server.process import Server, Settings\n"
        "federation = load_federation('spectrum.toml')\n"
        "with in_thread(Server(Settings(federation, 'spectrum.db', port=0))):\n"
        "    pass\n"
        "print(sorted({'jax', 'scipy', 'matplotlib'} & sys.modules.keys()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=machine.folder, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host": "0.0.0.0"}, "needs --tls-cert"),
        ({"host": "::"}, "needs --tls-cert"),
        ({"host": "192.0.2.1"}, "needs --tls-cert"),
        ({"host": ""}, "must be an address"),
        ({"host": "a" * 64 + ".example"}, "no address"),
        ({"port": 65_536}, "cannot listen"),
        ({"trusted_proxies": ["10.0.0.1/8"]}, "an address or a network"),
        ({"tls_cert": "cert.pem"}, "go together"),
        ({"tls_key": "key.pem"}, "go together"),
        ({"tls_cert": "missing.pem", "tls_key": "missing.pem"}, "cannot be read"),
        ({"tls_cert": __file__, "tls_key": __file__}, "must be a certificate"),
    ],
)
def test_addresses_and_certificates_that_cannot_be_used(tmp_path, settings, words):
    with pytest.raises(FederationError, match=words):
        Server(Settings(spectrum(), str(tmp_path / "x.db"), **{"port": 0} | settings))


def test_a_port_that_is_taken(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UnavailableError, match=f"port {port}: Address already in use"):
            Server(Settings(spectrum(), str(tmp_path / "x.db"), port=port))


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.EADDRNOTAVAIL, UnavailableError),  # an interface that is not up yet
        (errno.EACCES, FederationError),  # a port below 1024
    ],
)
def test_an_address_that_is_not_given(tmp_path, monkeypatch, number, kind):
    class Refused(socket.socket):
        def bind(self, address):
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(socket, "socket", Refused)
    with pytest.raises(kind, match=f"cannot listen on 127.0.0.1 port 80: {os.strerror(number)}"):
        Server(Settings(spectrum(), str(tmp_path / "x.db"), port=80))


def test_a_name_that_does_not_resolve_may_later(tmp_path):
    with pytest.raises(UnavailableError, match=r"host 'no\.such\.host\.invalid' is no address"):
        Server(Settings(spectrum(), str(tmp_path / "x.db"), host="no.such.host.invalid", port=0))


def test_default_ports(tmp_path, authority):
    with_tls: Any = {"tls_cert": authority.cert, "tls_key": authority.key}
    for settings, port in (({}, 8080), (with_tls, 8443)):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                pytest.skip(f"port {port} is in use on this machine")
        made = Server(Settings(spectrum(), str(tmp_path / "x.db"), **settings))
        made.close()
        assert made.url.endswith(f":{port}")


def test_a_failed_start_leaves_nothing(tmp_path):
    federation = spectrum()

    class Wrong(Flat):
        def plan(self, merged, number, lane=0, each=None, memory=None):
            raise ModelError("no such arm")

    before = threading.active_count()
    with (
        pytest.raises(ModelError, match="no such arm"),
        served(tmp_path, federation, Wrong(federation)),
    ):
        pytest.fail("it must not be said to answer")
    until(lambda: threading.active_count() <= before)  # others may have ended
    with served(tmp_path, federation) as live:  # the database is free
        assert live.client().get("/readyz").status_code == 200


# ---------------------------------------------------------------------------------------------- TLS


def test_tls_with_a_private_ca(tmp_path, authority):
    ca, cert, key = authority.ca, authority.cert, authority.key
    with served(tmp_path, spectrum(), tls_cert=cert, tls_key=key) as live:
        assert live.url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=ca)
        with httpx.Client(base_url=live.url, verify=trusted, timeout=PATIENCE) as client:
            assert client.get("/readyz").status_code == 200
            port = client.base_url.port
        with HttpAdmin(live.url, live.enroll("boss", "admin"), str(ca)) as admin:
            assert [row["name"] for row in admin.agents()] == ["boss"]
        with (
            pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"),
            httpx.Client(base_url=live.url, timeout=PATIENCE) as client,
        ):
            client.get("/readyz")
        old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
        with pytest.warns(DeprecationWarning, match="TLSv1_1 is deprecated"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with (
            socket.create_connection(("127.0.0.1", port)) as plain,
            pytest.raises(ssl.SSLError),
        ):
            old.wrap_socket(plain)
        # Plain HTTP to a TLS port, and a peer that says nothing: others do not notice.
        with socket.create_connection(("127.0.0.1", port)) as silent:
            with pytest.raises(httpx.HTTPError):
                httpx.get(live.url.replace("https", "http"))
            with httpx.Client(base_url=live.url, verify=trusted, timeout=PATIENCE) as client:
                assert client.get("/readyz").status_code == 200
            assert silent.fileno() >= 0
    with pytest.raises(FederationError, match="must not be encrypted"):
        Server(
            Settings(
                spectrum(), str(tmp_path / "x.db"), port=0, tls_cert=cert, tls_key=authority.locked
            )
        )


# ---------------------------------------------------------------------------------- hostile clients


@pytest.fixture
def hasty(tmp_path):
    """A server whose patience is short, and an agent in it."""
    short = 2.0  # seconds: enough for the good, on a slow machine too
    limits = ServerLimits(
        head_seconds=short, body_seconds=short, stall_seconds=short, watch_seconds=0.05
    )
    with served(tmp_path, spectrum(), limits=limits) as live:
        yield live
        # Whatever the others did, work goes on.
        assert live.agent("last").episode().status_code in (201, 410)


@pytest.fixture
def good(hasty):
    """An agent in round 1."""
    agent = hasty.agent("good")
    agent.fetch()
    return agent


def connect(live):
    return socket.create_connection(("127.0.0.1", live.port), timeout=PATIENCE)


def answer(peer):
    """All that comes until the server closes."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := peer.recv(65536):
            parts.append(part)
    return b"".join(parts)


def upload_head(agent, length):
    return (
        "POST /v1/uploads HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: Bearer {agent.token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    ).encode()


def test_who_never_finishes_a_head_is_dropped(hasty):
    with connect(hasty) as silent, connect(hasty) as slow, connect(hasty) as drops:
        slow.sendall(b"GET /v1/round HTTP/1.1\r\nHost: localhost\r\n")
        closed = []

        def drip():
            with contextlib.suppress(OSError):
                for _ in range(90):  # below the bound on fields
                    slow.sendall(b"X-Slow: 1\r\n")
                    drops.sendall(b"\r\n")
                    time.sleep(0.05)
            closed.append(True)

        dripping = threading.Thread(target=drip)
        dripping.start()
        for peer in (silent, slow, drops):
            assert answer(peer) == b""
        dripping.join(PATIENCE)
        assert closed
    assert "rmab_dropped_connections_total 3.0" in hasty.client().get("/metrics").text


def test_who_never_finishes_a_body_is_told_so(hasty, good):
    with connect(hasty) as peer, connect(hasty) as chunked:
        peer.sendall(upload_head(good, 300) + b"{")
        head = upload_head(good, 0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
        chunked.sendall(head + b"1\r\n{\r\n")
        for one in (peer, chunked):
            text = answer(one)
            assert text.startswith(b"HTTP/1.1 408 ")
            assert b'"error": "timeout"' in text


def test_who_goes_away_in_the_midst_of_an_upload(hasty, good):
    for cut in (0, 1, 150, 299):
        with connect(hasty) as peer:
            peer.sendall(upload_head(good, 300) + b"{" + b" " * cut)
    body = good.body(good.play())
    with connect(hasty) as peer:  # it is all there, but nobody waits for the answer
        peer.sendall(upload_head(good, len(body)) + body)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    until(lambda: hasty.server.rounds._coordinator.reports or hasty.server.rounds.number > 1)
    assert good.send(body).status_code == 200  # it was kept


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"\x00\x01\x02\r\n\r\n", b"400"),
        (b"HELO there\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9\r\n\r\n", b"400"),
        (b"GET /" + b"x" * 20_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 300_000, b"431"),
        (b"POST /v1/uploads HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"GET /v1/status HTTP/1.0\r\nHost: localhost\r\n\r\n", b"200"),
    ],
)
def test_what_is_no_request_is_refused(hasty, request_, status):
    with connect(hasty) as peer:
        with contextlib.suppress(ConnectionError):
            peer.sendall(request_)
        first = peer.recv(65536)
        assert first.split()[1] == status


def test_requests_sent_ahead_are_answered_in_order_up_to_a_bound(hasty, good):
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with connect(hasty) as peer:
        peer.sendall(one * 5)
        found = b""
        while found.count(b'{"status":"alive"}') < 5:
            found += peer.recv(65536)
    waits = one.replace(b"/healthz", b"/v1/round?after=1&wait=2").replace(
        b"\r\n\r\n", f"\r\nAuthorization: Bearer {good.token}\r\n\r\n".encode()
    )
    with connect(hasty) as peer:
        with contextlib.suppress(ConnectionError):
            peer.sendall(waits + one * 5000)
        assert b"HTTP/1.1 429 " in answer(peer)
    until(lambda: hasty.server.rounds.polls.count == 0)


def test_who_does_not_read_is_dropped(hasty):
    page = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    state = hasty.server._http.server_state
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        peer.connect(("127.0.0.1", hasty.port))

        def stuck():
            return any(one.transport.get_write_buffer_size() for one in list(state.connections))

        # Ask until an answer no longer fits into what the two systems keep.
        while not stuck():
            before = state.total_requests
            peer.sendall(page)
            until(lambda: stuck() or state.total_requests > before)  # noqa: B023 - called here
        metrics = hasty.client()
        until(lambda: "rmab_dropped_connections_total 1.0" in metrics.get("/metrics").text)
    assert not [event for event in hasty.events() if event["level"] == "error"]


def test_idle_connections_make_room(tmp_path):
    limits = ServerLimits(connections=20, watch_seconds=0.05)
    with served(tmp_path, spectrum(), limits=limits) as live, contextlib.ExitStack() as stack:
        agent = live.agent("a")
        agent.fetch()
        for _ in range(60):
            stack.enter_context(connect(live))
        # Any idle connection may have been closed, the agent's too. A new one comes after all the
        # others, so it stays.
        agent.client = live.client(agent.token)
        assert agent.send(agent.play()).status_code == 201
        client = live.client()

        def connections():
            (found,) = re.findall(r"^rmab_connections (\S+)", client.get("/metrics").text, re.M)
            return float(found)

        until(lambda: 0 < connections() <= 20)


def test_files_are_asked_for():
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(512, before[0]), before[1]))
        limits = ServerLimits()
        most = most_connections(limits)
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert most == min(limits.connections, soft - limits.own_files)
        assert soft == min(before[1], limits.open_files) or before[1] < 512
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_many_agents_wait_at_once(tmp_path):
    with served(tmp_path, spectrum()) as live:
        agents = [live.agent(f"a{n}") for n in range(40)]
        for agent in agents:
            agent.fetch()
        answers = []

        def wait(agent):
            answers.append(agent.fetch(after=1, wait=20).round)

        threads = [threading.Thread(target=wait, args=(agent,)) for agent in agents]
        for thread in threads:
            thread.start()
        until(lambda: live.server.rounds.polls.count == 40)
        for agent in agents:
            second = ByHand(live, agent.name, agent.token)
            second.fetch()
            assert second.send(second.play()).status_code == 201
        for thread in threads:
            thread.join(PATIENCE)
        assert answers == [2] * 40
