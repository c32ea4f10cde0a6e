"""Masks: uploads of which a server can learn only sums.

An agent shares a key k with the *helper*, a second party that somebody else runs. It sends

    masked = x + stream(k, header)                   in 64-bit words, modulo 2^64
    tag    = HMAC(HMAC(k, "rmab mask 1 tag"), header)

where x is the vector of an upload, counts and then visits in their order there, and

    stream(k, header) = SHAKE-256(HMAC(k, "rmab mask 1 stream") || header)
    header            = fingerprint of the federation, agent, incarnation, sequence, slots, nonce

with SHA-256 in every HMAC. The nonce is drawn anew for each body, so no two bodies have the same
mask, also after a backup was restored. Without the key the words are uniform; the helper, which has
it, computes masks and tags from headers and never sees an upload. A header has the slots: a server
that names other slots gets no mask from the helper, and could not use one.

Counts are masked at *marks*: positions that are public and depend on nothing that was observed. The
*position* of an agent is the number of slots that it has masked, over its incarnations; an
incarnation begins at the position of the mark that was kept last. Every agent of a batch must bring
the same number of slots (`rmab.privacy.unmasking`) and agents are not equally fast, so all mask at

    1, 2, ..., 16, 18, 20, ..., 32, 36, 40, ..., 64, 72, ...        m 2^e with m from 8 to 15

One mark is at most an eighth of its slots before the next: sums have at least 8/9 of the slots of
the slowest agent, and an agent that was away for long has few marks to send.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.protocol.checks import malformed
from rmab.protocol.shape import PROTOCOL, UPLOAD_KEYS, Ints, Shape, Upload
from rmab.text import shown

__all__ = [
    "KEY_PREFIX",
    "MASKED_KEYS",
    "NONCE_BYTES",
    "TAG_BYTES",
    "Header",
    "MaskKey",
    "MaskedUpload",
    "Words",
    "in_base64",
    "is_mark",
    "make_key",
    "numbers_of",
    "parse_key",
    "read_words",
    "vector_of",
    "vector_size",
]

KEY_PREFIX = "rmab-mask-"
NONCE_BYTES, TAG_BYTES = 16, 32
MASKED_KEYS = (*UPLOAD_KEYS[:3], "since", *UPLOAD_KEYS[3:7], "nonce", "masked", "tag")

Words = npt.NDArray[np.uint64]

_KEY_BYTES = 32
_KEY = re.compile(f"{KEY_PREFIX}([A-Za-z0-9_-]{{43}})")
_WORD = np.dtype("<u8")
_MARK_BITS = 4  # the most bits of a mark before the zeros at its end


def is_mark(position: int) -> bool:
    """Return whether counts are masked at this position."""
    return position > 0 and position % (1 << max(0, position.bit_length() - _MARK_BITS)) == 0


def make_key() -> str:
    """Return a new mask key as text: 32 random bytes in url-safe base64 after a prefix."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def parse_key(text: str) -> bytes | None:
    """Return the key in a text; None if it is malformed."""
    match = _KEY.fullmatch(text)
    if match is None:
        return None
    key = base64.urlsafe_b64decode(match[1] + "=")
    return key if base64.urlsafe_b64encode(key).decode().rstrip("=") == match[1] else None


class Header(NamedTuple):
    """Header of a masked upload: one body of one incarnation of an agent."""

    fingerprint: str  # of the federation, 64 hexadecimal digits
    agent: str
    incarnation: str  # 32 hexadecimal digits
    sequence: int
    slots: int
    nonce: bytes  # 16

    def encoded(self) -> bytes:
        """Return bytes that no other header has: every length is fixed or given."""
        name = self.agent.encode("ascii")
        parts = (
            bytes.fromhex(self.fingerprint),
            len(name).to_bytes(2, "big"),
            name,
            bytes.fromhex(self.incarnation),
            self.sequence.to_bytes(8, "big"),
            self.slots.to_bytes(8, "big"),
            self.nonce,
        )
        sizes = [len(part) for part in parts]
        if sizes != [32, 2, len(name), 16, 8, 8, NONCE_BYTES]:
            raise ValueError(f"a header has parts of the wrong length: {sizes}")
        return b"".join(parts)


