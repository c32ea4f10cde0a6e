"""Tokens: their form, what is kept of them, what is refused."""

import hashlib
import hmac
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmab.service.http.tokens import make_token, matches, parse_token


def test_token_has_its_form_and_its_parts_are_found_again():
    token, key_id, secret_hash = make_token()
    assert re.fullmatch(r"rmab_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", token)
    assert parse_token(token) == (key_id, secret_hash)
    secret = token.split("_", 2)[2]
    assert secret_hash == hashlib.sha256(secret.encode()).digest()


def test_tokens_differ():
    made = [make_token() for _ in range(200)]
    for part in zip(*made, strict=True):
        assert len(set(part)) == 200


@pytest.mark.parametrize(
    "change",
    [
        lambda token: "",
        lambda token: token[:-1],
        lambda token: token + "A",
        lambda token: token + "\n",
        lambda token: " " + token,
        lambda token: token.upper(),
        lambda token: token.replace("rmab_", "rmab-"),
        lambda token: token[:-1] + "é",
        lambda token: token[:-1] + "=",
        lambda token: token[:6] + "g" + token[7:],
    ],
)
def test_other_texts_are_no_tokens(change):
    token, *_ = make_token()
    assert parse_token(change(token)) is None


@given(st.text(max_size=80))
@settings(max_examples=200)
def test_any_text_is_parsed_or_refused(text):
    assert parse_token(text) is None  # to hit a token by chance takes 2^256 tries


def test_digests_are_compared_in_constant_time(monkeypatch):
    compared = []

    def spy(one, other):
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(hmac, "compare_digest", spy)
    assert matches(b"a" * 32, b"a" * 32)
    assert not matches(b"a" * 32, b"b" * 32)
    assert len(compared) == 2
