"""Who is who, and what was seen of them other than uploads.

A credential that was found good counts as good for a second where what is asked checks it again;
everywhere else the database is asked. When agents were seen, which round they fetched and how often
they were refused is kept here and written down every few seconds: it is for people to look at, and
nothing depends on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

from rmab.errors import FederationError, ProtocolError, StorageError
from rmab.service.server.logs import Log
from rmab.service.server.status import Seen
from rmab.service.store.rows import Credential, Sighting
from rmab.service.store.store import Store
from rmab.service.store.writer import Run
from rmab.service.tokens import make_token, matches

__all__ = ["Identity", "Roster"]

REMEMBERED = 1.0  # seconds that a credential counts as good
WRITTEN_EVERY = 5.0  # seconds between writing down who was seen


class Identity(NamedTuple):
    """Who holds a token that is valid, as far as is known."""

    name: str
    role: str
    lane: int
    key_id: str
    secret_hash: bytes


class Roster:
    """The agents and admins of a federation, as far as a running server has met them."""

    def __init__(self, run: Run, log: Log, clock: Callable[[], float]) -> None:
        self._run = run
        self._log = log
        self._clock = clock
        self._credentials: dict[str, tuple[Identity, float]] = {}
        self._seen: dict[str, float] = {}
        self.fetched: dict[str, int] = {}  # the round that an agent has, by name
        self._refused: defaultdict[str, int] = defaultdict(int)
        self._unwritten: set[str] = set()

    # ------------------------------------------------------------------------------- credentials

    def known(self, key_id: str, secret_hash: bytes) -> Identity | None:
        """Whose token this is, if that was checked a moment ago."""
        found = self._credentials.get(key_id)
        if found is None or time.monotonic() > found[1] + REMEMBERED:
            return None
        if not matches(found[0].secret_hash, secret_hash):
            return None
        self.met(found[0])
        return found[0]

    async def identify(self, key_id: str, secret_hash: bytes) -> Identity | str | None:
        """Whose token this is; only the name if it is revoked, None if it is unknown."""
        found: Credential | None = await self._run(lambda store: store.credential(key_id))
        if found is None or not matches(found.secret_hash, secret_hash):
            return None
        if found.revoked:
            return found.name
        who = Identity(found.name, found.role, found.lane, key_id, found.secret_hash)
        self._credentials[key_id] = (who, time.monotonic())
        self.met(who)
        return who

    async def enroll(self, name: str, role: str) -> str:
        """A new credential's token; ProtocolError if the name has one."""
        token, key_id, secret_hash = make_token()
        now = self._clock()

        def enroll(store: Store) -> None:
            try:
                store.enroll(name, role, key_id, secret_hash, now)
            except FederationError as error:  # as a refusal it leaves the rest of the batch alone
                raise ProtocolError(409, "enrolled", str(error)) from None

        await self._run(enroll)
        self._log("info", "enrolled", agent=name, role=role)
        return token

    async def revoke(self, name: str) -> bool:
        """Take a credential back; False if there is none."""
        now = self._clock()
        done: bool = await self._run(lambda store: store.revoke(name, now))
        if done:
            self._log("info", "revoked", agent=name)
        return done

    def forget(self, name: str) -> None:
        """A name's credential is valid no more."""
        self._credentials = {
            key: known for key, known in self._credentials.items() if known[0].name != name
        }

    # --------------------------------------------------------------------------------- sightings

    def met(self, who: Identity) -> None:
        """It has asked for something."""
        if who.role == "agent":
            if who.name not in self._seen:
                self._log("info", "agent seen first since start", agent=who.name)
            self._seen[who.name] = self._clock()
            self._unwritten.add(who.name)

    def refused(self, name: str) -> None:
        """Something of it was refused."""
        self._refused[name] += 1
        self._unwritten.add(name)

    def seen(self, name: str) -> Seen:
        """What may not be in the database yet."""
        return Seen(self._seen.get(name), self.fetched.get(name), self._refused.get(name, 0))

    async def write(self) -> None:
        """Write down what is not."""
        if not self._unwritten:
            return
        names, self._unwritten = self._unwritten, set()
        refused, self._refused = self._refused, defaultdict(int)
        sightings = [
            Sighting(name, self._seen.get(name, 0.0), self.fetched.get(name), refused[name])
            for name in names
        ]
        await self._run(lambda store: store.sighted(sightings))

    async def keep_writing(self) -> None:
        """Write down what is not, again and again; what a database in trouble does not take is
        lost."""
        while True:
            await asyncio.sleep(WRITTEN_EVERY)
            with contextlib.suppress(StorageError):
                await self.write()
