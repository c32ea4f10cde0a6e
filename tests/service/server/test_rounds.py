"""A server that restarts, has faults or has too much to do: rounds go on, nobody is in the way."""

import asyncio
import json
import secrets
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import psycopg
import pytest
from benchmarks.liar import lie

from rmab.cli import main
from rmab.errors import ProtocolError, StorageError
from rmab.policies.plans import IndexPlan
from rmab.protocol.config import load_federation
from rmab.protocol.shape import Upload
from rmab.service.admin import DatabaseAdmin
from rmab.service.server.limits import ServerLimits
from rmab.service.server.rounds import LongPolls, Presence
from rmab.service.server.status import Status
from rmab.service.store.database import SqliteDatabase
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import CLOCK_SECONDS, AgentRow, claimed_store
from tests.service.support.processes import SPECTRUM
from tests.service.support.serving import PATIENCE, ByHand, Flat, Planned, served, spectrum, until

# ----------------------------------------------------------------------------------------- restarts


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


def test_an_agent_weighs_no_more_than_the_cap(tmp_path):
    """The plan tells the visits that it was made from."""
    federation = spectrum(cap=2, draws="per-agent")
    shape = federation.shape
    slots = {"a": 40, "b": 50, "c": 60, "liar": 10**5}
    uploads = {name: lie(shape, n, length=n, incarnation=f"{n:032x}") for name, n in slots.items()}
    pairs = {name: int(upload.counts.sum()) for name, upload in uploads.items()}
    visits = {name: int(upload.visits.sum()) for name, upload in uploads.items()}
    due = sum(visits[name] for name in "abc") + visits["liar"] * 2 * pairs["b"] / pairs["liar"]
    with served(tmp_path, federation) as live:
        agents = {name: live.agent(name) for name in slots}
        for agent in agents.values():
            agent.fetch()
        for name, agent in agents.items():
            assert agent.send(uploads[name]).status_code == 201
        plan = agents["a"].fetch(after=1, wait=30).plan
        assert plan.index[0, 0] == pytest.approx(due, rel=1e-6)
        # What is counted stays what was sent.
        assert live.client().get("/v1/overview").json()["slots"] == sum(slots.values())
    with served(tmp_path, federation) as again:
        late = ByHand(again, "c", agents["c"].token).fetch()
        assert late.plan.index[0, 0] == pytest.approx(due, rel=1e-6)


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
        until(lambda: again.server.rounds.number == 3)


def test_the_next_plan_depends_on_seed_counts_and_round_alone(tmp_path):
    """With the planner in earnest: a restart in between changes nothing."""
    from rmab.protocol.planner import Planner

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
                live.server.rounds.planning._planner._planner = first
            assert a.send(a.play()).status_code == 201
            if first is None:
                plans.append(a.fetch(after=1, wait=20).plan)
        if restarts:
            with served(folder, federation, planner) as again:
                plans.append(ByHand(again, "a", a.token).fetch(after=1, wait=20).plan)
    assert plans[0].index.tolist() == plans[1].index.tolist()
    assert plans[0].index.std() > 0


class Telling(Flat):
    """Plans that tell what they were made from: every index is the number of visits, plus how many
    agents they are of / 16."""

    def plan(self, merged, number, lane=0, each=None, memory=None):
        self.calls.append((number, lane))
        told = merged.visits.sum() + merged.agents / 16
        index = np.full((self.shape.n_arms, 5), told, np.float32)
        return Planned(IndexPlan(2, 2, index, self.shape.states), None)


def test_plans_from_the_counts_of_each_agent_are_the_same_after_a_restart(tmp_path, database_url):
    federation = spectrum(aggregation="none", deadline=3600.0)

    def made_from(agent, after=0):
        return float(agent.fetch(after=after, wait=10).plan.index[0, 1])

    planner = Telling(federation)
    with served(tmp_path, federation, planner, database=database_url) as live:
        agents = [live.agent(name) for name in "ab"]
        assert [made_from(agent) for agent in agents] == [0, 0]
        for agent in agents:
            assert agent.send(agent.play()).status_code == 201
        assert made_from(agents[0], after=1) == 4 + 1 / 16  # two slots of two plays
        # What b sends now is too late for the plans of round 2, of which b's is not made yet.
        late = agents[1]
        late.player.observe([0, 1], [1, 1])
        assert late.send(replace(late.player.upload(2), round=2)).status_code == 201
        c = live.agent("c")
    planner = Telling(federation)
    with served(tmp_path, federation, planner, database=database_url) as again:
        a, b, c = (ByHand(again, agent.name, agent.token) for agent in (*agents, c))
        assert [made_from(agent) for agent in (a, b, c)] == [4 + 1 / 16, 4 + 1 / 16, 0]
        assert planner.calls == [(2, 1), (2, 2)]  # the first was kept
        assert again.server.rounds.number == 2


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


