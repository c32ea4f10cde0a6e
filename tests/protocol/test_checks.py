"""JSON from the other side: what is read, and what is refused, in one line."""

import pytest

from rmab.errors import ProtocolError
from rmab.protocol.checks import (
    MAX_WHOLE,
    floats,
    hexadecimal,
    listed,
    read_object,
    take,
    whole_number,
)


def test_an_object_is_read_as_it_is():
    body = '{"a": 1, "b": {"a": [1.5, null]}, "ü": true}'.encode()
    assert read_object(body) == {"a": 1, "b": {"a": [1.5, None]}, "ü": True}
    assert read_object(b" {}\n") == {}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"a": 1, "a": 1}', "must not have a key twice"),
        (b'{"a": 1, "b": 2, "a": 3}', "must not have a key twice"),
        (b'{"a": {"b": 1, "b": 2}}', "must not have a key twice"),
        (b'{"a": [{"b": 1, "b": 1}]}', "must not have a key twice"),
        (b'{"a": NaN}', "must have finite numbers alone, got NaN"),
        (b'{"a": -Infinity}', "must have finite numbers alone, got -Infinity"),
        (b"[1]", "must be a JSON object, got"),
        (b"1", "must be a JSON object, got 1"),
        (b'{"a": 1', "must be JSON in UTF-8"),
        (b'{"a": 1} 2', "must be JSON in UTF-8"),
        (b'{"\xff": 1}', "must be JSON in UTF-8: UnicodeDecodeError"),
        (b"[" * 100_000, "must be JSON in UTF-8: RecursionError"),
        (b"", "must be JSON in UTF-8"),
    ],
)
def test_what_is_no_object_is_refused(body, words):
    with pytest.raises(ProtocolError) as caught:
        read_object(body)
    assert (caught.value.status, caught.value.code) == (422, "malformed")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_values_at_their_edges():
    assert whole_number("n", 3, 3) == 3
    assert whole_number("n", MAX_WHOLE, 0) == 2**53
    assert hexadecimal("h", "0fa0", 2) == b"\x0f\xa0"
    assert listed("l", [1, 2], 2) == [1, 2]
    assert floats("f", [1, 0.5], 2).tolist() == [1.0, 0.5]
    assert take({"b": 2, "a": 1}, "it", "a", "b") == [1, 2]


@pytest.mark.parametrize(
    ("check", "words"),
    [
        (lambda: whole_number("n", 2, 3), "n must be a whole number from 3 to 2^53, got 2"),
        (lambda: whole_number("n", MAX_WHOLE + 1, 0), "n must be a whole number"),
        (lambda: whole_number("n", 1.0, 0), "got 1.0"),
        (lambda: whole_number("n", True, 0), "n must be a whole number"),
        (lambda: hexadecimal("h", "0FA0", 2), "h must be 4 digits from 0-9 and a-f"),
        (lambda: hexadecimal("h", "0fa", 2), "h must be 4 digits"),
        (lambda: hexadecimal("h", "0fa0\n", 2), "h must be 4 digits"),
        (lambda: listed("l", [1], 2), "l must be a list of 2, got 1"),
        (lambda: listed("l", (1, 2), 2), "l must be a list of 2"),
        (lambda: floats("f", [1, "2"], 2), r"f[1] must be a number"),
        (lambda: floats("f", [1, True], 2), r"f[1] must be a number"),
        (lambda: take({"a": 1}, "it", "a", "b"), "it: b is missing"),
        (lambda: take({"a": 1, "c": 1}, "it", "a"), "it: unknown key 'c'"),
        (lambda: take([1], "it", "a"), "it must be an object"),
    ],
)
def test_values_beyond_them_are_refused(check, words):
    with pytest.raises(ProtocolError) as caught:
        check()
    assert (caught.value.status, caught.value.code) == (422, "malformed")
    assert words in str(caught.value)
