"""Every route of a running server: who may ask, what it answers, what it refuses."""

import asyncio
import base64
import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from rmab.federation.charter import Federation, KnownArm
from rmab.federation.messages import most_bytes
from rmab.service import federator as federator_module
from rmab.service import uploads as uploads_module
from rmab.service import waiting
from rmab.service.admin import DatabaseAdmin
from rmab.service.app import make_app
from rmab.service.federator import Federator
from rmab.service.logs import Log
from rmab.service.metrics import Metrics
from tests.service.serving import ByHand, Flat, served, spectrum, until


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


# ------------------------------------------------------------------------------ rounds and uploads


def test_rounds_follow_one_another(live, pair):
    a, b = pair
    for number in (1, 2, 3):
        for agent in pair:
            answer = agent.send(agent.play())
            assert answer.status_code == 201
            assert answer.json()["status"] == "new"
            assert answer.json()["sequence"] == number
        for agent in pair:
            message = agent.fetch(after=number, wait=10)
            assert message.round == number + 1
            assert message.slots == number + 2  # the linear schedule
            assert message.agent == agent.name
            # What was planned from: two agents, two plays a slot, slots 2 + 3 + ... each.
            visits = 2 * 2 * sum(range(2, number + 2))
            assert message.plan.index[0, 0] == visits
    status = live.client().get("/v1/status").json()
    assert (status["round"], status["uploads"], status["agents"], status["live"]) == (4, 6, 2, 2)
    assert status["slots"] == 2 * (2 + 3 + 4)
    assert live.planner.calls == [(1, 0), (2, 0), (3, 0), (4, 0)]
    a.client.close()
    b.client.close()


def test_rounds_survive_a_restart_on_both_databases(tmp_path, database_url):
    federation = spectrum(draws="per-agent")
    with served(tmp_path, federation, database=database_url) as live:
        agents = [live.agent("a"), live.agent("b")]
        for agent in agents:
            agent.fetch()
        for agent in agents:
            assert agent.send(agent.play()).status_code == 201
        plans = [agent.fetch(after=1, wait=10).plan.index[0, 1] for agent in agents]
        assert plans == [2, 2 + 1 / 16]
        upload = agents[0].play()
        assert agents[0].send(upload).status_code == 201
        before = live.client().get("/v1/status").json()
    with served(tmp_path, federation, database=database_url) as again:
        assert again.client().get("/v1/status").json() == before
        a, b = (ByHand(again, agent.name, agent.token) for agent in agents)
        assert a.send(upload).status_code == 200
        assert b.fetch().plan.index[0, 1] == plans[1]
        assert b.send(b.play()).status_code == 201
        assert a.fetch(after=2, wait=10).round == 3
        assert again.planner.calls[0] == (3, 0)


def test_a_repeat_changes_nothing_and_another_body_is_refused(live, pair):
    a, b = pair
    upload = a.play()
    assert a.send(upload).status_code == 201
    again = a.send(upload)
    assert (again.status_code, again.json()["status"]) == (200, "repeat")
    a.player.observe([0, 1], [0, 0])
    other = a.send(a.player.upload(1))
    assert (other.status_code, other.json()["error"]) == (409, "conflict")
    b.send(b.play())
    until(lambda: live.server.federator.number == 2)
    late = a.send(upload)  # its answer was lost, say, and the round has closed
    assert (late.status_code, late.json()["round"]) == (200, 2)
    gone = a.send(a.player.upload(2))
    assert gone.status_code == 410
    assert gone.json()["error"] == "round"
    assert gone.json()["round"] == 2
    assert live.client().get("/v1/status").json()["uploads"] == 2


def test_going_backwards_is_refused(pair):
    a, _ = pair
    small = a.play()
    a.player.observe([0, 1], [0, 0])
    assert a.send(a.player.upload(5)).status_code == 201
    back = a.send(small)
    assert (back.status_code, back.json()["error"]) == (409, "backwards")
    fewer = json.loads(a.body(small)) | {"sequence": 6}
    answer = a.send(json.dumps(fewer).encode())
    assert (answer.status_code, answer.json()["error"]) == (409, "backwards")


def test_malformed_uploads_are_refused(pair):
    a, _ = pair
    good = json.loads(a.body(a.play()))
    changes: Any = (
        {"slots": -1},
        {"slots": 1.5},
        {"slots": True},
        {"round": 0},
        {"incarnation": "x"},
        {"federation": "other"},
        {"protocol": 2},
        {"counts": []},
        {"visits": [[9, 9]] * 4},
        {"more": 1},
    )
    for change in changes:
        answer = a.send(json.dumps(good | change).encode())
        assert answer.status_code == 422, change
        assert answer.json()["error"] == "malformed"
        assert answer.json()["detail"]
    assert a.send(json.dumps(good).encode()).status_code == 201