def test_nothing_is_left_when_it_ends(tmp_path):
    before = threading.active_count()
    # A client of its own, as the server's are closed with it, though one may still be read from.
    with ThreadPoolExecutor() as pool, httpx.Client(timeout=PATIENCE) as own:
        with served(tmp_path, spectrum()) as live:
            a = live.agent("a")
            a.episode()
            assert a.fetch(after=1, wait=10).round == 2
            address, header = f"{live.url}/v1/round?after=2&wait=30", dict(a.client.headers)
            asked = pool.submit(own.get, address, headers=header)
            until(lambda: live.server.rounds.polls.count == 1)
        assert asked.result(PATIENCE).status_code == 204
    until(lambda: threading.active_count() <= before)  # others may have ended


def test_a_server_drops_what_can_no_longer_matter(tmp_path, database_url):
    store = StoreLimits(ended_seconds=0.0, told_apart_seconds=0.0, repeat_seconds=0.0)
    limits = ServerLimits(tidy_seconds=0.02, tidy_agents=1, store=store)
    with served(tmp_path, spectrum(), database=database_url, limits=limits) as live:
        agents = [live.agent(name) for name in "ab"]
        loop = live.server._loop
        assert loop is not None

        def rows(table):
            job = f"SELECT COUNT(*) FROM {table}"
            done = live.server.rounds.jobs.run(lambda store: store.database.rows(job)[0][0])
            return asyncio.run_coroutine_threadsafe(done, loop).result(PATIENCE)

        first: dict[str, Upload] = {}
        for number in range(1, 7):
            for agent in agents:
                agent.incarnation, agent.player, agent.sequence = secrets.token_hex(16), None, 0
                assert agent.fetch(after=number - 1, wait=10).round == number
            # What is folded after the agents' last upload would be told apart for ever.
            until(lambda: rows("incarnations") <= len(agents))
            for agent in agents:
                upload = agent.play()
                first.setdefault(agent.name, upload)
                assert agent.send(upload).status_code == 201

        until(lambda: rows("incarnations") <= 6 and rows("ended") <= 6)
        # A repeat of the last upload is known as one until its row is dropped.
        until(lambda: all(a.send(first[a.name]).status_code == 409 for a in agents))
        assert rows("folded") == 2
        status = live.client().get("/v1/status").json()
        assert status["uploads"] == 12
        for agent in agents:
            answer = agent.send(first[agent.name])
            assert (answer.status_code, answer.json()["error"]) == (409, "ended")
    with served(tmp_path, spectrum(), database=database_url) as again:
        after = again.client().get("/v1/status").json()
        assert (after["uploads"], after["slots"]) == (12, status["slots"])


# ------------------------------------------------------------------------------------------- faults


def test_a_plan_that_fails_is_tried_again_and_the_round_stays_open(tmp_path):
    limits = ServerLimits(first_retry_seconds=0.05)
    with served(tmp_path, spectrum(), limits=limits) as live:
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

    monkeypatch.setattr(Status, "numbers", broken)
    answer = live.client().get("/v1/status")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert any(e["event"] == "fault" and "a secret" in e["error"] for e in live.events())
    assert live.client().get("/healthz").status_code == 200


def test_a_database_that_fails_is_503_and_heals(live, pair, monkeypatch):
    a, _ = pair
    commit = SqliteDatabase.commit

    def full(self):
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise self._trouble("did not commit", error)

    upload = a.play()
    monkeypatch.setattr(SqliteDatabase, "commit", full)
    answer = a.send(upload)
    assert (answer.status_code, answer.json()["error"]) == (503, "storage")
    assert answer.headers["Retry-After"] == "1"
    assert "federation.db" not in answer.text  # that is for the log
    (told,) = [e for e in live.events() if e.get("reason") == "storage"]
    assert told["detail"].endswith(
        "federation.db did not commit: disk full: database or disk is full"
    )
    assert live.client().get("/readyz").status_code == 503
    monkeypatch.setattr(SqliteDatabase, "commit", commit)
    assert a.send(upload).status_code == 201
    assert live.client().get("/readyz").json() == {"status": "ready", "round": 1}


