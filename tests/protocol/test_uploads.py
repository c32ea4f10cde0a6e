"""Uploads: those of like arms are read by a shorter way to the same end; slots take time."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmab.errors import ProtocolError
from rmab.privacy.masks import MaskKey
from rmab.protocol.growth import CREDIT_SECONDS, Credit, Record, check_growth, check_pace
from rmab.protocol.shape import Shape, Upload
from rmab.protocol.uploads import (
    _add_up,
    _of_any_arms,
    _of_like_arms,
    _sums,
    parse_masked,
    parse_upload,
)

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
        (1.0, 31_536_000.0, 86_400),  # a year: no more than a day
        (0.001, 30.0, 40_000),  # those of ten seconds are more than ten
        (3600.0, 7200.0, 12),
        (86_400.0, 1e9, 10),  # ten slots of a day are more than a day
        (1e-9, 1e9, 86_400 * 10**9),
    ],
)
def test_no_more_slots_than_time_allows(slot_seconds, seconds, most):
    credit = Credit.first(0.0, 0, seconds, slot_seconds)
    assert credit.slots(slot_seconds) == pytest.approx(most, rel=1e-9)
    check_pace(int(most * (1 - 1e-12)), 0, credit, slot_seconds, 1)
    more = int(most * 1.001) + 100
    with pytest.raises(ProtocolError) as caught:
        check_pace(more, 0, credit, slot_seconds, 1)
    error = caught.value
    assert (error.status, error.code) == (429, "slots")
    assert error.extra["slots"] == credit.slots(slot_seconds)
    assert "slots of all incarnations must be at most" in str(error)
    assert 0 < error.extra["retry_after"] <= 86_400
    # Who waits as long as it is told may send it, unless the bucket cannot hold so much.
    later = credit.filled(seconds + error.extra["retry_after"], slot_seconds)
    if more * slot_seconds <= 86_400:
        check_pace(more, 0, later, slot_seconds, 1)


def test_credit_fills_and_is_spent():
    credit = Credit(100.0, 1000.0)
    assert credit.filled(1050.0, 1.0) == (150.0, 1050.0)
    assert credit.filled(1050.0, 1.0, names=3) == (250.0, 1050.0)
    assert credit.filled(10**9, 1.0) == (CREDIT_SECONDS, 10**9)
    assert credit.filled(500.0, 1.0) == (100.0, 500.0)  # the clock was set back
    assert credit.spent(30, 2.0) == (40.0, 1000.0)
    assert credit.spent(90, 2.0).seconds == 0.0
    assert Credit.first(0.0, 50, 60.0, 1.0) == (20.0, 60.0)  # what was told already is taken off
    assert Credit.first(0.0, 10**6, 60.0, 1.0).seconds == 0.0  # and nothing is owed


# ---------------------------------------------------------------------------------- impossible


def told(slots, visits, counts=None, sequence=1):
    """An upload of one incarnation; visits: (S, N); counts: (C, S, S, N)."""
    visits = np.array(visits)
    S, N = visits.shape
    counts = np.zeros((2, S, S, N), np.int64) if counts is None else counts
    return Upload("ab" * 16, sequence, 1, slots, 0, counts, visits)


def parsed(upload, shape):
    return parse_upload(upload.to_json(shape, "s"), shape, "s")


def alternating(observations):
    """Counts of an arm that was seen in every slot, always in state 1, beside one never seen."""
    counts = np.zeros((2, 2, 2, 2), np.int64)
    counts[0, 1, 1, 0] = observations - 1
    return counts


def test_an_arm_is_observed_once_a_slot_at_most():
    """Also where the other arms leave room for more in all."""
    shape = Shape(2, (2, 2), 1)
    parsed(told(4, [[0, 0], [4, 0]], alternating(4)), shape)
    with pytest.raises(ProtocolError, match=r"visits\[0\] must add up to at most one|no count may"):
        parsed(told(4, [[0, 0], [5, 0]], alternating(5)), shape)
    mixed = np.zeros((2, 2, 2, 2), np.int64)
    mixed[0, 0, 1, 0], mixed[0, 1, 0, 0] = 2, 2
    with pytest.raises(ProtocolError, match=r"visits\[0\] must add up to at most one observation"):
        parsed(told(4, [[3, 0], [2, 0]], mixed), shape)


def grown(slots, visits, plays=2, always=(), counts=None):
    """Check what follows an upload of 10 slots in which nothing was seen."""
    before = Record(1, 1, 10, np.zeros((2, 2, 2, 2), np.int64), np.zeros((2, 2), np.int64))
    check_growth(before, told(10 + slots, visits, counts, 2), plays, always)


def test_observations_grow_by_one_a_slot_of_an_arm_and_by_plays_of_all():
    grown(3, [[1, 2], [2, 1]])
    with pytest.raises(ProtocolError, match="at most one observation of an arm and 2 in all"):
        grown(3, [[2, 0], [2, 0]])
    grown(3, [[1, 0], [2, 0]], plays=1)
    with pytest.raises(ProtocolError, match="at most one observation of an arm and 1 in all"):
        grown(3, [[1, 1], [2, 0]], plays=1)
    with pytest.raises(ProtocolError, match="at most one observation of an arm"):
        grown(0, [[1, 0], [0, 0]])


def test_pairs_of_an_arm_that_is_always_observed_grow_by_one_a_slot():
    counts = np.zeros((2, 2, 2, 2), np.int64)
    counts[:, 0, 1, 1] = [1, 2]
    grown(3, [[0, 0], [0, 0]], always=(1,), counts=counts)
    counts[0, 1, 1, 1] = 1
    with pytest.raises(ProtocolError, match="may grow by at most one pair in each of 3 slots"):
        grown(3, [[0, 0], [0, 0]], always=(1,), counts=counts)


def test_an_upload_without_since_is_of_an_agent_that_is_too_old():
    shape = Shape(2, (2, 2), 1)
    masked = MaskKey(bytes(32)).masked(told(1, [[0, 0], [1, 0]]), "00" * 32, "a", shape, 7)
    body = masked.to_json(shape, "s")
    assert parse_masked(body, shape, "s").position == 8
    with pytest.raises(ProtocolError, match="rmab is too old to mask its counts at marks"):
        parse_masked(body.replace(b'"since":7,', b""), shape, "s")
