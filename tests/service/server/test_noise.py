"""A server that draws the noise itself: what it releases, when, and that nobody is told more."""

from __future__ import annotations

import json
import os
import random
import re
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import httpx
import jsonschema_rs
import numpy as np
import pytest

import rmab.privacy.accounting
import rmab.service.server.rounds
from rmab.errors import FederationError
from rmab.learning.channel.local_posterior import PosteriorSummaries
from rmab.policies.plans import IndexPlan
from rmab.privacy.accounting import Budget, Release
from rmab.privacy.noise import GRID, MOST_RELEASES, discrete_gaussian
from rmab.privacy.prior_summaries import SummariesMessage
from rmab.privacy.settings import Privacy
from rmab.protocol.config import load_federation
from rmab.service.admin import DatabaseAdmin
from rmab.service.store.releases import Ledgers
from rmab.service.store.store import Store, open_store
from tests.privacy.test_noise import rounded_normal
from tests.service.support.processes import FLAT, SPECTRUM, Machine
from tests.service.support.serving import ByHand, Flat, Planned, Served, served, spectrum, until

PRIVACY = Privacy(epsilon=8.0)
NOISY = spectrum(privacy=PRIVACY, slot_seconds=0)


@pytest.fixture(autouse=True)
def draw(monkeypatch):
    """Noise without OpenDP, which the audit of releases is of."""
    monkeypatch.setattr(rmab.service.server.rounds, "discrete_gaussian", rounded_normal(4))


def play_rounds(running: Served, agents: list[ByHand], rounds: int) -> None:
    """Of 2, 3, 4, ... slots; all of these fetch, and then report."""
    until(lambda: running.server.rounds.number > 0)  # what draws the noise may take long to load
    for _ in range(rounds):
        number = running.server.rounds.number
        for agent in agents:
            assert agent.fetch(number - 1) is not None
        for agent in agents:
            assert agent.send(agent.play()).status_code == 201
        until(lambda n=number: running.server.rounds.number == n + 1)


def told(running: Served, path: str = "/v1/status") -> dict[str, Any]:
    with httpx.Client(base_url=running.url) as client:
        found: dict[str, Any] = client.get(path).raise_for_status().json()
        return found


def kept(running: Served, look: Any) -> Any:
    """What a store has."""
    store = open_store(running.database, running.federation)
    try:
        return look(store)
    finally:
        store.close()


def exact(store: Store) -> Any:
    """The sum without noise."""
    return store.uploads.merged().counts


# ------------------------------------------------------------------------------ what is released


def test_a_sum_is_released_with_noise_when_slots_have_doubled(tmp_path, database_url):
    with served(tmp_path, NOISY, database=database_url) as running:
        agents = [running.agent(name) for name in "abc"]
        seen = []
        for _ in range(6):
            play_rounds(running, agents, 1)
            privacy = told(running)["privacy"]
            (group,) = privacy["groups"]
            seen.append((group["opening"], group["opened_slots"], group["releases_left"]))
        assert seen == [(None, None, 40)] * 2 + [(1, 27, 39)] * 2 + [(2, 60, 38)] * 2
        assert privacy["waiting_slots"] == 81 - 60
        assert (privacy["mode"], privacy["helper"], privacy["least"]) == ("noise", None, None)
        assert (privacy["epsilon"], privacy["delta"]) == (8.0, 1e-6)
        assert privacy["releases_left"] == 38
        assert (group["result"], group["agents"], group["slots"]) == ("released", 3, 33)
        ledger = kept(running, lambda store: store.releases.ledger())
        assert [release.slots for release in ledger.releases] == [27, 60]
        found = running.server.rounds.opened.merged
        assert not found.visits.any()
        assert found.agents == 3
        log = [event for event in running.events() if event["event"] == "sum released"]
        assert [(event["release"], event["left"]) for event in log] == [(1, 39), (2, 38)]