def test_who_only_fetches_holds_up_two_rounds_and_no_more(tmp_path):
    limits = ServerLimits(first_retry_seconds=0.05)
    with served(tmp_path, spectrum(deadline=0.3), limits=limits) as live:
        a, silent = live.agent("a"), live.agent("silent")
        reasons = []
        for number in range(1, 6):
            silent.fetch(after=number - 1, wait=10)
            a.episode(after=number - 1, wait=10)
            until(lambda n=number: live.server.rounds.number == n + 1)
            reasons.append(live.client().get("/v1/overview").json()["rounds"][1]["reason"])
        assert reasons == ["deadline", "deadline", "all", "all", "all"]
        # It reports, and is awaited again.
        assert silent.episode(after=5, wait=10).status_code == 201
        a.episode(after=5, wait=10)
        until(lambda: live.server.rounds.number == 7)
        silent.fetch(after=6, wait=10)
        a.episode(after=6, wait=10)
        until(lambda: live.server.rounds.number == 8)
        rounds = live.client().get("/v1/overview").json()["rounds"]
        assert [row["reason"] for row in rounds[2:0:-1]] == ["all", "deadline"]


@pytest.mark.postgres
@pytest.mark.parametrize("ended", [False, True])
def test_a_server_whose_database_another_has_taken_ends(tmp_path, postgres_url, ended):
    """What it has in mind may be out of date; whoever supervises it starts another."""
    server = served(tmp_path, spectrum(), database=postgres_url)
    live = server.__enter__()
    client = live.client()
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_locks "
            "WHERE locktype = 'advisory' AND objid = "
            "CAST(CAST(hashtext(current_schema()) AS BIT(32)) AS BIGINT)"
        )
    other = claimed_store(postgres_url, spectrum())
    if ended:
        other.close()
    assert client.get("/v1/status").status_code == 503
    until(lambda: not live.server.rounds.jobs.running)
    with pytest.raises(StorageError, match="served by another process"):
        server.__exit__(None, None, None)
    if not ended:
        other.close()


# -------------------------------------------------------------------------------------------- live


@pytest.mark.parametrize(("keys", "seconds"), [({}, 60.0), ({"live_seconds": 7.5}, 7.5)])
def test_live_is_who_was_heard_of_lately(tmp_path, keys, seconds, capsys):
    (tmp_path / "federation.toml").write_text(
        SPECTRUM.replace("deadline = 3600", "deadline = 30").replace(
            "[[arm]]", "".join(f"{k} = {v}\n" for k, v in keys.items()) + "[[arm]]", 1
        )
    )
    federation = load_federation(tmp_path / "federation.toml")
    with served(tmp_path, federation) as live:
        a, b, gone = live.agent("a"), live.agent("b"), live.agent("gone")
        never = live.agent("never")
        for agent in (a, b, gone):
            agent.fetch()
        with DatabaseAdmin(federation, live.database) as admin:
            admin.revoke("gone")
        admin_token = tmp_path / "admin.token"
        admin_token.write_text(live.enroll("boss", "admin"))
        now, rounds = live.server.rounds.clock(), live.server.rounds

        def shown(later):
            """Who is live by the page, the list, the status and the metrics, a while later."""
            rounds.clock = lambda: now + later
            rounds.changes += 1  # or the page is the one of a moment ago
            page = live.client().get("/v1/overview").json()
            main(["agents", live.url, "--token-file", str(admin_token), "--json"])
            listed = json.loads(capsys.readouterr().out)["agents"]
            found = {row["name"] for row in listed if row["live"]}
            assert {row["name"] for row in page["agents"] if row["live"]} == found
            assert live.client().get("/v1/status").json()["live"] == len(found)
            assert (
                f'rmab_agents{{state="live"}} {len(found)}.0' in live.client().get("/metrics").text
            )
            return found

        assert shown(0.0) == {"a", "b"}
        assert shown(seconds - 1) == {"a", "b"}
        assert a.episode().status_code == 201  # heard of again
        assert shown(seconds + 1) == {"a"}
        assert shown(2 * seconds) == set()
        with ThreadPoolExecutor() as pool:
            held = pool.submit(b.fetch, after=rounds.number, wait=20)
            until(lambda: rounds.polls.count == 1)
            assert shown(9 * seconds) == {"b"}  # it is at the server, waiting
            rounds._loop.call_soon_threadsafe(rounds.polls.wake_all, False)
            assert held.result(PATIENCE) is None
        assert never.name not in shown(0.0)


