"""TLS with a private CA: who is trusted, what is sent to whom, and who may look at what."""

from __future__ import annotations

import base64
import contextlib
import gc
import select
import socket
import ssl
import threading
import time
import warnings
from pathlib import Path

import httpx
import pytest

import rmab
from rmab.protocol.config import load_federation
from rmab.service.http.connections import Connection
from tests.service.support.processes import Machine, environment
from tests.service.support.serving import PATIENCE, gives_up, served, spectrum, until

TLS = Path(__file__).parents[1] / "support" / "tls"
CA, CERT, KEY = TLS / "ca.pem", TLS / "server.pem", TLS / "server.key"  # for 127.0.0.1
OPTIONS = ("--tls-cert", str(CERT), "--tls-key", str(KEY))


def planned(tmp_path_factory, **more):
    """A federation whose first round is planned, so that no process here loads JAX."""
    made = Machine(tmp_path_factory.mktemp("tls"), environment(tmp_path_factory) | more)
    federation = load_federation(made.folder / "spectrum.toml")
    with served(made.folder, federation) as live:
        made.tokens = {  # type: ignore[attr-defined]  # for the tests below
            name: live.enroll(name, role)
            for name, role in (
                ("radio", "agent"),
                ("idle", "agent"),
                ("boss", "admin"),
                ("eye", "viewer"),
            )
        }
    (made.folder / "federation.db").rename(made.folder / "spectrum.db")
    return made


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return planned(tmp_path_factory)


@pytest.fixture(scope="module")
def trusted():
    return ssl.create_default_context(cafile=CA)


@pytest.fixture(scope="module")
def server(machine, trusted):
    """On loopback; an agent that never reports keeps the first round open."""
    with machine.serve("--host", "127.0.0.1", *OPTIONS) as made:
        with httpx.Client(base_url=made.url, verify=trusted, timeout=PATIENCE) as idle:
            token = machine.tokens["idle"]
            answer = idle.get("/v1/round", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == 200
        yield made


def test_an_agent_that_trusts_the_ca_plays(machine, server, trusted, tmp_path):
    assert server.url.startswith("https://127.0.0.1:")
    token = machine.tokens["radio"]
    with rmab.Agent(server.url, token=token, file=tmp_path / "radio", ca=CA) as agent:
        for _ in range(3):
            agent.observe([1] * len(agent.choose()))
        assert agent.flush(PATIENCE)
    status = httpx.get(
        f"{server.url}/v1/status",
        headers={"Authorization": f"Bearer {machine.tokens['eye']}"},
        verify=trusted,
        timeout=PATIENCE,
    )
    assert status.json()["slots"] == 3


class Recorder:
    """A server with our certificate that writes down whatever is said to it."""

    def __init__(self, tls: bool) -> None:
        self.heard = b""
        self.greeted = threading.Event()  # somebody has connected
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER) if tls else None
        if self._context is not None:
            self._context.load_cert_chain(CERT, KEY)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self._socket.settimeout(0.1)
        self.port = self._socket.getsockname()[1]
        self._goes_on = True
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while self._goes_on:
            with contextlib.suppress(TimeoutError):
                peer, _ = self._socket.accept()
                self.greeted.set()
                peer.settimeout(0.3)
                with peer, contextlib.suppress(OSError):
                    self._hear(peer)

    def _hear(self, peer: socket.socket) -> None:
        heard = peer
        if self._context is not None:
            heard = self._context.wrap_socket(peer, server_side=True)
        with heard:
            while part := heard.recv(65536):
                self.heard += part

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *_: object) -> None:
        self._goes_on = False
        self._thread.join()
        self._socket.close()


@pytest.mark.parametrize("tls", [True, False], ids=["of a CA it does not trust", "without TLS"])
def test_a_server_that_is_not_trusted_hears_nothing_of_the_token(machine, tmp_path, tls):
    token = machine.tokens["radio"]
    with Recorder(tls) as other:
        url = f"https://127.0.0.1:{other.port}"
        gives_up(
            lambda patience: rmab.Agent(
                url, token=token, file=tmp_path / "radio", patience=patience
            ),
            "gave no round",
            other.greeted.is_set,
        )
    assert b"rmab_" not in other.heard
    assert b"HTTP" not in other.heard


