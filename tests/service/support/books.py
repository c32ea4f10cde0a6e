"""The books of a simulated federation: what was truly seen and acknowledged, held against what the
database has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rmab.federation.messages import Merged, Upload, parse_round
from rmab.service.store.store import Store
from tests.service.support.fake_server import tally
from tests.service.support.simulated_parts import SHAPE, Peer

Key = tuple[str, str]


@dataclass
class Kept:
    """What the database has."""

    round: int
    merged: Merged
    records: dict[Key, tuple[int, int, int, Any, Any]]  # sequence, round, slots, counts, visits
    digests: dict[tuple[str, str, int], bytes]

    def due(self, agent: str, upload: Upload) -> int:
        """The status with which an upload of a valid credential must be answered."""
        before = self.records.get((agent, upload.incarnation))
        stored = self.digests.get((agent, upload.incarnation, upload.sequence))
        if stored is not None:
            return 200 if stored == upload.digest else 409
        if before is not None and upload.sequence < before[0]:
            return 409
        if upload.round != self.round:
            return 410
        if before is not None and (upload.round < before[1] or upload.slots < before[2]):
            return 409
        return 201


def kept_by(store: Store) -> Kept:
    """As the store has it; a job for the server's writer."""
    opened = store.current_round()
    assert opened is not None
    merged = store.merged()
    store._ledger.write()
    records = {
        (name, incarnation): (
            sequence,
            round_,
            slots,
            store._ledger._counts(counts),
            store._ledger._visits(visits),
        )
        for name, incarnation, sequence, round_, slots, counts, visits in store.database.rows(
            "SELECT agent, incarnation, sequence, round, slots, counts, visits FROM incarnations"
        )
    }
    digests = {
        (name, incarnation, sequence): bytes(digest)
        for name, incarnation, sequence, digest in store.database.rows(
            "SELECT agent, incarnation, sequence, digest FROM uploads"
        )
    }
    return Kept(opened.number, merged, records, digests)


class Books:
    """What happened, as nobody in the simulation can forget it."""

    def __init__(self) -> None:
        self.newest = 0  # the last round that was open
        self._owner: dict[str, str] = {}  # incarnation -> name
        self._looks: dict[str, list[tuple[list[int], list[int]]]] = {}
        self._acknowledged: dict[Key, int] = {}  # slots
        self._new: set[tuple[str, str, int]] = set()  # keys answered with 201
        self._rounds: dict[int, tuple[bytes, ...]] = {}  # messages, but for the agent's name
        self._tallies: dict[tuple[str, int], Any] = {}

    def begin(self, name: str, incarnation: str) -> None:
        """A new incarnation of an agent."""
        self._owner[incarnation] = name
        self._looks[incarnation] = []

    def saw(self, incarnation: str, arms: list[int], states: list[int]) -> None:
        """One slot of an incarnation."""
        self._looks[incarnation].append((arms, states))

    def acknowledge(self, name: str, upload: Upload, *, new: bool) -> None:
        """The server has told an agent that it has its upload."""
        key = (name, upload.incarnation)
        self._acknowledged[key] = max(self._acknowledged.get(key, 0), upload.slots)
        if new:
            assert (*key, upload.sequence) not in self._new, "new, twice"
            self._new.add((*key, upload.sequence))

    def told_of_round(self, name: str, number: int, body: bytes) -> None:
        """The server has given an agent this message, while that round was open."""
        message = parse_round(body)
        assert message.agent == name
        assert message.round == number >= self.newest
        parts = tuple(body.split(f'"agent":"{name}"'.encode()))
        assert self._rounds.setdefault(message.round, parts) == parts, "a round has changed"

    def check(self, kept: Kept, number: int, peers: Iterable[Peer]) -> None:
        """Hold against it all what the database and the agents have; `number` is the open round."""
        assert kept.round == number >= self.newest, "the round has fallen"
        self.newest = kept.round
        counts = visits = 0
        for (name, incarnation), (_, _, slots, had, seen) in kept.records.items():
            assert self._owner.get(incarnation) == name, "counts of nobody"
            true_counts, true_visits = self._tally(incarnation, slots)
            np.testing.assert_array_equal(had, true_counts)
            np.testing.assert_array_equal(seen, true_visits)
            counts, visits = counts + true_counts, visits + true_visits
        np.testing.assert_array_equal(kept.merged.counts, counts)
        np.testing.assert_array_equal(kept.merged.visits, visits)
        for key, slots in self._acknowledged.items():
            assert kept.records[key][2] >= slots, "acknowledged, and lost"
        assert self._new <= kept.digests.keys(), "acknowledged, and lost"
        for peer in peers:
            if peer.agent is not None:
                outbox = peer.agent._exchange._outbox
                assert outbox.conflict is None
                key = (peer.name, peer.agent._player.incarnation)
                assert outbox.acknowledged <= self._acknowledged.get(key, 0)

    def check_complete(self, kept: Kept, peers: Iterable[Peer]) -> None:
        """All that agents saw, but for files that were lost, is in the database."""
        for peer in peers:
            assert peer.agent is not None
            assert not peer.agent.unsent, "something did not arrive"
            for incarnation in peer.lives:
                seen = len(self._looks[incarnation])
                record = kept.records.get((peer.name, incarnation))
                assert (0 if record is None else record[2]) == seen, "something did not arrive"

    def _tally(self, incarnation: str, slots: int) -> Any:
        found = self._tallies.get((incarnation, slots))
        if found is None:
            looks = self._looks[incarnation]
            assert slots <= len(looks), "more slots than there were"
            found = self._tallies[incarnation, slots] = tally(looks[:slots], SHAPE)
        return found
