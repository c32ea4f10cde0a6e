"""Server and helper together: sums are opened when rounds close, each slot once, whoever dies."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import httpx
import jsonschema_rs
import numpy as np
import pytest

from rmab.errors import FederationError, UnreachableError
from rmab.privacy.settings import Privacy
from rmab.service.server import unmasking as opening
from rmab.service.server.unmasking import HelperAccess
from rmab.service.store.store import open_store
from rmab.service.store.unmasking import Openings
from tests.service.support.securing import Masking, Securing, secured
from tests.service.support.serving import until


@pytest.fixture
def both(tmp_path):
    with secured(tmp_path) as running:
        yield running


def play_round(both: Securing, *agents: Masking) -> None:
    """All of these fetch, and then report."""
    number = both.served.server.rounds.number
    for agent in agents:
        assert agent.fetch(number - 1) is not None
    for agent in agents:
        answer = agent.send(agent.play())
        assert answer.status_code == 201, answer.text
    until(lambda: both.served.server.rounds.number == number + 1)


def merged(both: Securing):
    store = open_store(both.server_database, both.federation)
    try:
        return store.merged()
    finally:
        store.close()


def test_a_round_closes_with_the_sum_of_what_its_agents_counted(both):
    agents = [both.agent(name) for name in "abc"]
    for _ in range(3):
        play_round(both, *agents)
        found = merged(both)
        assert np.array_equal(found.visits, both.ledger())
        assert found.agents == 3
    opened = both.served.server.rounds.opened
    assert np.array_equal(opened.merged.visits, both.ledger())
    privacy = both.status()["privacy"]
    assert privacy["waiting_slots"] == 0
    assert privacy["helper"]["up"] is True
    (group,) = privacy["groups"]
    assert (group["group"], group["opening"], group["agents"]) == (1, 3, 3)
    assert group["opened_slots"] == both.status()["slots"] == 3 * (2 + 3 + 4)


def test_rewards_are_of_sums_and_of_no_agent(both):
    agents = [both.agent(name) for name in "abc"]
    play_round(both, *agents)
    with httpx.Client(base_url=both.served.url) as client:
        page = client.get("/v1/overview").json()
    (reward,) = page["rewards"]
    paid = float((both.ledger() * both.federation.rewards).sum())
    assert reward["reward"] == pytest.approx(paid / 6)
    assert all(agent["reward"] is None and agent["outlier"] is None for agent in page["agents"])
    assert page["correlation"] is None
    admin = both.served.client(both.served.enroll("root", "admin"))
    told = admin.get("/v1/agents").json()["agents"]
    assert [agent["reward"] for agent in told] == [None] * 4
    assert [agent["slots"] for agent in told if agent["role"] == "agent"] == [2, 2, 2]


def test_the_openapi_document_is_of_this_mode(both):
    agents = [both.agent(name) for name in "abc"]
    with httpx.Client(base_url=both.served.url) as client:
        found = client.get("/openapi.json").json()
        assert "/v1/masked" in found["paths"]
        assert "/v1/uploads" not in found["paths"]
        refer = {"components": found["components"]}
        before = client.get("/v1/overview").json()
        agents[0].fetch()
        body = json.loads(agents[0].body(agents[0].play()))
        for name, told in (
            ("Status", client.get("/v1/status").json()),
            ("Overview", before),
            ("Masked", body),
        ):
            schema = refer | {"$ref": f"#/components/schemas/{name}"}
            jsonschema_rs.validate(schema, told)


def test_with_too_few_agents_slots_wait_for_the_next_opening(both):
    agents = [both.agent(name) for name in "abc"]
    play_round(both, *agents[:2])
    assert not merged(both).visits.any()
    assert both.status()["privacy"]["waiting_slots"] == 4
    play_round(both, *agents)
    assert merged(both).visits.sum() == 2 * 3 * 3  # the slots of "c", and of others as many
    waits = {row["agent"]: row["slots"] for row in both.status()["privacy"]["waiting"]}
    assert waits == {"a": 2, "b": 2}
    agents[2].fetch(2)
    agents[2].play(2)
    play_round(both, *agents)  # "c" is ahead now, at 9, and "a" at 9
    assert np.array_equal(merged(both).visits, both.ledger())
    assert both.status()["privacy"]["waiting_slots"] == 0


def test_agents_of_unequal_speed_are_opened_as_far_as_the_slowest(both):
    agents = [both.agent(name) for name in "abcd"]
    extra = dict(zip("abcd", (0, 1, 3, 7), strict=True))
    for _ in range(4):
        number = both.served.server.rounds.number
        for agent in agents:
            agent.fetch(number - 1)
        for agent in agents:
            agent.play()
            upload = agent.play(extra[agent.name])
            assert agent.send(replace(upload, length=1)).status_code == 201
        until(lambda number=number: both.served.server.rounds.number == number + 1)
        (group,) = both.status()["privacy"]["groups"]
        slowest = min(agent.player.slots for agent in agents)
        assert group["opened_slots"] == 4 * slowest  # all are marks until 16
        assert merged(both).visits.sum() == 2 * 4 * slowest
    assert slowest == 14


def test_an_agent_that_is_away_holds_up_few_for_few_rounds(both):
    """Eight agents; one dies. Three stay with it; four go on. It comes back, and nothing of any is
    lost."""
    agents = [both.agent(name) for name in "abcdefgh"]
    play_round(both, *agents)
    leave = [agent.client.post("/v1/leave") for agent in agents[7:]]
    assert [answer.status_code for answer in leave] == [200]
    opened = []
    for _ in range(5):
        play_round(both, *agents[:7])
        opened.append(both.status()["privacy"]["groups"][0]["opened_slots"])
    assert opened[:2] == [16, 16]
    assert opened[2] > 16  # after three rounds
    others = four(both)
    assert len(others) == 4
    assert agents[0].player.slots == 27
    assert merged(both).visits.sum() == 2 * (4 * 26 + 4 * 2)  # up to their last mark, and 2
    agents[7].fetch(0)
    agents[7].play(agents[0].player.slots - agents[7].player.slots)
    play_round(both, *agents)
    found = both.status()["privacy"]
    assert found["groups"][0]["opened_slots"] == 8 * 32
    assert merged(both).visits.sum() == 2 * 8 * 32
    assert found["waiting_slots"] == 8 * (agents[0].player.slots - 32)


def four(both: Securing) -> set[str]:
    """Who is opened up to the furthest position."""
    with both.helper_store() as store:
        cohorts = {row.name: row.cohort for row in store.agents()}
    (apart,) = set(cohorts.values()) - {cohorts["h"]}
    return {name for name, cohort in cohorts.items() if cohort == apart}


def test_clear_counts_are_refused_and_nothing_of_them_is_kept(both):
    agents = [both.agent(name) for name in "abc"]
    agents[0].fetch()
    upload = agents[0].play()
    federation = both.federation
    clear = upload.to_json(federation.shape, federation.name)
    kind = {"Content-Type": "application/json"}
    answer = agents[0].client.post("/v1/uploads", content=clear, headers=kind)
    assert (answer.status_code, answer.json()["error"]) == (422, "malformed")
    assert "POST /v1/masked" in answer.json()["detail"]
    assert both.status()["uploads"] == 0
    assert agents[0].send(upload).status_code == 201


def test_a_masked_upload_is_answered_as_any_other(both):
    agent = both.agent("a")
    agent.fetch()
    upload = agent.play()
    body = agent.body(upload)
    agent.marks.clear()  # those before it
    assert agent.send(body).status_code == 201
    assert agent.send(body).json()["status"] == "repeat"
    assert agent.send(upload).json()["error"] == "conflict"  # a fresh nonce: another body
    table = json.loads(body)
    for key, value, status in (
        ("masked", table["masked"][:-4], 422),
        ("masked", "?" * len(table["masked"]), 422),
        ("nonce", "00", 422),
        ("tag", 7, 422),
        ("round", 9, 410),
        ("since", -1, 422),
        ("since", 2**40 + 1, 422),
        ("counts", [], 422),
    ):
        changed = json.dumps(table | {"sequence": upload.sequence + 1, key: value}).encode()
        assert agent.send(changed).status_code == status, key
    until(lambda: both.served.server.rounds.number == 2)
    further = table | {"sequence": upload.sequence + 1, "round": 2}
    for change in ({"since": 1}, {"since": 1, "incarnation": "ab" * 16, "sequence": 1}):
        answer = agent.send(json.dumps(further | change).encode())
        assert (answer.status_code, answer.json()["error"]) == (409, "since")
        assert answer.json()["position"] == 2
    del table["since"]
    answer = agent.send(json.dumps(table).encode())
    assert answer.status_code == 422
    assert "rmab is too old to mask its counts at marks; update it" in answer.json()["detail"]


def test_a_federation_without_a_helper_takes_no_masked_upload(live):
    agent = live.agent("a")
    agent.fetch()
    kind = {"Content-Type": "application/json"}
    answer = agent.client.post("/v1/masked", content=b"{}", headers=kind)
    assert (answer.status_code, answer.json()["error"]) == (422, "malformed")


def test_a_helper_that_is_away_holds_up_the_round_and_nothing_else(both):
    agents = [both.agent(name) for name in "abc"]
    play_round(both, *agents)
    both.stop_helper()
    for agent in agents:
        agent.fetch(1)
        assert agent.send(agent.play()).status_code == 201
    until(lambda: both.status()["privacy"]["helper"]["up"] is False)
    assert "not reached" in both.status()["privacy"]["helper"]["trouble"]
    with httpx.Client(base_url=both.served.url) as client:
        text = client.get("/metrics").text
    assert "rmab_helper_up 0.0" in text
    assert "rmab_waiting_slots 9.0" in text
    assert both.served.server.rounds.number == 2
    both.start_helper()
    until(lambda: both.served.server.rounds.number == 3)
    assert np.array_equal(merged(both).visits, both.ledger())


def test_sums_are_opened_by_group(tmp_path):
    with secured(tmp_path, groups=2) as both:
        first = [both.agent(name, 1) for name in "abc"]
        second = [both.agent(name, 2) for name in "def"]
        play_round(both, *first, *second)
        groups = both.status()["privacy"]["groups"]
        assert [(g["group"], g["opening"], g["opened_slots"]) for g in groups] == [
            (1, 1, 6),
            (2, 2, 6),
        ]
        assert np.array_equal(merged(both).visits, both.ledger())
        second[2].client.post("/v1/leave")
        play_round(both, *first, *second[:2])
        groups = both.status()["privacy"]["groups"]
        assert [g["opening"] for g in groups] == [3, 2]
        assert [w["agent"] for w in both.status()["privacy"]["waiting"]] == ["d", "e"]


def test_who_the_helper_refuses_is_left_out_and_the_others_go_on(tmp_path):
    with secured(tmp_path, live_seconds=0.001) as both:
        refuse_one_of_four(both)


def refuse_one_of_four(both: Securing) -> None:
    agents = [both.agent(name) for name in "abcd"]
    with both.helper_store() as store:
        store.revoke("d", 2.0)
        store.enroll("d", None, 3.0)  # another key than the agent's
    play_round(both, *agents)
    assert not merged(both).visits.any()
    agents[3].client.post("/v1/leave")  # no round waits for it until its deadline
    for _ in range(4):  # sums wait for "d"
        play_round(both, *agents[:3])
    assert np.array_equal(merged(both).visits, sum(agent.told_visits for agent in agents[:3]))
    (waits,) = both.status()["privacy"]["waiting"]
    assert waits == {"agent": "d", "slots": 2, "refused": "did not make this tag"}
    assert any(event["event"] == "opening refused" for event in both.events())


def test_an_impossible_sum_is_dropped_logged_counted_and_shown(both):
    agents = [both.agent(name) for name in "abc"]
    number = both.served.server.rounds.number
    for agent in agents:
        agent.fetch()
    for agent in agents:
        if agent.name == "b":  # more visits than there were slots
            agent.player.visits[1] += 100
        assert agent.send(agent.play()).status_code == 201
    until(lambda: both.served.server.rounds.number == number + 1)
    assert not merged(both).visits.any()
    privacy = both.status()["privacy"]
    assert privacy["impossible"] == 1
    assert privacy["groups"][0]["result"] == "impossible"
    assert privacy["waiting_slots"] == 0
    (event,) = [e for e in both.events() if e["event"] == "impossible sum dropped"]
    assert event["agents"] == ["a", "b", "c"]
    with httpx.Client(base_url=both.served.url) as client:
        assert 'rmab_openings_total{result="impossible"} 1.0' in client.get("/metrics").text
    play_round(both, *agents)  # what comes next counts
    assert merged(both).visits.sum() == 2 * 3 * 3


def test_a_helper_of_ten_impossible_sums_is_asked_no_more(both, monkeypatch):
    """Its agents' keys are others, say: every sum is noise. The rounds stay open."""
    wrong = "nobody counts so much"
    monkeypatch.setattr(opening, "check_sum", lambda *_: wrong)
    agents = [both.agent(name) for name in "abc"]
    for number in range(1, 10):
        play_round(both, *agents)
        assert both.status()["privacy"]["helper"]["up"] is True, number
    for agent in agents:
        agent.fetch(9)
        assert agent.send(agent.play()).status_code == 201
    until(lambda: both.status()["privacy"]["helper"]["up"] is False)
    found = both.status()["privacy"]
    assert found["impossible"] == 10
    assert "its last 10 sums were impossible" in found["helper"]["trouble"]
    (event,) = [e for e in both.events() if e["event"] == "helper not asked any more"]
    assert event["level"] == "error"

    asked: list[object] = []
    rounds = both.served.server.rounds
    monkeypatch.setattr(rounds.opening, "_request", lambda *words: asked.append(words))
    again = asyncio.run_coroutine_threadsafe(rounds.opening.open(11), rounds._loop)
    with pytest.raises(UnreachableError, match="its last 10 sums were impossible"):
        again.result(60)
    assert not asked


