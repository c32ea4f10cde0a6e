"""The agent against a server that is pretended, and against many kinds of bad ones."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
import time

import httpx
import numpy as np
import pytest

from rmab.errors import FederationError, ModelError, UnreachableError
from rmab.federation.charter import Shape
from rmab.service import agent as agent_module
from rmab.service import exchange, link
from rmab.service.agent import Agent
from tests.service.pretend_server import (
    REWARDS,
    SECRET,
    TOKEN,
    URL,
    Playing,
    PretendServer,
    RealServer,
    answers,
    assert_file_empty,
    assert_told,
    index_message,
    lost_answer,
    server_is_away,
)


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(exchange, "FIRST_PAUSE", 0.002)
    monkeypatch.setattr(exchange, "LONGEST_PAUSE", 0.01)
    monkeypatch.setattr(exchange, "LEAST_BETWEEN", 0.01)
    monkeypatch.setattr(agent_module, "BRIEFLY", 0.02)


@pytest.fixture
def server():
    return PretendServer()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agent.db"


@pytest.fixture
def start(server, path):
    """Starts agents of that server and file; closes them in the end."""
    started = []

    def make(**more):
        options = {"token": TOKEN, "file": path, "patience": 20.0, "timeout": 5.0, **more}
        options.setdefault("transport", server.transport())
        agent = Agent(URL, **options)
        started.append(agent)
        return agent

    yield make
    server.always = server_is_away
    for agent in started:
        agent.close()


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


def test_closing_sends_the_rest_and_tells_the_server(server, start, monkeypatch):
    monkeypatch.setattr(agent_module, "BRIEFLY", 20.0)
    server.advances = False
    before = set(threading.enumerate())
    with start() as agent:
        playing = Playing(agent).slots(2)  # in the midst of an episode
    assert_told(server, playing.looks)
    assert server.left == 1
    assert set(threading.enumerate()) <= before
    agent.close()  # again
    with pytest.raises(ModelError, match="closed"):
        agent.choose()


@pytest.mark.parametrize(
    ("states", "rule"),
    [
        ([0], "one state for each"),
        ([0, 0, 0], "one state for each"),
        ([0, 7], "must lie from 0 to"),
        ([0, -1], "must lie from 0 to"),
        ([0, 0.5], "whole number"),
        ([0, "1"], "whole number"),
        ([0, None], "whole number"),
        (1, "list of whole numbers"),
        (np.array([0.0, 1.0]), "whole number"),
    ],
)
def test_a_callers_mistake_is_refused_and_may_be_mended(server, start, states, rule):
    agent = start()
    with pytest.raises(ModelError, match="observe must follow choose"):
        agent.observe([0, 0])
    agent.choose()
    with pytest.raises(ModelError, match=rule):
        agent.observe(states)
    assert agent.slots == 0
    agent.observe(np.array([0, 1]))
    with pytest.raises(ModelError, match="observe must follow choose"):
        agent.observe([0, 0])
    assert agent.slots == 1


def test_states_may_be_of_numpy(server, start):
    agent = start()
    for states in ([np.int64(1), np.bool_(False)], (True, 0), np.array([1, 0], np.uint8)):
        agent.choose()
        agent.observe(states)
    assert agent.slots == 3


# ------------------------------------------------------------------------------- the first contact


def test_without_a_server_and_a_file_it_cannot_begin(server, start):
    server.always = server_is_away
    before = set(threading.enumerate())
    with pytest.raises(UnreachableError, match=r"no round within 0\.1 s.*ConnectError: refused"):
        start(patience=0.1)
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
    with pytest.raises(FederationError, match=r"agent\.db: another agent uses this file"):
        start()


def test_an_unprotected_way_to_another_machine_is_refused(tmp_path):
    with pytest.raises(
        FederationError, match=r"must begin with https:// .* 'http://192\.0\.2\.1:1'"
    ):
        Agent("http://192.0.2.1:1", token=TOKEN, file=tmp_path / "agent.db")


# ---------------------------------------------------------------------------------- a bad way there


async def _never(method, good):
    await asyncio.Event().wait()


BAD = {
    "away": server_is_away,
    "lost": lost_answer,
    "hangs up": lambda m, g: (_ for _ in ()).throw(httpx.RemoteProtocolError("closed")),
    "not http": lambda m, g: (_ for _ in ()).throw(httpx.DecodingError("bad")),
    "overload": answers(503, {"error": "overload", "detail": "later"}),
    "overload with a time": answers(503, retry_after="0"),
    "retry with nonsense": answers(503, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"),
    "broken": answers(500, b"<html>Internal Server Error</html>"),
    "portal": answers(200, b"<html>Please log in to the hotel's network</html>"),
    "portal made": answers(201, b"{}"),
    "empty": answers(200),
    "nothing": answers(204),
    "another sequence": answers(201, {"status": "new", "sequence": 999, "round": 1}),
    "true for one": answers(201, {"status": "new", "sequence": True}),
    "list": answers(200, b"[1, 2]"),
    "deep": answers(200, b"[" * 100_000),
    "not unicode": answers(200, b"\xff\xfe{}"),
    "moved": answers(302, location="http://127.0.0.1:2/"),
    "teapot": answers(418, {"detail": "short and\nstout" * 1000}),
    "many": answers(429),
    "forgotten": answers(404),
    "closed with nonsense": answers(410, b"no"),
    "closed without a round": answers(410, {"error": "round"}),
    "closed in round minus one": answers(410, {"error": "round", "round": -1}),
    "revoked for a moment": answers(401, {"error": "credential", "detail": "unknown"}),
    "a round of nonsense": answers(200, {"protocol": 1, "round": "seven"}),
    "another protocol": answers(200, {"protocol": 2}),
    "gzip of nonsense": answers(200, b"not gzip", content_encoding="gzip"),
}


@pytest.mark.parametrize("fault", BAD.values(), ids=BAD.keys())
def test_a_bad_answer_changes_nothing(server, start, fault, caplog):
    caplog.set_level(logging.DEBUG)
    agent = start()
    playing = Playing(agent)
    for _ in range(6):
        server.faults.extend([fault] * 2)
        playing.slots(5)
        agent.wait(0.01)
    server.faults.clear()
    assert agent.flush(20)
    assert_told(server, playing.looks)
    assert 0 < agent.uploads <= len(server.uploads)
    assert SECRET not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_server_that_hangs_holds_up_nothing_but_itself(server, start):
    agent = start(timeout=0.05)
    server.always = _never
    playing = Playing(agent).slots(500)
    server.always = None
    assert agent.flush(20)
    assert_told(server, playing.looks)


def test_an_answer_that_trickles_in_is_given_up(server, start, monkeypatch):
    monkeypatch.setattr(link, "SLOWEST", 1)

    async def trickle(request):
        async def parts():
            while True:
                yield b" "
                await asyncio.sleep(0.01)

        return httpx.Response(200, content=parts())

    with pytest.raises(UnreachableError, match="TimeoutError"):
        start(transport=httpx.MockTransport(trickle), timeout=0.1, patience=0.5)


def test_an_answer_without_end_is_given_up(server, start, monkeypatch):
    monkeypatch.setattr(link, "MOST_BYTES", 2**16)
    server.always = answers(200, b" " * 2**17)
    with pytest.raises(UnreachableError, match="over 65536 bytes"):
        start(patience=0.2)


def test_arms_that_would_fill_the_memory_are_refused(server, start):
    server.message = lambda number, slots: index_message(
        number, slots, shape=Shape(2, (2, 2, 2, 3), 2**40)
    )
    with pytest.raises(UnreachableError, match="arms must have at most"):
        start(patience=0.2)


def test_a_server_that_asks_for_time_gets_it(server, start):
    agent = start()
    server.faults.append(answers(503, retry_after="600"))
    Playing(agent).slots(3)
    while server.faults:
        time.sleep(0.002)
    seen = server.requests
    assert not agent.flush(0.2)  # though it is in a hurry
    assert server.requests == seen


def test_one_line_a_minute_is_enough(server, start, caplog):
    agent = start()
    server.always = answers(401, {"error": "credential", "detail": "revoked"})
    playing = Playing(agent).slots(200)
    before = server.requests
    while server.requests < before + 5:
        agent.flush(0.01)
    lines = [record for record in caplog.records if "refuses the credential" in record.message]
    assert len(lines) == 1
    server.always = None
    assert agent.flush(20)
    assert_told(server, playing.looks)


# ------------------------------------------------------------------------- refused by a good server


def test_a_late_agents_counts_arrive_under_the_open_round(server, start):
    server.advances = False
    agent = start()
    playing = Playing(agent).slots(2)
    server.number = 9  # closed at its deadline
    playing.slots(1)  # one more could be of round 9, if that came in time
    assert agent.flush(20)
    assert_told(server, playing.looks)
    assert [(u.round, u.length) for u in server.uploads] == [(9, 0)]  # no report of round 9
    assert agent.wait(20)
    playing.slots(3)
    assert agent.round == 9
    assert agent.flush(20)
    assert server.uploads[-1].round == 9
    assert server.uploads[-1].length == 3
    assert_told(server, playing.looks)


def test_a_server_that_was_set_back_is_followed(server, start):
    server.number, server.advances = 50, False
    agent = start()
    playing = Playing(agent).slots(1)
    assert agent.round == 50
    server.number = 7  # restored from a backup
    playing.slots(2)
    assert agent.flush(20)
    assert agent.wait(20)
    playing.slots(1)
    assert agent.round == 7
    server.number = 8
    playing.slots(3)
    assert agent.wait(20)
    playing.slots(1)
    assert agent.round == 8
    assert agent.flush(20)
    assert_told(server, playing.looks)


def test_rounds_that_always_close_before_the_upload_do_not_lead_to_a_rush(server, start):
    agent = start()

    def runs_away(method, good):
        if method == "POST":
            server.number += 1
            return 410, {"error": "round", "round": server.number}, {}
        return good()

    server.always = runs_away
    playing = Playing(agent).slots(20)
    assert not agent.flush(0.1)
    server.always = None
    assert agent.flush(20)
    assert_told(server, playing.looks)


def test_an_incarnation_that_the_server_refuses_is_given_up(server, start, caplog):
    agent = start()
    playing = Playing(agent).slots(3, wait=True)
    assert agent.flush(20)
    first = list(playing.looks)
    server.faults.append(answers(409, {"error": "backwards", "detail": "slots must be at least 9"}))
    playing.slots(3)
    while agent._exchange.outbox.conflict is None:
        time.sleep(0.002)
    playing.looks = []
    playing.slots(10, wait=True)
    assert agent.flush(20)
    assert len(server.records) == 2
    assert_told(server, first, playing.looks)
    assert agent.slots == 16
    assert "given up" in caplog.text
    agent.close()
    assert_file_empty(agent.file)


def test_a_refused_incarnation_does_not_make_a_caller_fail(server, start):
    agent = start()
    server.faults.append(answers(409, {"error": "conflict", "detail": "another body"}))
    Playing(agent).slots(2)
    agent.choose()
    assert not agent.flush(0.1)
    agent.observe([0, 0])
    assert agent.choose()


def test_an_upload_that_is_refused_as_impossible_is_a_fault_that_is_told(server, start, caplog):
    agent = start()
    server.faults.append(answers(422, {"error": "malformed", "detail": "counts[0] must add up"}))
    playing = Playing(agent).slots(3)
    while "counts[0] must add up" not in caplog.text:
        time.sleep(0.002)
    playing.slots(10)
    assert agent.flush(20)
    assert_told(server, playing.looks)


def test_a_fault_of_ours_does_not_end_the_exchange(server, start, monkeypatch, caplog):
    agent = start()
    good = exchange.Exchange._send
    failed: list[int] = []

    async def bad(self, outgoing):
        if len(failed) < 3:
            failed.append(1)
            raise ZeroDivisionError
        await good(self, outgoing)

    monkeypatch.setattr(exchange.Exchange, "_send", bad)
    playing = Playing(agent).slots(5)
    assert agent.flush(20)
    assert_told(server, playing.looks)
    assert "ZeroDivisionError" in caplog.text


@pytest.fixture
def real(server):
    made = RealServer(server)
    yield made
    made.close()


def test_over_a_real_connection(real, server, path, monkeypatch):
    monkeypatch.setattr(agent_module, "BRIEFLY", 20.0)
    with Agent(real.url, token=TOKEN, file=path) as agent:
        playing = Playing(agent).slots(40, wait=True)
        assert agent.connected
    assert_told(server, playing.looks)
    assert server.left == 1


def test_an_agent_loads_neither_jax_nor_the_server():
    program = (
        "import sys, rmab; from rmab.service.agent import Agent;"
        "from rmab.service.simulated import SimulatedArms;"
        "print(*sorted({name.split('.')[0] for name in sys.modules}"
        " & {'jax', 'jaxlib', 'scipy', 'starlette', 'uvicorn', 'matplotlib', 'pandas',"
        " 'prometheus_client', 'psycopg'}),"
        " *sorted(name for name in sys.modules if name.startswith('rmab.service')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == [
        "rmab.service",
        "rmab.service.agent",
        "rmab.service.agent_file",
        "rmab.service.credentials",
        "rmab.service.exchange",
        "rmab.service.leftovers",
        "rmab.service.link",
        "rmab.service.outbox",
        "rmab.service.simulated",
    ]


def test_an_agent_that_is_not_closed_lets_its_process_end(real, path):
    program = (
        "import sys; from rmab.service.agent import Agent;"
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
