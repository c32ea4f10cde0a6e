"""Uploads: those of like arms are read by a shorter way to the same end; slots take time."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmab.errors import ProtocolError
from rmab.federation.messages import Shape
from rmab.federation.uploads import _add_up, _of_any_arms, _of_like_arms, _sums, check_pace

SHAPE = Shape(1, (2, 2), 1)
COUNTS = [[[[1, 2], [3, 4]], [[5, 6], [7, 8]]], [[[9, 10], [11, 12]], [[13, 14], [15, 16]]]]
VISITS = [[1, 2], [3, 4]]
ODD: list[object] = [
    True,
    False,
    None,
    1.0,
    1.5,
    -1,
    2**53,
    2**53 + 1,
    2**63,
    2**64,
    10**30,
    "1",
    "true",
    [],
    {},
]


def text(table):
    """An upload's body, with as many strings as one has."""
    head = dict.fromkeys(("protocol", "sequence", "round", "slots", "length"), 1)
    return json.dumps({**head, "federation": "x", "incarnation": "0", **table}).encode()


def places(value, path=()):
    """Every place in nested lists."""
    yield path
    if isinstance(value, list):
        for number, entry in enumerate(value):
            yield from places(entry, (*path, number))


def replaced(value, path, new):
    """Nested lists with another value in one place."""
    if not path:
        return new
    return [
        replaced(entry, path[1:], new) if number == path[0] else entry
        for number, entry in enumerate(value)
    ]


@given(
    st.sampled_from(["counts", "visits"]),
    st.data(),
    st.one_of(
        st.sampled_from(ODD),
        st.lists(st.integers(0, 3), max_size=3),
        st.integers(-(2**70), 2**70),
    ),
)
def test_both_ways_agree(key, data, new):
    table = {"counts": COUNTS, "visits": VISITS}
    path = data.draw(st.sampled_from(list(places(table[key]))))
    table[key] = replaced(table[key], path, new)
    body = text(table)
    fast = _of_like_arms(body, json.loads(body), SHAPE)
    try:
        slow = _of_any_arms(table, SHAPE)
    except ProtocolError:
        assert fast is None
    else:
        assert fast is not None
        for one, other in zip(fast, slow, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
            assert one.flags["C_CONTIGUOUS"]


def test_arms_of_different_states_are_left_to_the_longer_way():
    assert _of_like_arms(b"", {}, Shape(1, (2, 3), 1)) is None


@pytest.mark.parametrize("word", [b"true", b"false", b'"'])
def test_words_in_a_body_that_numpy_must_not_see(word):
    table = {"counts": COUNTS, "visits": VISITS}
    assert _of_like_arms(text(table), table, SHAPE) is not None
    assert _of_like_arms(text(table) + word, table, SHAPE) is None


@pytest.mark.parametrize("depth", [5, 60, 70, 500])
def test_lists_that_are_too_deep(depth):
    value = json.loads("[" * depth + "]" * depth)
    table = {"counts": value, "visits": VISITS}
    assert _of_like_arms(text(table), table, SHAPE) is None


@pytest.mark.parametrize(("kinds", "S"), [(2, 2), (33, 2), (2, 4), (5, 3)])
def test_sums_by_a_matrix_are_sums(kinds, S):
    rng = np.random.default_rng(kinds)
    counts, visits = rng.integers(0, 2**40, (kinds, S, S, 3)), rng.integers(0, 2**40, (S, 3))
    numbers = np.concatenate((counts.reshape(-1, 3), visits))
    np.testing.assert_array_equal(_sums(kinds, S) @ numbers, _add_up(counts, visits))
    flow = visits[0] - counts[:, 0].sum((0, 1))
    np.testing.assert_array_equal(_add_up(counts, visits)[0], flow)


@pytest.mark.parametrize(
    ("slot_seconds", "seconds", "most"),
    [
        (1.0, 0.0, 10),  # a burst
        (1.0, 3600.0, 3610),  # an hour, played online or not
        (1.0, -50.0, 10),  # a clock behind the one that enrolled
        (0.001, 30.0, 40_000),  # those of ten seconds are more than ten
        (3600.0, 7200.0, 12),
        (1e-9, 1e9, 10**18),
    ],
)
def test_no_more_slots_than_time_allows(slot_seconds, seconds, most):
    check_pace(int(most * (1 - 1e-12)), seconds, slot_seconds)
    check_pace(10**30, seconds, 0.0)  # no limit
    with pytest.raises(ProtocolError) as caught:
        check_pace(int(most * 1.001) + 100, seconds, slot_seconds)
    error = caught.value
    assert (error.status, error.code) == (429, "slots")
    assert "slots of all incarnations must be at most" in str(error)
    assert 0 < error.extra["retry_after"] <= 86_400
    # Who waits as long as it is told may send it, unless a day is not enough.
    if error.extra["retry_after"] < 86_400:
        later = max(0.0, seconds) + error.extra["retry_after"]
        check_pace(int(most * 1.001) + 100, later, slot_seconds)