def test_an_agent_that_ends_in_the_midst_of_a_handshake_leaves_no_connection(machine, tmp_path):
    gc.disable()  # it would close what was left
    try:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"https://127.0.0.1:{silent.getsockname()[1]}"
            gives_up(
                lambda patience: rmab.Agent(
                    url, token=machine.tokens["radio"], file=tmp_path / "a", patience=patience
                ),
                "gave no round",
                lambda: select.select([silent], [], [], 0)[0],  # it did connect
            )
            peer, _ = silent.accept()
            with peer:
                peer.settimeout(PATIENCE)
                with contextlib.suppress(ConnectionResetError):
                    while peer.recv(65536):
                        pass
    finally:
        gc.enable()


def test_without_its_ca_the_server_is_refused(machine, server, tmp_path):
    token, file = machine.tokens["radio"], tmp_path / "a"
    gives_up(
        lambda patience: rmab.Agent(server.url, token=token, file=file, patience=patience),
        "CERTIFICATE_VERIFY_FAILED",
    )


def test_a_name_that_is_not_the_certificates_is_refused(machine, server, tmp_path):
    url = server.url.replace("127.0.0.1", "localhost")
    token, file = machine.tokens["radio"], tmp_path / "a"
    gives_up(
        lambda patience: rmab.Agent(url, token=token, file=file, ca=CA, patience=patience),
        r"CERTIFICATE_VERIFY_FAILED.*localhost",
    )


def test_plain_http_to_the_tls_port_fails_and_others_go_on(server, trusted):
    with socket.create_connection(("127.0.0.1", server.port)):  # says nothing, and stays
        with pytest.raises(httpx.HTTPError):
            httpx.get(server.url.replace("https", "http") + "/healthz")
        assert (
            httpx.get(f"{server.url}/healthz", verify=trusted, timeout=PATIENCE).status_code == 200
        )


@pytest.mark.parametrize("version", ["TLSv1", "TLSv1_1", "TLSv1_2"])
def test_old_versions_of_tls_are_refused_by_the_server(server, version):
    peer = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    peer.check_hostname, peer.verify_mode = False, ssl.CERT_NONE
    peer.set_ciphers("ALL:@SECLEVEL=0")  # else this side refuses
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the old versions
        peer.minimum_version = ssl.TLSVersion.TLSv1
        peer.maximum_version = getattr(ssl.TLSVersion, version)
    with socket.create_connection(("127.0.0.1", server.port)) as plain:
        if version == "TLSv1_2":
            with peer.wrap_socket(plain) as connected:
                assert connected.version() == "TLSv1.2"
            return
        with pytest.raises(ssl.SSLError) as refused:
            peer.wrap_socket(plain)
        assert refused.value.reason in (
            "TLSV1_ALERT_PROTOCOL_VERSION",
            "UNEXPECTED_EOF_WHILE_READING",  # the server hangs up
            "NO_PROTOCOLS_AVAILABLE",  # this side was built without them
        )


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_public_address_without_tls_is_refused_in_one_line(machine, host):
    done = machine.rmab("server", "spectrum.toml", "--host", host, "--port", "0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        f"rmab server: host {host} is not loopback and so needs --tls-cert and --tls-key\n"
    )


def test_a_public_server_shows_itself_to_viewers_alone(tmp_path, trusted):
    public = {"host": "0.0.0.0", "open": False, "tls_cert": CERT, "tls_key": KEY}
    with served(tmp_path, spectrum(), **public) as live:
        url = live.url.replace("0.0.0.0", "127.0.0.1")
        agent, boss, eye = (live.enroll(role, role) for role in ("agent", "admin", "viewer"))
        basic = [base64.b64encode(f"any:{token}".encode()).decode() for token in (eye, agent)]
        credentials = {
            "": 401,
            f"Bearer {agent}": 401,
            f"Basic {basic[1]}": 401,
            f"Bearer {boss}": 401,
            f"Bearer {eye}x": 401,
            f"Bearer {eye}": 200,
            f"Basic {basic[0]}": 200,
        }
        with httpx.Client(base_url=url, verify=trusted, timeout=PATIENCE) as client:
            for path in ("/", "/page.js", "/v1/status", "/v1/overview", "/metrics"):
                for header, due in credentials.items():
                    answer = client.get(path, headers={"Authorization": header})
                    assert answer.status_code == due, (path, header.partition(" ")[0])
                    assert ("WWW-Authenticate" in answer.headers) == (due == 401)
            for path in ("/healthz", "/readyz", "/openapi.json"):
                assert client.get(path).status_code == 200


