"""Identity of a request's sender: agent, admin, viewer or none; by its Authorization header.

    Authorization: Bearer TOKEN           agents, admins and viewers
    Authorization: Basic ANY-NAME:TOKEN   admins and viewers, so that a browser can ask for it

A credential does the work of its own role and of no other. The address that a request comes from is
no credential. A server that is open lets anybody view, and nothing else.

A credential that was found good counts as good for a second where the request checks it again;
everywhere else the database is asked.
"""

from __future__ import annotations

import base64
import binascii
from typing import NamedTuple

from starlette.types import Scope

from rmab.errors import FederationError, ProtocolError
from rmab.service.http.telemetry import Log
from rmab.service.http.tokens import make_token, matches, parse_token
from rmab.service.server.rounds import Rounds
from rmab.service.store.credentials import Credential
from rmab.service.store.store import Erasure, Store

__all__ = ["Access", "Identity"]

_CHALLENGE = 'Bearer realm="rmab"'
_BROWSER_CHALLENGE = f'Basic realm="rmab", charset="UTF-8", {_CHALLENGE}'

Headers = dict[bytes, bytes]


class Identity(NamedTuple):
    """Owner of a valid token, as far as is known."""

    name: str
    role: str
    lane: int
    key_id: str
    secret_hash: bytes
    owner: str


class Access:
    """Tells who asks, enrols and revokes. open: anybody may view."""

    def __init__(self, rounds: Rounds, *, open: bool, log: Log) -> None:
        self._rounds = rounds
        self._open = open
        self._log = log

    async def agent(self, scope: Scope, headers: Headers, *, again: bool = False) -> Identity:
        """Return the agent that asks; ProtocolError 401 if it is none.

        again: the request checks the credential again, so one that was good a moment ago will do.
        """
        found = await self._identity(headers, basic=False, again=again)
        if found is None or found.role != "agent":
            raise ProtocolError(
                401,
                "credential",
                "an agent's credential is needed, one that was not revoked",
                challenge=_CHALLENGE,
            )
        scope["rmab.agent"] = found.name  # for the log
        return found

    async def admin(self, headers: Headers) -> str:
        """Return the name of the admin that asks; ProtocolError 401 if it is none."""
        return await self._person(
            headers,
            "admin",
            "an admin's credential is needed, one that was not revoked; an agent's is not enough, "
            "nor a viewer's",
        )

    async def viewer(self, headers: Headers) -> None:
        """ProtocolError 401 unless it is somebody who may view."""
        if not self._open:
            await self._person(
                headers,
                "viewer",
                "a viewer's credential is needed, one that was not revoked (rmab enroll --viewer); "
                "neither an agent's nor an admin's is one",
            )

    async def _person(self, headers: Headers, role: str, refusal: str) -> str:
        """Return who asks, with a program or a browser; ProtocolError 401 unless it is somebody of
        that role."""
        found = await self._identity(headers, basic=True)
        if found is None or found.role != role:
            raise ProtocolError(401, "credential", refusal, challenge=_BROWSER_CHALLENGE)
        return found.name

    async def enroll(self, name: str, role: str, owner: str | None, admin: str) -> str:
        """A new credential's token; ProtocolError if the name has one.

        owner: that the name counts for, by default itself; admin: who asks.
        """
        token, key_id, secret_hash = make_token()
        now = self._rounds.clock()

        def enroll(store: Store) -> None:
            try:
                store.enroll(name, role, key_id, secret_hash, now, owner)
            except FederationError as error:  # as a refusal it leaves the rest of the batch alone
                raise ProtocolError(409, "enrolled", str(error)) from None

        await self._rounds.jobs.run(enroll)
        self._log("info", "enrolled", agent=name, role=role, owner=owner, by=admin)
        self._rounds.changes += 1
        return token

    async def revoke(self, name: str, admin: str) -> bool:
        """Take a credential back; False if there is none. admin: who asks."""
        now = self._rounds.clock()
        done = await self._rounds.jobs.run(lambda store: store.revoke(name, now))
        if done:
            self._log("info", "revoked", agent=name, by=admin)
            self._rounds.forget(name)
        return done

    async def erase(self, name: str, admin: str) -> Erasure | None:
        """Take all counts of an agent out; None if there is no such agent. admin: who asks."""
        now = self._rounds.clock()
        if self._rounds.federation.privacy is not None:
            how = "in sums alone" if self._rounds.federation.masks else "released in sums"
            raise ProtocolError(409, "sums", f"what an agent gave is {how} and cannot be taken out")
        done = await self._rounds.jobs.run(lambda store: store.erase(name, now, admin))
        await self._rounds.audit()
        return done

    async def _identity(
        self, headers: Headers, *, basic: bool, again: bool = False
    ) -> Identity | None:
        """Return the sender; None for an unknown or a revoked credential."""
        token = _token(headers.get(b"authorization", b""), basic)
        parsed = None if token is None else parse_token(token)
        if parsed is None:
            return None
        key_id, secret_hash = parsed
        found: Credential | None = None
        if again:
            seconds = self._rounds.limits.credential_seconds
            found = self._rounds.jobs.recent_credential(key_id, seconds)
        if found is None or found.revoked:
            found = await self._rounds.jobs.run(lambda store: store.credentials.credential(key_id))
        if found is None or not matches(found.secret_hash, secret_hash):
            return None
        if found.revoked:
            self._rounds.forget(found.name)
            return None
        if found.role == "agent":
            self._rounds.presence.met(found.name)
        return Identity(found.name, found.role, found.lane, key_id, found.secret_hash, found.owner)


def _token(header: bytes, basic: bool) -> str | None:
    scheme, _, text = header.partition(b" ")
    text = text.strip()
    try:
        match scheme.lower():
            case b"bearer":
                return text.decode("ascii")
            case b"basic" if basic:
                return base64.b64decode(text, validate=True).decode("ascii").partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        pass
    return None
