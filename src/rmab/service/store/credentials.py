"""Names with their roles and lanes, and their credentials, in the database.

A name keeps its role and lane, revoked or not, and has at most one credential that is not revoked.
Its owner is the person or organisation that it counts for, by default itself.

Credentials are remembered, by the store that has the claim from one transaction to the next. Other
processes may enrol and revoke meanwhile: a counter in `meta`, read once in each transaction,
changes when any has. So inside a transaction a remembered credential holds. Outside, `recent`
returns a credential as of the counter's last reading, a moment ago; that is enough where it is
checked again in a transaction before anything is written.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from typing import NamedTuple

from rmab.errors import FederationError
from rmab.service.store.database import Database

__all__ = ["ROLES", "Credential", "Credentials", "Sighting"]

ROLES = ("agent", "admin", "viewer")
NO_LANE = -1  # of whoever plays nothing
_COUNTER = "credentials"


class Credential(NamedTuple):
    """Credential of a key id."""

    name: str
    role: str
    lane: int
    secret_hash: bytes
    revoked: bool
    since: float  # when the name was first enrolled
    owner: str


class Sighting(NamedTuple):
    """Sighting of an agent by requests other than uploads."""

    name: str
    last_seen: float
    last_round: int | None
    refused: int  # since the sighting before


class Credentials:
    """The credentials of one federation; whatever writes is called inside a transaction.

    `inside`, set by the store: whether a transaction is open.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self.inside = False
        self.forget()

    def forget(self) -> None:
        """Drop all that is remembered."""
        self._known: dict[str, Credential] = {}
        self._owners: dict[str, int] | None = None
        self._as_of: str | None = ""  # the counter when they were read
        self._read_at = -math.inf  # when that was, on the monotonic clock
        self._checked = False

    def begin(self) -> None:
        """A transaction has begun: others may have changed credentials since the last one."""
        self._checked = False

    def enroll(
        self,
        name: str,
        role: str,
        key_id: str,
        secret_hash: bytes,
        now: float,
        owner: str | None = None,
    ) -> int:
        """Give a name a credential; its lane. A name that was revoked keeps role and lane, and its
        owner unless another is given."""
        if role not in ROLES:
            raise FederationError(f"role must be agent, admin or viewer, got {role!r}")
        self._change()
        found = self._database.rows(
            "SELECT role, lane, revoked FROM agents WHERE name = ?", (name,)
        )
        if found:
            ((had, lane, revoked),) = found
            if revoked is None:
                raise FederationError(f"{name} is enrolled already; revoke it first")
            if had != role:
                raise FederationError(f"{name} was enrolled as {had}; a name keeps its role")
            self._database.run(
                "UPDATE agents SET enrolled = ?, revoked = NULL, owner = COALESCE(?, owner) "
                "WHERE name = ?",
                (now, owner, name),
            )
        else:
            ((last,),) = self._database.rows("SELECT MAX(lane) FROM agents")
            lane = (-1 if last is None else last) + 1 if role == "agent" else NO_LANE
            self._database.run(
                "INSERT INTO agents (name, role, lane, enrolled, refused, owner) "
                "VALUES (?, ?, ?, ?, 0, ?)",
                (name, role, lane, now, owner or name),
            )
        self._database.run(
            "INSERT INTO credentials (key_id, agent, secret_hash, created) VALUES (?, ?, ?, ?)",
            (key_id, name, secret_hash, now),
        )
        return int(lane)

    def revoke(self, name: str, now: float) -> bool:
        """Take a name's credential back; False if it has none."""
        self._change()
        changed = self._database.run(
            "UPDATE agents SET revoked = ? WHERE name = ? AND revoked IS NULL", (now, name)
        )
        self._database.run(
            "UPDATE credentials SET revoked = ? WHERE agent = ? AND revoked IS NULL", (now, name)
        )
        self._known = {key: known for key, known in self._known.items() if known.name != name}
        return changed > 0

    def _change(self) -> None:
        """Tell other processes, and keep them out until this transaction ends."""
        self._database.count_up(_COUNTER)
        self._checked = False
        self._owners = None

    def owned(self, owner: str) -> int:
        """Return how many agents of an owner have a credential."""
        self._check()
        if self._owners is None or not self.inside:
            self._owners = dict(
                self._database.rows(
                    "SELECT owner, COUNT(*) FROM agents "
                    "WHERE role = 'agent' AND revoked IS NULL GROUP BY owner"
                )
            )
        return self._owners.get(owner, 0)

    def owners(self) -> dict[str, str]:
        """Return the owner of every agent that was ever enrolled, by name."""
        return dict(self._database.rows("SELECT name, owner FROM agents WHERE role = 'agent'"))

    def _check(self) -> None:
        """Drop credentials that others have changed, once in each transaction."""
        if self.inside and not self._checked:
            now, as_of = time.monotonic(), self._database.meta(_COUNTER)
            if as_of != self._as_of:
                self._known = {}
                self._owners = None
                self._as_of = as_of
            self._read_at = now
            self._checked = True

    def credential(self, key_id: str) -> Credential | None:
        """Return the credential of a key id."""
        self._check()
        known = self._known.get(key_id) if self.inside else None
        if known is not None:
            return known
        found = self._database.rows(
            "SELECT name, role, lane, secret_hash, credentials.revoked, "
            "(SELECT MIN(created) FROM credentials AS of_name WHERE of_name.agent = name), owner "
            "FROM credentials JOIN agents ON agents.name = credentials.agent WHERE key_id = ?",
            (key_id,),
        )
        if not found:
            return None
        ((name, role, lane, secret_hash, revoked, since, owner),) = found
        known = Credential(name, role, lane, secret_hash, revoked is not None, since, owner)
        if self.inside:
            self._known[key_id] = known
        return known

    def recent(self, key_id: str, seconds: float) -> Credential | None:
        """Return the credential of a key id, if it was read within the last `seconds` seconds.

        May be called in any thread: its data are replaced, never changed.
        """
        if time.monotonic() > self._read_at + seconds:
            return None
        return self._known.get(key_id)

    def sighted(self, sightings: Iterable[Sighting]) -> None:
        """Write when agents were seen other than by uploads, and how often they were refused."""
        for name, seen, fetched, refused in sightings:
            self._database.run(
                "UPDATE agents SET last_seen = ?, last_round = COALESCE(?, last_round), "
                "refused = refused + ? WHERE name = ?",
                (seen, fetched, refused, name),
            )
