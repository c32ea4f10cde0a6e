"""Masks: uniform, told apart by every part of a header, and made with one key alone."""

import base64
import hashlib
import hmac
import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from rmab.privacy.masks import (
    Header,
    MaskKey,
    is_mark,
    make_key,
    numbers_of,
    parse_key,
    vector_of,
    vector_size,
)
from rmab.protocol.shape import Shape
from tests.privacy.masking import FINGERPRINT, SHAPE
from tests.service.support.counting import Counting

HEADER = Header(FINGERPRINT, "radio-1", "ab" * 16, 3, 40, bytes(range(16)))
KEY = bytes(range(32))


def test_a_mask_and_a_tag_are_what_the_protocol_says():
    encoded = (
        bytes.fromhex(FINGERPRINT)
        + b"\x00\x07radio-1"
        + bytes.fromhex("ab" * 16)
        + (3).to_bytes(8, "big")
        + (40).to_bytes(8, "big")
        + bytes(range(16))
    )
    assert HEADER.encoded() == encoded
    stream = hmac.digest(KEY, b"rmab mask 1 stream", "sha256")
    words = np.frombuffer(hashlib.shake_256(stream + encoded).digest(8 * 5), "<u8")
    assert np.array_equal(MaskKey(KEY).mask(HEADER, 5), words)
    tagging = hmac.digest(KEY, b"rmab mask 1 tag", "sha256")
    assert MaskKey(KEY).tag(HEADER) == hmac.digest(tagging, encoded, "sha256")


names = st.text("abcdefgh0123456789.-_", min_size=0, max_size=20).map(lambda text: "a" + text)
headers = st.builds(
    Header,
    st.sampled_from([FINGERPRINT, "00" * 32]),
    names,
    st.binary(min_size=16, max_size=16).map(bytes.hex),
    st.integers(1, 2**53),
    st.integers(0, 2**40),
    st.binary(min_size=16, max_size=16),
)


@given(headers, headers)
def test_no_two_headers_have_the_same_bytes(one, other):
    assert (one == other) == (one.encoded() == other.encoded())


def test_lengths_are_told_so_that_no_part_runs_into_the_next():
    short = HEADER._replace(agent="a", incarnation="62" * 16)
    assert len({len(HEADER._replace(agent=name).encoded()) for name in ("a", "ab", "abc")}) == 3
    assert short.encoded()[32:36] == b"\x00\x01a\x62"
    with pytest.raises(ValueError, match="wrong length"):
        HEADER._replace(nonce=b"short").encoded()


@pytest.mark.parametrize(
    "changes",
    [
        {"fingerprint": "00" * 32},
        {"agent": "radio-2"},
        {"incarnation": "cd" * 16},
        {"sequence": 4},
        {"slots": 41},
        {"nonce": bytes(16)},
    ],
)
def test_every_part_of_a_header_changes_mask_and_tag(changes):
    key, other = MaskKey(KEY), HEADER._replace(**changes)
    assert not np.array_equal(key.mask(HEADER, 4), key.mask(other, 4))
    assert not key.is_tag(other, key.tag(HEADER))
    assert key.is_tag(HEADER, key.tag(HEADER))
    assert not MaskKey(bytes(32)).is_tag(HEADER, key.tag(HEADER))


def test_masked_uploads_are_uniform():
    key, counting = MaskKey(KEY), Counting(SHAPE)
    bodies = [
        key.masked(counting.upload(n, slots=1), FINGERPRINT, "radio-1", SHAPE)
        for n in range(1, 400)
    ]
    data = np.stack([body.masked for body in bodies]).view(np.uint8)
    assert chisquare(np.bincount(data.ravel(), minlength=256)).pvalue > 1e-4
    by_place = [chisquare(np.bincount(place & 7, minlength=8)).pvalue for place in data.T]
    assert min(by_place) > 1e-4 / len(by_place)
    # What one adds to the next is uniform, too: they do not share a mask.
    steps = np.concatenate([(b.masked - a.masked).view(np.uint8) for a, b in pairwise(bodies)])
    assert chisquare(np.bincount(steps, minlength=256)).pvalue > 1e-4


def test_the_same_counts_have_another_mask_in_every_body():
    """As after an agent's file was restored from a backup: the same number, other counts."""
    key, upload = MaskKey(KEY), Counting(SHAPE).upload(1)
    one, other = (key.masked(upload, FINGERPRINT, "radio-1", SHAPE) for _ in range(2))
    assert one.nonce != other.nonce
    assert not np.array_equal(one.masked, other.masked)
    assert one.digest != other.digest


def test_a_masked_upload_tells_no_counts():
    upload = Counting(SHAPE).upload(1)
    masked = MaskKey(KEY).masked(upload, FINGERPRINT, "radio-1", SHAPE)
    assert not masked.counts.any()
    assert not masked.visits.any()
    table = json.loads(masked.to_json(SHAPE, "spectrum"))
    assert table.keys() == {
        *("protocol", "federation", "incarnation", "since", "sequence", "round", "slots"),
        *("length", "nonce", "masked", "tag"),
    }
    words = np.frombuffer(base64.b64decode(table["masked"]), "<u8")
    header = HEADER._replace(
        incarnation=upload.incarnation, sequence=1, slots=3, nonce=bytes.fromhex(table["nonce"])
    )
    clear = words - MaskKey(KEY).mask(header, len(words))
    assert np.array_equal(clear, vector_of(upload.counts, upload.visits, SHAPE))


@pytest.mark.parametrize(
    "shape",
    [SHAPE, Shape(1, (2, 3), 4), Shape(2, (3, 2, 2), 3, (1,), (1, 2)), Shape(1, (2,), 1, (0,))],
)
def test_a_vector_has_the_numbers_of_an_upload_in_their_order(shape):
    rng = np.random.default_rng(0)
    vector = rng.integers(0, 1000, vector_size(shape))
    counts, visits = numbers_of(vector, shape)
    assert np.array_equal(vector_of(counts, visits, shape), vector.astype(np.uint64))
    upload = Counting(Shape(shape.plays, shape.states, shape.gaps)).upload(1)
    body = json.loads(upload.to_json(Shape(shape.plays, shape.states, shape.gaps), "s"))
    flat = [n for key in ("counts", "visits") for arm in body[key] for n in np.ravel(arm)]
    plain = Shape(shape.plays, shape.states, shape.gaps)
    assert vector_of(upload.counts, upload.visits, plain).tolist() == flat


def test_a_key_is_made_once_and_read_from_its_text_alone():
    text = make_key()
    key = parse_key(text)
    assert key is not None
    assert len(key) == 32
    assert parse_key(make_key()) != key
    for wrong in ("", text[:-1], text + "a", text.upper(), " " + text, "rmab_" + text[10:]):
        assert parse_key(wrong) is None
    assert text[10:] not in repr(MaskKey(key))


# ----------------------------------------------------------------------------------------- marks


def test_marks_are_what_the_protocol_says():
    expected = [*range(1, 17), *range(18, 33, 2), *range(36, 65, 4), *range(72, 129, 8)]
    assert [n for n in range(129) if is_mark(n)] == expected


def test_a_mark_is_at_most_an_eighth_before_the_next():
    marks = [n for n in range(1, 5000) if is_mark(n)]
    for mark, following in pairwise(marks):
        assert following - mark <= max(1, mark / 8)
    assert len(marks) < 100
    assert not is_mark(0)
    assert is_mark(2**40)
    assert not is_mark(2**40 + 1)
