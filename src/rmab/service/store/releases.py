"""Noise of releases in the database of whoever draws it: the helper, or a server without one.

Noise is in the database before a release leaves it. After a crash the process goes on with the same
noise, and the number of releases that are left only decreases.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from rmab.errors import FederationError
from rmab.privacy.accounting import Budget, PrivacyAccountant, Release
from rmab.service.store.database import Database

__all__ = ["BUDGET", "RELEASES", "Ledgers", "budget_text", "check_budget"]

BUDGET = "budget"  # in `meta`: epsilon and delta, which never change
RELEASES = """CREATE TABLE releases (
        of_group BIGINT NOT NULL,
        opening BIGINT NOT NULL,
        slots BIGINT NOT NULL,
        z BLOB NOT NULL,
        PRIMARY KEY (of_group, opening))"""


def budget_text(budget: Budget | None, survey: int) -> str:
    """Return epsilon and delta as `meta` has them; survey: its slots, 0 without one."""
    if budget is None:
        return "no epsilon"
    return f"{budget}, survey = {survey}" if survey else str(budget)


def check_budget(database: Database, budget: str) -> None:
    """Refuse another epsilon or delta than the database was begun with."""
    begun = database.meta(BUDGET)
    if begun != budget:
        raise FederationError(
            f"database {database.place} was begun with {begun} under [privacy], which must "
            f"stay, got {budget}: use another database"
        )


class Ledgers:
    """Ledger of each group in a database; `keep` is called inside a transaction.

    plays: K; size: counts in a sum.
    """

    def __init__(self, database: Database, budget: Budget, plays: int, size: int) -> None:
        self._database = database
        self._none = PrivacyAccountant(budget, plays, size)

    def of(self, group: int) -> PrivacyAccountant:
        """Return the releases of a group."""
        rows = self._database.rows(
            "SELECT opening, slots, z FROM releases WHERE of_group = ? ORDER BY opening", (group,)
        )
        releases = tuple(
            Release(str(opening), int(slots), tuple(np.frombuffer(z, "<i8").tolist()))
            for opening, slots, z in rows
        )
        return replace(self._none, releases=releases)

    def keep(self, group: int, release: Release) -> None:
        """Insert a release, whose name is the number of its opening."""
        z = np.array(release.noise, "<i8").tobytes()
        self._database.run(
            "INSERT INTO releases (of_group, opening, slots, z) VALUES (?, ?, ?, ?)",
            (group, int(release.name), release.slots, z),
        )