def test_live_by_the_database_alone(tmp_path, capsys, monkeypatch):
    (tmp_path / "federation.toml").write_text(SPECTRUM.replace("deadline = 3600", "deadline = 30"))
    federation = load_federation(tmp_path / "federation.toml")
    with served(tmp_path, federation) as live:
        assert live.agent("a").episode().status_code == 201
        live.agent("b")
        live.enroll("boss", "admin")
    times, words = time.time(), ["agents", str(tmp_path / "federation.toml")]
    for later, due in ((0.0, {"a"}), (59.0, {"a"}), (62.0, set())):
        monkeypatch.setattr(time, "time", lambda later=later: times + later)
        assert main([*words, "--json"]) == 0
        rows = json.loads(capsys.readouterr().out)["agents"]
        assert {row["name"] for row in rows if row["live"]} == due
    assert main(words) == 0
    head, boss, a, b = (line.split() for line in capsys.readouterr().out.splitlines())
    columns = ["live", "uploads", "outlier", "revoked"]
    assert head == ["name", "role", "enrolled", "last", "seen", *columns]
    assert (boss[-2:], a[-4], b[-4]) == (["-", "-"], "no", "no")


# ----------------------------------------------------------------------------------------- overload


def test_uploads_beyond_the_bound_are_told_to_come_back(tmp_path):
    with served(tmp_path, spectrum(), limits=ServerLimits(uploads_in_flight=0)) as busy:
        a = busy.agent("a")
        a.fetch()
        answer = a.send(a.play())
        assert (answer.status_code, answer.json()["error"]) == (503, "overload")
        assert answer.headers["Retry-After"] == "1"
        assert busy.client().get("/v1/overview").json()["agents"][0]["refused"] == 0
    with served(tmp_path, spectrum()) as live:
        a.client = live.client(a.token)
        assert a.send(a.player.upload(1)).status_code == 201


def test_a_deadline_that_is_reloaded_holds_for_the_open_round(tmp_path):
    file = tmp_path / "federation.toml"
    file.write_text(SPECTRUM)  # it has an hour
    with served(tmp_path, load_federation(file), file=file) as live:
        punctual, late = live.agent("a"), live.agent("b")
        late.fetch()
        assert punctual.episode().status_code == 201
        assert live.server.rounds.number == 1
        file.write_text(SPECTRUM.replace("deadline = 3600", "deadline = 0.05"))
        loop = live.server._loop
        assert loop is not None
        loop.call_soon_threadsafe(live.server.reload)
        assert punctual.fetch(after=1, wait=30).round == 2
        (closed,) = [event for event in live.events() if event["event"] == "round closed"]
        assert closed["reason"] == "deadline"


def test_one_agent_cannot_take_all_the_waiting(tmp_path):
    limits = ServerLimits(round_waits_of_agent=2)
    with served(tmp_path, spectrum(), limits=limits) as live, ThreadPoolExecutor() as pool:
        a, b = live.agent("a"), live.agent("b")
        for agent in (a, b):
            assert agent.fetch().round == 1
        held = [
            pool.submit(live.client(a.token).get, "/v1/round?after=1&wait=20") for _ in range(2)
        ]
        until(lambda: live.server.rounds.polls.count == 2)
        third = a.client.get("/v1/round?after=1&wait=20")
        assert (third.status_code, third.headers["Retry-After"]) == (503, "1")
        other = pool.submit(b.fetch, after=1, wait=20)
        until(lambda: live.server.rounds.polls.count == 3)
        live.client(a.token).post("/v1/leave")
        assert [one.result(PATIENCE).status_code for one in held] == [204, 204]
        live.client(b.token).post("/v1/leave")
        assert other.result(PATIENCE) is None


# ---------------------------------------------------------------------- parts, without a server


