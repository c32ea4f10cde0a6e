"""What a server warns of: settings, clocks and agents that contradict one another."""

import re

import numpy as np
import pytest
from benchmarks.liar import lie

from rmab.model.arms import channels
from rmab.model.realisation import SimulatedArms
from rmab.service.admin import DatabaseAdmin
from rmab.service.server.limits import ServerLimits
from rmab.service.server.rounds import UNPACED
from tests.service.support.serving import served, spectrum, until

DAY = 86_400.0
PACED = spectrum(slot_seconds=1.0)
ARMS = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])


def warnings(live):
    """What the page warns of now."""
    live.server.rounds.changes += 1  # or it is the page of a moment ago
    return live.client().get("/v1/overview").json()["warnings"]


def logged(live, event):
    return [found for found in live.events() if found["event"] == event]


@pytest.mark.parametrize(
    ("keys", "warns"),
    [({}, True), ({"slot_seconds": 0}, True), ({"slot_seconds": 0.5}, False)],
)
def test_slots_without_a_limit_are_warned_of(tmp_path, keys, warns):
    with served(tmp_path, spectrum(**keys)) as live:
        assert warnings(live) == ([UNPACED] if warns else [])
        found = logged(live, "slots are not limited")
        assert [(e["level"], e["detail"]) for e in found] == [("warning", UNPACED)] * warns


def test_a_clock_that_was_ahead_is_told_and_stops_nobody(tmp_path):
    """Once the clock was 400 days ahead; then it is right again."""
    now = 1e9
    with served(tmp_path, PACED) as ahead:
        ahead.server.rounds.clock = ahead.server.rounds.presence._clock = lambda: now + 400 * DAY
        dead, going = ahead.agent("dead"), ahead.agent("going")
        for agent in (dead, going):
            agent.fetch()
        for agent in (dead, going):
            assert agent.send(agent.play()).status_code == 201
        assert warnings(ahead) == []
    with served(tmp_path, PACED, limits=ServerLimits(first_tidy_seconds=0.01)) as live:
        rounds = live.server.rounds
        rounds.clock = rounds.presence._clock = lambda: now
        until(lambda: logged(live, "clock is behind"))
        (event,) = logged(live, "clock is behind")
        assert (event["level"], event["now"]) == ("warning", "2001-09-09T01:46:40Z")
        (says,) = warnings(live)
        assert re.match(r"The clock is \d+ days behind the newest time", says)
        page = live.client().get("/v1/overview").json()
        assert {row["name"]: (row["live"], row["last_seen"]) for row in page["agents"]} == {
            "dead": (False, None),
            "going": (False, None),
        }
        # Who comes now is live, and has what time allows from now on.
        going.client = live.client(going.token)
        assert going.fetch(after=1, wait=20) is not None
        live.server.rounds.changes += 1
        rows = live.client().get("/v1/overview").json()["agents"]
        assert {row["name"] for row in rows if row["live"]} == {"going"}
        rounds.clock = rounds.presence._clock = lambda: now + 100
        answer = going.send(going.play())
        assert answer.status_code == 201, answer.text


def reported(live, truthful, liars, slots=300):
    """Agents that tell what they have seen in so many slots, and others that do not."""
    agents = [live.agent(f"agent-{n}") for n in range(truthful)]
    others = [live.agent(f"liar-{n}") for n in range(liars)]
    for agent in (*agents, *others):
        agent.fetch()
    for n, agent in enumerate(agents):
        arms, rng = SimulatedArms(ARMS, (3, n)), np.random.default_rng(n)
        while agent.player.slots < slots:
            played = sorted(rng.permutation(4)[:2].tolist())
            agent.player.observe(played, arms.sense(played))
        assert agent.send(agent.player.upload(1)).status_code == 201
    for n, agent in enumerate(others):
        told = lie(live.federation.shape, slots, incarnation=f"{n:032x}")
        assert agent.send(told).status_code == 201


@pytest.mark.parametrize(("truthful", "liars"), [(2, 2), (3, 1)])
def test_two_camps_are_called_so(tmp_path, truthful, liars):
    federation = spectrum(slot_seconds=0.01, deadline=3600.0)
    with served(tmp_path, federation, limits=ServerLimits(outlier_seconds=0.0)) as live:
        reported(live, truthful, liars)
        until(lambda: live.client().get("/v1/overview").json()["agents"][0]["outlier"] is not None)
        found = [text for text in warnings(live) if text.startswith("Two camps: ")]
        assert len(found) == (truthful == liars)
        for text in found:
            assert "no majority is clear" in text


def test_the_log_says_who_acted(tmp_path):
    """Over HTTP the admin; on the database the user whose command it was, at the next round."""
    with served(tmp_path, PACED) as live:
        boss = live.client(live.enroll("boss", "admin"))
        agent = live.agent("a")
        made = {"name": "b", "owner": "acme"}
        assert boss.post("/v1/agents", json=made).status_code == 201
        assert boss.delete("/v1/agents/b/counts").status_code == 200
        assert boss.delete("/v1/agents/b").status_code == 204
        (enrolled,) = [e for e in logged(live, "enrolled") if e["agent"] == "b"]
        assert (enrolled["by"], enrolled["owner"], enrolled["role"]) == ("boss", "acme", "agent")
        (revoked,) = logged(live, "revoked")
        assert (revoked["agent"], revoked["by"]) == ("b", "boss")
        assert agent.episode().status_code == 201
        until(lambda: live.server.rounds.number == 2)
        agent.client.post("/v1/leave")  # no round waits for it until its deadline
        with DatabaseAdmin(PACED, live.database) as admin:
            admin.revoke("boss")
            admin.forget("a")
        assert live.agent("c").episode(after=1, wait=20).status_code == 201
        until(lambda: len(logged(live, "revoked")) == 2 and logged(live, "forgotten"))
        by = {e["by"] for e in logged(live, "revoked")[1:] + logged(live, "forgotten")}
        assert len(by) == 1
        assert by.pop().endswith(", on the database")

        def enrolled_by():
            return {e["agent"]: e["by"] for e in logged(live, "enrolled")}

        until(lambda: enrolled_by().keys() == {"boss", "a", "b", "c"})
        assert enrolled_by()["a"].endswith(", on the database")


def test_whoever_asks_whether_it_is_ready_is_no_warning(tmp_path, monkeypatch):
    with served(tmp_path, PACED) as live:

        async def waits():
            return "the planner is being compiled"

        monkeypatch.setattr(live.server.rounds, "waits_for", waits)
        assert live.client().get("/readyz").status_code == 503
        assert live.client().get("/v1/round").status_code == 401
        assert [e["route"] for e in logged(live, "refused")] == ["/v1/round"]
