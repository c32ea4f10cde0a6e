"""Who may ask a running server for what, who may look, and what is shown."""

import asyncio
import base64
import re

import httpx
import pytest

from rmab.service.admin import DatabaseAdmin
from rmab.service.http.telemetry import Log
from rmab.service.server.metrics import Metrics
from rmab.service.server.page import ADDRESSES
from rmab.service.server.rounds import Rounds
from rmab.service.server.routes import make_app
from tests.service.support.serving import ByHand, Flat, served, spectrum, until

# -------------------------------------------------------------------------------------- credentials


def test_roles_are_never_exchanged(live, pair):
    a, _ = pair
    admin = live.client(live.enroll("boss", "admin"))
    for path in ("/v1/round", "/v1/leave", "/v1/uploads"):
        method = "GET" if path == "/v1/round" else "POST"
        for client in (live.client(), admin, live.client("rmab_nonsense")):
            answer = client.request(method, path, json={})
            assert (answer.status_code, answer.json()["error"]) == (401, "credential")
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    for method, path in (("GET", "/v1/agents"), ("POST", "/v1/agents"), ("DELETE", "/v1/agents/a")):
        for client in (live.client(), a.client):
            answer = client.request(method, path, json={"name": "x"} if method == "POST" else None)
            assert answer.status_code == 401
            assert "Basic" in answer.headers["WWW-Authenticate"]
    assert {row["name"] for row in admin.get("/v1/agents").json()["agents"]} == {"a", "b", "boss"}


def test_a_token_with_another_secret_is_refused(live, pair):
    a, _ = pair
    other = a.token[:-1] + ("A" if a.token[-1] != "A" else "B")
    for _ in range(2):
        assert live.client(other).get("/v1/round").status_code == 401
        assert a.client.get("/v1/round").status_code == 200
    for header in (
        "",
        "Bearer",
        "Bearer x y",
        "bearer x",
        f"Basic {a.token}",
        "Basic ÿ",
        "Digest x",
    ):
        answer = live.client().get("/v1/round", headers={"Authorization": header.encode("latin-1")})
        assert answer.status_code == 401


def test_enrolling_and_revoking_over_http(live):
    admin = live.client(live.enroll("boss", "admin"))
    made = admin.post("/v1/agents", json={"name": "radio"})
    assert made.status_code == 201
    assert made.json()["role"] == "agent"
    radio = ByHand(live, "radio", made.json()["token"])
    assert radio.fetch().round == 1
    twice = admin.post("/v1/agents", json={"name": "radio"})
    assert (twice.status_code, twice.json()["error"]) == (409, "enrolled")
    for bad in (
        {},
        {"name": ""},
        {"name": "-x"},
        {"name": "x", "role": "god"},
        {"name": "x", "a": 1},
    ):
        assert admin.post("/v1/agents", json=bad).status_code == 422
    assert admin.post("/v1/agents", content=b"x" * 5000).status_code == 415
    large = admin.post(
        "/v1/agents", content=b"x" * 5000, headers={"Content-Type": "application/json"}
    )
    assert large.status_code == 413
    assert admin.delete("/v1/agents/radio").status_code == 204
    assert admin.delete("/v1/agents/radio").status_code == 404
    assert admin.delete("/v1/agents/%2e%2e").status_code == 404
    assert radio.client.get("/v1/round").status_code == 401
    assert radio.send(radio.play()).status_code == 401
    eye = admin.post("/v1/agents", json={"name": "eye", "role": "viewer"})
    assert (eye.status_code, eye.json()["role"]) == (201, "viewer")
    again = admin.post("/v1/agents", json={"name": "radio"}).json()["token"]
    assert live.client(again).get("/v1/round").status_code == 200
    events = [e["event"] for e in live.events()]
    assert events.count("enrolled") == 3
    assert events.count("revoked") == 1


def test_revoked_in_the_database_means_refused(live, pair):
    a, b = pair
    a.send(a.play())
    with DatabaseAdmin(live.federation, live.database) as admin:
        admin.revoke("b")
    assert b.send(b.play()).status_code == 401  # uploads are checked against the database
    until(lambda: b.client.get("/v1/round").status_code == 401)  # the rest within a second
    assert a.fetch(after=1, wait=10).round == 2  # b is not awaited any more
    assert live.client().get("/v1/status").json()["agents"] == 1


# ------------------------------------------------------------------------------------------ viewers