def test_admin_commands_over_tls(machine, server):
    boss = machine.token_file("boss", machine.tokens["boss"])
    radio = machine.token_file("radio", machine.tokens["radio"])
    words = ("agents", server.url, "--ca", str(CA), "--json", "--token-file")
    listed = machine.rmab(*words, boss)
    assert listed.returncode == 0
    assert '"radio"' in listed.stdout
    refused = machine.rmab(*words, radio)
    assert refused.returncode == 2
    assert "an agent's is not enough" in refused.stderr
    distrustful = machine.rmab("agents", server.url, "--token-file", boss)
    assert distrustful.returncode == 1
    assert "CERTIFICATE_VERIFY_FAILED" in distrustful.stderr


# ------------------------------------------------------------------------------------------ the end


@pytest.fixture
def strict(tmp_path_factory):
    """Whose servers take a connection that is left open for an error, and so do not end."""
    return planned(tmp_path_factory, PYTHONWARNINGS="error::ResourceWarning")


def joined(port, trusted):
    """A connection whose handshake is done. That the peer ends it without a goodbye is an error."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # what is not read soon piles up
    plain.settimeout(PATIENCE)
    plain.connect(("127.0.0.1", port))
    name = "127.0.0.1"
    return trusted.wrap_socket(plain, server_hostname=name, suppress_ragged_eofs=False)


def hello(trusted):
    """The first bytes of a handshake."""
    said = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        trusted.wrap_bio(ssl.MemoryBIO(), said, server_hostname="127.0.0.1").do_handshake()
    return said.read()


def course(machine):
    """What the log has of the server's course, from its start to its end."""
    others = ("enrolled", "slots are not limited")
    return [event["event"] for event in machine.events() if event["event"] not in others]


def test_a_server_ends_in_the_midst_of_handshakes(strict, trusted):
    first = hello(trusted)
    with strict.serve(*OPTIONS) as made, contextlib.ExitStack() as stack:
        for size in (0, 50, len(first)):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", made.port)))
            peer.sendall(first[:size])
        # Others came later and have been answered, so those were accepted.
        assert httpx.get(f"{made.url}/healthz", verify=trusted, timeout=PATIENCE).status_code == 200
        assert made.end() == 0
    assert course(strict) == ["round open", "listening", "stopped"]


def test_a_server_that_ends_says_goodbye_and_waits_for_none(strict, trusted):
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with strict.serve(*OPTIONS) as made, joined(made.port, trusted) as idle:
        idle.sendall(request)
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        assert made.end() == 0
        while idle.recv(4096):
            pass
    assert course(strict) == ["round open", "listening", "stopped"]


def test_agents_over_tls_do_not_hold_up_the_end(strict, tmp_path):
    with strict.serve(*OPTIONS) as made:
        playing, waiting = (
            rmab.Agent(made.url, token=strict.tokens[name], file=tmp_path / name, ca=CA)
            for name in ("idle", "radio")
        )
        with playing, waiting:
            while not waiting.over:
                waiting.observe([1] * len(waiting.choose()))
            assert waiting.flush(PATIENCE)
            assert made.end() == 0
    unlike = [event for event in strict.events() if event["level"] != "info"]
    assert [event["event"] for event in unlike] == ["slots are not limited"]


def test_answers_on_their_way_arrive_although_the_server_ends(tmp_path, trusted):
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with served(tmp_path, spectrum(), tls_cert=CERT, tls_key=KEY) as live:
        page = live.client().get("/openapi.json").content
        live.close_clients()
        assert live.server._http is not None
        state = live.server._http.server_state

        def unsent():
            made = [one for one in list(state.connections) if isinstance(one, Connection)]
            return sum(one.waiting for one in made)

        def stuck():
            seen = unsent()
            time.sleep(0.02)  # what is only just being written goes out
            return 0 < seen == unsent()

        with joined(live.port, trusted) as peer:
            asked = 0  # here; there was one request before
            while not stuck():
                asked += 4
                peer.sendall(4 * request)
                until(lambda: state.total_requests > asked)  # noqa: B023 - called here
            live.server.stop()
            until(lambda: any(one.transport.is_closing() for one in list(state.connections)))
            heard = bytearray()
            while part := peer.recv(65536):
                heard += part
        assert heard.count(page) == asked
