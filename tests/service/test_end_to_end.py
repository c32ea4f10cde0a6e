"""The whole through its front doors: `rmab` as processes, agents as programs use them."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess

import httpx
import numpy as np
import pytest

import rmab
from rmab.errors import FederationError
from rmab.model.arms import channels
from rmab.protocol.config import load_federation
from rmab.service.agent.limits import AgentLimits
from rmab.service.http.tokens import parse_token
from tests.protocol.lockstep import engine_decisions, true_states
from tests.service.support.processes import Machine, environment
from tests.service.support.serving import PATIENCE, until

PAPER = channels([0.2, 0.89, 0.1, 0.9], [0.8, 0.17, 0.9, 0.16], [0.4, 0.9, 0.7, 0.6])
AGENTS, SLOTS = 3, 160
ENDED, KILLED = 60, 118  # slots after which the server restarts: in an episode, at the end of one
STUDY = """\
plays = 2
policies = ["whittle"]
[[arm]]
p01 = 0.20
p11 = 0.80
reward = 0.4
[[arm]]
p01 = 0.89
p11 = 0.17
reward = 0.9
[[arm]]
p01 = 0.10
p11 = 0.90
reward = 0.7
[[arm]]
p01 = 0.90
p11 = 0.16
reward = 0.6
"""
RADIO = """\
class Radio:
    def sense(self, arms):
        return [arm % 2 for arm in arms]
