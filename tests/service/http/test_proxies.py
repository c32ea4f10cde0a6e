"""Through whom a request comes and to which address it goes: proxies, Origin, HSTS."""

import socket
import ssl
from pathlib import Path

import pytest

from rmab.errors import FederationError
from rmab.service.http.proxies import Proxies
from rmab.service.server.process import Server, Settings
from tests.service.support.serving import PATIENCE, served, spectrum

TLS = Path(__file__).parents[1] / "support" / "tls"
CERT, KEY = TLS / "server.pem", TLS / "server.key"  # for 127.0.0.1
PROXY, OTHER = "10.1.2.3", "10.9.9.9"


@pytest.fixture(scope="module")
def waiting(tmp_path_factory):
    """A server that stays as it is, whatever is asked of it here."""
    with served(tmp_path_factory.mktemp("waiting"), spectrum()) as running:
        yield running


def scope(peer, *headers, scheme="http"):
    lines = [(name.lower().encode(), value.encode()) for name, value in headers]
    return {"client": (peer, 4711), "scheme": scheme, "headers": lines}


# ------------------------------------------------------------------------------------------ proxies


@pytest.mark.parametrize(
    ("peer", "forwarded", "client"),
    [
        (PROXY, ["192.0.2.7"], "192.0.2.7"),
        (PROXY, ["198.51.100.1, 192.0.2.7"], "192.0.2.7"),  # what the client made up comes first
        (PROXY, ["198.51.100.1", "192.0.2.7"], "192.0.2.7"),
        (PROXY, ["192.0.2.7, 10.1.9.9"], "192.0.2.7"),  # through two that are trusted
        (PROXY, ["10.1.9.9"], "10.1.9.9"),
        (PROXY, ["2001:db8::7"], "2001:db8::7"),
        (PROXY, ["nonsense"], PROXY),
        (PROXY, ["192.0.2.7, nonsense"], PROXY),
        (PROXY, [], PROXY),
        (f"::ffff:{PROXY}", ["192.0.2.7"], "192.0.2.7"),
        ("2001:db8:1::1", ["192.0.2.7"], "192.0.2.7"),
        (OTHER, ["192.0.2.7"], OTHER),
        ("127.0.0.1", ["192.0.2.7"], "127.0.0.1"),
    ],
)
def test_the_client_is_whom_the_last_trusted_proxy_names(peer, forwarded, client):
    proxies = Proxies(["10.1.0.0/16", "2001:db8:1::1"])
    headers = [("X-Forwarded-For", value) for value in forwarded]
    assert proxies.caller(scope(peer, *headers)).client == client


def test_scheme_and_host_are_a_trusted_proxys_to_tell():
    told = [("Host", "127.0.0.1:8080"), ("X-Forwarded-Proto", "https")]
    told += [("X-Forwarded-Host", "server.example")]
    proxies = Proxies([PROXY])
    assert proxies.caller(scope(PROXY, *told))[1:4] == ("https", b"server.example", True)
    assert proxies.caller(scope(OTHER, *told))[1:4] == ("http", b"127.0.0.1:8080", False)
    found = proxies.caller(scope(PROXY, ("Host", "a.example")))
    assert found[1:4] == ("http", b"a.example", True)
    odd = scope(PROXY, ("Host", "a"), ("X-Forwarded-Proto", "gopher"), scheme="https")
    assert proxies.caller(odd).scheme == "https"
    assert Proxies().caller(scope(PROXY, *told))[1:4] == ("http", b"127.0.0.1:8080", False)


@pytest.mark.parametrize("bad", ["", "proxy.example", "10.0.0.1/8", "10.0.0.0/33", "127.0.0.1:80"])
def test_a_proxy_is_an_address_or_a_network(tmp_path, bad):
    with pytest.raises(FederationError, match="--trusted-proxy must be an address or a network"):
        Server(Settings(spectrum(), str(tmp_path / "x.db"), port=0, trusted_proxies=[bad]))