def test_what_an_agent_gave_cannot_be_taken_out_of_sums(both):
    both.agent("a")
    admin = both.served.client(both.served.enroll("root", "admin"))
    answer = admin.delete("/v1/agents/a/counts")
    assert (answer.status_code, answer.json()["error"]) == (409, "sums")
    store = open_store(both.server_database, both.federation)
    try:
        with pytest.raises(FederationError, match="in sums alone"):
            store.erase("a", 1.0)
    finally:
        store.close()


def test_a_helper_that_was_set_back_is_not_asked_on(both):
    agents = [both.agent(name) for name in "abc"]
    play_round(both, *agents)
    both.stop_helper()
    backup = (both.folder / "helper.db").read_bytes()
    both.start_helper()
    play_round(both, *agents)
    both.stop_helper()
    for end in ("", "-wal", "-shm"):
        (both.folder / f"helper.db{end}").unlink(missing_ok=True)
    (both.folder / "helper.db").write_bytes(backup)
    both.start_helper()
    for agent in agents:
        agent.fetch(2)
        agent.send(agent.play())
    until(lambda: "does not go on" in str(both.status()["privacy"]["helper"]["trouble"]))
    assert both.served.server.rounds.number == 3
    assert merged(both).visits.sum() == 2 * 3 * (2 + 3)