def test_a_request_waits_until_it_is_woken_or_its_time_is_over():
    async def scenario():
        polls = LongPolls(replace(ServerLimits(), round_waits=3, round_waits_of_agent=2))
        assert not await polls.wait("a", 0.0)
        assert not await polls.wait("a", -1.0)
        started = time.monotonic()
        assert not await polls.wait("a", 0.05)
        assert time.monotonic() - started >= 0.04
        assert (polls.count, polls.names) == (0, set())
        waits = [asyncio.ensure_future(polls.wait(name, 60.0)) for name in ("a", "a", "b")]
        await asyncio.sleep(0)
        assert (polls.count, polls.names) == (3, {"a", "b"})
        for name in ("a", "c"):  # two of an agent, three of all
            with pytest.raises(ProtocolError) as caught:
                await polls.wait(name, 60.0)
            assert (caught.value.status, caught.value.code) == (503, "overload")
        polls.wake("nobody", True)
        polls.wake("b", True)
        assert await waits[2]
        assert (polls.count, polls.names - {"c"}) == (2, {"a"})
        with pytest.raises(ProtocolError):
            await polls.wait("a", 60.0)
        polls.release()
        assert await asyncio.gather(*waits[:2]) == [False, False]
        assert polls.count == 0
        assert not await polls.wait("b", 60.0)  # nobody waits any more

    asyncio.run(asyncio.wait_for(scenario(), 30))


def test_what_the_database_may_not_have_yet_is_told_of_an_agent():
    now = 100.0
    said: list[Any] = []
    kept: list[Any] = []

    class Jobs:
        async def run(self, job):
            job(SimpleNamespace(credentials=SimpleNamespace(sighted=kept.extend)))

    jobs: Any = Jobs()
    log: Any = lambda *event, **more: said.append(more)  # noqa: E731 - as Any
    presence = Presence(jobs, log, lambda: now)
    blank: dict[str, Any] = dict.fromkeys(AgentRow._fields)
    row = AgentRow(**{**blank, "name": "a", "last_seen": 90.0, "last_round": 4, "refused": 2})
    assert presence.updated(row) == row
    asyncio.run(presence.write())
    assert kept == []
    presence.met("a")
    presence.met("a")
    presence.refused("a")
    presence.refused("b")
    presence.fetched["a"] = 3
    assert said == [{"agent": "a"}]  # the first time only
    found = presence.updated(row)
    assert (found.last_seen, found.last_round, found.refused) == (100.0, 4, 3)
    presence.fetched["a"] = 5
    assert presence.updated(row).last_round == 5
    assert presence.updated(row._replace(last_seen=None, last_round=None))[5:7] == (100.0, 5)
    assert presence.updated(row._replace(last_seen=200.0)).last_seen == 200.0
    now = 100.0 - CLOCK_SECONDS
    assert presence.updated(row).last_seen == 100.0
    now -= 0.1  # the clock was ahead when it was seen
    assert presence.updated(row).last_seen == 90.0
    asyncio.run(presence.write())
    assert sorted(kept) == [("a", 100.0, 5, 1), ("b", 0.0, None, 1)]
    assert presence.updated(row).refused == 2  # the database has it now
    asyncio.run(presence.write())
    assert len(kept) == 2


def test_the_log_rounds_rewards_and_says_none_where_there_are_none(live, pair):
    a, b = pair
    for agent in (a, b):
        assert agent.send(agent.play()).status_code == 201
    assert a.fetch(after=1, wait=20).round == 2
    (closed,) = (event for event in live.events() if event["event"] == "round closed")
    assert (closed["round"], closed["reason"], closed["reports"]) == (1, "all", 2)
    assert closed["reward"] == round(closed["reward"], 6) > 0


def test_agents_of_an_owner_are_planned_for_by_their_own_counts(tmp_path):
    """Their sum is weighed, so the server needs what each has counted."""
    for owners, each in ((("acme", "acme"), True), ((None, None), False)):
        folder = tmp_path / str(each)
        folder.mkdir()
        federation = spectrum()
        with served(folder, federation) as live:
            boss = live.client(live.enroll("boss", "admin"))
            agents = []
            for name, owner in zip("ab", owners, strict=True):
                body = {"name": name} if owner is None else {"name": name, "owner": owner}
                made = boss.post("/v1/agents", json=body).json()
                agents.append(ByHand(live, name, made["token"]))
            for agent in agents:
                agent.fetch()
            for agent in agents:
                assert agent.send(agent.play()).status_code == 201
            assert agents[0].fetch(after=1, wait=20).round == 2
            live_database = live.database
        store = claimed_store(live_database, federation)
        found = store.current_round()
        store.close()
        assert found is not None
        assert (found.by_lane is not None) == each