@pytest.mark.parametrize("trusted", [(), ("192.0.2.0/24",), ("192.0.2.1", "127.0.0.1")])
def test_behind_a_proxy(tmp_path, trusted):
    """Caddy passes the client's Host on; nginx sends its own and may add the client's."""
    believed = "127.0.0.1" in trusted
    with served(tmp_path, spectrum(), open=False, trusted_proxies=trusted) as live:
        viewer = live.client(live.enroll("eye", "viewer"))
        caddy = {"Host": "server.example", "X-Forwarded-For": "203.0.113.9"}
        caddy |= {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "server.example"}
        answer = viewer.get("/v1/status", headers=caddy)
        assert answer.status_code == (200 if believed else 421)
        assert ("Strict-Transport-Security" in answer.headers) == believed
        nginx = caddy | {"Host": f"127.0.0.1:{live.port}"}
        answer = viewer.get("/v1/status", headers=nginx)
        assert answer.status_code == 200
        assert ("Strict-Transport-Security" in answer.headers) == believed
        live.client().get("/v1/status", headers=nginx)
        (refused,) = [e for e in live.events() if e.get("status") == 401]
        assert refused["client"] == ("203.0.113.9" if believed else "127.0.0.1")


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1",)])
@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [
        ("1.1", [], 400),
        ("1.1", ["OWN", "OWN"], 400),
        ("1.1", ["OWN", "evil.example"], 400),
        ("1.1", ["OWN"], 200),
        ("1.0", ["OWN"], 200),
    ],
)
def test_a_request_names_one_host(tmp_path, trusted, version, hosts, status):
    """Otherwise a proxy and the server could each read another one."""
    with served(tmp_path, spectrum(), trusted_proxies=trusted) as live:
        own = address_of(live)
        lines = "".join(f"Host: {host.replace('OWN', own)}\r\n" for host in hosts)
        forwarded = "X-Forwarded-Host: server.example\r\n"
        request = f"GET /healthz HTTP/{version}\r\n{lines}{forwarded}Connection: close\r\n\r\n"
        answer = ask(live, request.encode())
        assert int(answer.split()[1]) == status
        if status == 400:
            (event,) = [e for e in live.events() if e["event"] == "refused"]
            assert (event["reason"], event["status"]) == ("host", 400)
            assert f"must have one Host header, got {len(hosts)}" in event["detail"]


# ------------------------------------------------------------------------------------------- Origin


def test_a_page_from_elsewhere_changes_nothing(live):
    token = live.enroll("boss", "admin")
    admin = live.client(token)
    own = live.url
    for bad in (
        "https://evil.example",
        "http://127.0.0.1",  # another port
        own.replace("http:", "https:"),
        own.replace("127.0.0.1", "localhost"),
        own + ".evil.example",
        "null",
        "",
        "http://",
    ):
        for method, path in (
            ("POST", "/v1/agents"),
            ("DELETE", "/v1/agents/x"),
            ("POST", "/v1/uploads"),
            ("POST", "/v1/leave"),
            ("PUT", "/nowhere"),
        ):
            answer = admin.request(method, path, headers={"Origin": bad}, json={"name": "x"})
            assert (answer.status_code, answer.json()["error"]) == (403, "origin"), (bad, path)
        assert admin.get("/v1/agents", headers={"Origin": bad}).status_code == 200
    for number, good in enumerate((own, own.upper().replace("HTTP", "http"), None)):
        headers = {} if good is None else {"Origin": good}
        answer = admin.post("/v1/agents", headers=headers, json={"name": f"x{number}"})
        assert answer.status_code == 201
    two = [("Authorization", f"Bearer {token}"), ("Origin", own), ("Origin", "http://evil")]
    assert live.client().post("/v1/agents", headers=two, json={"name": "y"}).status_code == 403
    assert len(admin.get("/v1/agents").json()["agents"]) == 4


def test_behind_a_trusted_proxy_the_origin_is_the_proxys(tmp_path):
    with served(tmp_path, spectrum(), trusted_proxies=("127.0.0.1",)) as live:
        admin = live.client(live.enroll("boss", "admin"))
        proxied = {"X-Forwarded-Proto": "https", "X-Forwarded-Host": "server.example"}
        for origin, due in (
            ("https://server.example", 201),
            ("https://server.example:443", 409),
            ("http://server.example", 403),
            (live.url, 403),
        ):
            headers = proxied | {"Origin": origin}
            assert admin.post("/v1/agents", headers=headers, json={"name": "x"}).status_code == due


# ----------------------------------------------------------------------- request lines and codings


