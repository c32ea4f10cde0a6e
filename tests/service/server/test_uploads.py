"""Decisions on uploads, one by one, and the route's bounds on memory, without a running server."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from starlette.requests import ClientDisconnect

from rmab.errors import ProtocolError
from rmab.service.http.body import announced_size, check_type, read_body
from rmab.service.server.uploads import Rate, UploadRules, authenticate, receive
from rmab.service.store.store import open_store
from tests.service.support.counting import Counting
from tests.service.support.serving import served, spectrum
from tests.service.support.storing import enrolled, given, some_round

DAY = 86_400.0


@pytest.fixture
def opened(tmp_path, federation):
    """A claimed store in a file."""
    opened = open_store(str(tmp_path / "federation.db"), federation)
    opened.claim()
    yield opened
    opened.close()


def refusal(call, *args, **more):
    """Status, code and extra of the refusal."""
    with pytest.raises(ProtocolError) as caught:
        call(*args, **more)
    return caught.value.status, caught.value.code, caught.value.extra


def test_a_credential_is_valid_for_its_role_secret_and_time(opened):
    agent, admin = enrolled(opened, "a"), enrolled(opened, "boss", "admin")
    assert authenticate(opened, *agent, "agent").name == "a"
    assert authenticate(opened, *admin, "admin").name == "boss"
    refused: Any = (401, "credential", {})
    for key_id, secret_hash, role in (
        ("unknown", agent[1], "agent"),
        (agent[0], admin[1], "agent"),
        (*agent, "admin"),
        (*admin, "agent"),
    ):
        assert refusal(authenticate, opened, key_id, secret_hash, role) == refused
    opened.revoke("a", 2.0)
    assert refusal(authenticate, opened, *agent, "agent") == refused
    upload = Counting(opened._shape).upload(1)
    with opened.transaction():
        assert refusal(receive, opened, *agent, upload, 1, 2, 2.0) == refused


def test_a_limit_of_slots_is_there_only_where_it_is_asked_for(opened, federation):
    token = enrolled(opened, now=1.0)
    with opened.transaction():
        first = Counting(federation.shape, "a").upload(1, slots=5000)
        assert receive(opened, *token, first, 1, 2, 1.0) == "new"
    assert opened.database.rows("SELECT owner FROM pace") == []
    more = Counting(federation.shape, "b").upload(1, slots=1)
    with opened.transaction():
        found = refusal(receive, opened, *token, more, 1, 2, 1.0, UploadRules(slot_seconds=1.0))
        assert found[:2] == (429, "slots")
        assert receive(opened, *token, more, 1, 2, 11.0, UploadRules(slot_seconds=1.0)) == "new"
    assert len(opened.database.rows("SELECT owner FROM pace")) == 1


def test_a_new_incarnation_waits_and_one_that_is_known_does_not(opened, federation):
    token = enrolled(opened)
    life, other = (Counting(federation.shape, name) for name in ("one", "other"))
    given(opened, token, life.upload(1))
    with opened.transaction():
        assert receive(opened, *token, life.upload(2), 1, 2, 2.0, UploadRules(wait=7.5)) == "new"
        begun = other.upload(1)
        for wait, seconds in ((7.5, 8), (7.0, 7), (0.1, 1)):
            found = refusal(receive, opened, *token, begun, 1, 2, 2.0, UploadRules(wait=wait))
            assert found == (429, "rate", {"retry_after": seconds})
        assert opened.uploads.totals() == (2, 6)
        assert receive(opened, *token, begun, 1, 2, 2.0, UploadRules(wait=0.0)) == "new"


@pytest.fixture
def ended(opened, federation):
    """A store in round 9, the agent's token, and an incarnation that has ended, at sequence 3."""
    token = enrolled(opened)
    old, new = (Counting(federation.shape, name) for name in ("old", "new"))
    opened.open_round(some_round(1, federation))
    old.upload(1)
    last = old.upload(3)
    given(opened, token, last, now=10.0)
    opened.close_round(1, 11.0, "all", 1, 3, None)
    opened.open_round(some_round(9, federation))
    given(opened, token, new.upload(1, round=9), 9, 10.0 + 2 * DAY)
    opened.tidy(["alice"], 10.0 + 2 * DAY)
    assert opened.uploads.ended("alice", old.incarnation).sequence == 3
    return opened, token, last


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"length": 1}, "conflict"),
        ({"sequence": 2}, "backwards"),
        ({"sequence": 4}, "ended"),
        ({"sequence": 4, "round": 9}, "ended"),
    ],
)
def test_what_comes_of_an_ended_incarnation(ended, changes, code):
    opened, token, last = ended
    upload = replace(last, **changes)
    with opened.transaction():
        if code is None:
            key_id, secret_hash = token
            assert receive(opened, key_id, secret_hash, upload, 9, 2, 3.0) == "repeat"
        else:
            assert refusal(receive, opened, *token, upload, 9, 2, 3.0) == (409, code, {})
        assert opened.uploads.totals() == (2, 9)


