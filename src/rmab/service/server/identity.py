"""Who asks: an agent, an admin, or anybody; from the Authorization header of a request.

    Authorization: Bearer TOKEN           agents and admins
    Authorization: Basic ANY-NAME:TOKEN   admins, so that a browser can ask for it

An agent's credential never does an admin's work, nor the other way round. A viewer is an admin, or
anybody where the server listens on loopback alone and no proxy stands between.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from starlette.types import Scope

from rmab.errors import ProtocolError
from rmab.service.server.roster import Identity
from rmab.service.server.rounds import Federator
from rmab.service.tokens import parse_token

__all__ = ["Access"]

CHALLENGE = 'Bearer realm="rmab"'
ADMIN_CHALLENGE = f'Basic realm="rmab", charset="UTF-8", {CHALLENGE}'
_PROXIED = (b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"via")

Headers = dict[bytes, bytes]


class Access:
    """Decides. loopback: the server listens on loopback alone."""

    def __init__(self, federator: Federator, *, loopback: bool) -> None:
        self._federator = federator
        self._loopback = loopback

    async def agent(self, scope: Scope, headers: Headers, *, again: bool = False) -> Identity:
        """The agent that asks; ProtocolError 401 if it is none.

        again: the credential is checked again with what is asked, so one that was good a moment
        ago will do for now.
        """
        found = await self._identity(headers, basic=False, again=again)
        if found is None or found.role != "agent":
            raise ProtocolError(
                401,
                "credential",
                "an agent's credential is needed, one that was not revoked",
                challenge=CHALLENGE,
            )
        scope["rmab.agent"] = found.name  # for the log
        return found

    async def admin(self, headers: Headers) -> None:
        """ProtocolError 401 unless an admin asks."""
        found = await self._identity(headers, basic=True)
        if found is None or found.role != "admin":
            raise ProtocolError(
                401,
                "credential",
                "an admin's credential is needed, one that was not revoked; an agent's is not "
                "enough",
                challenge=ADMIN_CHALLENGE,
            )

    async def viewer(self, headers: Headers) -> None:
        """ProtocolError 401 unless it is somebody who may look."""
        if not self._loopback or any(name in headers for name in _PROXIED):
            await self.admin(headers)

    async def _identity(
        self, headers: Headers, *, basic: bool, again: bool = False
    ) -> Identity | None:
        token = _token(headers.get(b"authorization", b""), basic)
        parsed: Any = None if token is None else parse_token(token)
        if parsed is None:
            return None
        return await self._federator.identify(*parsed, again=again)


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
