"""A server answers as soon as it has its database, whatever its planner is at."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from rmab.protocol import planner as in_earnest
from rmab.service.http.listener import in_thread
from rmab.service.server.limits import ServerLimits
from tests.service.support.serving import ByHand, Flat, Served, served, spectrum, until

GAP = spectrum(policy="fedtswi-gap")


class Slow(Flat):
    """Nothing comes of it until it is let go: no plan, no estimate."""

    def __init__(self, federation):
        super().__init__(federation)
        self.gate.clear()

    def estimates(self, merged):
        assert self.gate.wait(60)
        return super().estimates(merged)


@pytest.fixture
def slow():
    made = Slow(GAP)
    yield made
    made.gate.set()


@contextmanager
def in_earnest_served(folder):
    """A server that makes its planner itself."""
    made = Served(folder, GAP, None, limits=ServerLimits(prepare_seconds=0.0))
    try:
        with in_thread(made.server):
            yield made
    finally:
        made.close_clients()


def meanwhile(slow, client, path):
    """An answer that comes while nothing can be planned."""
    answer = client.get(path)
    assert not slow.gate.is_set()
    return answer


def test_a_new_federation_answers_while_its_first_round_is_planned(tmp_path, slow):
    with served(tmp_path, GAP, slow) as live:
        client, agent = live.client(), live.agent("a")
        assert meanwhile(slow, client, "/healthz").json() == {"status": "alive"}
        status = meanwhile(slow, client, "/v1/status").json()
        assert (status["round"], status["limit"], status["agents"]) == (0, None, 1)
        assert status["arms"] == [None] * 4
        page = meanwhile(slow, client, "/v1/overview").json()
        assert (page["round"], page["opened"], page["rounds"]) == (0, None, [])
        assert [arm["index"] for arm in page["arms"]] == [None] * 4
        assert b"rmab_round 0.0" in meanwhile(slow, client, "/metrics").content
        unready = meanwhile(slow, client, "/readyz")
        assert (unready.status_code, unready.json()["error"]) == (503, "unready")
        assert unready.json()["detail"] == "the first round is being planned"
        assert unready.headers["Retry-After"] == "1"
        for sent in (agent.client.post("/v1/leave"), agent.send(b"{}")):
            assert (sent.status_code, sent.json()["error"]) == (503, "unready")
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(agent.fetch)  # who asks for a round is held for some seconds
            until(lambda: live.server.rounds.polls.count == 1)
            slow.gate.set()
            assert asked.result(60).round == 1
        assert client.get("/readyz").json() == {"status": "ready", "round": 1}
        assert agent.send(agent.play()).status_code == 201
        until(lambda: client.get("/v1/status").json()["arms"][0] is not None)
        events = [event["event"] for event in live.events() if event["level"] == "info"]
        assert [e for e in events if e in ("listening", "round open", "ready")][:3] == [
            "listening",
            "round open",
            "ready",
        ]


def test_who_waits_too_long_for_the_first_round_is_told_to_come_back(tmp_path, slow):
    limits = ServerLimits(first_round_seconds=0.05)
    with served(tmp_path, GAP, slow, limits=limits) as live:
        answer = live.agent("a").client.get("/v1/round")
        assert (answer.status_code, answer.json()["error"]) == (503, "unready")
        assert answer.headers["Retry-After"] == "1"
        slow.gate.set()


def test_a_restart_takes_uploads_while_the_planner_is_compiled(tmp_path, slow, monkeypatch):
    with served(tmp_path, GAP) as before:
        a, b = before.agent("a"), before.agent("b")
        for agent in (a, b):
            assert agent.fetch().round == 1
        known = before.client().get("/v1/status").json()["arms"]
        assert known[0] is not None
    monkeypatch.setattr(in_earnest, "Planner", lambda federation: slow)
    with in_earnest_served(tmp_path) as live:
        client = live.client()
        assert meanwhile(slow, client, "/healthz").status_code == 200
        status = meanwhile(slow, client, "/v1/status").json()
        assert (status["round"], status["limit"]) == (1, 2)
        assert status["arms"] == known  # from the database
        unready = meanwhile(slow, client, "/readyz")
        assert (unready.status_code, unready.json()["detail"]) == (
            503,
            "the planner is being compiled",
        )
        a.client, b.client = live.client(a.token), live.client(b.token)
        for agent in (a, b):
            assert agent.send(agent.play()).status_code == 201
        assert meanwhile(slow, client, "/v1/status").json()["uploads"] == 2
        slow.gate.set()
        assert ByHand(live, "a", a.token).fetch(after=1, wait=20).round == 2
        assert client.get("/readyz").json() == {"status": "ready", "round": 2}


def test_a_first_plan_that_fails_is_tried_again(tmp_path):
    planner = Flat(GAP)
    planner.fail = 2
    with served(tmp_path, GAP, planner, limits=ServerLimits(first_retry_seconds=0.01)) as live:
        until(lambda: live.client().get("/readyz").status_code == 200)
        errors = [e for e in live.events() if e["event"] == "round not opened, trying again"]
        assert [e["seconds"] for e in errors] == [0.01, 0.02]
        assert "no plan today" in errors[0]["error"]


def test_a_server_can_be_stopped_while_it_plans(tmp_path, slow):
    with served(tmp_path, GAP, slow) as live:
        assert live.client().get("/healthz").status_code == 200
        slow.gate.set()
    assert "fault" not in live.log.getvalue()