def test_what_is_learnt_from_is_the_exact_sum_with_the_noise_that_is_kept(tmp_path):
    with served(tmp_path, NOISY) as running:
        agents = [running.agent(name) for name in "abc"]
        play_rounds(running, agents, 3)
        counts, ledger = kept(running, lambda store: (exact(store), store.releases.ledger()))
        off = running.server.rounds.opened.merged.counts - counts
        noise = ledger.noise("1").reshape(4, NOISY.shape.kinds, 2, 2)
        assert np.array_equal(off, np.moveaxis(noise, 0, -1))
        assert noise.any()


def test_a_restart_goes_on_with_the_same_release(tmp_path, database_url):
    with served(tmp_path, NOISY, database=database_url) as running:
        agents = [running.agent(name) for name in "abc"]
        play_rounds(running, agents, 3)
        before = running.server.rounds.opened.merged
    with served(tmp_path, NOISY, database=database_url) as running:
        assert np.array_equal(running.server.rounds.opened.merged.counts, before.counts)
        for agent in agents:
            agent.served, agent.client = running, running.client(agent.token)
        play_rounds(running, agents, 1)  # not doubled yet: planned from the same
        assert np.array_equal(running.server.rounds.opened.merged.counts, before.counts)
        play_rounds(running, agents, 1)
        assert not np.array_equal(running.server.rounds.opened.merged.counts, before.counts)
        assert told(running)["privacy"]["groups"][0]["releases_left"] == 38


def test_a_server_that_dies_after_a_release_tells_the_same(tmp_path, monkeypatch):
    """What was drawn is durable; the round that was not closed is planned from it."""
    close, dies = Store.close_round, [True]

    def dying(self, *words):
        if dies and words[0] == 3:
            raise RuntimeError("killed")
        return close(self, *words)

    monkeypatch.setattr(Store, "close_round", dying)
    with served(tmp_path, NOISY) as running:
        agents = [running.agent(name) for name in "abc"]
        play_rounds(running, agents, 2)
        for agent in agents:
            agent.fetch(2)
        for agent in agents:
            agent.send(agent.play())
        until(lambda: any(event["event"] == "sum released" for event in running.events()))
        until(lambda: any("killed" in str(event.get("error")) for event in running.events()))
    dies.clear()
    before = kept(running, lambda store: store.releases.ledger())
    sums = kept(running, lambda store: store.merged())
    with served(tmp_path, NOISY) as running:
        until(lambda: running.server.rounds.number == 4)
        assert np.array_equal(running.server.rounds.opened.merged.counts, sums.counts)
        assert kept(running, lambda store: store.releases.ledger()) == before
        assert len(before.releases) == 1


