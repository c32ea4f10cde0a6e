"""The agent against a server that is pretended: what it plays, counts and sends, how it begins."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace

import httpx
import numpy as np
import pytest

from rmab.errors import FederationError, ModelError, UnavailableError
from rmab.service.agent.agent import Agent
from tests.service.support.fake_server import (
    QUICK,
    REWARDS,
    TOKEN,
    URL,
    Playing,
    assert_told,
    index_message,
    server_is_away,
)
from tests.service.support.serving import PATIENCE, gives_up

# ------------------------------------------------------------------------------------ all in order


def test_an_agent_plays_round_after_round_and_all_its_looks_arrive(server, start):
    agent = start()
    assert agent.round == 1
    playing = Playing(agent).slots(30, wait=True)
    assert agent.round >= 10
    assert agent.flush(20)
    assert not agent.unsent
    assert_told(server, playing.looks)
    reports = [upload for upload in server.uploads if upload.length > 0]
    assert [upload.round for upload in reports[:10]] == list(range(1, 11))
    assert [upload.sequence for upload in server.uploads] == list(range(1, len(server.uploads) + 1))
    assert agent.uploads == len(server.uploads)
    assert agent.slots == 30
    paid = sum(
        REWARDS[a][s] for arms, states in playing.looks for a, s in zip(arms, states, strict=True)
    )
    assert agent.reward == pytest.approx(paid)


def test_the_arms_are_those_of_the_rounds_table(server, start):
    server.advances = False
    agent = start()
    J = 6
    seen: dict[int, tuple[int, int]] = {}
    index = index_message(1, 3).plan.index
    for slot in range(40):
        rows = [
            1 + seen[a][1] * J + min(slot - seen[a][0], J) - 1
            if a in seen and slot - seen[a][0] <= J
            else 0
            for a in range(4)
        ]
        values = index[np.arange(4), rows]
        best = sorted(np.argsort(-values, kind="stable")[:2].tolist())
        arms = agent.choose()
        assert arms == best
        assert all(type(arm) is int for arm in arms)
        states = [slot % 2, (slot // 2) % 2]
        agent.observe(states)
        seen.update({a: (slot, s) for a, s in zip(arms, states, strict=True)})


def test_an_agent_plays_on_by_its_table_until_the_next_round_is_there(server, start):
    server.advances = False
    agent = start()
    playing = Playing(agent).slots(50)
    assert agent.round == 1
    assert agent.flush(20)
    assert [upload.length for upload in server.uploads][:1] == [3]
    server.number = 2
    assert agent.wait(20)
    assert agent.round == 1  # taken up by the next choice
    playing.slots(1)
    assert agent.round == 2
    assert agent.flush(20)
    assert_told(server, playing.looks)


def test_choose_says_the_same_until_observe(server, start):
    agent = start()
    assert agent.choose() == agent.choose()


def test_closing_sends_the_rest_and_tells_the_server(server, start):
    server.advances = False
    before = set(threading.enumerate())
    with start(limits=replace(QUICK, close_seconds=20.0)) as agent:
        playing = Playing(agent).slots(2)  # in the midst of an episode
    assert_told(server, playing.looks)
    assert server.left == 1
    assert set(threading.enumerate()) <= before
    agent.close()  # again
    with pytest.raises(ModelError, match="closed"):
        agent.choose()


def test_closing_waits_for_a_request_that_was_given_up(server, start):
    """Its connection takes a moment to end; left alone, it would stay open."""
    server.advances = False
    good = server.transport()
    begun, given_up, ended = threading.Event(), threading.Event(), threading.Event()

    async def reluctant(request):
        if float(request.url.params.get("wait", 0)) == 0:
            return await good.handle_async_request(request)
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            given_up.set()
            await asyncio.sleep(0.1)
            ended.set()

    agent = start(transport=httpx.MockTransport(reluctant))
    playing = Playing(agent).slots(3)
    assert begun.wait(PATIENCE)  # it asks for the next round
    playing.slots(1)
    agent.flush(0.0)  # this is sent first
    assert given_up.wait(PATIENCE)
    agent._exchange.stop()
    assert ended.is_set()


def test_observe_must_follow_choose(server, start):
    agent = start()
    for call in (lambda: agent.observe([0, 0]), lambda: agent.skip("no antenna")):
        with pytest.raises(ModelError, match=r"(observe|skip) must follow choose"):
            call()
    agent.choose()
    agent.observe(np.array([0, 1]))
    with pytest.raises(ModelError, match="observe must follow choose"):
        agent.observe([0, 0])
    assert agent.slots == 1


def test_states_may_be_of_numpy(server, start):
    agent = start()
    for states in (
        [np.int64(1), np.bool_(False)],
        (True, 0),
        np.array([1, 0], np.uint8),
        np.array([1.0, 0.0]),  # as an array that once had a NaN in it has them
    ):
        agent.choose()
        agent.observe(states)
    assert (agent.slots, agent.bad_readings) == (4, 0)


# ------------------------------------------------------------------------------------ bad readings

NAN = float("nan")


@pytest.mark.parametrize(
    ("states", "read", "rule"),
    [
        ([0], [], "one state for each of 2 arms"),
        ([0, 0, 0], [], "one state for each of 2 arms"),
        (1, [], "states must be a list"),
        (None, [], "states must be a list"),
        (np.array(1), [], "states must be a list"),
        (map(int, ["x", "y"]), [], "states must be a list"),  # which raises as it is read
        (np.zeros((2, 1)), [], "whole number"),
        ([0, 7], [0], r"arm \d: the state must lie from 0 to"),
        ([-1, 1], [1], r"arm \d: the state must lie from 0 to"),
        ([0, 0.5], [0], r"arm \d: a state must be a whole number"),
        ([0, "1"], [0], "whole number"),
        ([None, 1], [1], "whole number"),
        (np.array([NAN, 1.0]), [1], "whole number, got nan"),
        ([float("inf"), NAN], [], "whole number"),
    ],
)
def test_a_bad_reading_is_no_observation_of_that_arm(server, start, caplog, states, read, rule):
    server.slots = 3
    agent = start()
    looks, played = [], []
    for given, good in (([1, 0], [0, 1]), (states, read), ([0, 1], [0, 1])):
        arms = agent.choose()
        played.append(arms)
        agent.observe(given)
        seen = [given[i] for i in good] if good else []
        looks.append(([arms[i] for i in good], [int(state) for state in seen]))
    assert (agent.slots, agent.bad_readings) == (3, 1)
    assert re.search(rule, caplog.text)
    bad = {arm + 1 for arm in played[1] if arm not in looks[1][0]}  # people count from 1
    assert {int(n) for n in re.findall(r"arm (\d)", caplog.text)} <= bad
    assert agent.flush(20)
    assert_told(server, looks)  # gaps and all


def test_too_many_bad_readings_in_a_row_are_told(server, start):
    agent = start(max_bad_readings=3)
    for bad in (2, 2, 3):
        for n in range(bad):
            agent.choose()
            if n == 2:
                with pytest.raises(UnavailableError, match=r"3 bad readings in a row.*no antenna"):
                    agent.skip("no antenna")
            else:
                agent.observe([])
        agent.choose()
        agent.observe([0, 0])
    assert (agent.slots, agent.bad_readings) == (10, 7)


@pytest.mark.parametrize("most", [0, -1, 1.5, None, True])
def test_how_many_is_a_whole_number(start, most):
    with pytest.raises(ModelError, match="max_bad_readings must be a whole number of at least 1"):
        start(max_bad_readings=most)


# ------------------------------------------------------------------------------- the first contact


def test_without_a_server_and_a_file_it_cannot_begin(server, start):
    server.always = server_is_away
    before = set(threading.enumerate())
    words = r"no round within \d+(\.\d+)? s.*ConnectError: refused"
    gives_up(lambda patience: start(patience=patience), words)
    assert set(threading.enumerate()) <= before


def test_the_first_start_waits_for_the_server(server, start):
    server.faults.extend([server_is_away] * 5)
    assert start().round == 1


def test_a_credential_that_is_refused_at_first_is_told_at_once(server, start):
    server.always = lambda method, good: (401, {"error": "credential", "detail": "unknown"}, {})
    with pytest.raises(FederationError, match="refuses the credential"):
        start(patience=600.0)


def test_with_a_file_it_begins_without_a_server(server, start):
    start().close()
    server.always = server_is_away
    agent = start(patience=0.0)
    assert agent.round == 1
    Playing(agent).slots(100)
    assert agent.unsent
    assert not agent.flush(0.05)
    assert not agent.connected


@pytest.mark.parametrize(
    "url",
    ["", "server:8443", "ftp://server", "https://", "http://[::1", "https://me:secret@server", 7],
)
def test_an_address_that_is_none_is_refused(url, path):
    with pytest.raises(FederationError, match="the server's address must") as refused:
        Agent(url, token=TOKEN, file=path)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("token", ["", "rmab_", TOKEN + "x", TOKEN.replace("_", "-"), None])
def test_a_token_that_is_none_is_refused_and_not_shown(token, path):
    with pytest.raises(FederationError, match="the token must be") as refused:
        Agent(URL, token=token, file=path)
    assert "SSS" not in str(refused.value)


def test_certificates_that_cannot_be_read_are_refused(tmp_path, path):
    with pytest.raises(FederationError, match="no certificates can be read"):
        Agent(URL, token=TOKEN, file=path, ca=tmp_path / "none.pem")
    (tmp_path / "bad.pem").write_text("no certificate")
    with pytest.raises(FederationError, match="no certificates can be read"):
        Agent(URL, token=TOKEN, file=path, ca=tmp_path / "bad.pem")


def test_a_file_in_use_is_refused(start):
    start()
    with pytest.raises(UnavailableError, match=r"agent\.db: another agent uses this file"):
        start()  # the same agent, whose other process may end
    with pytest.raises(FederationError, match=r"agent\.db: another agent uses this file"):
        start(token=TOKEN.replace("0" * 16, "1" * 16))


def test_an_unprotected_way_to_another_machine_is_refused(tmp_path):
    with pytest.raises(
        FederationError, match=r"must begin with https:// .* 'http://192\.0\.2\.1:1'"
    ):
        Agent("http://192.0.2.1:1", token=TOKEN, file=tmp_path / "agent.db")


# --------------------------------------------------------------------------------------- processes


def test_over_a_real_connection(real, server, path):
    limits = replace(QUICK, close_seconds=20.0)
    with Agent(real.url, token=TOKEN, file=path, limits=limits) as agent:
        playing = Playing(agent).slots(40, wait=True)
        assert agent.connected
    assert_told(server, playing.looks)
    assert server.left == 1


def test_an_agent_loads_no_planner_no_solver_neither_jax_nor_the_server():
    program = (
        "import sys, rmab; from rmab.service.agent.agent import Agent;"
        "print(*sorted({name.split('.')[0] for name in sys.modules}"
        " & {'jax', 'jaxlib', 'scipy', 'starlette', 'uvicorn', 'matplotlib', 'pandas',"
        " 'prometheus_client', 'psycopg'}),"
        " *sorted(name for name in sys.modules if name.startswith('rmab.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    loaded = done.stdout.split()
    others = [
        *("planning", "learning", "engine", "studies", "compilation"),
        *("protocol.config", "protocol.uploads", "policies.registry"),
        *("service.server", "service.store"),
    ]
    assert not [name for name in loaded if name.startswith(tuple(f"rmab.{x}" for x in others))]
    assert all(name.startswith("rmab.") for name in loaded)
    assert len(loaded) <= 38, loaded  # as it starts; the rest is loaded where it is needed


def test_an_agent_that_is_not_closed_lets_its_process_end(real, path):
    program = (
        "import sys; from rmab.service.agent.agent import Agent;"
        "agent = Agent(sys.argv[1], token=sys.argv[2], file=sys.argv[3]);"
        "agent.choose(); agent.observe([0, 0])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, real.url, TOKEN, path],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0
    assert done.stderr == ""
