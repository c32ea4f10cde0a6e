"""Enrolling, revoking, forgetting, listing those with a credential: on the database, or as admin.

On the database it is enough to be able to open it, whether a server runs or not. Over HTTP an
admin's credential is needed; any other is refused by the server. Tokens travel over TLS, or to
this machine, and nowhere else.
"""

from __future__ import annotations

import getpass
import os
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from rmab.errors import FederationError, UnreachableError
from rmab.protocol.config import Federation
from rmab.protocol.shape import NAME_RULE, is_name
from rmab.service.http.tokens import make_token, parse_token
from rmab.text import is_loopback, shown

__all__ = [
    "Admin",
    "DatabaseAdmin",
    "HttpAdmin",
    "check_name",
    "is_url",
    "read_secret",
    "read_token",
]

SECONDS = 20.0  # that an answer may take
_BUSY = (408, 425, 429)  # refusals that may pass, as those from 500 on do


class Admin(Protocol):
    """Actions of an admin, on the database or over HTTP."""

    def enroll(self, name: str, role: str, owner: str | None = None) -> str:
        """A new credential's token, which is kept nowhere; owner: that the name counts for."""

    def revoke(self, name: str) -> None:
        """Take a credential back."""

    def forget(self, name: str) -> dict[str, Any]:
        """Take all counts of an agent out, for good; how many uploads and slots that were."""

    def agents(self) -> list[dict[str, Any]]:
        """All that were ever enrolled."""

    def __enter__(self) -> Admin: ...

    def __exit__(self, *_: object) -> None: ...


def is_url(text: str) -> bool:
    """Whether it is a server's address, not a file's."""
    return text.lower().startswith(("http://", "https://"))


def check_name(name: str, option: str = "NAME") -> str:
    """A name that an agent or its owner may have; option: that names it."""
    if not is_name(name):
        raise FederationError(f"{option} must have {NAME_RULE}, got {shown(name)}")
    return name


def read_token(path: str, option: str = "--token-file") -> str:
    """The token in a file of one line; option: that names it."""
    return read_secret(path, option, parse_token, "the token")


def read_secret(path: str, option: str, parse: Callable[[str], object | None], what: str) -> str:
    """Return the one line of a file, which is never shown. parse: returns None for a wrong text."""
    try:
        text = Path(path).read_text("ascii").strip()
    except OSError as error:
        raise FederationError(f"{option} {path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        text = ""
    if parse(text) is None:
        raise FederationError(f"{option} {path}: must have one line, {what}, and no other")
    return text


class DatabaseAdmin:
    """On the database of a federation."""

    def __init__(self, federation: Federation, database: str) -> None:
        from rmab.service.store.store import open_store

        self._federation = federation
        self._heard_seconds = federation.heard_seconds
        self._by_whom = f"{_user()}, on the database"
        self._store = open_store(database, federation)

    def __enter__(self) -> DatabaseAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def enroll(self, name: str, role: str, owner: str | None = None) -> str:
        """A new credential's token, which is kept nowhere; owner: that the name counts for."""
        token, key_id, secret_hash = make_token()
        self._store.enroll(
            name, role, key_id, secret_hash, time.time(), owner, by_whom=self._by_whom
        )
        return token

    def revoke(self, name: str) -> None:
        """Take a credential back."""
        if not self._store.revoke(name, time.time(), by_whom=self._by_whom):
            raise FederationError(f"{name} has no credential to revoke")

    def forget(self, name: str) -> dict[str, Any]:
        """Take all counts of an agent out, for good; how many uploads and slots that were."""
        done = self._store.erase(name, time.time(), self._by_whom)
        if done is None:
            raise FederationError(f"no agent {name} was ever enrolled")
        return done.to_table()

    def agents(self) -> list[dict[str, Any]]:
        """All that were ever enrolled."""
        from rmab.protocol.outliers import compared

        counts, owners = self._store.counts_by_agent(), self._store.credentials.owners()
        scores = compared(counts, self._federation.shape, owners).scores
        now = time.time()
        return [
            {
                **row.to_table(self._federation.weights),
                "outlier": scores.get(row.name),
                "live": row.is_live(now, self._heard_seconds),
            }
            for row in self._store.agents(now)
        ]


def _user() -> str:
    """The name of the system's user, for the log."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # the system has no name for it
        return f"user {os.getuid()}"


class HttpAdmin:
    """Over HTTP, with an admin's token; ca: a file of certificates to trust in place of others."""

    def __init__(self, url: str, token: str, ca: str | None = None) -> None:
        import httpx

        try:
            address = httpx.URL(url)
        except httpx.InvalidURL as error:
            raise FederationError(f"URL {shown(url)} cannot be read: {error}") from None
        if not address.host:
            raise FederationError(f"URL must be http://HOST:PORT or https://..., got {shown(url)}")
        here = is_loopback(address.host)
        if address.scheme == "http" and not here:
            raise FederationError(
                f"URL must be https:// unless the server is on this machine, got {shown(url)}: a "
                "credential must not be sent in the clear"
            )
        self.url = url
        try:
            trusted = ssl.create_default_context(cafile=ca)
        except (OSError, ssl.SSLError) as error:
            reason = getattr(error, "strerror", None) or error
            raise FederationError(f"--ca {ca}: cannot be used: {reason}") from None
        self._client = httpx.Client(
            base_url=address,
            headers={"Authorization": f"Bearer {token}"},
            verify=trusted,
            timeout=SECONDS,
            trust_env=not here,  # whether to go through a proxy that the environment names
        )

    def __enter__(self) -> HttpAdmin:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def enroll(self, name: str, role: str, owner: str | None = None) -> str:
        """A new credential's token, which is kept nowhere; owner: that the name counts for."""
        asked = {"name": name, "role": role} | ({} if owner is None else {"owner": owner})
        answer = self._ask("POST", "/v1/agents", 201, asked)
        return str(answer["token"])

    def revoke(self, name: str) -> None:
        """Take a credential back."""
        self._ask("DELETE", f"/v1/agents/{name}", 204)

    def forget(self, name: str) -> dict[str, Any]:
        """Take all counts of an agent out, for good; how many uploads and slots that were."""
        return self._ask("DELETE", f"/v1/agents/{name}/counts", 200)

    def agents(self) -> list[dict[str, Any]]:
        """All that were ever enrolled."""
        return list(self._ask("GET", "/v1/agents", 200)["agents"])

    def _ask(self, method: str, path: str, due: int, body: Any = None) -> dict[str, Any]:
        import httpx

        try:
            answer = self._client.request(method, path, json=body)
        except httpx.HTTPError as error:
            raise UnreachableError(
                f"{self.url} could not be reached: {str(error) or type(error).__name__}"
            ) from None
        table: Any = None
        if answer.content:
            try:
                table = answer.json()
            except ValueError:
                table = None
        if answer.status_code == due and (isinstance(table, dict) or due == 204):
            return table or {}
        detail = table.get("detail") if isinstance(table, dict) else None
        busy = answer.status_code in _BUSY or answer.status_code >= 500
        if busy or not isinstance(detail, str):
            raise UnreachableError(
                f"{self.url} answered {answer.status_code}: {detail or 'not as a federation does'}"
            )
        raise FederationError(f"{self.url} refused: {detail}")