class MaskKey:
    """A mask key; its text forms never show the key itself."""

    def __init__(self, key: bytes) -> None:
        self._stream = _hmac(key, b"rmab mask 1 stream")
        self._tag = _hmac(key, b"rmab mask 1 tag")

    def __repr__(self) -> str:
        return "MaskKey(...)"

    def mask(self, header: Header, size: int) -> Words:
        """Return the words (size,) that are added to a vector."""
        stream = hashlib.shake_256(self._stream + header.encoded()).digest(8 * size)
        return np.frombuffer(stream, _WORD).astype(np.uint64, copy=False)

    def tag(self, header: Header) -> bytes:
        """Return the tag of a header: only an owner of the key can make it."""
        return _hmac(self._tag, header.encoded())

    def is_tag(self, header: Header, tag: bytes) -> bool:
        """Return whether a tag is the header's, in constant time."""
        return hmac.compare_digest(self.tag(header), tag)

    @property
    def name(self) -> bytes:
        """Name of the key, from which the key cannot be inferred."""
        return _hmac(self._tag, b"rmab mask 1 name")

    def masked(
        self, upload: Upload, fingerprint: str, agent: str, shape: Shape, since: int = 0
    ) -> MaskedUpload:
        """Mask an upload's counts and visits under a fresh nonce.

        Parameters
        ----------
        fingerprint
            Digest of the federation, 64 hexadecimal digits.
        agent
            Name of the agent.
        since
            Position of the agent when its incarnation began, in slots.
        """
        nonce = secrets.token_bytes(NONCE_BYTES)
        header = Header(
            fingerprint, agent, upload.incarnation, upload.sequence, upload.slots, nonce
        )
        x = vector_of(upload.counts, upload.visits, shape)
        masked, tag = x + self.mask(header, len(x)), self.tag(header)
        zeros = np.zeros_like(upload.counts), np.zeros_like(upload.visits)
        head = upload.incarnation, upload.sequence, upload.round, upload.slots, upload.length
        return MaskedUpload(*head, *zeros, nonce, masked, tag, since)


@dataclass(frozen=True, eq=False)
class MaskedUpload(Upload):
    """An upload under a mask; its counts and visits are 0, as they are unknown."""

    nonce: bytes
    masked: Words  # (vector_size(shape),)
    tag: bytes
    since: int  # the agent's position when the incarnation began

    @property
    def position(self) -> int:
        """Position of the agent after this upload."""
        return self.since + self.slots

    @cached_property
    def digest(self) -> bytes:
        """Digest of the content: equal for equal bodies."""
        head = (
            f"{self.incarnation} {self.since} {self.sequence} {self.round} {self.slots} "
            f"{self.length} "
        )
        return hashlib.sha256(
            head.encode() + self.nonce + self.tag + self.masked.astype(_WORD).tobytes()
        ).digest()

    def to_json(self, shape: Shape, federation: str) -> bytes:  # noqa: ARG002 - as of every upload
        """Return the body of a request."""
        head = PROTOCOL, federation, self.incarnation, self.since
        numbers = self.sequence, self.round, self.slots, self.length
        values = *head, *numbers, self.nonce.hex(), in_base64(self.masked), self.tag.hex()
        table = dict(zip(MASKED_KEYS, values, strict=True))
        return json.dumps(table, separators=(",", ":")).encode()


def in_base64(words: Words) -> str:
    """Return words as messages have them."""
    return base64.b64encode(np.ascontiguousarray(words, _WORD).tobytes()).decode()


def read_words(place: str, text: Any, size: int) -> Words:
    """Read words (size,) in base64; ProtocolError if they are malformed."""
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != 8 * size:
        raise malformed(f"{place} must be {size} words of 64 bits in base64, got {shown(text)}")
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)


def vector_size(shape: Shape) -> int:
    """Return the number of counts and visits in an upload."""
    return shape.size + sum(shape.states)


def vector_of(counts: Ints, visits: Ints, shape: Shape) -> Words:
    """Return counts (C, S, S, N) and visits (S, N) as the vector of an upload: counts by arm, then
    visits by arm."""
    parts = [
        counts[:kinds, :s, :s, arm].ravel()
        for arm, (kinds, s) in enumerate(zip(shape.kinds_by_arm, shape.states, strict=True))
    ]
    parts += [visits[:s, arm] for arm, s in enumerate(shape.states)]
    return np.concatenate(parts).astype(np.uint64)


def numbers_of(vector: npt.NDArray[np.int64], shape: Shape) -> tuple[Ints, Ints]:
    """Return counts (C, S, S, N) and visits (S, N), padded with 0, from the vector of an upload."""
    S = max(shape.states)
    counts = np.zeros((shape.kinds, S, S, shape.n_arms), np.int64)
    visits = np.zeros((S, shape.n_arms), np.int64)
    start = 0
    for arm, (kinds, s) in enumerate(zip(shape.kinds_by_arm, shape.states, strict=True)):
        end = start + kinds * s * s
        counts[:kinds, :s, :s, arm] = vector[start:end].reshape(kinds, s, s)
        start = end
    for arm, s in enumerate(shape.states):
        visits[:s, arm] = vector[start : start + s]
        start += s
    return counts, visits


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
