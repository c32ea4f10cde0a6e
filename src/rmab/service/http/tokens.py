"""Tokens: their form, storage and comparison.

    rmab_0123456789abcdef_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQ
         key id           secret: 32 random bytes in url-safe base64, 43 characters

The database keeps the key id, by which a token is found, and the SHA-256 of the secret, never the
secret. It has 256 random bits, so a plain digest of it cannot be searched for and needs no salt.
Digests are compared in constant time.

A token goes over TLS, or to this machine, and nowhere else; and into no log.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from rmab.privacy.masks import KEY_PREFIX

__all__ = ["make_token", "matches", "parse_token", "without_secrets"]

_KEY_ID, _OF_SECRET = "[0-9a-f]{16}", "[A-Za-z0-9_-]"
_TOKEN = re.compile(f"rmab_({_KEY_ID})_({_OF_SECRET}{{43}})")
_IN_TEXT = re.compile(f"(rmab_{_KEY_ID}_){_OF_SECRET}+")
_KEY_IN_TEXT = re.compile(f"{KEY_PREFIX}{_OF_SECRET}+")


def make_token() -> tuple[str, str, bytes]:
    """A new token, its key id and the digest of its secret; only the last two are stored."""
    key_id, secret = secrets.token_hex(8), secrets.token_urlsafe(32)
    return f"rmab_{key_id}_{secret}", key_id, _digest(secret)


def parse_token(text: str) -> tuple[str, bytes] | None:
    """The key id of a token and the digest of its secret; None if the text is no token."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else (found[1], _digest(found[2]))


def matches(one: bytes, other: bytes) -> bool:
    """Whether two digests are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(one, other)


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("ascii")).digest()


def without_secrets(text: str) -> str:
    """Return the text with the key id only of every token, and without mask keys."""
    return _KEY_IN_TEXT.sub(f"{KEY_PREFIX}...", _IN_TEXT.sub(r"\1...", text))
