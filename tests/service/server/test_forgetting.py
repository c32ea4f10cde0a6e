"""An agent that is forgotten on a running server: from the next round on it never was there."""

import pytest

from rmab.service.admin import Admin, DatabaseAdmin, HttpAdmin
from rmab.service.agent.agent import Agent
from tests.service.support.serving import PATIENCE, ByHand, Served, served, spectrum, until


def played(live: Served, names: str, rounds: int = 2) -> dict[str, ByHand]:
    """Agents that have closed so many rounds, and have the next."""
    agents = {name: live.agent(name) for name in names}
    for number, agent in enumerate(agents.values()):
        agent.incarnation = f"{number:032x}"
        agent.fetch()
    for number in range(1, rounds + 1):
        for agent in agents.values():
            assert agent.send(agent.play()).status_code == 201
        for agent in agents.values():
            assert agent.fetch(after=number, wait=30).round == number + 1
    return agents


@pytest.fixture(params=["database", "http"])
def admin_of(request):
    """Makes an admin of each kind for a running server."""

    def make(live: Served) -> Admin:
        if request.param == "database":
            return DatabaseAdmin(live.federation, live.database)
        return HttpAdmin(live.url, live.enroll("boss", "admin"))

    return make


@pytest.mark.parametrize("aggregation", ["sum", "none"])
def test_the_next_round_is_that_of_a_federation_without_it(tmp_path, admin_of, aggregation):
    rounds = []
    for names in ("ab", "abz"):
        folder = tmp_path / names
        folder.mkdir()
        with served(folder, spectrum(aggregation=aggregation)) as live:
            agents = played(live, names)
            if "z" in agents:
                with admin_of(live) as admin:
                    assert admin.forget("z") == {
                        "name": "z",
                        "incarnations": 1,
                        "uploads": 2,
                        "slots": 5,
                    }
                assert live.client().get("/v1/overview").json()["slots"] == 10
                agents["z"].client.post("/v1/leave")
            for name in "ab":
                assert agents[name].send(agents[name].play()).status_code == 201
            opened = [agents[name].fetch(after=3, wait=30).plan.index.tolist() for name in "ab"]
            merged = live.server.rounds.opened.merged
            rounds.append((opened, merged.counts.tolist(), merged.visits.tolist(), merged.agents))
            if "z" in agents:

                def forgotten(live=live):
                    return [one for one in live.events() if one["event"] == "forgotten"]

                until(forgotten)
                (event,) = forgotten()
                assert (event["level"], event["agent"], event["round"]) == ("warning", "z", 3)
                assert (event["incarnations"], event["uploads"], event["slots"]) == (1, 2, 5)
                # Rounds keep what they brought; all that was seen is state 1.
                overview = live.client().get("/v1/overview").json()
                brought = [(row["slots"], row["reward"]) for row in overview["rewards"]]
                assert [slots for slots, _ in brought] == [6, 9, 8]
                assert all(0.9 < reward < 1.7 for _, reward in brought)
                # It still has its credential: what it did before is gone, what it does now counts.
                z = agents["z"]
                answer = z.send(z.player.upload(9))
                assert (answer.status_code, answer.json()["error"]) == (409, "forgotten")
                z.incarnation, z.player = 31 * "0" + "f", None
                assert z.episode().status_code == 201
    assert rounds[0] == rounds[1]


def test_a_restart_goes_on_with_what_was_brought(tmp_path, admin_of):
    with served(tmp_path, spectrum()) as live:
        agents = played(live, "ab", 3)
        with admin_of(live) as admin:
            admin.forget("a")
    with served(tmp_path, spectrum()) as again:
        # It is in the log once, of the server that was told or of the one that found out.
        events = live.events() + again.events()
        assert [one["agent"] for one in events if one["event"] == "forgotten"] == ["a"]
        for name, agent in agents.items():
            agents[name] = ByHand(again, name, agent.token)
            agents[name].fetch()
        for agent in agents.values():
            assert agent.send(agent.play()).status_code == 201
        until(lambda: again.server.rounds.number == 5)
        overview = again.client().get("/v1/overview").json()
        assert [row["slots"] for row in overview["rewards"]] == [4, 6, 8, 10]
        assert all(0.9 < row["reward"] < 1.7 for row in overview["rewards"])


def test_what_is_forgotten_while_a_plan_is_made_is_not_in_it(live, admin_of):
    agents = played(live, "ab", 1)
    live.planner.gate.clear()
    for agent in agents.values():
        assert agent.send(agent.play()).status_code == 201
    until(lambda: live.server.rounds.planning.busy)
    with admin_of(live) as admin:
        admin.forget("b")
    live.planner.gate.set()
    assert agents["a"].fetch(after=2, wait=30).round == 3
    merged = live.server.rounds.opened.merged
    assert (merged.agents, merged.visits.sum()) == (1, 2 * 5)
    assert live.planner.calls.count((3, 0)) == 2


def test_only_an_admin_forgets_and_only_agents(live):
    a = live.agent("a")
    boss = live.client(live.enroll("boss", "admin"))
    for client in (live.client(), a.client):
        assert client.delete("/v1/agents/a/counts").status_code == 401
    for name in ("nobody", "boss", "..", "x" * 65):
        answer = boss.delete(f"/v1/agents/{name}/counts")
        assert answer.status_code == 404, name
    assert boss.get("/v1/agents/a/counts").status_code == 405
    assert boss.delete("/v1/agents/a/counts").json() == {
        "name": "a",
        "incarnations": 0,
        "uploads": 0,
        "slots": 0,
    }


def test_an_agent_that_is_forgotten_begins_anew(live, tmp_path, admin_of):
    """A real one, that knows nothing of it until it uploads."""
    token = live.enroll("radio")
    with Agent(live.url, token=token, file=tmp_path / "radio.db", patience=PATIENCE) as agent:
        for _ in range(8):
            agent.observe([1] * len(agent.choose()))
        assert agent.flush(PATIENCE)
        with admin_of(live) as admin:
            assert admin.forget("radio")["slots"] == 8

        def heard() -> bool:
            agent.observe([0] * len(agent.choose()))
            agent.flush(0.05)
            with DatabaseAdmin(live.federation, live.database) as admin:
                (row,) = [row for row in admin.agents() if row["name"] == "radio"]
            return bool(row["slots"] > 0 and row["reward"] == 0.0)  # what it saw before had paid

        until(heard)
