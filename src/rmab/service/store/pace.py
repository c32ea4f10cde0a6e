"""Credit for slots, in the database: how much playing time each owner may still claim.

One row for each owner whose agents have uploaded where `slot_seconds` limits them, written with the
uploads of a transaction (`rmab.protocol.uploads.Credit` has the rule). Of an owner without a row
the credit follows from the time since its first agent was enrolled and from the slots that its
agents have told of, so a database of an older version needs nothing more.

What was read is remembered, by the store that has the claim. So the credit of an owner that was
enrolled by a clock that was ahead grows too, though nothing of it is stored before its first
upload.
"""

from __future__ import annotations

from collections.abc import Callable

from rmab.protocol.uploads import Credit
from rmab.service.store.database import Database

__all__ = ["Pace"]


class Pace:
    """Credit of all owners of one federation; whatever writes is called inside a transaction."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.forget()

    def forget(self) -> None:
        """Drop all that is not in the database."""
        self._known: dict[str, Credit] = {}
        self._changed: set[str] = set()

    def credit(
        self, owner: str, now: float, slot_seconds: float, names: int, first: Callable[[], Credit]
    ) -> Credit:
        """Return what an owner has now; first: gives it where nothing is kept."""
        known = self._known.get(owner)
        if known is None:
            found = self._database.rows("SELECT seconds, at FROM pace WHERE owner = ?", (owner,))
            known = Credit(*found[0]) if found else first()
        known = known.filled(now, slot_seconds, names)
        self._known[owner] = known
        return known

    def keep(self, owner: str, credit: Credit) -> None:
        """Keep what is left after an upload."""
        self._known[owner] = credit
        self._changed.add(owner)

    def write(self) -> None:
        """Write what has changed."""
        for owner in self._changed:
            self._database.run(
                "INSERT INTO pace (owner, seconds, at) VALUES (?, ?, ?) ON CONFLICT (owner) "
                "DO UPDATE SET seconds = excluded.seconds, at = excluded.at",
                (owner, *self._known[owner]),
            )
        self._changed.clear()
