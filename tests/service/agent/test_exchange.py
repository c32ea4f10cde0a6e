"""The agent and what goes wrong: a bad way to the server, bad answers, good refusals."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import replace

import httpx
import pytest

from rmab.protocol.shape import Shape
from rmab.service.agent import exchange
from tests.service.support.fake_server import (
    QUICK,
    SECRET,
    Playing,
    answers,
    assert_file_empty,
    assert_told,
    index_message,
    lost_answer,
    server_is_away,
)
from tests.service.support.serving import gives_up, until

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


def test_an_answer_that_trickles_in_is_given_up(server, start):
    async def trickle(request):
        async def parts():
            while True:
                yield b" "
                await asyncio.sleep(0.01)

        return httpx.Response(200, content=parts())

    limits = replace(QUICK, answer_timeouts=1)
    options = {"transport": httpx.MockTransport(trickle), "timeout": 0.1, "limits": limits}
    gives_up(lambda patience: start(patience=patience, **options), "TimeoutError")


def test_an_answer_without_end_is_given_up(server, start):
    limits = replace(QUICK, answer_bytes=2**16)
    server.always = answers(200, b" " * 2**17)
    gives_up(lambda patience: start(patience=patience, limits=limits), "over 65536 bytes")


def test_arms_that_would_fill_the_memory_are_refused(server, start):
    server.message = lambda number, slots: index_message(
        number, slots, shape=Shape(2, (2, 2, 2, 3), 2**40)
    )
    gives_up(lambda patience: start(patience=patience), "arms must have at most")


def test_a_server_that_asks_for_time_gets_it(server, start):
    agent = start()
    server.faults.append(answers(503, retry_after="600"))
    Playing(agent).slots(3)
    while server.faults:
        time.sleep(0.002)
    seen = server.requests
    assert not agent.flush(0.2)  # though it tries at once
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
    while not agent._exchange.refuses(agent._player.incarnation):
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


def test_what_is_too_much_at_once_is_sent_in_parts(server, start):
    """An agent was away for long, and the server takes a few slots at a time."""
    agent = start(limits=replace(QUICK, fold_slots=5))
    server.always = server_is_away
    playing = Playing(agent).slots(100)
    server.credit = 30
    server.always = None
    for taken in (30, 60):  # all of it would be one upload
        until(lambda taken=taken: server.slots_in_all > taken - 10)
        assert server.slots_in_all < 100
        server.credit = taken + 30 - server.slots_in_all
    assert all(upload.length == 0 for upload in server.uploads if upload.slots <= 60)
    server.credit = None
    assert agent.flush(20)
    assert_told(server, playing.looks)
