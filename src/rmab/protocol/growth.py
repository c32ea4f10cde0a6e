"""Growth of counts: an upload after the one before, credit for slots, and sums over agents.

From one upload of an incarnation to the next no count falls, and the increments are possible in the
new slots. Slots are limited by time: an owner's agents have credit for the time that has passed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ProtocolError
from rmab.protocol.checks import malformed
from rmab.protocol.shape import Ints, Upload

__all__ = [
    "CREDIT_SECONDS",
    "Credit",
    "LaneCounts",
    "Merged",
    "Record",
    "check_growth",
    "check_pace",
]

# Slots and seconds in advance, as restarts begin with a slot and clocks differ. They are few, as a
# liar does most harm in the beginning, when others have little.
_BURST_SLOTS, _BURST_SECONDS = 10, 10.0
CREDIT_SECONDS = 86_400.0  # a day: the most time that may be claimed at once
_LONGEST_PAUSE = 86_400  # longest wait, in seconds, that an agent is asked for


class Merged(NamedTuple):
    """Counts (C, S, S, N) and visits (S, N) of all agents, and the number of agents with any."""

    counts: Ints
    visits: Ints
    agents: int


class LaneCounts(NamedTuple):
    """Counts of each agent stream (lane), over all its incarnations.

    counts: (L, C, S, S, N); visits: (L, S, N). L is one more than the highest lane that was
    enrolled, and at least 1; an agent without uploads has zeros. weights: (L,), of each agent's
    counts in a sum; None where all are 1.
    """

    counts: Ints
    visits: Ints
    weights: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class Record:
    """Last accepted upload of an incarnation."""

    sequence: int
    round: int
    slots: int
    counts: Ints  # (C, S, S, N)
    visits: Ints  # (S, N)


def check_growth(
    before: Record | None, upload: Upload, plays: int, always: Sequence[int] = ()
) -> None:
    """Refuse an upload that cannot follow the incarnation's last one.

    plays: K; always: the arms that are observed in every slot.
    """
    if before is None:
        return
    if upload.sequence <= before.sequence:
        raise backwards(f"sequence must be above {before.sequence}, got {upload.sequence}")
    if upload.round < before.round:
        raise backwards(f"round must be at least {before.round}, got {upload.round}")
    slots = upload.slots - before.slots
    if slots < 0:
        raise backwards(f"slots must be at least {before.slots}, got {upload.slots}")
    for name, now, then in (
        ("counts", upload.counts, before.counts),
        ("visits", upload.visits, before.visits),
    ):
        if (now < then).any():
            raise backwards(f"{name} must not fall from one upload to the next")
    observed = (upload.visits - before.visits).sum(0)
    if int(observed.max()) > slots or int(observed.sum()) > plays * slots:
        raise malformed(
            f"visits may grow by at most one observation of an arm and {plays} in all in each of "
            f"{slots} slots, got {int(observed.max())} and {int(observed.sum())}"
        )
    if always:
        paired = (upload.counts - before.counts)[..., list(always)].sum((0, 1, 2))
        if int(paired.max()) > slots:
            raise malformed(
                f"counts of an arm that is always observed may grow by at most one pair in each of "
                f"{slots} slots, got {int(paired.max())}"
            )


class Credit(NamedTuple):
    """Playing time for which the agents of an owner may still claim slots.

    seconds: remaining time; at: its date, in seconds of the server's clock.
    """

    seconds: float
    at: float

    @classmethod
    def first(cls, since: float, slots: int, now: float, slot_seconds: float) -> Credit:
        """Return the credit of an owner without a stored credit, at least 0.

        since: when its first agent was enrolled; slots: that its agents have reported.
        """
        burst = _burst_seconds(slot_seconds)
        seconds = burst + max(0.0, now - since) - slots * slot_seconds
        return cls(min(_most_seconds(slot_seconds), max(0.0, seconds)), now)

    def filled(self, now: float, slot_seconds: float, names: int = 1) -> Credit:
        """Return the credit at a later time; by a clock that was set back nothing is added.

        names: agents of the owner, each of which plays.
        """
        seconds = self.seconds + max(0.0, now - self.at) * max(1, names)
        return Credit(min(_most_seconds(slot_seconds), seconds), now)

    def slots(self, slot_seconds: float) -> int:
        """Return the number of slots covered by the credit."""
        return int(self.seconds / slot_seconds * (1 + 1e-12) + 1e-6)

    def spent(self, slots: int, slot_seconds: float) -> Credit:
        """Return the remaining credit after `slots`."""
        return self._replace(seconds=max(0.0, self.seconds - slots * slot_seconds))


def _burst_seconds(slot_seconds: float) -> float:
    return max(_BURST_SLOTS * slot_seconds, _BURST_SECONDS)


def _most_seconds(slot_seconds: float) -> float:
    return max(CREDIT_SECONDS, _burst_seconds(slot_seconds))


def check_pace(slots: int, before: int, credit: Credit, slot_seconds: float, names: int) -> None:
    """Refuse slots that time does not allow.

    Credit is a bucket of time: it fills as time passes, by as much for each agent of the owner,
    and holds a day (`CREDIT_SECONDS`), or the first burst if that is more: `_BURST_SLOTS` slots, or
    those of `_BURST_SECONDS`. An agent that was offline for longer sends what it has counted in
    parts, as credit comes.

    Parameters
    ----------
    slots, before
        Slots of all incarnations of the agent, with this upload and without it.
    credit
        Credit of the agent's owner now.
    slot_seconds
        Length of the shortest slot.
    names
        Number of agents of the owner.
    """
    allowed = credit.slots(slot_seconds)
    if slots - before > allowed:
        missing = (slots - before) * slot_seconds - credit.seconds
        raise ProtocolError(
            429,
            "slots",
            f"slots of all incarnations must be at most {before + allowed} so far, as slot_seconds "
            f"is {slot_seconds:g} and at most a day of it is held as credit, got {slots}",
            retry_after=max(1, min(math.ceil(missing / max(1, names)), _LONGEST_PAUSE)),
            slots=allowed,
        )


def backwards(detail: str) -> ProtocolError:
    """Return the error for an upload that takes counts back."""
    return ProtocolError(409, "backwards", detail)
