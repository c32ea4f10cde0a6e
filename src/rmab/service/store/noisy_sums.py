"""Sums with noise that a server without a helper releases.

Agents upload their counts, which are summed exactly (`rmab.service.store.uploads`). Plans, laws and
all that people are shown come from the sum that was released last, which has noise. A sum is
released when the slots of all agents have doubled since the last release.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from rmab.privacy.accounting import PrivacyAccountant
from rmab.privacy.masks import numbers_of, vector_of, vector_size
from rmab.privacy.noise import MOST_RELEASES
from rmab.protocol.config import Federation
from rmab.protocol.growth import Merged
from rmab.service.store.database import Database
from rmab.service.store.releases import Ledgers
from rmab.service.store.unmasking import GroupRow, last_openings
from rmab.service.store.uploads import UploadLedger

__all__ = ["ReleaseSummary", "Releases"]

_GROUP = 1  # all agents are one
_CHAIN = ""  # in `openings`: no helper's


class ReleaseSummary(NamedTuple):
    """Release without its numbers; left: releases that may still follow."""

    release: int
    agents: int
    slots: int
    left: int


class Releases:
    """Releases of a server without a helper; uploads: the exact counts of all agents."""

    def __init__(self, database: Database, federation: Federation, uploads: UploadLedger) -> None:
        assert federation.budget is not None
        self._database = database
        self._shape = federation.shape
        self._ledgers = Ledgers(
            database, federation.budget, federation.plays, federation.shape.size
        )
        self._uploads = uploads

    def ledger(self) -> PrivacyAccountant:
        """All that was released."""
        return self._ledgers.of(_GROUP)

    def is_due(self) -> bool:
        """Whether the sum of all agents would be released now."""
        return self.ledger().is_due(*self._slots_and_members())

    def _slots_and_members(self) -> tuple[int, int]:
        slots = [tally.slots for tally in self._uploads.tallies().values() if tally.slots]
        return sum(slots), len(slots)

    def release(self, z: Sequence[int], round: int, now: float) -> ReleaseSummary | None:
        """Release the sum of this moment, in a transaction; None if that is not due.

        z: (size,), drawn for this release, and used if there is one.
        """
        ledger = self.ledger()
        slots, members = self._slots_and_members()
        if not ledger.is_due(slots, members):
            return None
        before, number = ledger.slots or 0, len(ledger.releases) + 1
        name = str(number)
        ledger = ledger.released(name, slots, members, draw=lambda *_: z)
        exact = self._uploads.merged()
        words = vector_of(exact.counts, np.zeros_like(exact.visits), self._shape).view(np.int64)
        words[: ledger.size] += ledger.noise(name)
        self._ledgers.keep(_GROUP, ledger.releases[-1])
        self._database.run(
            "INSERT INTO openings (chain, number, of_group, round, at, agents, members, slots, "
            "result, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'released', '')",
            (_CHAIN, number, _GROUP, round, now, members, members, slots - before),
        )
        self._database.run(
            "INSERT INTO sums (of_group, slots, words) VALUES (?, ?, ?) ON CONFLICT (of_group) "
            "DO UPDATE SET slots = excluded.slots, words = excluded.words",
            (_GROUP, slots, words.astype("<i8").tobytes()),
        )
        return ReleaseSummary(number, members, slots, ledger.remaining)

    def merged(self) -> Merged:
        """The sum that was released last; of visits nothing is."""
        found = self._database.rows("SELECT words FROM sums WHERE of_group = ?", (_GROUP,))
        words = np.zeros(vector_size(self._shape), np.int64)
        if found:
            words = np.frombuffer(found[0][0], "<i8").astype(np.int64)
        group = self.group()
        return Merged(*numbers_of(words, self._shape), 0 if group is None else group.agents)

    def group(self) -> GroupRow | None:
        """The last release, for people; None before the first."""
        found = last_openings(self._database, _CHAIN, {_GROUP: self._released_slots()})
        return found[0] if found else None

    def left(self) -> int:
        """How many more releases there may be."""
        ((made,),) = self._database.rows("SELECT COUNT(*) FROM releases")
        return MOST_RELEASES - int(made)

    def waiting_slots(self) -> int:
        """Slots that no release has yet."""
        return self._slots_and_members()[0] - self._released_slots()

    def _released_slots(self) -> int:
        found = self._database.rows("SELECT slots FROM sums WHERE of_group = ?", (_GROUP,))
        return int(found[0][0]) if found else 0