def test_a_helper_that_is_begun_anew_goes_on_with_new_keys(both, monkeypatch):
    """Also where an opening was written down that the lost one was to be asked for."""
    agents = [both.agent(name) for name in "abc"]
    play_round(both, *agents)
    written = []
    real = Openings.write

    def last_words(self, *words):
        both.stop_helper()
        found = real(self, *words)
        written.append(found)
        return found

    monkeypatch.setattr(Openings, "write", last_words)
    for agent in agents:
        agent.fetch(1)
        agent.send(agent.play())
    until(lambda: bool(written))
    monkeypatch.undo()
    for end in ("", "-wal", "-shm"):
        (both.folder / f"helper.db{end}").unlink(missing_ok=True)
    both.stop_server()
    before = merged(both).visits
    with both.helper_store() as store:
        both.token = store.enroll_server(1.0)
        keys = {agent.name: store.enroll(agent.name, None, 1.0)[0] for agent in agents}
    both.start_helper()
    both.start_server()
    renewed = [Masking(both.served, agent.name, agent.token, keys[agent.name]) for agent in agents]
    until(lambda: both.served.server.rounds.number == 3)  # with nothing new
    play_round(both, *renewed)
    told = sum(agent.told_visits for agent in renewed)
    assert np.array_equal(merged(both).visits, before + told)
    waits = {row["agent"]: row["refused"] for row in both.status()["privacy"]["waiting"]}
    assert waits.keys() == {"a", "b", "c"}
    assert all("database is lost" in reason for reason in waits.values())


