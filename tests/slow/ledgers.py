"""Agents that remember what they sent and what was acknowledged, and a database held against that.

A `Life` is one incarnation of an agent. It sends one upload at a time and plays on when that is
answered; now and then it repeats an old one. Its ledger is the truth that the database is checked
against.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from benchmarks.traffic import Answer, Wire, ask_for_round, upload_head

from rmab.protocol.config import Federation
from rmab.protocol.messages import parse_round
from rmab.protocol.player import Player
from rmab.protocol.shape import Upload
from rmab.service.store.store import OpenRound, Store

__all__ = ["Broken", "Found", "Life", "check_database", "same_round"]

REPEATED = 0.05  # how often an old upload is sent again
MOST_SLOTS = 3  # between two uploads


class Broken(AssertionError):  # noqa: N818 - what was promised is broken
    """The server broke a promise."""


@dataclass
class Sent:
    """An upload that was sent.

    acknowledged: answered with 201 or 200; refused: with 410; kept: whether the database had it
    when it was last looked at, None if nobody has looked since it was sent.
    """

    upload: Upload
    request: bytes
    acknowledged: bool = False
    refused: bool = False
    kept: bool | None = None

    @property
    def unanswered(self) -> bool:
        """Whether it is not known what became of it."""
        return not self.acknowledged and not self.refused


class Life:
    """One incarnation of an agent; `acknowledged` is told of every 201 and 200 as it arrives."""

    def __init__(
        self,
        agent: str,
        token: str,
        federation: Federation,
        rng: np.random.Generator,
        acknowledged: Callable[[bool], None],
    ) -> None:
        self.agent = agent
        self.incarnation = secrets.token_hex(16)
        self.ledger: dict[int, Sent] = {}
        self.told = 0  # the highest round that any answer named
        self._token = token
        self._head = upload_head(token)
        self._federation = federation
        self._rng = rng
        self._acknowledged = acknowledged
        self._player: Player | None = None
        self._rounds: dict[int, bytes] = {}

    @property
    def round(self) -> int:
        """That it plays; 0 before the first."""
        return 0 if self._player is None else self._player.round

    # ----------------------------------------------------------------------------------- talking

    async def work(self, url: str) -> None:
        """Upload as fast as the server answers, until the connection is lost."""
        try:
            wire = await Wire.connect(url)
        except OSError:
            return
        try:
            await self._settle(wire)
            while True:
                if self._player is None or self.told > self.round:
                    await self.fetch(wire)
                if self.ledger and self._rng.random() < REPEATED:
                    await self._repeat(wire)
                await self._upload(wire)
                await self._settle(wire)
        except ConnectionError:
            pass
        finally:
            wire.close()

    async def settle(self, url: str) -> None:
        """Send what was not answered, once more."""
        wire = await Wire.connect(url)
        await self._settle(wire)
        wire.close()

    async def report(self, wire: Wire) -> None:
        """One upload, acknowledged."""
        await self._upload(wire)
        await self._settle(wire)

    async def fetch(self, wire: Wire) -> None:
        """The open round; the same number must always come with the same round."""
        answer = await ask_for_round(wire, self._token)
        if answer.status != 200:
            raise Broken(f"{self.agent} asked for the round and was answered {answer}")
        message = parse_round(answer.body)
        if message.round < self.told:
            raise Broken(f"{self.agent} was given round {message.round} after {self.told}")
        if self._rounds.setdefault(message.round, answer.body) != answer.body:
            raise Broken(f"{self.agent} was given another round {message.round} than before")
        self.told = message.round
        if self._player is None:
            self._player = Player(message, self.incarnation)
        elif message.round > self._player.round:
            self._player.begin(message)

    async def _upload(self, wire: Wire) -> None:
        """Play, and send what was counted; the ledger has it before the server can."""
        assert self._player is not None
        for _ in range(int(self._rng.integers(1, MOST_SLOTS + 1))):
            arms = self._player.choose()
            self._player.observe(arms.tolist(), self._rng.integers(0, 2, len(arms)).tolist())
        upload = self._player.upload(len(self.ledger) + 1)
        body = upload.to_json(self._federation.shape, self._federation.name)
        sent = Sent(upload, b"%b%d\r\n\r\n%b" % (self._head, len(body), body))
        self.ledger[upload.sequence] = sent
        await self._send(wire, sent)

    async def _settle(self, wire: Wire) -> None:
        """Send the last upload until it is answered."""
        sent = self.ledger.get(len(self.ledger))
        while sent is not None and sent.unanswered:
            await self._send(wire, sent)

    async def _repeat(self, wire: Wire) -> None:
        """An old upload, which must be known if it was acknowledged."""
        sent = self.ledger[int(self._rng.integers(1, len(self.ledger) + 1))]
        if sent.acknowledged:
            answer = await wire.ask(sent.request)
            if answer.status not in (200, 503):
                raise Broken(f"{self._name(sent)} was repeated and answered {answer}")

    async def _send(self, wire: Wire, sent: Sent) -> None:
        answer = await wire.ask(sent.request, lambda answer: self._judge(sent, answer))
        if answer.status == 503:
            await asyncio.sleep(0.05)

    def _judge(self, sent: Sent, answer: Answer) -> None:
        """What an answer means for the ledger, and whether it may be."""
        status = answer.status
        if (
            status not in (200, 201, 410, 503)
            or (status == 200 and not sent.kept)
            or (status in (201, 410) and sent.kept)
        ):
            had = {None: "not looked for", True: "in the database", False: "not in the database"}
            raise Broken(
                f"{self._name(sent)}, {had[sent.kept]} before it was sent, was answered "
                f"{status}: {answer.body.decode()}"
            )
        if status == 503:
            return
        self.told = max(self.told, int(json.loads(answer.body)["round"]))
        sent.refused = status == 410
        if status in (200, 201):
            sent.acknowledged = True
            self._acknowledged(status == 200)

    def _name(self, sent: Sent) -> str:
        return f"upload {sent.upload.sequence} of {self.agent} ({self.incarnation})"


# ---------------------------------------------------------------------------------------- looking


class Found(NamedTuple):
    """Uploads without an answer: how many the database had, and how many it had not."""

    kept: int
    not_kept: int


def check_database(store: Store, lives: Sequence[Life]) -> Found:
    """Hold a database against the ledgers of all agents; Broken if they differ."""
    rows = store.database.rows("SELECT agent, incarnation, sequence, digest FROM uploads")
    ledger: dict[tuple[str, str], dict[int, bytes]] = {}
    for agent, incarnation, sequence, digest in rows:
        uploads = ledger.setdefault((agent, incarnation), {})
        if sequence in uploads:
            raise Broken(f"upload {sequence} of {agent} ({incarnation}) is in the ledger twice")
        uploads[sequence] = digest
    kept = not_kept = 0
    last: list[tuple[str, Upload]] = []
    for life in lives:
        uploads = ledger.pop((life.agent, life.incarnation), {})
        for sent in life.ledger.values():
            before = sent.kept
            _check_upload(life, sent, uploads.get(sent.upload.sequence))
            kept += sent.kept is True and before is None
            not_kept += sent.kept is False and before is None
        if not uploads.keys() <= life.ledger.keys():
            raise Broken(f"the ledger has uploads of {life.agent} that it never sent")
        _check_record(store, life, max(uploads, default=0))
        if uploads:
            last.append((life.agent, life.ledger[max(uploads)].upload))
    if ledger:
        raise Broken(f"the ledger has incarnations that nobody had: {sorted(ledger)}")
    _check_sums(store, last, len(rows))
    return Found(kept, not_kept)


def _check_upload(life: Life, sent: Sent, digest: bytes | None) -> None:
    """One upload of a life against the digest under its key."""
    name = f"upload {sent.upload.sequence} of {life.agent} ({life.incarnation})"
    if digest is None:
        if sent.acknowledged:
            raise Broken(f"{name} was acknowledged and is lost")
        if sent.kept:
            raise Broken(f"{name} was in the ledger and is lost")
    elif digest != sent.upload.digest:
        raise Broken(f"{name} is in the ledger with another digest")
    elif sent.refused:
        raise Broken(f"{name} was refused for its round and is in the ledger")
    if sent.unanswered:
        sent.kept = digest is not None


def _check_record(store: Store, life: Life, last: int) -> None:
    """The record of a life must be its last upload in the ledger; 0: there must be none."""
    record = store.uploads.record(life.agent, life.incarnation)
    if last == 0:
        if record is not None:
            raise Broken(f"{life.agent} ({life.incarnation}) has a record and no upload")
        return
    due = life.ledger[last].upload
    if (
        record is None
        or (record.sequence, record.round, record.slots) != (last, due.round, due.slots)
        or not np.array_equal(record.counts, due.counts)
        or not np.array_equal(record.visits, due.visits)
    ):
        raise Broken(f"the record of {life.agent} ({life.incarnation}) is not its upload {last}")


def _check_sums(store: Store, last: Sequence[tuple[str, Upload]], uploads: int) -> None:
    """What is merged must be the sum of the last uploads of all lives."""
    merged, totals = store.merged(), store.uploads.totals()
    counts, visits = np.zeros_like(merged.counts), np.zeros_like(merged.visits)
    for _, upload in last:
        counts += upload.counts
        visits += upload.visits
    if not (np.array_equal(merged.counts, counts) and np.array_equal(merged.visits, visits)):
        raise Broken("the merged counts are not the sum of the records")
    due = (len({agent for agent, _ in last}), sum(upload.slots for _, upload in last), uploads)
    if (merged.agents, totals.slots, totals.uploads) != due:
        raise Broken(
            f"agents, slots and uploads must be {due}, got "
            f"{(merged.agents, totals.slots, totals.uploads)}"
        )


def same_round(one: OpenRound, other: OpenRound) -> bool:
    """Whether two rounds are equal in all they have."""
    merged = other.merged
    return (
        one._replace(merged=merged) == other
        and one.merged.agents == merged.agents
        and np.array_equal(one.merged.counts, merged.counts)
        and np.array_equal(one.merged.visits, merged.visits)
    )
