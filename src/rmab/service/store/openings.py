"""Masked uploads in the database, and the openings of their sums: each slot in one, exactly once.

Of each incarnation the last masked upload is kept, and the one it was opened up to. An opening is
written down before the helper is asked, with its members and the difference of what they sent:

    asked       written down; the helper may have answered, or not: it is asked again
    answered    the sum is known and part of what the next round is planned from
    added       ... and of the group's sum, since the round closed
    impossible  as `added`, but for the sum, which no members can have and which is dropped

Members go on from their new points once the opening is added, in the transaction that closes the
round. So whoever dies between any two steps, no slot is added twice and none is lost. What a helper
refuses has not happened and is taken back.

A *chain* is the openings of one helper's database. Another one (the helper lost its own) begins a
chain of its own, in which what was opened in the last one has no place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rmab.federation.masks import MaskedUpload, Words, numbers_of, vector_size
from rmab.federation.messages import Ints, Shape
from rmab.federation.openings import BEGINNING, Member, Opening, Waiting, parse_opening
from rmab.federation.uploads import Merged
from rmab.service.store.database import Database
from rmab.service.store.limits import StoreLimits
from rmab.service.store.schema import count_up, keep, kept

__all__ = ["GroupRow", "Openings", "Pending", "Sum", "WaitingRow", "last_openings"]

_CHAIN = "helper"  # in `meta`: the chain's name
_DROPPED = "impossible openings"  # a counter there
_NEVER = 2**62  # a sequence number that no upload has


class Pending(NamedTuple):
    """An opening that the helper is to be asked for."""

    opening: Opening
    difference: Words  # (R,) of the members' masked vectors
    slots: int  # that the members bring


class Sum(NamedTuple):
    """What openings have told of a group: counts (C, S, S, N), visits (S, N), of so many slots."""

    counts: Ints
    visits: Ints
    slots: int


class GroupRow(NamedTuple):
    """A group's last opening, and all its slots that were opened."""

    group: int
    opening: int
    at: float
    agents: int
    slots: int
    result: str
    opened_slots: int


class WaitingRow(NamedTuple):
    """Slots of an agent that no opening has yet; refused: why the helper takes none of them."""

    agent: str
    slots: int
    refused: str | None


