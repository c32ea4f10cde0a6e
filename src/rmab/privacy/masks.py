"""Masks: what an agent sends when its server is to learn sums alone.

An agent shares a key k with the *helper*, a second party that somebody else runs. It sends

    masked = x + stream(k, header)                   in 64-bit words, modulo 2^64
    tag    = HMAC(HMAC(k, "rmab mask 1 tag"), header)

where x has the numbers of an upload in their order there, counts and then visits, and

    stream(k, header) = SHAKE-256(HMAC(k, "rmab mask 1 stream") || header)
    header            = fingerprint of the federation, agent, incarnation, sequence, slots, nonce

with SHA-256 in every HMAC. The nonce is drawn anew for each body, so no two bodies have the same
mask, whatever was restored from a backup. Whoever has not the key sees uniform words; the helper,
who has it, computes masks and tags from headers and never sees what they are added to. A header has
the slots: a server that asks the helper for others gets no mask, and could do nothing with one.

It takes the standard library and NumPy alone.
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
from rmab.protocol.messages import PROTOCOL, Ints, Shape, Upload
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
    "make_key",
    "numbers_of",
    "parse_key",
    "read_words",
    "vector_of",
    "vector_size",
]

KEY_PREFIX = "rmab-mask-"
NONCE_BYTES, TAG_BYTES = 16, 32
MASKED_KEYS = (
    "protocol",
    "federation",
    "incarnation",
    "since",
    "sequence",
    "round",
    "slots",
    "length",
    "nonce",
    "masked",
    "tag",
)

Words = npt.NDArray[np.uint64]

_KEY_BYTES = 32
_KEY = re.compile(f"{KEY_PREFIX}([A-Za-z0-9_-]{{43}})")
_WORD = np.dtype("<u8")


def make_key() -> str:
    """A new mask key as text: 32 random bytes in url-safe base64 after a prefix."""
    return KEY_PREFIX + secrets.token_urlsafe(_KEY_BYTES)


def parse_key(text: str) -> bytes | None:
    """The key in a text; None if it is none."""
    found = _KEY.fullmatch(text)
    if found is None:
        return None
    key = base64.urlsafe_b64decode(found[1] + "=")
    return key if base64.urlsafe_b64encode(key).decode().rstrip("=") == found[1] else None


class Header(NamedTuple):
    """What a mask is made for: one body of one incarnation of an agent."""

    fingerprint: str  # of the federation, 64 hexadecimal digits
    agent: str
    incarnation: str  # 32 hexadecimal digits
    sequence: int
    slots: int
    nonce: bytes  # 16

    def encoded(self) -> bytes:
        """Bytes that no other header has: every length is fixed or told."""
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
    """A mask key, ready for use; nothing shows the key itself."""

    def __init__(self, key: bytes) -> None:
        self._stream = _hmac(key, b"rmab mask 1 stream")
        self._tag = _hmac(key, b"rmab mask 1 tag")

    def __repr__(self) -> str:
        return "MaskKey(...)"

    def mask(self, header: Header, size: int) -> Words:
        """The words (size,) that are added to a vector."""
        stream = hashlib.shake_256(self._stream + header.encoded()).digest(8 * size)
        return np.frombuffer(stream, _WORD).astype(np.uint64, copy=False)

    def tag(self, header: Header) -> bytes:
        """That whoever has the key made this header."""
        return _hmac(self._tag, header.encoded())

    def is_tag(self, header: Header, tag: bytes) -> bool:
        """Whether it is the header's tag, in a time that does not tell where it differs."""
        return hmac.compare_digest(self.tag(header), tag)

    @property
    def name(self) -> bytes:
        """A name for the key, which tells nothing of it: another one has another."""
        return _hmac(self._tag, b"rmab mask 1 name")

    def masked(
        self, upload: Upload, fingerprint: str, agent: str, shape: Shape, since: int = 0
    ) -> MaskedUpload:
        """An upload whose counts and visits nobody else can read, under a fresh nonce; since: the
        agent's position when its incarnation began (`rmab.privacy.marks`)."""
        nonce = secrets.token_bytes(NONCE_BYTES)
        header = Header(
            fingerprint, agent, upload.incarnation, upload.sequence, upload.slots, nonce
        )
        x = vector_of(upload.counts, upload.visits, shape)
        return MaskedUpload(
            upload.incarnation,
            upload.sequence,
            upload.round,
            upload.slots,
            upload.length,
            np.zeros_like(upload.counts),
            np.zeros_like(upload.visits),
            nonce,
            x + self.mask(header, len(x)),
            self.tag(header),
            since,
        )


@dataclass(frozen=True, eq=False)
class MaskedUpload(Upload):
    """An upload under a mask; its counts and visits are 0, as they are not known."""

    nonce: bytes
    masked: Words  # (vector_size(shape),)
    tag: bytes
    since: int  # the agent's position when the incarnation began

    @property
    def position(self) -> int:
        """The agent's after this upload."""
        return self.since + self.slots

    @cached_property
    def digest(self) -> bytes:
        """Of the content: equal for equal bodies."""
        head = (
            f"{self.incarnation} {self.since} {self.sequence} {self.round} {self.slots} "
            f"{self.length} "
        )
        return hashlib.sha256(
            head.encode() + self.nonce + self.tag + self.masked.astype(_WORD).tobytes()
        ).digest()

    def to_json(self, shape: Shape, federation: str) -> bytes:  # noqa: ARG002 - as of every upload
        """The body of a request."""
        values = (
            PROTOCOL,
            federation,
            self.incarnation,
            self.since,
            self.sequence,
            self.round,
            self.slots,
            self.length,
            self.nonce.hex(),
            in_base64(self.masked),
            self.tag.hex(),
        )
        return json.dumps(
            dict(zip(MASKED_KEYS, values, strict=True)), separators=(",", ":")
        ).encode()


def in_base64(words: Words) -> str:
    """Words as messages have them."""
    return base64.b64encode(np.ascontiguousarray(words, _WORD).tobytes()).decode()


def read_words(place: str, text: Any, size: int) -> Words:
    """Words (size,) in base64; ProtocolError if they are none."""
    try:
        data = base64.b64decode(text, validate=True) if isinstance(text, str) else b""
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != 8 * size:
        raise malformed(f"{place} must be {size} words of 64 bits in base64, got {shown(text)}")
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)


def vector_size(shape: Shape) -> int:
    """How many numbers an upload has, counts and visits."""
    return shape.size + sum(shape.states)


def vector_of(counts: Ints, visits: Ints, shape: Shape) -> Words:
    """The numbers of an upload, counts (C, S, S, N) and visits (S, N), in their order there:
    counts by arm, then visits by arm."""
    parts = [
        counts[:kinds, :s, :s, arm].ravel()
        for arm, (kinds, s) in enumerate(zip(shape.kinds_by_arm, shape.states, strict=True))
    ]
    parts += [visits[:s, arm] for arm, s in enumerate(shape.states)]
    return np.concatenate(parts).astype(np.uint64)


def numbers_of(vector: npt.NDArray[np.int64], shape: Shape) -> tuple[Ints, Ints]:
    """Counts (C, S, S, N) and visits (S, N), padded with 0, of a vector of numbers."""
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
