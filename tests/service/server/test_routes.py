"""Rounds and uploads on a running server: what it answers, what it refuses."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from benchmarks.liar import lie

from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.uploads import most_bytes
from tests.service.support.serving import PATIENCE, ByHand, Flat, served, spectrum, until


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


@pytest.mark.parametrize(("seconds", "told"), [(1, "1"), (0.123456789, "0.123456789"), (0, None)])
def test_agents_are_told_the_shortest_slot_with_each_round(tmp_path, seconds, told):
    with served(tmp_path, spectrum(slot_seconds=seconds)) as made:
        answer = made.agent("one").client.get("/v1/round")
        assert answer.headers.get("rmab-slot-seconds") == told


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
    until(lambda: live.server.rounds.number == 2)
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
    assert live.client().get("/v1/status").json()["live"] == 2  # both were just heard of
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
        until(lambda: live.server.rounds.polls.count == 1)
        live.client(a.token).post("/v1/leave")
        assert waiting.result(PATIENCE) is None


def test_who_hung_up_does_not_take_part(live, pair):
    a, b = pair
    impatient = httpx.Client(base_url=live.url, headers=a.client.headers, timeout=0.3)
    with pytest.raises(httpx.ReadTimeout):
        impatient.get("/v1/round?after=1&wait=20")
    impatient.close()
    a.send(a.play())
    b.send(b.play())
    until(lambda: live.server.rounds.number == 2)
    until(lambda: live.server.rounds.polls.count == 0)
    assert live.server.rounds.presence.fetched["a"] == 1


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


def test_more_slots_than_time_allows_are_refused(live, pair):
    a, _ = pair
    shape = live.federation.shape
    answer = a.send(lie(shape, 2**40))
    assert answer.status_code == 429
    assert answer.json()["error"] == "slots"
    assert "got 1099511627776" in answer.json()["detail"]
    assert int(answer.headers["Retry-After"]) > 0
    overview = live.client().get("/v1/overview").json()
    assert overview["slots"] == 0
    assert {row["name"]: row["refused"] for row in overview["agents"]} == {"a": 1, "b": 0}
    assert 'rmab_uploads_total{result="slots"} 1.0' in live.client().get("/metrics").text
    (event,) = [event for event in live.events() if event["event"] == "refused"]
    assert (event["agent"], event["reason"], event["status"]) == ("a", "slots", 429)
    assert a.send(a.play()).status_code == 201


def test_slot_seconds_of_0_are_no_limit(tmp_path):
    with served(tmp_path, spectrum(slot_seconds=0)) as live:
        assert live.agent("a").send(lie(live.federation.shape, 2**40)).is_success
