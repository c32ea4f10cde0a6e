"""An agent with a mask key: nothing leaves it in clear, and nothing is lost or sent twice."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rmab.cli import main
from rmab.errors import FederationError, ProtocolError
from rmab.privacy.masks import (
    Header,
    MaskKey,
    is_mark,
    make_key,
    numbers_of,
    parse_key,
    vector_size,
)
from rmab.protocol.uploads import parse_masked
from tests.service.support.fake_server import (
    SHAPE,
    Playing,
    PretendServer,
    assert_told,
    index_message,
    lost_answer,
    server_is_away,
    tally,
)

KEY = make_key()


class MaskedServer(PretendServer):
    """As a server whose helper opens everything: it takes masks off, and notes every body."""

    def __init__(self):
        super().__init__()
        self.sent = []  # path and body of every POST but leaving
        self.refusal = None  # an answer to every upload instead
        key = parse_key(KEY)
        assert key is not None
        self.key = MaskKey(key)

    def answer(self, method, path, query, body, authorization):
        if method == "POST" and path != "/v1/leave":
            self.sent.append((path, bytes(body)))
        return super().answer(method, path, query, body, authorization)

    def serve(self, method, path, query, body, authorization):
        if path == "/v1/uploads":
            return 422, {"error": "malformed", "detail": "masked uploads alone"}, {}
        if path != "/v1/masked":
            return super().serve(method, path, query, body, authorization)
        if self.refusal is not None:
            return self.refusal
        found = parse_masked(body, SHAPE, "spectrum")
        fingerprint = index_message(1, 1).fingerprint
        header = Header(
            fingerprint, "one", found.incarnation, found.sequence, found.slots, found.nonce
        )
        assert self.key.is_tag(header, found.tag)
        x = found.masked - self.key.mask(header, vector_size(SHAPE))
        counts, visits = numbers_of(x.view(np.int64), SHAPE)
        try:
            return self.receive(replace(found, counts=counts, visits=visits))
        except ProtocolError as error:
            return error.status, {"error": error.code, "detail": str(error), **error.extra}, {}

    def assert_nothing_in_clear(self):
        assert self.sent
        for path, body in self.sent:
            assert path == "/v1/masked"
            assert not json.loads(body).keys() & {"counts", "visits"}


@pytest.fixture
def server():
    return MaskedServer()


def test_counts_arrive_masked(server, start):
    agent = start(mask_key=KEY)
    playing = Playing(agent).slots(12, wait=True)
    assert agent.flush(20)
    assert_told(server, playing.looks)
    server.assert_nothing_in_clear()
    nonces = [json.loads(body)["nonce"] for _, body in server.sent]
    assert len(set(nonces)) == len(nonces)


MARKS = [n for n in range(1, 100) if is_mark(n)]


def marked(server):
    """Slots of the uploads that reported no episode, in the order in which they came."""
    return [upload.slots for upload in server.uploads if upload.length == 0]


def test_counts_are_masked_at_every_mark_whoever_is_away(server, start):
    """Marks are passed in the midst of episodes and beyond their ends; all of them are sent, in
    their order, though newer uploads tell of more."""
    server.slots = 7
    agent = start(mask_key=KEY)
    server.always = server_is_away
    playing = Playing(agent).slots(70)
    agent.flush(0.05)
    server.always = None
    assert agent.flush(20)
    assert [slots for slots in marked(server) if slots in MARKS] == MARKS[: MARKS.index(64) + 1]
    assert_told(server, playing.looks)
    for upload in server.uploads:
        counts, visits = tally(playing.looks[: upload.slots])
        np.testing.assert_array_equal(upload.counts, counts)
        np.testing.assert_array_equal(upload.visits, visits)
    assert {upload.since for upload in server.uploads} == {0}


def test_the_next_process_goes_on_with_the_incarnation(server, start):
    """With no arm observed, and slots after the last mark in the next upload at one."""
    server.slots = 100
    books = []
    for seed, slots in enumerate((17, 2, 4)):
        agent = start(mask_key=KEY)
        assert agent.slots == 0
        books.append(Playing(agent, seed=seed).slots(slots).looks)
        assert agent.slots == slots
        assert agent.flush(20)
        assert not agent.unsent
        agent.close()
    assert len(server.records) == 1
    assert_told(server, *books)
    assert [slots for slots in marked(server) if slots in MARKS[15:]] == [16, 18, 20, 22]
    (last,) = [upload for upload in server.uploads if upload.slots == 22]
    parts = [tally(books[0]), tally(books[1]), tally(books[2][:3])]
    np.testing.assert_array_equal(last.counts, sum(counts for counts, _ in parts))
    np.testing.assert_array_equal(last.visits, sum(visits for _, visits in parts))


@pytest.mark.parametrize("kept", [True, False])
def test_marks_that_a_process_passed_and_did_not_send_are_sent_by_the_next(server, start, kept):
    """kept: whether it came to masking them, before it ended."""
    start(mask_key=KEY).close()
    server.always = server_is_away
    agent = start(mask_key=KEY)
    if not kept:
        agent._exchange.offer = lambda _: None
    first = Playing(agent).slots(18).looks
    agent.flush(0.1)
    agent.close()
    server.always = None
    agent = start(mask_key=KEY)
    second = Playing(agent, seed=1).slots(3).looks
    assert agent.flush(20)
    assert [slots for slots in marked(server) if slots in MARKS][:17] == MARKS[:17]
    assert_told(server, first, second)
    sequences = [upload.sequence for upload in server.uploads]
    assert sequences == sorted(set(sequences))
    agent.close()
    start(mask_key=KEY).close()
    assert len({json.loads(body)["nonce"] for _, body in server.sent}) == len(server.uploads)


def test_marks_of_a_closed_round_are_sent_under_the_open_one(server, start):
    server.slots = 100
    agent = start(mask_key=KEY)
    server.always = server_is_away
    playing = Playing(agent).slots(9)
    agent.flush(0.05)
    server.number, server.always = 4, None
    assert agent.flush(20)
    assert [slots for slots in marked(server) if slots in MARKS] == [*range(1, 10)]
    assert {upload.round for upload in server.uploads} == {4}
    assert_told(server, playing.looks)


def test_another_key_begins_another_incarnation(server, start):
    agent = start(mask_key=KEY)
    first = Playing(agent).slots(4)
    assert agent.flush(20)
    agent.close()
    incarnations = set(server.records)
    other = make_key()
    key = parse_key(other)
    assert key is not None
    server.key = MaskKey(key)
    agent = start(mask_key=other)
    second = Playing(agent, seed=1).slots(3)
    assert agent.flush(20)
    assert len(server.records) == 2
    assert incarnations < set(server.records)
    assert_told(server, first.looks, second.looks)


def test_an_incarnation_begins_where_the_server_says(server, start):
    agent = start(mask_key=KEY)
    server.slots = 100
    refusal = {"error": "since", "detail": "since must be 40, got 0", "position": 40}
    server.refusal = (409, refusal, {})
    Playing(agent).slots(3)
    assert agent.flush(20)  # what is refused is given up
    server.refusal = None
    playing = Playing(agent).slots(9)
    assert agent.flush(20)
    assert {upload.since for upload in server.uploads} == {40}
    assert [s for s in marked(server) if is_mark(40 + s)] == [4, 8]
    assert_told(server, playing.looks)
    agent.close()
    agent = start(mask_key=KEY)
    Playing(agent, seed=1).slots(4)
    assert agent.flush(20)
    assert server.uploads[-1].since == 40
    assert 12 in marked(server)


ASKED = {"error": "malformed", "detail": "send clear counts to /v1/uploads", "round": 1}


@pytest.mark.parametrize("status", [301, 404, 405, 409, 410, 413, 415, 422, 426, 429, 500, 501])
def test_no_answer_talks_an_agent_down_to_clear_counts(server, start, status):
    agent = start(mask_key=KEY)
    server.refusal = (status, ASKED, {"location": "/v1/uploads"})
    playing = Playing(agent).slots(7)
    agent.flush(0.3)
    server.assert_nothing_in_clear()
    server.refusal = None
    playing.slots(3)
    agent.flush(20)
    agent.close()
    start(mask_key=KEY).flush(5)
    server.assert_nothing_in_clear()


def test_what_a_process_left_unsent_is_sent_by_the_next_as_it_was(server, start):
    start(mask_key=KEY).close()
    server.always = lost_answer
    agent = start(mask_key=KEY)
    first = Playing(agent).slots(3)
    agent.flush(0.2)
    agent.close()
    server.always = None
    agent = start(mask_key=KEY)
    second = Playing(agent, seed=1).slots(2)
    assert agent.flush(20)
    assert_told(server, first.looks, second.looks)
    server.assert_nothing_in_clear()


def test_a_closed_round_has_the_same_counts_under_another_mask(server, start):
    agent = start(mask_key=KEY)
    server.advances = False
    server.always = server_is_away  # until the round is closed
    playing = Playing(agent).slots(2)
    agent.flush(0.2)
    server.number = 5
    server.always = None
    assert agent.flush(20)
    assert_told(server, playing.looks)
    told = [json.loads(body) for _, body in server.sent]
    first = next(each for each in told if each["round"] == 1)
    second = next(each for each in told if each["round"] == 5 and each["slots"] == first["slots"])
    assert first["nonce"] != second["nonce"]
    assert told[-1]["round"] == 5


def test_a_file_restored_from_a_backup_uses_no_mask_twice(server, start, path):
    agent = start(mask_key=KEY)
    server.always = server_is_away
    Playing(agent).slots(2)
    agent.close()
    backup = path.read_bytes()
    server.always = None
    agent = start(mask_key=KEY)
    Playing(agent, seed=1).slots(5)
    assert agent.flush(20)
    agent.close()
    path.write_bytes(backup)
    agent = start(mask_key=KEY)
    Playing(agent, seed=2).slots(5)
    assert agent.flush(20)
    by_nonce: dict[str, object] = {}
    for _, body in server.sent:
        table = json.loads(body)
        assert by_nonce.setdefault(table["nonce"], table) == table
    server.assert_nothing_in_clear()


def test_what_was_kept_in_clear_is_masked_before_it_is_sent(server, start):
    agent = start()
    server.always = server_is_away
    first = Playing(agent).slots(4)
    agent.flush(0.1)
    agent.close()
    server.always = None
    server.sent.clear()
    agent = start(mask_key=KEY)
    second = Playing(agent, seed=1).slots(2)
    assert agent.flush(20)
    assert_told(server, first.looks, second.looks)
    server.assert_nothing_in_clear()


def test_a_file_that_was_used_with_a_key_needs_one(server, start, path):
    agent = start(mask_key=KEY)
    Playing(agent).slots(2)
    agent.close()
    server.sent.clear()
    with pytest.raises(FederationError, match="was used with a mask key") as error:
        start()
    assert str(path) in str(error.value)
    assert server.sent == []


def test_ends_by_visits_are_refused_as_they_tell_about_them(server, start, caplog):
    agent = start(mask_key=KEY)
    playing = Playing(agent).slots(1)
    plain = server.message
    server.message = lambda number, slots: replace(plain(number, slots), visit_factor=2)
    server.number = 2
    assert not agent.wait(0.3)
    assert "end by visits" in caplog.text
    server.message = plain
    playing.slots(3)
    assert agent.flush(20)
    assert_told(server, playing.looks)


def test_a_key_that_is_none_is_refused_and_not_shown(start, tmp_path, capsys):
    wrong = KEY[:-1]
    with pytest.raises(FederationError, match="the mask key must be as") as error:
        start(mask_key=wrong)
    assert wrong[10:] not in str(error.value)
    token = tmp_path / "a.token"
    token.write_text(f"rmab_{'0' * 16}_{'S' * 43}\n")
    token.chmod(0o600)
    file = tmp_path / "a.key"
    words = ["agent", "http://127.0.0.1:1", "--token-file", str(token), "--env", "a:B"]
    for text in (wrong, "", KEY + "\n" + KEY, token.read_text()):
        file.write_text(text)
        assert main([*words, "--mask-key-file", str(file)]) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert "must have one line, the mask key" in said
        assert KEY[10:30] not in said
    assert main([*words, "--mask-key-file", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err