class Elsewhere:
    """A server in a process of its own, for agents by hand."""

    def __init__(self, url: str) -> None:
        self.federation, self.url = NOISY, url

    def client(self, token: str | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"})


def test_a_server_that_is_killed_keeps_what_it_has_drawn(tmp_path):
    """kill -9 while rounds close: each release is the sum of what agents had told, with the noise
    that is kept, and none is made twice."""
    text = SPECTRUM.replace("seed = 7", "slot_seconds = 0") + "[privacy]\nepsilon = 8\n"
    machine = Machine(tmp_path, dict(os.environ), program=FLAT, text=text)
    federation = load_federation(tmp_path / "spectrum.toml")
    database, chance = str(tmp_path / "spectrum.db"), random.Random(5)
    with DatabaseAdmin(federation, database) as admin:
        tokens = {name: admin.enroll(name, "agent") for name in "abc"}
    server = machine.serve("--open")
    elsewhere: Any = Elsewhere(server.url)
    agents = [ByHand(elsewhere, name, token) for name, token in tokens.items()]
    released: dict[int, Any] = {}
    try:
        for number in range(1, 6):
            for agent in agents:
                agent.fetch(number - 1, 20)
            told = [agent.play() for agent in agents]
            for agent, upload in zip(agents, told, strict=True):
                assert agent.send(upload).status_code == 201
            if number in (3, 5):  # a sum is released
                time.sleep(0.02 * chance.random())
                server.process.kill()
                server.close_pipe()
                server = machine.serve("--open", port=server.port)
                for agent in agents:
                    agent.client.close()
                    agent.client = elsewhere.client(agent.token)
            ready = f"{elsewhere.url}/readyz"
            until(lambda n=number, at=ready: httpx.get(at).json().get("round") == n + 1)
            with closing(open_store(database, federation)) as store:
                assert store.releases is not None
                ledger, found = store.releases.ledger(), store.merged()
            if len(ledger.releases) > len(released):
                noise = np.moveaxis(
                    ledger.noise(str(len(ledger.releases))).reshape(4, -1, 2, 2), 0, -1
                )
                assert np.array_equal(found.counts - noise, sum(upload.counts for upload in told))
                released[number] = ledger
            elif released:
                assert ledger == released[max(released)]
        assert [len(each.releases) for each in released.values()] == [1, 2]
        assert list(released) == [3, 5]
        assert released[5].releases[:1] == released[3].releases
        assert server.end() == 0
    finally:
        server.process.kill()
        server.close_pipe()
        for agent in agents:
            agent.client.close()


def test_after_the_last_release_agents_play_on(tmp_path):
    store = open_store(str(tmp_path / "federation.db"), NOISY)
    assert NOISY.budget is not None
    ledgers = Ledgers(store.database, NOISY.budget, NOISY.plays, NOISY.shape.size)
    with store.transaction():
        for number in range(1, MOST_RELEASES + 1):
            z = tuple([number] * NOISY.shape.size)
            ledgers.keep(1, Release(str(number), number, z))
    store.close()
    with served(tmp_path, NOISY) as running:
        agents = [running.agent(name) for name in "abc"]
        play_rounds(running, agents, 4)
        (group,) = told(running)["privacy"]["groups"]
        assert group["releases_left"] == 0
        assert not any(event["event"] == "sum released" for event in running.events())
        assert not running.server.rounds.opened.merged.counts.any()


def test_noise_is_drawn_by_opendp(tmp_path, monkeypatch):
    monkeypatch.setattr(rmab.service.server.rounds, "discrete_gaussian", discrete_gaussian)
    with served(tmp_path, NOISY) as running:
        play_rounds(running, [running.agent("a")], 3)
        z = kept(running, lambda store: store.releases.ledger().releases[0].noise)
        scale = GRID * Budget(8.0).scale(2)
        assert 0.5 * scale < np.std(z) < 2 * scale


# ------------------------------------------------------------------------------- what nobody sees


class Telling(Flat):
    """Plans, laws and estimates that tell all of what they were made from."""

    def plan(self, merged, number, lane=0, each=None, memory=None):
        index = np.zeros((self.shape.n_arms, 5), np.float32)
        index[:, 0] = merged.visits.sum()
        index[:, 1:] = merged.counts.sum(0).reshape(4, -1).T
        return Planned(IndexPlan(2, 2, index, self.shape.states), None)

    def laws(self, merged, number, groups=None):
        assert groups is None
        mean = np.clip(merged.counts.sum(0).reshape(1, 4, -1)[:, :2] / 100, -90, 90)[..., None]
        spread = np.tile(np.array([0.1, 0.02, 0.2])[None, :, None, None], (1, 1, 4, 1))
        prior = (1.0, 1.0)
        return SummariesMessage(
            "spectrum", number, "whittle", 0, prior, 0.1, ("all",), PosteriorSummaries(mean, spread)
        )

    def estimates(self, merged):
        one = {"mean": float(merged.counts.sum()), "low": float(merged.counts.min()), "high": 1e6}
        return [{"p01": one, "p11": one} for _ in self.shape.states]


OWN = replace(NOISY, draws="own")
ROUTES = [f"/v1/{name}" for name in ("round", "laws", "status", "overview", "agents")]
ROUTES += ["/metrics", "/readyz", "/openapi.json", "/"]


def seen_by_all(folder, monkeypatch, state_of, released) -> dict[str, str]:
    """All that agents, readers and admins are answered, and the log, where arms show such states
    and the first release comes to such a sum."""
    folder.mkdir()

    def compensating(budget, plays, size):
        if size == 1:
            return [0]
        sums = np.moveaxis(kept(running, exact), -1, 0).ravel()
        return (GRID * (released - sums)).tolist()

    monkeypatch.setattr(rmab.service.server.rounds, "discrete_gaussian", compensating)
    with served(folder, OWN, Telling(OWN), clock=lambda: 1000.0) as running:
        agents = [running.agent(name) for name in "abc"]
        roles = {role: running.client(running.enroll(role, role)) for role in ("admin", "viewer")}
        clients = {"agent": agents[0].client, **roles}
        for number in range(1, 5):
            for agent in agents:
                agent.incarnation = f"{ord(agent.name):032x}"
                agent.fetch(number - 1)
            for agent in agents:
                while not agent.player.over:
                    arms = agent.player.choose().tolist()
                    agent.player.observe(arms, [state_of(agent.name, arm, number) for arm in arms])
                agent.sequence += 1
                assert agent.send(agent.player.upload(agent.sequence)).status_code == 201
            until(lambda n=number: running.server.rounds.number == n + 1)
        rows = kept(running, lambda store: (store.agents(), store.counts_by_agent()))
        seen = {"store": str(rows), "counts": str(kept(running, exact).tolist())}
        for role, client in clients.items():
            for route in ROUTES:
                # Times and sizes of the machine are not counts.
                timed = r"^(#.*|rmab_\w+_(seconds|bytes|created|jobs)\w*.*|rmab_(conn|http|dro).*)$"
                text = re.sub(timed, "", client.get(route).text, flags=re.MULTILINE)
                seen[f"{role} {route}"] = text
        rounds = ("round open", "round closed", "sum released")
        events = [event for event in running.events() if event["event"] in rounds]
        seen["log"] = json.dumps([{**event, "time": 0} for event in events])
    return {place: re.sub(r"\b1[78]\d{8}\.\d+", "0", text) for place, text in seen.items()}


def test_nobody_is_told_more_than_what_was_released(tmp_path, monkeypatch):
    """Two worlds in which agents saw other states, and whose noise comes to the same release: all
    that is told is the same in both. Only the exact sum, in the database, differs."""
    released = np.arange(NOISY.shape.size) + 40
    bright = seen_by_all(tmp_path / "1", monkeypatch, lambda *_: 1, released)
    dark = seen_by_all(
        tmp_path / "2", monkeypatch, lambda name, arm, r: int(name == "a" or arm == 1), released
    )
    assert bright.pop("counts") != dark.pop("counts")
    for place, text in bright.items():
        assert dark[place] == text, place
    assert "[0.0,84.0,86.0,88.0,90.0]" in bright["agent /v1/round"]
    assert '"covariance"' in bright["agent /v1/laws"]
    page = json.loads(bright["viewer /v1/overview"])
    assert page["rewards"][0]["reward"] is None
    assert page["arms"][0]["plays"] is None


def test_the_answers_are_as_the_openapi_document_has_them(tmp_path):
    with served(tmp_path, NOISY) as running:
        agents = [running.agent(name) for name in "abc"]
        found = told(running, "/openapi.json")
        assert "/v1/uploads" in found["paths"]
        assert not {"/v1/masked", "/v1/agents/{name}/counts"} & found["paths"].keys()
        for rounds in (1, 3):
            play_rounds(running, agents, rounds)
            for name, path in (("Status", "/v1/status"), ("Overview", "/v1/overview")):
                schema = {"components": found["components"]} | {
                    "$ref": f"#/components/schemas/{name}"
                }
                jsonschema_rs.validate(schema, told(running, path))


def test_metrics_tell_how_many_releases_are_left(tmp_path):
    with served(tmp_path, NOISY) as running:
        play_rounds(running, [running.agent(name) for name in "abc"], 3)
        text = running.client().get("/metrics").text
        assert 'rmab_releases_left{group="1"} 39.0' in text
        assert 'rmab_openings_total{result="released"} 1.0' in text
        assert "rmab_waiting_slots 0.0" in text
        assert "rmab_agent_outlier{" not in text


# -------------------------------------------------------------------------------------- refusals


def test_what_was_released_cannot_be_taken_out(tmp_path):
    """A sum without the agent would tell what it gave."""
    with served(tmp_path, NOISY) as running:
        agents = [running.agent(name) for name in "abc"]
        play_rounds(running, agents, 3)
        admin = running.client(running.enroll("boss", "admin"))
        answer = admin.delete("/v1/agents/a/counts")
        assert (answer.status_code, answer.json()["error"]) == (409, "sums")
        assert "released in sums" in answer.json()["detail"]
        with (
            DatabaseAdmin(NOISY, running.database) as there,
            pytest.raises(FederationError, match="what a gave is released in sums, as"),
        ):
            there.forget("a")


def test_a_database_of_another_mode_or_epsilon_is_refused(tmp_path):
    place = str(tmp_path / "noise.db")
    open_store(place, NOISY).close()
    open_store(place, NOISY).close()
    for changed in (
        replace(PRIVACY, epsilon=2.0),
        replace(PRIVACY, delta=1e-5),
        replace(PRIVACY, survey=16),
    ):
        other = replace(NOISY, draws="own", privacy=changed)
        with pytest.raises(FederationError, match=r"was begun with epsilon = 8\.0 and delta"):
            open_store(place, other)
    clear = replace(NOISY, privacy=None)
    secure = replace(NOISY, privacy=Privacy("http://127.0.0.1:9", epsilon=8.0))
    for number, (first, other, has) in enumerate(
        (
            (NOISY, clear, "counts that are released with noise, but"),
            (NOISY, secure, "counts that are released with noise, but"),
            (clear, NOISY, "counts of single agents, but"),
            (secure, NOISY, "sums alone, but"),
        )
    ):
        place = str(tmp_path / f"{number}.db")
        open_store(place, first).close()
        with pytest.raises(FederationError, match=has):
            open_store(place, other)


def test_a_server_without_opendp_does_not_start(tmp_path, monkeypatch):
    def missing(*_):
        raise FederationError("privacy.epsilon needs OpenDP")

    monkeypatch.setattr(rmab.service.server.rounds, "discrete_gaussian", missing)
    with pytest.raises(FederationError, match="needs OpenDP"), served(tmp_path, NOISY):
        pass
    assert not list(tmp_path.glob("*.db"))


# --------------------------------------------------------------------------------- what it costs


@pytest.mark.parametrize(("epsilon", "agents", "warned"), [(8.0, 2, True), (8.0, 4, False)])
def test_a_server_warns_of_noise_that_costs_few_agents_much(tmp_path, epsilon, agents, warned):
    federation = spectrum(privacy=Privacy(epsilon=epsilon), slot_seconds=0)
    with DatabaseAdmin(federation, str(tmp_path / "federation.db")) as admin:
        for number in range(4):
            admin.enroll(f"agent-{number}", "agent")
        for number in range(agents, 4):
            admin.revoke(f"agent-{number}")
        admin.enroll("eye", "viewer")
    with served(tmp_path, federation) as running:
        found = [e for e in running.events() if e["event"] == "much noise for few agents"]
    assert [(e["level"], e["agents"]) for e in found] == [("warning", agents)] * warned
    if warned:
        assert found[0]["detail"].startswith("noise of epsilon = 8 costs 2 agents more than they")
