"""What an agent has to tell its server, without the telling.

Uploads are numbered and kept in the agent's file before they are sent. Of earlier incarnations
there may be several, each sent until it is acknowledged; of this one the newest is enough, as
counts are cumulative. The exchange (`rmab.service.agent.exchange`) asks for the next upload and
says what became of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

from rmab.errors import StorageError
from rmab.federation.messages import RoundMessage, Upload
from rmab.service.agent.leftovers import Ints, Outgoing, pack
from rmab.service.agent.state_file import AgentFile

__all__ = ["Offer", "Outbox", "Seldom"]

log = logging.getLogger("rmab.agent")

QUIET_SECONDS = 60.0  # between two lines of the log about the same thing


class Seldom:
    """Keeps the log from saying the same thing over and over."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def is_news(self, kind: str) -> bool:
        """Whether a line of that kind is due."""
        now = time.monotonic()
        if now - self._said.get(kind, -QUIET_SECONDS) < QUIET_SECONDS:
            return False
        self._said[kind] = now
        return True

    @contextmanager
    def despite_the_disk(self) -> Iterator[None]:
        """Go on where the file cannot be written."""
        try:
            yield
        except StorageError as error:
            if self.is_news("file"):
                log.error("%s", error)


class Offer(NamedTuple):
    """What the agent hands over: its counts, and what it has seen last of each arm and when.

    upload: its sequence number is given here; last_seen, age: (N,); send: whether the counts are
    to be sent, or only kept.
    """

    upload: Upload
    last_seen: Ints
    age: Ints
    send: bool


class Outbox:
    """The uploads of one agent.

    acknowledged: slots of this incarnation that the server has; uploads: how many were
    acknowledged; left: incarnations of the past that it does not have yet; conflict: the
    incarnation that it refused. They change under `news`, which is told.
    """

    def __init__(
        self,
        file: AgentFile,
        incarnation: str,
        leftovers: Iterable[Outgoing],
        news: threading.Condition,
        seldom: Seldom,
    ) -> None:
        self.news = news
        self.acknowledged = 0
        self.uploads = 0
        self.conflict: str | None = None
        self._file = file
        self._seldom = seldom
        self._incarnation = incarnation
        self._sequence = 0
        self._leftovers = deque(leftovers)
        self.left = len(self._leftovers)
        self._past_first = True
        self._current: Outgoing | None = None
        self._offers: deque[Offer] = deque()

    # ----------------------------------------------------------------- from the agent's own thread

    def offer(self, offer: Offer) -> None:
        """Hand over counts, to be kept and perhaps sent."""
        self._offers.append(offer)

    def renew(self, incarnation: str) -> None:
        """Counts are of a new incarnation from now on."""
        with self.news:
            self._incarnation = incarnation
            self._sequence = self.acknowledged = 0
            self._current = None
            self.conflict = None

    # --------------------------------------------------------------------------- in the background

    def keep_offers(self, message: RoundMessage | None) -> None:
        """Write what was handed over into the file; message: any round, for the arms' shape."""
        while self._offers:
            offer = self._offers.popleft()
            if offer.upload.incarnation == self._incarnation != self.conflict:
                assert message is not None  # nothing is counted before the first
                self._keep(offer, message)
        self._file.tidy()

    def _keep(self, offer: Offer, message: RoundMessage) -> None:
        upload = offer.upload
        snapshot = pack(upload.counts, upload.visits, offer.last_seen, offer.age)
        if offer.send:
            self._sequence += 1
            self._current = _prepared(replace(upload, sequence=self._sequence), message)
            self._keep_upload(self._current, snapshot)
            return
        with self._seldom.despite_the_disk():
            self._file.keep_snapshot(upload.incarnation, upload.slots, snapshot)

    def _keep_upload(self, outgoing: Outgoing, snapshot: bytes | None) -> None:
        """Before it is sent. Where the disk refuses it is sent nevertheless: if the process ends
        then, what the file has does not follow what the server has, and is refused."""
        upload = outgoing.upload
        with self._seldom.despite_the_disk():
            self._file.keep_upload(
                upload.incarnation, upload.sequence, outgoing.body, upload.slots, snapshot
            )

    @property
    def news_of_this_life(self) -> bool:
        """Whether there is an upload of this incarnation to send."""
        return self._current is not None

    def next(self) -> Outgoing | None:
        """The upload to send now: of the past first, unless that has just failed."""
        if self._leftovers and (self._past_first or self._current is None):
            return self._leftovers[0]
        return self._current

    def failed(self, outgoing: Outgoing) -> None:
        """The server could not cope with it: another is to be tried before it comes again, so that
        it is not in the way of the others for ever."""
        past = self._is_past(outgoing)
        self._past_first = not past
        if past:
            self._leftovers.rotate(-1)

    def _is_past(self, outgoing: Outgoing) -> bool:
        return bool(self._leftovers) and self._leftovers[0] is outgoing

    def _replace(self, outgoing: Outgoing, new: Outgoing | None) -> None:
        """Another upload instead of this one, unless the agent has handed over a newer one."""
        self._past_first = True
        if self._is_past(outgoing):
            self._leftovers.popleft()
            if new is not None:
                self._leftovers.appendleft(new)
        elif self._current is outgoing:
            self._current = new

    def acknowledge(self, outgoing: Outgoing) -> None:
        """The server has it."""
        upload, past = outgoing.upload, self._is_past(outgoing)
        self._replace(outgoing, None)
        with self._seldom.despite_the_disk():
            self._file.acknowledge(upload.incarnation, upload.sequence)
        with self.news:
            self.uploads += 1
            if past:
                self.left -= 1
            elif upload.incarnation == self._incarnation:
                self.acknowledged = upload.slots
            self.news.notify_all()

    def restamp(self, outgoing: Outgoing, number: int, message: RoundMessage) -> None:
        """Its round is closed: the same counts under the one that is open now."""
        upload, past = outgoing.upload, self._is_past(outgoing)
        if not past and self._current is not outgoing:
            return  # a newer one is there
        again = replace(upload, sequence=upload.sequence + 1, round=number, length=0)
        new = _prepared(again, message)
        if not past:
            self._sequence += 1
        self._keep_upload(new, None)
        self._replace(outgoing, new)

    def give_up(self, outgoing: Outgoing, detail: str) -> None:
        """The server has something else under its incarnation."""
        upload, past = outgoing.upload, self._is_past(outgoing)
        self._replace(outgoing, None)
        log.warning(
            "the server has other counts of incarnation %s than sequence %d of it, with %d slots; "
            "what it does not have of it is given up: %s",
            upload.incarnation,
            upload.sequence,
            upload.slots,
            detail,
        )
        if past:
            with self._seldom.despite_the_disk():
                self._file.forget([upload.incarnation])
        with self.news:
            if past:
                self.left -= 1
            elif upload.incarnation == self._incarnation:
                self._current = None  # a newer one is of no use either
                self.conflict = upload.incarnation
            self.news.notify_all()

    def set_aside(self, outgoing: Outgoing, detail: str) -> None:
        """The server will never take it, and this process does not send it again. Of an earlier
        incarnation it stays in the file; this one's counts are in its next upload too."""
        self._replace(outgoing, None)
        log.error("the server refuses an upload as impossible: %s", detail)


def _prepared(upload: Upload, message: RoundMessage) -> Outgoing:
    return Outgoing(upload, upload.to_json(message.shape, message.federation))
