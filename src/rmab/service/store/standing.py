"""What all uploads add up to, kept up to date as they come.

Counts are cumulative, so what the agents of a federation know is the sum over incarnations of the
last upload of each. Agents restart for months and incarnations are kept for ever; reading all of
them whenever a round closes or the page is looked at would take longer and longer. So the sum is
made once and each upload then adds what it has above the one before it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.federation.messages import Merged

__all__ = ["Standing", "Tally", "Totals"]

Ints = npt.NDArray[np.int64]


class Totals(NamedTuple):
    """Over all agents: uploads accepted, and slots that they tell of."""

    uploads: int
    slots: int


@dataclass
class Tally:
    """One agent's share, over its incarnations."""

    uploads: int
    slots: int
    visits: Ints  # (S, N)
    last_upload: float
    last_round: int


class Standing:
    """The sum of counts, and a tally for every agent that has given any."""

    def __init__(self, counts_shape: tuple[int, ...], visits_shape: tuple[int, ...]) -> None:
        self._counts: Ints = np.zeros(counts_shape, np.int64)  # (C, S, S, N)
        self._visits: Ints = np.zeros(visits_shape, np.int64)  # (S, N)
        self.tallies: dict[str, Tally] = {}

    def add(
        self,
        agent: str,
        *,
        uploads: int,
        slots: int,
        counts: Ints,
        visits: Ints,
        at: float,
        round: int,
    ) -> None:
        """Add what an upload, or an incarnation as a whole, has brought."""
        self._counts += counts
        self._visits += visits
        tally = self.tallies.get(agent)
        if tally is None:
            self.tallies[agent] = Tally(uploads, slots, visits.copy(), at, round)
            return
        tally.uploads += uploads
        tally.slots += slots
        tally.visits += visits
        tally.last_upload = max(tally.last_upload, at)
        tally.last_round = max(tally.last_round, round)

    def merged(self) -> Merged:
        """Copies of the sums."""
        return Merged(self._counts.copy(), self._visits.copy(), len(self.tallies))

    def totals(self) -> Totals:
        """Of all agents together."""
        return Totals(
            sum(tally.uploads for tally in self.tallies.values()),
            sum(tally.slots for tally in self.tallies.values()),
        )