def test_incarnations_up_to_the_floor_are_not_known_any_more(ended, federation):
    opened, token, _ = ended
    opened.database.run("UPDATE folded SET floor = 5")
    for round, found in ((5, (409, "ended", {})), (6, (410, "round", {"round": 9}))):
        unknown = Counting(federation.shape, "unknown").upload(1, round=round)
        with opened.transaction():
            assert refusal(receive, opened, *token, unknown, 9, 2, 3.0) == found


def test_uploads_of_an_incarnation_that_goes_on(opened, federation):
    token = enrolled(opened)
    life = Counting(federation.shape)
    first, second = life.upload(2), life.upload(5)
    given(opened, token, first)
    given(opened, token, second)
    for upload, found in (
        (replace(first, sequence=1), (409, "backwards", {})),
        (replace(first, sequence=4), (409, "backwards", {})),
        (replace(second, length=1), (409, "conflict", {})),
        (life.upload(6, round=2), (410, "round", {"round": 1})),
    ):
        with opened.transaction():
            assert refusal(receive, opened, *token, upload, 1, 2, 3.0) == found
    for upload in (first, second):
        with opened.transaction():
            assert receive(opened, *token, upload, 7, 2, 3.0) == "repeat"
    opened.erase("alice", 4.0)
    with opened.transaction():
        assert refusal(receive, opened, *token, second, 1, 2, 3.0) == (409, "forgotten", {})


# --------------------------------------------------------------------------------------- the route


def test_the_rate_is_of_each_owner_and_does_not_fill_beyond_its_burst():
    now = 50.0
    rate = Rate(4.0, lambda: now)
    for _ in range(2):  # 4 seconds at one in two seconds
        assert rate.wait("a", 0.5) == 0.0
        rate.done("a", 0.5)
    assert (rate.wait("a", 0.5), rate.wait("b", 0.5)) == (2.0, 0.0)
    rate.done("b", 0.0)  # without a rate nothing is counted
    assert rate.wait("b", -1.0) == 0.0
    now = 53.0
    assert rate.wait("a", 0.5) == 0.0
    now = 51.5
    assert rate.wait("a", 0.5) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("headers", "taken"),
    [
        ({b"content-type": b"application/json"}, True),
        ({b"content-type": b" Application/JSON ; charset=utf-8"}, True),
        ({b"content-type": b"text/json"}, False),
        ({}, False),
        ({b"content-type": b"application/json", b"content-encoding": b"gzip"}, False),
    ],
)
def test_bodies_are_plain_json(headers, taken):
    if taken:
        check_type(headers)
    else:
        assert refusal(check_type, headers)[:2] == (415, "type")


def test_a_body_is_as_large_as_it_may_be():
    assert announced_size({}, 10) == 10
    assert announced_size({b"content-length": b"10"}, 10) == 10
    assert announced_size({b"content-length": b"0"}, 10) == 0
    assert refusal(announced_size, {b"content-length": b"11"}, 10)[:2] == (413, "size")


def body_of(*messages):
    """What is read of these messages, at most 10 bytes."""
    left = list(messages)

    async def receive():
        return left.pop(0)

    return asyncio.run(read_body(receive, 10))


def test_a_body_is_read_to_its_end_and_not_beyond_its_size():
    part = {"type": "http.request", "body": b"12345", "more_body": True}
    end = {"type": "http.request", "body": b"67890"}
    assert body_of(part, end, "never") == b"1234567890"
    assert body_of({"type": "http.request"}, "never") == b""
    assert refusal(body_of, part, part, part)[:2] == (413, "size")
    with pytest.raises(ClientDisconnect):
        body_of(part, {"type": "http.disconnect"})