PAGES = ("/", "/page.css", "/page.js", "/charts.js", "/v1/status", "/v1/overview", "/metrics")
OPEN = ("/healthz", "/readyz", "/openapi.json")
# Who may ask for what, and what is answered then.
MAY = {
    **{("GET", path): ({"viewer"}, 200) for path in PAGES},
    ("HEAD", "/metrics"): ({"viewer"}, 200),
    **{("GET", path): ({"agent", "admin", "viewer", "nobody"}, 200) for path in OPEN},
    ("GET", "/v1/round"): ({"agent"}, 200),
    ("GET", "/v1/laws"): ({"agent"}, 404),  # as draws are shared
    ("POST", "/v1/uploads"): ({"agent"}, 422),
    ("POST", "/v1/leave"): ({"agent"}, 200),
    ("GET", "/v1/agents"): ({"admin"}, 200),
    ("POST", "/v1/agents"): ({"admin"}, 422),
    ("DELETE", "/v1/agents/none"): ({"admin"}, 404),
    ("DELETE", "/v1/agents/none/counts"): ({"admin"}, 404),
}


@pytest.fixture
def closed(tmp_path):
    """A server as it is started without options: on loopback, not open."""
    with served(tmp_path, spectrum(), open=False) as running:
        yield running


def basic(token):
    return "Basic " + base64.b64encode(f"any:{token}".encode()).decode()


def test_each_role_does_its_own_work_and_no_other(closed):
    tokens = {role: closed.enroll(role, role) for role in ("agent", "admin", "viewer")}
    tokens["revoked"] = closed.enroll("gone", "viewer")
    with DatabaseAdmin(closed.federation, closed.database) as admin:
        admin.revoke("gone")
    credentials = {(role, "Bearer"): f"Bearer {token}" for role, token in tokens.items()}
    credentials |= {(role, "Basic"): basic(token) for role, token in tokens.items()}
    credentials["nobody", ""] = ""
    client = closed.client()
    for (method, path), (roles, due) in MAY.items():
        for (role, scheme), header in credentials.items():
            answer = client.request(
                method,
                path,
                headers={"Authorization": header},
                json={} if path in ("/v1/agents", "/v1/uploads") and method == "POST" else None,
            )
            # A browser's way is for people.
            may = "nobody" in roles or (role in roles and (scheme, role) != ("Basic", "agent"))
            assert answer.status_code == (due if may else 401), (method, path, role, scheme)
            if not may:
                challenge = answer.headers["WWW-Authenticate"]
                assert challenge.startswith("Bearer" if roles == {"agent"} else "Basic")
                assert "Bearer" in challenge
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        form = re.compile(re.sub(r"\{\w+\}", "[^/]+", path))
        for method in operations:
            known = [asked for by, asked in MAY if by == method.upper() and form.fullmatch(asked)]
            assert known or path in ADDRESSES, f"who may {method} {path}?"