def ask(live, request, tls=False):
    """The first line and the headers of the answer, and whether the connection ends then."""
    with socket.create_connection(("127.0.0.1", live.port), PATIENCE) as plain:
        peer = plain
        if tls:
            trust = ssl.create_default_context(cafile=TLS / "ca.pem")
            peer = trust.wrap_socket(plain, server_hostname="127.0.0.1")
        with peer:
            peer.sendall(request)
            found = b""
            while b"\r\n\r\n" not in found:
                part = peer.recv(65536)
                if not part:
                    break
                found += part
    return found.partition(b"\r\n\r\n")[0].lower().decode()


BODY = b"2\r\n{}\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("coding", "status"),
    [
        (b"Transfer-Encoding: gzip, chunked", "501"),
        (b"Transfer-Encoding: gzip,chunked", "501"),
        (b"transfer-encoding: deflate , Chunked", "501"),
        (b"Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", "501"),
        (b"Transfer-Encoding: chunked, chunked", "400"),  # the parser knows it for nonsense
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", "400"),
        (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip", "400"),
        (b"Transfer-Encoding: identity, chunked", "501"),
        (b"Transfer-Encoding: gzip", "501"),
        (b"Transfer-Encoding: xchunked", "501"),
        (b"Transfer-Encoding: chunked", "401"),
        (b"Transfer-Encoding: Chunked", "401"),
    ],
)
def test_only_chunks_may_be_sent_in_pieces(waiting, coding, status):
    head = b"POST /v1/leave HTTP/1.1\r\nHost: localhost\r\n" + coding + b"\r\n\r\n"
    answer = ask(waiting, head + BODY)
    assert answer.split()[1] == status
    assert ("connection: close" in answer) == (status != "401")


def address_of(live, name="127.0.0.1"):
    return f"{name}:{live.port}"


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://evil.example/healthz", "OWN", "400"),
        ("http://evil.example/", "OWN", "400"),
        ("http://evil.example", "OWN", "400"),
        ("http://evil.example:80/healthz", "OWN", "400"),
        ("http://OWN.evil.example/healthz", "OWN", "400"),
        ("http://OWN@evil.example/healthz", "OWN", "400"),
        ("http://evil@OWN/healthz", "OWN", "400"),
        ("https://OWN/healthz", "OWN", "400"),
        ("ftp://OWN/healthz", "OWN", "400"),
        ("http://127.0.0.1/healthz", "OWN", "400"),  # another port
        ("http://evil.example/healthz", "evil.example", "421"),
        ("evil.example:443", "OWN", "400"),
        ("//evil.example/healthz", "OWN", "404"),
        ("http://OWN/healthz", "OWN", "200"),
        ("HTTP://OWN/healthz?x=y", "OWN", "200"),
        ("/healthz", "OWN", "200"),
    ],
)
def test_another_servers_address_is_not_answered(waiting, target, host, status):
    own = address_of(waiting)
    target, host = target.replace("OWN", own), host.replace("OWN", own)
    answer = ask(waiting, f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    assert answer.split()[1] == status


def test_a_tunnel_to_elsewhere_is_refused(waiting):
    answer = ask(waiting, b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n")
    assert answer.split()[1] == "400"


# --------------------------------------------------------------------------------------------- HSTS


def test_by_tls_every_answer_asks_for_tls_from_then_on(tmp_path):
    due = "strict-transport-security: max-age=31536000"
    with served(tmp_path, spectrum(), tls_cert=CERT, tls_key=KEY) as live:
        own = address_of(live)
        for target in ("/", "/healthz", "/v1/agents", "/nowhere", f"https://{own}/metrics"):
            answer = ask(live, f"GET {target} HTTP/1.1\r\nHost: {own}\r\n\r\n".encode(), tls=True)
            assert due in answer, target
        for bad in (f"http://{own}/metrics", "https://evil.example/"):
            answer = ask(live, f"GET {bad} HTTP/1.1\r\nHost: {own}\r\n\r\n".encode(), tls=True)
            assert answer.split()[1] == "400"
            assert due in answer


def test_without_tls_there_is_none(live):
    for path in ("/", "/nowhere", "/healthz"):
        answer = live.client().get(path, headers={"X-Forwarded-Proto": "https"})
        assert "Strict-Transport-Security" not in answer.headers