class Losing(httpx.AsyncHTTPTransport):
    """Loses the helper's first answers to openings, after it has kept them."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    async def handle_async_request(self, request):
        answer = await super().handle_async_request(request)
        if request.url.path == "/v1/openings" and self.lost:
            self.lost -= 1
            await answer.aclose()
            raise httpx.ReadError("reset")
        return answer


def test_an_answer_that_is_lost_is_asked_for_again(tmp_path):
    both = Securing(tmp_path)
    try:
        both.start_helper()
        losing = Losing(2)
        both.start_server(helper=HelperAccess(both.token, transport=losing))
        agents = [both.agent(name) for name in "abc"]
        play_round(both, *agents)
        assert losing.lost == 0
        assert np.array_equal(merged(both).visits, both.ledger())
        assert both.status()["privacy"]["groups"][0]["opening"] == 1
    finally:
        both.close()


# -------------------------------------------------------------------------------- at the start


def fails(both: Securing, **settings) -> str:
    with pytest.raises(FederationError) as error:
        both.start_server(**settings)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_rules_that_differ_end_the_server_at_its_start(tmp_path):
    both = Securing(tmp_path)
    try:
        both.start_helper()
        both._least_and_groups = {"least": 4}
        both.federation = spectrum_with(both, least=4)
        assert "must have the same privacy as this server" in fails(both)
        both.federation = spectrum_with(both)
        both.token = both.token[:-1] + ("A" if both.token[-1] != "A" else "B")
        assert "refuses the credential" in fails(both)
        assert "needs --helper-token-file" in fails(both, helper=None)
        assert "--helper-ca" in fails(both, helper=HelperAccess(both.token, "/nowhere.pem"))
    finally:
        both.close()


def spectrum_with(both: Securing, **privacy):
    return replace(both.federation, privacy=Privacy(both.helper_url, **privacy))


def test_a_database_of_the_other_mode_is_refused(tmp_path, federation):
    secure = replace(federation, privacy=Privacy("http://127.0.0.1:9"))
    for first, other, reason in (
        (federation, secure, "counts of single agents, but"),
        (secure, federation, "sums alone, but"),
    ):
        path = str(tmp_path / f"{reason[:4]}.db")
        open_store(path, first).close()
        with pytest.raises(FederationError, match=reason):
            open_store(path, other)


# ---------------------------------------------------------------------------- dying on the way


STEPS = ("write", "answer", "add")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [False, True])
def test_a_server_that_dies_at_a_step_adds_each_slot_once(tmp_path, monkeypatch, step, after):
    """It dies just before or just after what it does is durable."""
    both = Securing(tmp_path)
    try:
        both.start_helper()
        both.start_server()
        agents = [both.agent(name) for name in "abc"]
        play_round(both, *agents)
        real = getattr(Openings, step)
        died: list[str] = []

        def dying(self, *words):
            if not died and not after:
                died.append(step)
                raise RuntimeError("killed")
            if died and not after and len(died) == 1:
                raise RuntimeError("killed")
            found = real(self, *words)
            if after:
                died.append(step)
            return found

        monkeypatch.setattr(Openings, step, dying)
        for agent in agents:
            agent.fetch(1)
        for agent in agents:
            agent.send(agent.play())
        until(lambda: bool(died))
        both.stop_server()
        monkeypatch.setattr(Openings, step, real)
        both.start_server()
        until(lambda: both.served.server.rounds.number >= 3)
        assert np.array_equal(merged(both).visits, both.ledger())
        number = both.served.server.rounds.number
        for agent in agents:
            agent.fetch(number - 1)
        for agent in agents:
            agent.send(agent.play())
        until(lambda: both.served.server.rounds.number == number + 1)
        assert np.array_equal(merged(both).visits, both.ledger())
    finally:
        both.close()
