"""Masked uploads in the database, and the openings of their sums: each slot in one, exactly once.

Of each incarnation its masked uploads at marks are kept until they are unmasked, and the one up to
which it was unmasked. The incarnations of an agent follow one another: each begins at the position
of the last mark of those before it, and ends when the next one does. An opening is written before
the helper is asked, with its members and the difference of their masked vectors:

    asked       written; the helper may have answered, or not: it is asked again
    answered    the sum is known and part of the next round's evidence
    added       ... and of the group's sum, since the round closed
    impossible  as `added`, without the sum, which no members can have and which is dropped

Members go on from their new points once the opening is added, in the transaction that closes the
round. So wherever a process dies, no slot is added twice and none is lost. An opening that a helper
refuses has not happened and is taken back.

A *chain* is the openings of one helper's database. Another one (the helper lost its own) begins a
chain of its own, in which openings of the last one have no place.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rmab.errors import ProtocolError
from rmab.privacy.batches import AgentBacklog
from rmab.privacy.masks import MaskedUpload, Words, is_mark, numbers_of, vector_size
from rmab.privacy.unmasking import BEGINNING, AggregationJob, Report, parse_job
from rmab.protocol.growth import Merged
from rmab.protocol.shape import Ints, Shape
from rmab.service.store.database import Database
from rmab.service.store.limits import StoreLimits

__all__ = [
    "Enrolment",
    "GroupRow",
    "GroupSum",
    "Openings",
    "Pending",
    "WaitingRow",
    "last_openings",
]

_CHAIN = "helper"  # in `meta`: the chain's name
_DROPPED = "impossible openings"  # a counter there


class Enrolment(NamedTuple):
    """Agent that the helper has a key of, by its answer."""

    group: int
    cohort: str | None = None


class Pending(NamedTuple):
    """An opening that the helper is to be asked for."""

    opening: AggregationJob
    difference: Words  # (R,) of the members' masked vectors
    slots: int  # that the members bring


class GroupSum(NamedTuple):
    """Unmasked sum of a group: counts (C, S, S, N), visits (S, N) and their slots."""

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

    def check(self, agent: str, upload: MaskedUpload) -> None:
        """ProtocolError 409 where an upload is not of the agent's last incarnation, or begins one
        elsewhere than at its position."""
        found = self._database.rows(
            "SELECT since, ended FROM masked WHERE agent = ? AND incarnation = ?",
            (agent, upload.incarnation),
        )
        since, ended = found[0] if found else (self.position(agent), False)
        if ended:
            raise ProtocolError(
                409, "ended", "sums do not go on with this incarnation; begin a new one"
            )
        if upload.since != since:
            raise ProtocolError(
                409, "since", f"since must be the agent's position, {since}, got {upload.since}"
            )

    def position(self, agent: str) -> int:
        """Slots of an agent that are opened or may be: where its next incarnation begins."""
        ((opened,),) = self._database.rows(
            "SELECT MAX(opened) FROM positions WHERE agent = ?", (agent,)
        )
        ((marked,),) = self._database.rows(
            "SELECT MAX(since + marks.slots) FROM marks JOIN masked USING (agent, incarnation) "
            "WHERE agent = ?",
            (agent,),
        )
        return max(opened or 0, marked or 0)

    def keep(self, agent: str, upload: MaskedUpload) -> None:
        """Keep how far an incarnation has come, and an upload at a mark."""
        key = (agent, upload.incarnation)
        begins = not self._database.run(
            "UPDATE masked SET slots = ? WHERE agent = ? AND incarnation = ?", (upload.slots, *key)
        )
        if begins:
            self._database.run("UPDATE masked SET ended = 1 WHERE agent = ?", (agent,))
            self._database.run(
                "INSERT INTO masked (agent, incarnation, since, slots, opened_slots, ended) "
                "VALUES (?, ?, ?, ?, 0, 0)",
                (*key, upload.since, upload.slots),
            )
        if is_mark(upload.position) and upload.slots > 0:
            self._database.run(
                "INSERT INTO marks (agent, incarnation, slots, sequence, nonce, tag, masked) "
                "SELECT agent, incarnation, ?, ?, ?, ?, ? FROM masked "
                "WHERE agent = ? AND incarnation = ? AND opened_slots < ? "
                "ON CONFLICT (agent, incarnation, slots) DO NOTHING",
                (
                    upload.slots,
                    upload.sequence,
                    upload.nonce,
                    upload.tag,
                    _packed(upload.masked),
                    *key,
                    upload.slots,
                ),
            )

    def tidy(self, agent: str) -> None:
        """Drop incarnations that have ended and are opened to their last mark."""
        self._database.run(
            "DELETE FROM masked WHERE agent = ? AND ended = 1 AND asked_slots IS NULL "
            "AND NOT EXISTS (SELECT 1 FROM marks WHERE marks.agent = masked.agent "
            "AND marks.incarnation = masked.incarnation) AND NOT EXISTS "
            "(SELECT 1 FROM incarnations WHERE incarnations.agent = masked.agent "
            "AND incarnations.incarnation = masked.incarnation)",
            (agent,),
        )

    def _give_up(self, agent: str, reason: str) -> None:
        """Drop an agent's uploads that can no longer be unmasked: it is to begin anew."""
        self._database.run("DELETE FROM marks WHERE agent = ?", (agent,))
        self._database.run(
            "UPDATE masked SET ended = 1, refused = ? WHERE agent = ?", (reason, agent)
        )

    # ----------------------------------------------------------------------------- the next one

    def chain(self) -> str | None:
        """Return the name of the helper's database; None before the first contact."""
        return self._database.meta(_CHAIN)

    def begin_chain(self, name: str) -> None:
        """Begin the chain of another database of the helper; openings of the last one are past."""
        pending = self.pending()
        if pending is not None:
            self.take_back(pending.opening.number, ())
        if self.chain() is not None:
            for (agent,) in self._database.rows("SELECT DISTINCT agent FROM masked"):
                self._give_up(agent, "was masked for a helper whose database is lost")
            self._database.run("UPDATE positions SET opened = 0")
        self._database.set_meta(_CHAIN, name)

    def waiting(self, enrolled: Mapping[str, Enrolment]) -> list[AgentBacklog]:
        """Return each agent's uploads that are not unmasked; enrolled: the agents that the helper
        knows."""
        opened: dict[str, int] = dict(self._database.rows("SELECT agent, opened FROM positions"))
        reach: dict[str, int] = {}
        busy = set()
        for agent, position, asked in self._database.rows(
            "SELECT agent, since + slots, asked_slots FROM masked WHERE refused IS NULL"
        ):
            reach[agent] = max(position, reach.get(agent, 0))
            if asked is not None:
                busy.add(agent)
        marks: dict[str, list[tuple[int, Report]]] = defaultdict(list)
        for agent, incarnation, since, slots, sequence, nonce, tag in self._database.rows(
            "SELECT agent, incarnation, since, marks.slots, sequence, nonce, tag FROM marks "
            "JOIN masked USING (agent, incarnation) ORDER BY since + marks.slots"
        ):
            member = Report(agent, incarnation, sequence, slots, bytes(nonce), bytes(tag))
            marks[agent].append((since + slots, member))
        return [
            AgentBacklog(
                agent,
                each.group,
                each.cohort,
                opened.get(agent, 0),
                reach.get(agent, 0),
                tuple(marks[agent]),
                agent in busy,
            )
            for agent, each in enrolled.items()
        ]

    def write(self, group: int, members: Sequence[Report], round: int, now: float) -> Pending:
        """Write down an opening of these uploads at marks, to be asked for."""
        chain = self.chain()
        assert chain is not None
        found = self._database.rows(
            "SELECT number, digest FROM openings WHERE chain = ? ORDER BY number DESC LIMIT 1",
            (chain,),
        )
        number, digest = found[0] if found else (0, BEGINNING)
        opening = AggregationJob(int(number) + 1, digest, group, tuple(members))
        difference, slots = np.zeros(self._size, np.uint64), 0
        for member in members:
            key = (member.agent, member.incarnation)
            ((words, opened, before),) = self._database.rows(
                "SELECT marks.masked, opened, opened_slots FROM marks "
                "JOIN masked USING (agent, incarnation) "
                "WHERE agent = ? AND incarnation = ? AND marks.slots = ?",
                (*key, member.slots),
            )
            difference += _unpacked(words)
            if opened is not None:
                difference -= _unpacked(opened)
            slots += member.slots - before
            self._database.run(
                "UPDATE masked SET asked_slots = ?, asked = ? WHERE agent = ? AND incarnation = ?",
                (member.slots, words, *key),
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
        return Pending(parse_job(bytes(request)), _unpacked(words), slots)

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
            self._database.count_up(_DROPPED)

    def take_back(self, number: int, refused: Iterable[Sequence[Any]]) -> None:
        """An opening has not happened, as the helper refused it; refused: agent, incarnation and
        reason of members that are to begin anew."""
        ((request,),) = self._database.rows(
            "SELECT request FROM openings WHERE number = ? AND result = 'asked'", (number,)
        )
        for member in parse_job(bytes(request)).reports:
            self._database.run(
                "UPDATE masked SET asked_slots = NULL, asked = NULL "
                "WHERE agent = ? AND incarnation = ?",
                (member.agent, member.incarnation),
            )
        for agent, _, reason in refused:
            self._give_up(agent, reason)
        self._database.run("DELETE FROM openings WHERE number = ? AND result = 'asked'", (number,))

    def add(self) -> None:
        """Add the sums of openings that were answered; members go on from their new points."""
        rows = self._database.rows(
            "SELECT chain, number, of_group, result, slots, request, words FROM openings "
            "WHERE request IS NOT NULL AND result <> 'asked' ORDER BY number"
        )
        for chain, number, group, result, slots, request, words in rows:
            for member in parse_job(bytes(request)).reports:
                self._go_on(member.agent, member.incarnation)
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

    def _go_on(self, agent: str, incarnation: str) -> None:
        """A member's next opening goes on from the upload that was asked for."""
        key = (agent, incarnation)
        which = "WHERE agent = ? AND incarnation = ? AND asked_slots IS NOT NULL"
        found = self._database.rows(f"SELECT asked_slots, opened_slots FROM masked {which}", key)
        if not found:  # of a version before, which incarnations are not of any more
            return
        ((slots, before),) = found
        self._database.run(
            "UPDATE masked SET opened_slots = asked_slots, opened = asked, "
            f"asked_slots = NULL, asked = NULL {which}",
            key,
        )
        self._database.run(
            "DELETE FROM marks WHERE agent = ? AND incarnation = ? AND slots <= ?", (*key, slots)
        )
        self._database.run(
            "INSERT INTO positions (agent, opened) VALUES (?, ?) "
            "ON CONFLICT (agent) DO UPDATE SET opened = positions.opened + excluded.opened",
            (agent, slots - before),
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

    def sums(self, *, answered: bool = True) -> dict[int, GroupSum]:
        """Return unmasked sums by group; answered: with openings that are answered and not added
        yet, from which the open round was not planned."""
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
            group: GroupSum(*numbers_of(words[group].view(np.int64), self._shape), slots[group])
            for group in sorted(words)
        }

    def merged(self) -> Merged:
        """The sum over all groups."""
        found = [*self.sums().values()]
        counts, visits = numbers_of(np.zeros(self._size, np.int64), self._shape)
        ((agents,),) = self._database.rows(
            "SELECT COUNT(*) FROM (SELECT agent FROM positions UNION "
            "SELECT agent FROM masked WHERE asked_slots > 0) AS summed"
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
            "MAX(refused) FROM masked "
            "WHERE slots > opened_slots GROUP BY agent ORDER BY agent"
        )
        return [WaitingRow(agent, int(slots), refused) for agent, slots, refused in rows]

    def impossible(self) -> int:
        """How many openings came to sums that cannot be."""
        return int(self._database.meta(_DROPPED) or 0)

    def all_impossible(self, last: int) -> bool:
        """Return whether the last `last` openings of this chain that have a result were all
        impossible."""
        rows = self._database.rows(
            "SELECT result FROM openings WHERE chain = ? AND result <> 'asked' "
            "ORDER BY number DESC LIMIT ?",
            (self.chain(), last),
        )
        return len(rows) == last and all(result == "impossible" for (result,) in rows)


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