class Openings:
    """Masked uploads of one federation; whatever writes is called inside a transaction."""

    def __init__(self, database: Database, shape: Shape, limits: StoreLimits) -> None:
        self._database = database
        self._shape = shape
        self._limits = limits
        self._size = vector_size(shape)

    # --------------------------------------------------------------------------------- uploads

    def keep(self, agent: str, upload: MaskedUpload) -> None:
        """Keep an upload, in place of the incarnation's last one."""
        self._database.run(
            "INSERT INTO masked (agent, incarnation, sequence, slots, nonce, tag, "
            "opened_sequence, opened_slots, refused_sequence, masked) "
            "VALUES (?, ?, ?, ?, ?, ?, 0, 0, 0, ?) "
            "ON CONFLICT (agent, incarnation) DO UPDATE SET sequence = excluded.sequence, "
            "slots = excluded.slots, nonce = excluded.nonce, tag = excluded.tag, "
            "masked = excluded.masked",
            (
                agent,
                upload.incarnation,
                upload.sequence,
                upload.slots,
                upload.nonce,
                upload.tag,
                _packed(upload.masked),
            ),
        )

    def tidy(self, agent: str) -> None:
        """Drop incarnations that have ended and are opened to their end."""
        self._database.run(
            "DELETE FROM masked WHERE agent = ? AND asked_sequence IS NULL "
            "AND (opened_slots = slots OR refused_sequence = ?) AND NOT EXISTS "
            "(SELECT 1 FROM incarnations WHERE incarnations.agent = masked.agent "
            "AND incarnations.incarnation = masked.incarnation)",
            (agent, _NEVER),
        )

    # ----------------------------------------------------------------------------- the next one

    def chain(self) -> str | None:
        """Of whose database the openings are; None before the first contact."""
        return kept(self._database, _CHAIN)

    def begin_chain(self, name: str) -> None:
        """From now on another database answers: what was opened in the last one is past."""
        pending = self.pending()
        if pending is not None:
            self.take_back(pending.opening.number, ())
        self._database.run(
            "UPDATE masked SET refused_sequence = ?, "
            "refused = 'was opened by a helper whose database is lost' "
            "WHERE opened_sequence > 0 OR asked_sequence IS NOT NULL",
            (_NEVER,),
        )
        keep(self._database, _CHAIN, name)

    def waiting(self, groups: Mapping[str, int]) -> list[Waiting]:
        """Uploads with slots that no opening has; groups: of the agents that the helper knows."""
        rows = self._database.rows(
            "SELECT agent, incarnation, sequence, slots, nonce, tag, opened_slots FROM masked "
            "WHERE slots > opened_slots AND sequence > refused_sequence "
            "AND asked_sequence IS NULL"
        )
        return [
            Waiting(
                Member(agent, incarnation, sequence, slots, bytes(nonce), bytes(tag)),
                groups[agent],
                slots - opened,
            )
            for agent, incarnation, sequence, slots, nonce, tag, opened in rows
            if agent in groups
        ]

    def write(self, group: int, members: Sequence[Member], round: int, now: float) -> Pending:
        """Write down an opening of these members' last uploads, to be asked for."""
        chain = self.chain()
        assert chain is not None
        found = self._database.rows(
            "SELECT number, digest FROM openings WHERE chain = ? ORDER BY number DESC LIMIT 1",
            (chain,),
        )
        number, digest = found[0] if found else (0, BEGINNING)
        opening = Opening(int(number) + 1, digest, group, tuple(members))
        difference, slots = np.zeros(self._size, np.uint64), 0
        for member in members:
            key = (member.agent, member.incarnation)
            ((masked, opened, to, before),) = self._database.rows(
                "SELECT masked, opened, slots, opened_slots FROM masked "
                "WHERE agent = ? AND incarnation = ?",
                key,
            )
            difference += _unpacked(masked)
            if opened is not None:
                difference -= _unpacked(opened)
            slots += to - before
            self._database.run(
                "UPDATE masked SET asked_sequence = sequence, asked_slots = slots, asked = masked "
                "WHERE agent = ? AND incarnation = ?",
                key,
            )
        self._database.run(
            "INSERT INTO openings (chain, number, of_group, round, at, agents, members, slots, "
            "result, digest, request, words) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 'asked', ?, ?, ?)",
            (
                chain,
                opening.number,
                group,
                round,
                now,
                len({member.agent for member in members}),
                len(members),
                slots,
                opening.digest,
                opening.to_json(),
                _packed(difference),
            ),
        )
        return Pending(opening, difference, slots)

    def pending(self) -> Pending | None:
        """The opening that was written down and has no answer; None if there is none."""
        found = self._database.rows(
            "SELECT request, words, slots FROM openings WHERE result = 'asked'"
        )
        if not found:
            return None
        ((request, words, slots),) = found
        return Pending(parse_opening(bytes(request)), _unpacked(words), slots)

    # ------------------------------------------------------------------------- what came of it

    def answer(self, number: int, vector: Ints | None) -> None:
        """Keep the sum (R,) that an opening came to; None: an impossible one, which is dropped."""
        result = "impossible" if vector is None else "answered"
        words = None if vector is None else _packed(vector.view(np.uint64))
        changed = self._database.run(
            "UPDATE openings SET result = ?, words = ? WHERE number = ? AND result = 'asked'",
            (result, words, number),
        )
        if changed == 0:
            raise RuntimeError(f"opening {number} cannot be answered: it was not asked for")
        if vector is None:
            count_up(self._database, _DROPPED)

    def take_back(self, number: int, refused: Iterable[Sequence[Any]]) -> None:
        """An opening has not happened, as the helper refused it; refused: agent, incarnation and
        reason of members that are not to be asked for again before they upload anew."""
        ((request,),) = self._database.rows(
            "SELECT request FROM openings WHERE number = ? AND result = 'asked'", (number,)
        )
        reasons = {(agent, incarnation): reason for agent, incarnation, reason in refused}
        for member in parse_opening(bytes(request)).members:
            key = (member.agent, member.incarnation)
            self._database.run(
                "UPDATE masked SET asked_sequence = NULL, asked_slots = NULL, asked = NULL "
                "WHERE agent = ? AND incarnation = ?",
                key,
            )
            if key in reasons:
                self._database.run(
                    "UPDATE masked SET refused_sequence = ?, refused = ? "
                    "WHERE agent = ? AND incarnation = ?",
                    (member.sequence, reasons[key], *key),
                )
        self._database.run("DELETE FROM openings WHERE number = ? AND result = 'asked'", (number,))

    def add(self) -> None:
        """Add the sums of openings that were answered; members go on from their new points."""
        rows = self._database.rows(
            "SELECT chain, number, of_group, result, slots, request, words FROM openings "
            "WHERE request IS NOT NULL AND result <> 'asked' ORDER BY number"
        )
        for chain, number, group, result, slots, request, words in rows:
            for member in parse_opening(bytes(request)).members:
                self._database.run(
                    "UPDATE masked SET opened_sequence = asked_sequence, "
                    "opened_slots = asked_slots, opened = asked, asked_sequence = NULL, "
                    "asked_slots = NULL, asked = NULL, refused = NULL "
                    "WHERE agent = ? AND incarnation = ? AND asked_sequence IS NOT NULL",
                    (member.agent, member.incarnation),
                )
            if result == "answered":
                self._add_to(group, _unpacked(words), slots)
            self._database.run(
                "UPDATE openings SET result = ?, request = NULL, words = NULL "
                "WHERE chain = ? AND number = ?",
                ("added" if result == "answered" else result, chain, number),
            )
            self._database.run(
                "DELETE FROM openings WHERE chain = ? AND number < ?",
                (chain, number - self._limits.kept_openings),
            )

    def _add_to(self, group: int, words: Words, slots: int) -> None:
        before = self._database.rows("SELECT words FROM sums WHERE of_group = ?", (group,))
        summed = words + _unpacked(before[0][0]) if before else words
        self._database.run(
            "INSERT INTO sums (of_group, slots, words) VALUES (?, ?, ?) "
            "ON CONFLICT (of_group) DO UPDATE SET slots = sums.slots + excluded.slots, "
            "words = excluded.words",
            (group, slots, _packed(summed)),
        )

    # -------------------------------------------------------------------------------- all sums

    def sums(self, *, answered: bool = True) -> dict[int, Sum]:
        """What was opened, by group; of openings that are answered and not added yet, too, unless
        the sums are asked for that the open round was planned from."""
        words: dict[int, Words] = {}
        slots: dict[int, int] = {}
        added, more = (
            "SELECT of_group, slots, words FROM sums",
            " UNION ALL SELECT of_group, slots, words FROM openings WHERE result = 'answered'",
        )
        for group, of_slots, data in self._database.rows(added + more if answered else added):
            words[group] = words.get(group, np.uint64(0)) + _unpacked(data)
            slots[group] = slots.get(group, 0) + int(of_slots)
        return {
            group: Sum(*numbers_of(words[group].view(np.int64), self._shape), slots[group])
            for group in sorted(words)
        }

    def merged(self) -> Merged:
        """The sum over all groups."""
        found = [*self.sums().values()]
        counts, visits = numbers_of(np.zeros(self._size, np.int64), self._shape)
        ((agents,),) = self._database.rows(
            "SELECT COUNT(DISTINCT agent) FROM masked WHERE opened_slots > 0 OR asked_slots > 0"
        )
        return Merged(
            counts + sum(each.counts for each in found),
            visits + sum(each.visits for each in found),
            int(agents),
        )

    def answered_slots(self) -> int:
        """Slots of openings that are answered and not added yet."""
        ((slots,),) = self._database.rows(
            "SELECT CAST(COALESCE(SUM(slots), 0) AS BIGINT) FROM openings WHERE result = 'answered'"
        )
        return int(slots)

    # --------------------------------------------------------------------------------- people

    def groups(self) -> list[GroupRow]:
        """The last opening of each group that had one, in this chain."""
        slots = {group: each.slots for group, each in self.sums().items()}
        return last_openings(self._database, self.chain(), slots)

    def waiting_rows(self) -> list[WaitingRow]:
        """Agents with slots that no opening has."""
        rows = self._database.rows(
            "SELECT agent, CAST(SUM(slots - opened_slots) AS BIGINT), "
            "MAX(CASE WHEN sequence <= refused_sequence THEN refused END) FROM masked "
            "WHERE slots > opened_slots GROUP BY agent ORDER BY agent"
        )
        return [WaitingRow(agent, int(slots), refused) for agent, slots, refused in rows]

    def impossible(self) -> int:
        """How many openings came to sums that cannot be."""
        return int(kept(self._database, _DROPPED) or 0)


def last_openings(
    database: Database, chain: str | None, slots: Mapping[int, int]
) -> list[GroupRow]:
    """The last opening of each group in a chain; slots: of each group that were opened."""
    rows = database.rows(
        "SELECT of_group, number, at, agents, slots, result FROM openings "
        "WHERE chain = ? AND number IN (SELECT MAX(number) FROM openings "
        "WHERE chain = ? AND result <> 'asked' GROUP BY of_group) ORDER BY of_group",
        (chain, chain),
    )
    return [
        GroupRow(group, number, at, agents, new, result, slots.get(group, 0))
        for group, number, at, agents, new, result in rows
    ]


def _packed(words: Words) -> bytes:
    return np.ascontiguousarray(words, "<u8").tobytes()


def _unpacked(data: bytes) -> Words:
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)