@pytest.mark.parametrize("header", ["X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "Via"])
def test_where_a_request_comes_from_is_no_credential(tmp_path, header):
    """Behind a proxy that adds nothing everybody comes from loopback; what it adds proves nothing,
    whether it is trusted or not."""
    for trusted in ((), ("127.0.0.1",)):
        folder = tmp_path / f"trusts {len(trusted)}"
        folder.mkdir()
        with served(folder, spectrum(), open=False, trusted_proxies=trusted) as live:
            client = live.client()
            for path in PAGES:
                assert client.get(path).status_code == 401
                assert client.get(path, headers={header: "127.0.0.1"}).status_code == 401


def test_what_anybody_may_see_has_nothing_of_the_federation_in_it(closed):
    agent = closed.agent("radio-7")
    agent.episode()
    for path in OPEN:
        said = closed.client().get(path).text
        for word in ("radio-7", agent.token.split("_")[1], closed.database):
            assert word not in said


def test_an_open_server_lets_anybody_look_but_do_nothing(live):
    client = live.client()
    for path in PAGES:
        assert client.get(path).status_code == 200
    for method, path in (("GET", "/v1/agents"), ("POST", "/v1/agents"), ("GET", "/v1/round")):
        assert client.request(method, path).status_code == 401
    assert {} in client.get("/openapi.json").json()["paths"]["/metrics"]["get"]["security"]


def test_on_loopback_a_server_answers_by_its_name_alone(live):
    client = live.client()
    for path in (*PAGES, *OPEN):
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1"):
            answer = client.get(path, headers={"Host": host})
            assert answer.status_code in (400, 421)
        for host in ("localhost", "LOCALHOST:99", "[::1]:80", "127.0.0.1", "localhost."):
            assert client.get(path, headers={"Host": host}).status_code == 200


def test_a_public_server_shows_nothing_without_a_viewer(tmp_path):
    federation = spectrum()
    database = str(tmp_path / "federation.db")
    with DatabaseAdmin(federation, database) as admin:
        tokens = {role: admin.enroll(role, role) for role in ("admin", "agent", "viewer")}

    async def ask():
        log, metrics = Log(None, "error"), Metrics()
        inside = Rounds(federation, database, planner=Flat(federation), log=log, metrics=metrics)
        await inside.start()
        app = make_app(inside, hosts=None, log=log, metrics=metrics)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="https://example.org") as client:
            for path in PAGES:
                found = [
                    (await client.get(path, headers={"Authorization": header})).status_code
                    for header in (
                        "",
                        f"Bearer {tokens['agent']}",
                        f"Bearer {tokens['admin']}",
                        f"Bearer {tokens['viewer']}",
                        basic(tokens["viewer"]),
                    )
                ]
                assert found == [401, 401, 401, 200, 200]
            for path in OPEN:
                assert (await client.get(path)).status_code == 200
        await inside.stop()

    asyncio.run(ask())


def test_every_answer_tells_browsers_to_keep_to_themselves(live):
    client = live.client()
    for path in ("/", "/v1/status", "/nowhere", "/v1/agents"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cache-Control"] == "no-store"
    lost = client.get("/nowhere")
    assert (lost.status_code, lost.json()["error"]) == (404, "path")
    wrong = client.put("/v1/agents")
    assert (wrong.status_code, wrong.json()["error"]) == (405, "method")
    assert set(wrong.headers["Allow"].split(", ")) >= {"GET", "POST"}


def test_no_token_is_ever_logged(live, pair):
    boss = live.enroll("boss", "admin")
    admin = live.client(boss)
    token = admin.post("/v1/agents", json={"name": "radio"}).json()["token"]
    radio = ByHand(live, "radio", token)
    radio.episode()
    radio.send(b"{")
    live.client(token + "x").get("/v1/round")
    live.client(token).get(f"/v1/agents?token={token}")
    admin.delete(f"/v1/agents/{token}")
    live.client().get(f"/{token}")
    admin.delete("/v1/agents/radio")
    log = live.log.getvalue()
    assert len(live.events()) > 10
    for secret in (boss, token, pair[0].token, pair[1].token):
        assert secret.split("_", 2)[2] not in log


# ------------------------------------------------------------------------------------ what is shown


def test_the_overview_adds_up(live, pair):
    for agent in pair:
        agent.send(agent.play())
    pair[0].fetch(after=1, wait=10)
    shown = live.client().get("/v1/overview").json()
    assert [arm["plays"] for arm in shown["arms"]] == [4, 4, 0, 0]  # the first two, by the ties
    assert [arm["share"] for arm in shown["arms"]] == [0.5, 0.5, 0, 0]
    # Both agents saw both arms in state 1, for two slots.
    assert shown["rewards"] == [{"round": 1, "slots": 4, "reward": pytest.approx(0.4 + 0.9)}]
    assert [agent["reward"] for agent in shown["agents"]] == [pytest.approx(1.3)] * 2
    assert [agent["episode"] for agent in shown["agents"]] == [2, 1]
    assert [agent["lane"] for agent in shown["agents"]] == [0, 1]
    assert [one["round"] for one in shown["rounds"]] == [2, 1]
    assert shown["rounds"][0]["closed"] is None
    assert shown["rounds"][1]["reason"] == "all"
    assert shown["arms"][0]["index"] == {"never": 8, "by_state": [[2, 2], [2, 2]]}
    assert shown["arms"][0]["estimate"]["p01"]["mean"] == 0.5


def test_the_metrics_count(live, pair):
    a, b = pair
    upload = a.play()
    for _ in range(2):
        a.send(upload)
    a.send(b"{")
    live.client().get("/nowhere")
    lines = live.client().get("/metrics").text.splitlines()
    for line in (
        "rmab_round 1.0",
        'rmab_agents{state="enrolled"} 2.0',
        'rmab_agents{state="live"} 2.0',
        'rmab_uploads_total{result="new"} 1.0',
        'rmab_uploads_total{result="repeat"} 1.0',
        'rmab_uploads_total{result="malformed"} 1.0',
        "rmab_upload_seconds_count 2.0",
        'rmab_http_requests_total{code="201",route="/v1/uploads"} 1.0',
        'rmab_http_requests_total{code="404",route="other"} 1.0',
        "rmab_plan_seconds_count 1.0",
    ):
        assert line in lines
    b.send(b.play())
    until(lambda: live.server.rounds.number == 2)
    assert 'rmab_rounds_closed_total{reason="all"} 1.0' in live.client().get("/metrics").text