def test_requests_beyond_the_bounds_are_turned_away_and_leave_nothing_behind(tmp_path):
    """Of a route that is called by hand: bytes and uploads in flight go back to none."""
    from rmab.service.server.limits import ServerLimits
    from rmab.service.server.metrics import Metrics
    from rmab.service.server.uploads import Uploads

    federation = spectrum(uploads_per_second=0.0)
    limits = replace(ServerLimits(), uploads_in_flight=1)
    refused: list[str] = []
    rounds = SimpleNamespace(
        federation=federation,
        limits=limits,
        check_open=lambda: None,
        presence=SimpleNamespace(refused=refused.append),
        number=1,
    )

    class Access:
        async def agent(self, scope, headers, *, again):
            return SimpleNamespace(name="a", owner="acme")

    route = Uploads(rounds, Access(), Metrics())  # type: ignore[arg-type]  # stand-ins
    assert route._refusal is None
    masked = Uploads(rounds, Access(), Metrics(), masked=True)  # type: ignore[arg-type]
    headers = [(b"content-type", b"application/json"), (b"content-length", b"3")]
    sent: list[int] = []

    def ask(route, body=b"{}", more=()):
        async def receive():
            return {"type": "http.request", "body": body}

        async def send(message):
            if message["type"] == "http.response.start":
                sent.append(message["status"])

        asyncio.run(route({"headers": [*headers, *more]}, receive, send))

    def nothing_left(route):
        return (route._held, dict(route._held_of), route._in_flight) == (0, {}, 0)

    assert refusal(ask, masked)[:2] == (422, "malformed")
    assert refusal(ask, route)[:2] == (422, "malformed")
    assert refusal(ask, route, b"x" * (route._most + 1))[:2] == (413, "size")
    assert refusal(ask, route, more=[(b"content-encoding", b"gzip")])[:2] == (415, "type")
    assert refused == ["a"] * 4
    assert nothing_left(route)
    assert nothing_left(masked)
    route._in_flight = 1
    ask(route)
    assert sent == [503]
    route._in_flight = 0
    # A quarter of the room is one owner's at most, and all of it everybody's.
    for held, of_owner, taken in (
        (0, route._room // 4 - 3, True),
        (0, route._room // 4 - 2, False),
        (route._room - 3, 0, True),
        (route._room - 2, 0, False),
    ):
        route._held, route._held_of["acme"] = held, of_owner
        length = {b"content-length": b"3"}
        expected = nullcontext() if taken else pytest.raises(ProtocolError, match="too many bodies")
        with expected:
            assert route._take("acme", length) == 3
        assert route._held == held + 3 * taken
        if taken:
            route._give_back("acme", 3)
            assert (route._held, route._held_of["acme"]) == (held, of_owner)
            assert ("acme" in route._held_of) == (of_owner > 0)


def test_an_upload_over_http_is_counted_once_and_its_refusal_is_of_the_agent(tmp_path):
    with served(tmp_path, spectrum(deadline=3600.0)) as live:
        a, b = live.agent("a"), live.agent("b")
        for agent in (a, b):
            agent.fetch()
        upload = a.play()
        answers = [a.send(upload) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [201, 200]
        assert [answer.json()["status"] for answer in answers] == ["new", "repeat"]
        assert answers[0].json() == {"status": "new", "sequence": 1, "round": 1}
        assert a.send(replace(upload, round=2)).status_code in (409, 410)
        assert a.send(b"{").status_code == 422
        rows = {row["name"]: row for row in live.client().get("/v1/overview").json()["agents"]}
        assert (rows["a"]["uploads"], rows["b"]["uploads"]) == (1, 0)
        assert rows["b"]["refused"] == 0
        text = live.client().get("/metrics").text
        assert 'rmab_uploads_total{result="new"} 1.0' in text
        assert 'rmab_uploads_total{result="repeat"} 1.0' in text
        (seconds,) = (
            float(line.split()[1]) for line in text.splitlines() if "upload_seconds_sum" in line
        )
        assert 0 < seconds < 60
        assert np.isfinite(seconds)