"""


@pytest.fixture(scope="module")
def machine(tmp_path_factory):
    return Machine(tmp_path_factory.mktemp("end"), environment(tmp_path_factory))


@pytest.fixture(scope="module")
def played(machine, tmp_path_factory):
    """Three agents slot by slot, through two restarts of their server, and what was seen of it."""
    folder = tmp_path_factory.mktemp("agents")
    federation = load_federation(machine.folder / "spectrum.toml")
    tokens = [machine.enroll(f"radio-{m}") for m in range(AGENTS)]
    states = true_states(PAPER, federation.seed, AGENTS, SLOTS)
    decisions = np.zeros(states.shape, bool)
    around = []  # the status before and after each restart
    server = machine.serve("--open")

    def restart(number):
        nonlocal server
        before = status(server) if number == signal.SIGTERM else None
        assert server.end(number) == (0 if number == signal.SIGTERM else -number)
        server = machine.serve("--open", port=server.port)
        around.append((before, status(server)))

    limits = AgentLimits(first_pause=0.02, longest_pause=0.1)
    agents = [
        rmab.Agent(server.url, token=token, file=folder / f"{m}.db", limits=limits)
        for m, token in enumerate(tokens)
    ]
    try:
        for slot in range(SLOTS):
            for m, agent in enumerate(agents):
                if agent.over:
                    assert agent.wait(300)
                arms = agent.choose()
                decisions[slot, m, arms] = True
                agent.observe(states[slot, m, arms].tolist())
            if slot == ENDED:
                assert not agents[0].over
                restart(signal.SIGTERM)
            if slot == KILLED:
                restart(signal.SIGKILL)
        for agent in agents:
            assert agent.flush(PATIENCE)
        last = status(server)
    finally:
        for agent in agents:
            agent.close()
    made = {"machine": machine, "server": server, "decisions": decisions, "states": states}
    with server:
        yield made | {"around": around, "status": last, "tokens": tokens}
    assert "fault" not in machine.log.read_text()


def status(server):
    return httpx.get(f"{server.url}/v1/status", timeout=PATIENCE).json()


@pytest.mark.slow  # tests/protocol/test_planner.py has it without a network
def test_agents_decide_as_the_engine_does_slot_by_slot_through_restarts(played, monkeypatch):
    federation = load_federation(played["machine"].folder / "spectrum.toml")
    there = engine_decisions(monkeypatch, PAPER, federation, AGENTS, SLOTS)
    here = played["decisions"]
    np.testing.assert_array_equal(here, there)
    assert len({tuple(row) for row in here[:, 0].tolist()}) > 3


def test_a_restart_goes_on_with_the_same_round_and_posterior(played):
    (before, after), (_, killed) = played["around"]
    assert before["round"] > 5
    for key in ("round", "uploads", "slots", "arms", "limit"):
        assert after[key] == before[key]
    assert killed["round"] >= after["round"]


def test_the_status_is_what_was_seen(played):
    found = played["status"]
    assert {"round", "agents", "uploads", "arms"} <= found.keys()
    assert found["agents"] == AGENTS
    assert found["slots"] == AGENTS * SLOTS
    assert [set(arm) >= {"p01", "p11"} for arm in found["arms"]] == [True] * 4
    # Of the arm that is played most the truth lies in sight: five standard errors.
    plays = played["decisions"].sum((0, 1))
    arm = int(plays.argmax())
    pairs = [
        (int(states[t, arm]), int(states[t + 1, arm]))
        for m in range(AGENTS)
        for states, mask in [(played["states"][:, m], played["decisions"][:, m])]
        for t in range(SLOTS - 1)
        if mask[t, arm] and mask[t + 1, arm]
    ]
    for key, start in (("p01", 0), ("p11", 1)):
        estimate = found["arms"][arm][key]
        assert set(estimate) == {"mean", "low", "high"}
        assert 0 <= estimate["low"] < estimate["mean"] < estimate["high"] <= 1
        # The open round's estimate lacks what came since it was opened: at worst half of the pairs,
        # and then it is off by a standard error of at most 1 / (2 sqrt(n)).
        seen = [to for frm, to in pairs if frm == start]
        off = 3 / (2 * math.sqrt(len(seen) + 2))
        assert estimate["mean"] == pytest.approx(np.mean([0, 1, *seen]), abs=off)


@pytest.mark.parametrize("kind", ["simulate", "env"])
def test_the_agent_command(played, kind):
    machine, server = played["machine"], played["server"]
    token = machine.enroll(kind)
    (machine.folder / "study.toml").write_text(STUDY)
    (machine.folder / "my_radio.py").write_text(RADIO)
    what = {"simulate": "study.toml", "env": "my_radio:Radio"}[kind]
    before = status(server)
    done = machine.rmab(
        *("agent", server.url, "--token-file", machine.token_file(kind, token)),
        *(f"--{kind}", what, "--slots", "45", "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    table = json.loads(done.stdout)
    assert list(table) == ["slots", "reward", "uploads", "round", "bad_readings"]
    assert table["slots"] == 45
    assert 0 <= table["reward"] <= 1.6
    after = status(server)
    assert after["slots"] == before["slots"] + 45
    assert after["uploads"] == before["uploads"] + table["uploads"]
    assert table["round"] <= after["round"]
    assert (table["round"] > before["round"]) or kind == "env"  # it waits for no round


def test_enrolling_prints_the_token_alone(played):
    machine = played["machine"]
    done = machine.rmab("enroll", "spectrum.toml", "alone")
    assert done.stderr == ""
    assert done.stdout.endswith("\n")
    assert parse_token(done.stdout[:-1]) is not None
    again = machine.rmab("enroll", "spectrum.toml", "alone")
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr == "rmab enroll: alone is enrolled already; revoke it first\n"
    listed = json.loads(machine.rmab("agents", "spectrum.toml", "--json").stdout)["agents"]
    assert "alone" in {agent["name"] for agent in listed}
    assert done.stdout.strip().split("_", 2)[2] not in json.dumps(listed)


def test_a_revoked_agent_is_refused_at_once_and_plays_on(played, tmp_path):
    machine, server = played["machine"], played["server"]
    token = machine.enroll("leaver")
    header = {"Authorization": f"Bearer {token}"}
    with (
        httpx.Client(base_url=server.url, headers=header, timeout=PATIENCE) as client,
        rmab.Agent(server.url, token=token, file=tmp_path / "a.db") as agent,
    ):
        agent.observe([1] * len(agent.choose()))
        assert agent.flush(PATIENCE)
        assert client.get("/v1/round").status_code == 200
        machine.rmab("revoke", "spectrum.toml", "leaver")  # on the database, by another process
        assert client.get("/v1/round").status_code == 401
        for path in ("/v1/uploads", "/v1/leave"):
            assert client.post(path, json={}).status_code == 401
        before = status(server)
        for _ in range(100):
            agent.observe([0] * len(agent.choose()))
        assert agent.slots == 101
        assert not agent.flush(0.3)
        assert agent.unsent
        assert status(server)["slots"] == before["slots"]  # what it gave stays, no more comes
    with pytest.raises(FederationError, match="refuses the credential"):
        rmab.Agent(server.url, token=token, file=tmp_path / "b.db", patience=PATIENCE)


def test_an_agents_token_does_no_admins_work(played):
    machine, server = played["machine"], played["server"]
    token = machine.enroll("ambitious")
    header = {"Authorization": f"Bearer {token}"}
    with httpx.Client(base_url=server.url, headers=header, timeout=PATIENCE) as client:
        assert client.get("/v1/agents").status_code == 401
        assert client.post("/v1/agents", json={"name": "friend"}).status_code == 401
        assert client.delete("/v1/agents/radio-0").status_code == 401
    file = machine.token_file("ambitious", token)
    for words in (("enroll", server.url, "friend"), ("revoke", server.url, "radio-0")):
        done = machine.rmab(*words, "--token-file", file)
        assert (done.returncode, done.stdout) == (2, "")
        assert len(done.stderr.splitlines()) == 1
    boss = machine.token_file("boss", machine.enroll("boss", "--admin"))
    done = machine.rmab("enroll", server.url, "friend", "--token-file", boss)
    assert done.returncode == 0
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as client:
        friend = {"Authorization": f"Bearer {done.stdout.strip()}"}
        assert client.get("/v1/round", headers=friend).status_code == 200
        boss_header = {"Authorization": f"Bearer {(machine.folder / boss).read_text().strip()}"}
        assert client.get("/v1/round", headers=boss_header).status_code == 401
        client.post("/v1/leave", headers=friend)


def test_interrupted_the_server_ends_in_order(tmp_path, machine):
    other = Machine(tmp_path, machine.environment)
    (other.folder / "spectrum.db").write_bytes(b"")
    server = other.serve()
    assert server.end(signal.SIGINT) == 0
    events = [json.loads(line)["event"] for line in other.log.read_text().splitlines()]
    # Where loading was quick, it is ready before it is interrupted.
    unsure = {"ready", "round open"}
    due = ["slots are not limited", "listening", "stopped"]
    assert [event for event in events if event not in unsure] == due


@pytest.mark.parametrize(
    "interrupted",
    [False, pytest.param(True, marks=pytest.mark.slow)],
    ids=["to its end", "interrupted"],
)
def test_the_demo_leaves_nothing(tmp_path, machine, interrupted):
    folder, temporary = tmp_path / "work", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    environment = machine.environment | {"TMPDIR": str(temporary), "HOME": str(folder)}
    demo = Machine(folder, environment)
    before = sorted(folder.rglob("*"))
    slots = "100000" if interrupted else "60"
    process = demo.start(
        *("demo", "--slots", slots, "--no-browser", "--json"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stderr is not None
    lines = iter(process.stderr.readline, "")
    url = next(line for line in lines if line.startswith("the page: ")).split()[2]
    assert "<html" in httpx.get(url, timeout=PATIENCE).text
    if interrupted:
        shown = f"{url}v1/status"
        until(lambda: httpx.get(shown, timeout=PATIENCE).json()["slots"] > 0)
        process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == (130 if interrupted else 0), err
    assert "Traceback" not in err
    table = json.loads(out)
    assert set(table) == {"url", "slots", "round", "reward", "recent", "reference"}
    assert (table["slots"] == 60) != interrupted
    assert table["round"] > 1 or interrupted
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    assert list(temporary.iterdir()) == []
    assert sorted(folder.rglob("*")) == before
