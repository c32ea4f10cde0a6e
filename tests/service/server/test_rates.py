"""How much one agent may send: 429 beyond it, and when to come back."""

import secrets
from dataclasses import replace

import pytest

from rmab.errors import FederationError
from rmab.service.server.uploads import Rate
from tests.service.support.serving import ByHand, served, spectrum


def test_a_rate_and_a_burst():
    now = 1000.0
    rate = Rate(10.0, lambda: now)
    for _ in range(20):  # ten seconds at two a second
        assert rate.wait("a", 2.0) == 0
        rate.done("a", 2.0)
    assert rate.wait("a", 2.0) == 0.5
    assert rate.wait("b", 2.0) == 0
    assert rate.wait("a", 0.0) == 0  # no limit
    now += 0.5
    assert rate.wait("a", 2.0) == 0
    rate.done("a", 2.0)
    assert rate.wait("a", 2.0) == 0.5
    rate.done("a", 2.0)  # in spite of it
    assert rate.wait("a", 2.0) == 1.0
    now += 10**6
    for _ in range(20):
        assert rate.wait("a", 2.0) == 0
        rate.done("a", 2.0)
    assert rate.wait("a", 2.0) == 0.5


def test_a_rate_below_one_in_a_burst_allows_one():
    now = 0.0
    rate = Rate(10.0, lambda: now)
    assert rate.wait("a", 0.01) == 0
    rate.done("a", 0.01)
    assert rate.wait("a", 0.01) == 100.0


def test_an_agent_that_sends_too_much_is_told_to_wait(tmp_path):
    with served(tmp_path, spectrum(uploads_per_second=0.01)) as live:
        a, b = live.agent("a"), live.agent("b")
        for agent in (a, b):
            agent.fetch()
        upload = a.play()
        assert [a.send(upload).status_code for _ in range(2)] == [201, 200]
        answer = a.send(upload)
        assert (answer.status_code, answer.json()["error"]) == (429, "rate")
        assert 40 <= int(answer.headers["Retry-After"]) <= 50
        assert set(answer.json()) == {"error", "detail"}
        assert a.fetch(after=0).round == 1  # all else goes on
        assert b.send(b.play()).status_code == 201
        assert 'rmab_uploads_total{result="rate"} 1.0' in live.client().get("/metrics").text


def test_an_agent_that_begins_too_often_is_told_to_wait_and_goes_on(tmp_path):
    with served(tmp_path, spectrum(incarnations_per_hour=0.5, deadline=3600.0)) as live:
        a, other = live.agent("a"), live.agent("other")
        other.fetch()  # who keeps the round open
        a.fetch()
        upload = a.play()

        def begun(incarnation):
            return a.send(replace(upload, incarnation=incarnation))

        names = [secrets.token_hex(16) for _ in range(3)]
        assert [begun(name).status_code for name in names] == [201, 201, 429]
        answer = begun(names[2])
        assert answer.json()["error"] == "rate"
        assert 7100 <= int(answer.headers["Retry-After"]) <= 7200
        # Those that have begun go on, and are known again.
        assert begun(names[0]).status_code == 200
        more = replace(upload, incarnation=names[1], sequence=2, slots=9)
        assert a.send(more).status_code == 201
        status = live.client().get("/v1/overview").json()
        assert (status["uploads"], status["agents"][0]["refused"]) == (3, 2)


@pytest.mark.parametrize("key", ["uploads_per_second", "incarnations_per_hour"])
def test_rates_are_checked(key):
    assert getattr(spectrum(), key) > 0
    assert getattr(spectrum(**{key: 0}), key) == 0
    for wrong in (-1, 1e9, float("nan"), "many", True, None):
        with pytest.raises(FederationError, match=f"{key} must be 0 for no limit, or from"):
            spectrum(**{key: wrong})


def test_an_owners_agents_share_a_rate(tmp_path):
    with served(tmp_path, spectrum(uploads_per_second=0.01)) as live:
        boss = live.client(live.enroll("boss", "admin"))
        agents = []
        for name in ("a", "b", "c"):
            owner = {} if name == "c" else {"owner": "acme"}
            made = boss.post("/v1/agents", json={"name": name, **owner}).json()
            agents.append(ByHand(live, name, made["token"]))
            agents[-1].fetch()
        a, b, c = agents
        upload = a.play()
        assert [a.send(upload).status_code for _ in range(2)] == [201, 200]
        assert b.send(b.play()).status_code == 429
        assert c.send(c.play()).status_code == 201