def test_bodies_that_are_no_uploads_are_refused(live, pair):
    a, _ = pair
    most = most_bytes(live.federation.shape)
    assert a.send(b"{").status_code == 422
    assert a.send(b"").status_code == 422
    assert a.send(b"\xff\xfe").status_code == 422
    assert a.send(b"[" * 3000).status_code == 422
    too_large = a.send(b" " * (most + 1))
    assert (too_large.status_code, too_large.json()["error"]) == (413, "size")
    in_pieces = a.client.post(
        "/v1/uploads",
        content=iter([b" " * 4096] * (most // 4096 + 2)),
        headers={"Content-Type": "application/json"},
    )
    assert in_pieces.status_code == 413
    for headers in ({"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}):
        assert a.send(a.play(), **headers).status_code == 415
    assert (
        a.send(a.play(), **{"Content-Type": "application/json; charset=utf-8"}).status_code == 201
    )
    agents = live.client().get("/v1/overview").json()["agents"]
    assert agents[0]["refused"] == 8
    assert agents[1]["refused"] == 0


def test_a_late_agents_counts_come_with_its_next_upload(tmp_path):
    with served(tmp_path, spectrum(deadline=0.3)) as live:
        a, late = live.agent("a"), live.agent("late")
        a.fetch()
        late.fetch()
        unsent = late.play()
        a.send(a.play())
        assert a.fetch(after=1, wait=10).round == 2
        assert late.send(unsent).status_code == 410
        assert late.fetch().round == 2
        assert late.send(late.play()).status_code == 201
        shown = live.client().get("/v1/overview").json()
        assert shown["slots"] == 2 + 2 + 3
        assert shown["rounds"][-1]["reason"] == "deadline"
        assert shown["rounds"][-1]["reports"] == 1


def test_only_agents_that_take_part_are_awaited(live, pair):
    a, b = pair
    live.agent("idle")  # enrolled, never seen
    a.send(a.play())
    assert b.client.post("/v1/leave").json() == {"round": 1}
    assert a.fetch(after=1, wait=10).round == 2  # b left, so a was the last
    assert live.client().get("/v1/status").json()["live"] == 1
    assert b.fetch().round == 2  # and is back


def test_a_request_for_a_round_waits_as_long_as_it_says(live, pair):
    a, _ = pair
    started = time.monotonic()
    assert a.fetch(after=1, wait=0.3) is None
    assert time.monotonic() - started >= 0.3
    assert a.fetch(after=9) is None
    for query in ("after=-1", "after=x", "after=1.0", "wait=31", "wait=nan", "wait=-1", "wait="):
        answer = a.client.get(f"/v1/round?{query}")
        assert (answer.status_code, answer.json()["error"]) == (422, "malformed")


def test_an_agent_that_leaves_does_not_wait(live, pair):
    a, _ = pair
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(a.fetch, after=1, wait=20)
        until(lambda: live.server.federator.waiting.count == 1)
        live.client(a.token).post("/v1/leave")
        assert waiting.result(5) is None


def test_who_hung_up_does_not_take_part(live, pair):
    a, b = pair
    impatient = httpx.Client(base_url=live.url, headers=a.client.headers, timeout=0.3)
    with pytest.raises(httpx.ReadTimeout):
        impatient.get("/v1/round?after=1&wait=20")
    impatient.close()
    a.send(a.play())
    b.send(b.play())
    until(lambda: live.server.federator.number == 2)
    until(lambda: live.server.federator.waiting.count == 0)
    assert live.server.federator.roster.fetched["a"] == 1


def test_agents_with_draws_of_their_own_get_plans_of_their_own(tmp_path):
    with served(tmp_path, spectrum(draws="per-agent")) as live:
        agents = [live.agent(name) for name in "abc"]
        plans = [agent.fetch().plan.index[0, 1] for agent in agents]
        assert plans == [1, 1 + 1 / 16, 1 + 2 / 16]
        assert agents[1].fetch().plan.index[0, 1] == plans[1]
        assert live.planner.calls == [(1, 0), (1, 1), (1, 2)]
    planner = Flat(live.federation)
    with served(tmp_path, live.federation, planner) as again:
        one = ByHand(again, "b", agents[1].token)
        assert one.fetch().plan.index[0, 1] == plans[1]
        assert planner.calls == []  # it was kept


# ------------------------------------------------------------------------------ faults and restarts


def test_a_restart_goes_on_with_the_same_round(tmp_path):
    with served(tmp_path, spectrum()) as live:
        a, b = live.agent("a"), live.agent("b")
        a.episode()
        message = a.fetch(after=1, wait=10)
        b.fetch()
        b.send(b.play())
        before = live.client().get("/v1/overview").json()
    planner = Flat(live.federation)
    planner.fail = 10**6
    with served(tmp_path, live.federation, planner) as again:
        after = again.client().get("/v1/overview").json()
        for key in ("round", "opened", "limit", "uploads", "slots", "arms", "rewards"):
            assert after[key] == before[key]
        back = ByHand(again, "a", a.token)
        assert back.fetch().plan.index.tolist() == message.plan.index.tolist()
        assert again.planner.calls == []
        # a reported in round 1 and so is still awaited in round 2, in which b has reported.
        assert after["rounds"][0]["reports"] == 1
        back.player = None
        back.fetch()
        planner.fail = 0
        assert back.send(back.play()).status_code == 201
        until(lambda: again.server.federator.number == 3)


def test_the_next_plan_depends_on_seed_counts_and_round_alone(tmp_path):
    """With the planner in earnest: a restart in between changes nothing."""
    from rmab.federation.serving import Planner

    federation = spectrum(seed=5)
    planner = Planner(federation)
    plans = []
    for restarts in (False, True):
        folder = tmp_path / str(restarts)
        folder.mkdir()
        first = Flat(federation) if restarts else None
        with served(folder, federation, planner) as live:
            a = live.agent("a")
            a.incarnation = 32 * "a"
            a.fetch()
            if first is not None:  # it goes down before it has planned the next round
                first.fail = 10**6
                live.server.federator._planner = first
            assert a.send(a.play()).status_code == 201
            if first is None:
                plans.append(a.fetch(after=1, wait=20).plan)
        if restarts:
            with served(folder, federation, planner) as again:
                plans.append(ByHand(again, "a", a.token).fetch(after=1, wait=20).plan)
    assert plans[0].index.tolist() == plans[1].index.tolist()
    assert plans[0].index.std() > 0


def test_a_plan_that_fails_is_tried_again_and_the_round_stays_open(tmp_path, monkeypatch):
    monkeypatch.setattr(federator_module, "FIRST_BACKOFF", 0.05)
    with served(tmp_path, spectrum()) as live:
        a = live.agent("a")
        a.fetch()
        live.planner.fail = 2
        live.planner.gate.clear()
        upload = a.play()
        assert a.send(upload).status_code == 201
        a.player.observe([0, 1], [0, 0])
        a.sequence += 1
        assert a.send(a.player.upload(a.sequence)).status_code == 201  # it is open while planned
        live.planner.gate.set()
        assert a.fetch(after=1, wait=10).round == 2
        errors = [e for e in live.events() if e["event"] == "round not closed, trying again"]
        assert [e["seconds"] for e in errors] == [0.05, 0.1]
        assert "no plan today" in errors[0]["error"]


def test_a_fault_of_ours_tells_nothing_and_stops_nobody(live, monkeypatch):
    async def broken(self):
        raise RuntimeError("a secret")

    monkeypatch.setattr(Federator, "status", broken)
    answer = live.client().get("/v1/status")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert any(e["event"] == "fault" and "a secret" in e["error"] for e in live.events())
    assert live.client().get("/healthz").status_code == 200


# ---------------------------------------------------------------------------------------- overload


def test_uploads_beyond_the_bound_are_told_to_come_back(live, pair, monkeypatch):
    a, _ = pair
    monkeypatch.setattr(uploads_module, "MOST_IN_FLIGHT", 0)
    answer = a.send(a.play())
    assert (answer.status_code, answer.json()["error"]) == (503, "overload")
    assert answer.headers["Retry-After"] == "1"
    monkeypatch.undo()
    assert a.send(a.player.upload(1)).status_code == 201
    assert live.client().get("/v1/overview").json()["agents"][0]["refused"] == 0


def test_one_agent_cannot_take_all_the_waiting(live, pair, monkeypatch):
    monkeypatch.setattr(waiting, "MOST_EACH", 2)
    a, b = pair
    with ThreadPoolExecutor() as pool:
        held = [
            pool.submit(live.client(a.token).get, "/v1/round?after=1&wait=20") for _ in range(2)
        ]
        until(lambda: live.server.federator.waiting.count == 2)
        third = a.client.get("/v1/round?after=1&wait=20")
        assert (third.status_code, third.headers["Retry-After"]) == (503, "1")
        other = pool.submit(b.fetch, after=1, wait=20)
        until(lambda: live.server.federator.waiting.count == 3)
        live.client(a.token).post("/v1/leave")
        assert [one.result(5).status_code for one in held] == [204, 204]
        live.client(b.token).post("/v1/leave")
        assert other.result(5) is None


def test_a_database_that_fails_is_503_and_heals(live, pair, monkeypatch):
    from rmab.errors import StorageError
    from rmab.service.database import SqliteDatabase

    a, _ = pair
    commit = SqliteDatabase.commit

    def full(self):
        raise StorageError("disk full")

    upload = a.play()
    monkeypatch.setattr(SqliteDatabase, "commit", full)
    answer = a.send(upload)
    assert (answer.status_code, answer.json()["error"]) == (503, "storage")
    assert answer.headers["Retry-After"] == "1"
    assert live.client().get("/readyz").status_code == 503
    monkeypatch.setattr(SqliteDatabase, "commit", commit)
    assert a.send(upload).status_code == 201
    assert live.client().get("/readyz").json() == {"status": "ready", "round": 1}


# ------------------------------------------------------------------------------------- credentials


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
    again = admin.post("/v1/agents", json={"name": "radio"}).json()["token"]
    assert live.client(again).get("/v1/round").status_code == 200
    events = [e["event"] for e in live.events()]
    assert events.count("enrolled") == 2
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


# ------------------------------------------------------------------------------------- viewers


def test_on_loopback_anybody_may_look_but_only_by_its_name(live):
    client = live.client()
    for path in ("/", "/page.js", "/page.css", "/v1/status", "/v1/overview", "/metrics"):
        assert client.get(path).status_code == 200
        assert client.get(path, headers={"X-Forwarded-For": "192.0.2.1"}).status_code == 401
        for host in ("evil.example", "evil.example:80", "127.0.0.1.evil.example", "", "[::1"):
            answer = client.get(path, headers={"Host": host})
            assert answer.status_code in (400, 421)
        for host in ("localhost", "LOCALHOST:99", "[::1]:80", "127.0.0.1", "localhost."):
            assert client.get(path, headers={"Host": host}).status_code == 200


def test_a_public_server_shows_nothing_without_an_admin(tmp_path):
    federation = spectrum()
    database = str(tmp_path / "federation.db")
    with DatabaseAdmin(federation, database) as admin:
        tokens = {role: admin.enroll(role, role) for role in ("admin", "agent")}

    async def ask():
        log, metrics = Log(None, "error"), Metrics()
        inside = Federator(federation, database, planner=Flat(federation), log=log, metrics=metrics)
        await inside.start()
        app = make_app(inside, hosts=None, log=log, metrics=metrics)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="https://example.org") as client:
            basic = base64.b64encode(f"any:{tokens['admin']}".encode()).decode()
            for path in ("/", "/page.js", "/page.css", "/v1/status", "/v1/overview", "/metrics"):
                found = [
                    (await client.get(path, headers={"Authorization": header})).status_code
                    for header in (
                        "",
                        f"Bearer {tokens['agent']}",
                        f"Bearer {tokens['admin']}",
                        f"Basic {basic}",
                    )
                ]
                assert found == [401, 401, 200, 200]
            for path in ("/healthz", "/readyz", "/openapi.json"):
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
    until(lambda: live.server.federator.number == 2)
    assert 'rmab_rounds_closed_total{reason="all"} 1.0' in live.client().get("/metrics").text


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
        assert secret.rpartition("_")[2] not in log


def test_nothing_is_left_when_it_ends(tmp_path):
    before = threading.active_count()
    with served(tmp_path, spectrum()) as live:
        a = live.agent("a")
        a.episode()
        assert a.fetch(after=1, wait=10).round == 2
        waiting = threading.Thread(target=a.fetch, kwargs={"after": 2, "wait": 30})
        waiting.start()
        until(lambda: live.server.federator.waiting.count == 1)
    waiting.join(5)
    assert not waiting.is_alive()
    until(lambda: threading.active_count() == before)


# ------------------------------------------------------------------------------ large federations


def test_an_upload_that_is_larger_than_a_head_may_be_is_taken(tmp_path):
    arms = tuple(KnownArm(2, (0.0, 0.5)) for _ in range(140))
    federation = Federation("wide", 2, arms, "fedtswi-gap")
    with served(tmp_path, federation) as wide:
        agent = wide.agent("radio")
        assert agent.fetch() is not None
        upload = agent.play()
        assert len(agent.body(upload)) > 2**15
        answers = [agent.send(upload).status_code for _ in range(3)]
    assert answers == [201, 200, 200]


def test_a_round_that_is_resumed_waits_for_who_fetched_it(tmp_path):
    federation = spectrum(deadline=3600.0)
    with served(tmp_path, federation) as before:
        early, late = before.agent("early"), before.agent("late")
        assert late.fetch() is not None
        assert early.episode().status_code == 201
    with served(tmp_path, federation) as after:
        status = after.client().get("/v1/status").json()
        assert (status["round"], status["live"]) == (1, 2)
        late.client = after.client(late.token)
        assert late.send(late.play()).status_code == 201
        until(lambda: after.client().get("/v1/status").json()["round"] == 2)
