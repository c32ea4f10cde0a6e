"""An agent with a mask key: nothing leaves it in clear, and nothing is lost or sent twice."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from rmab.cli import main
from rmab.errors import FederationError, ProtocolError
from rmab.federation.masks import Header, MaskKey, make_key, numbers_of, parse_key, vector_size
from rmab.federation.uploads import parse_masked
from tests.service.support.fake_server import (
    SHAPE,
    Playing,
    PretendServer,
    assert_told,
    index_message,
    lost_answer,
    server_is_away,
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
    playing = Playing(agent).slots(2)
    server.number = 5
    assert agent.flush(20)
    assert_told(server, playing.looks)
    (_, first), (_, second) = server.sent[:2]
    assert json.loads(first)["nonce"] != json.loads(second)["nonce"]
    assert json.loads(second)["round"] == 5


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
