"""What an agent has to send to its server: uploads, numbered and kept until acknowledged.

Uploads are numbered and kept in the agent's file before they are sent. Of earlier incarnations
there may be several, each sent until it is acknowledged; of this one the newest is enough, as
counts are cumulative. The exchange (`rmab.service.agent.exchange`) asks for the next upload and
says what became of it.

Recovery: what earlier incarnations left unsent is made into uploads again when a process begins.
The snapshot of an incarnation is its player after some slots: counts, visits and, of each arm, the
state last observed and the slots since. The observations of the slots after it are played again,
which gives all that the incarnation has observed.
"""

from __future__ import annotations

import logging
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError, ProtocolError, StorageError
from rmab.federation.masks import MaskKey
from rmab.federation.messages import RoundMessage, Shape, Upload
from rmab.federation.player import Player
from rmab.service.agent.state_file import AgentFile, KeptIncarnation

__all__ = ["Offer", "Outbox", "Outgoing", "Seldom", "Writing", "pack", "recovered", "unpack"]

_CLEAR, _MASKED = "/v1/uploads", "/v1/masked"

log = logging.getLogger("rmab.agent")
Ints = npt.NDArray[np.int64]


class Seldom:
    """Keeps the log from saying the same thing over and over."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._said: dict[str, float] = {}

    def is_due(self, kind: str) -> bool:
        """Whether a line of that kind is due."""
        now = time.monotonic()
        if now - self._said.get(kind, -self._seconds) < self._seconds:
            return False
        self._said[kind] = now
        return True

    @contextmanager
    def despite_the_disk(self) -> Iterator[None]:
        """Go on where the file cannot be written."""
        try:
            yield
        except StorageError as error:
            if self.is_due("file"):
                log.error("%s", error)


class Offer(NamedTuple):
    """What the agent hands over: its counts, and each arm's state last observed and its age.

    upload: its sequence number is given here; last_seen, age: (N,); send: whether the counts are
    to be sent, or only kept.
    """

    upload: Upload
    last_seen: Ints
    age: Ints
    send: bool


@dataclass(frozen=True)
class Outgoing:
    """An upload on its way; its body is all that leaves this machine, and may be masked."""

    upload: Upload
    body: bytes
    path: str


class Writing:
    """How uploads become bodies: in clear, or with a key masked and in no other way."""

    def __init__(self, key: MaskKey | None = None) -> None:
        self._key = key

    @property
    def masks(self) -> bool:
        """Whether nothing leaves this machine unmasked."""
        return self._key is not None

    def prepared(self, upload: Upload, message: RoundMessage) -> Outgoing:
        """An upload, ready to be sent; message: any round of the agent's."""
        if self._key is None:
            return Outgoing(upload, upload.to_json(message.shape, message.federation), _CLEAR)
        masked = self._key.masked(upload, message.fingerprint, message.agent, message.shape)
        return Outgoing(upload, masked.to_json(message.shape, message.federation), _MASKED)

    def again(
        self, body: bytes, counts: Ints | None, visits: Ints | None, message: RoundMessage
    ) -> Outgoing:
        """An upload whose body was kept, which is sent as it is if it may be; counts, visits: that
        it tells of, where they are known. ProtocolError or StorageError if that cannot be."""
        from rmab.federation.uploads import parse_masked, parse_upload  # seldom needed

        masked = b'"masked":' in body
        if not masked:
            upload = parse_upload(body, message.shape, message.federation)
            return (
                Outgoing(upload, body, _CLEAR) if not self.masks else self.prepared(upload, message)
            )
        if counts is None or visits is None:
            raise StorageError("the counts of a masked upload are not kept with it")
        head = parse_masked(body, message.shape, message.federation)
        upload = Upload(
            head.incarnation, head.sequence, head.round, head.slots, head.length, counts, visits
        )
        return Outgoing(upload, body, _MASKED)


class Outbox:
    """The uploads of one agent; earlier: those of earlier incarnations.

    acknowledged: slots of this incarnation that the server has; uploads: how many were
    acknowledged; unsent: incarnations before this one that it does not have yet; conflict: the
    incarnation that it refused. Two threads read and change them, under a lock of the outbox's.
    """

    def __init__(
        self,
        file: AgentFile,
        incarnation: str,
        earlier: Iterable[Outgoing],
        seldom: Seldom,
        writing: Writing,
    ) -> None:
        self._writing = writing
        self.acknowledged = 0
        self.uploads = 0
        self.conflict: str | None = None
        self._file = file
        self._seldom = seldom
        self._lock = threading.Lock()
        self._incarnation = incarnation
        self._sequence = 0
        self._earlier = deque(earlier)
        self.unsent = len(self._earlier)
        self._earlier_first = True
        self._current: Outgoing | None = None
        self._offers: deque[Offer] = deque()

    # ----------------------------------------------------------------- from the agent's own thread

    def offer(self, offer: Offer) -> None:
        """Hand over counts, to be kept and perhaps sent."""
        self._offers.append(offer)

    def has_all(self, slots: int) -> bool:
        """Whether all is acknowledged, that many slots of this incarnation included."""
        with self._lock:
            return self.unsent == 0 and self.acknowledged >= slots

    def renew(self, incarnation: str) -> None:
        """Counts are of a new incarnation from now on."""
        with self._lock:
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
            self._current = self._writing.prepared(
                replace(upload, sequence=self._sequence), message
            )
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
    def has_current(self) -> bool:
        """Whether there is an upload of this incarnation to send."""
        return self._current is not None

    def next(self) -> Outgoing | None:
        """The upload to send now: of an earlier incarnation first, unless that has just failed."""
        if self._earlier and (self._earlier_first or self._current is None):
            return self._earlier[0]
        return self._current

    def failed(self, outgoing: Outgoing) -> None:
        """The server could not cope with it: another is to be tried before it comes again, so that
        it is not in the way of the others for ever."""
        earlier = self._is_earlier(outgoing)
        self._earlier_first = not earlier
        if earlier:
            self._earlier.rotate(-1)

    def _is_earlier(self, outgoing: Outgoing) -> bool:
        return bool(self._earlier) and self._earlier[0] is outgoing

    def _replace(self, outgoing: Outgoing, new: Outgoing | None) -> None:
        """Another upload instead of this one, unless the agent has handed over a newer one."""
        self._earlier_first = True
        if self._is_earlier(outgoing):
            self._earlier.popleft()
            if new is not None:
                self._earlier.appendleft(new)
        elif self._current is outgoing:
            self._current = new

    def acknowledge(self, outgoing: Outgoing) -> None:
        """The server has it."""
        upload, earlier = outgoing.upload, self._is_earlier(outgoing)
        self._replace(outgoing, None)
        with self._seldom.despite_the_disk():
            self._file.acknowledge(upload.incarnation, upload.sequence)
        with self._lock:
            self.uploads += 1
            if earlier:
                self.unsent -= 1
            elif upload.incarnation == self._incarnation:
                self.acknowledged = upload.slots

    def restamp(self, outgoing: Outgoing, number: int, message: RoundMessage) -> None:
        """Its round is closed: the same counts under the one that is open now."""
        upload, earlier = outgoing.upload, self._is_earlier(outgoing)
        if not earlier and self._current is not outgoing:
            return  # a newer one is there
        again = replace(upload, sequence=upload.sequence + 1, round=number, length=0)
        new = self._writing.prepared(again, message)
        if not earlier:
            self._sequence += 1
        self._keep_upload(new, None)
        self._replace(outgoing, new)

    def give_up(self, outgoing: Outgoing, detail: str) -> None:
        """The server has something else under its incarnation."""
        upload, earlier = outgoing.upload, self._is_earlier(outgoing)
        self._replace(outgoing, None)
        log.warning(
            "the server has other counts of incarnation %s than sequence %d of it, with %d slots; "
            "what it does not have of it is given up: %s",
            upload.incarnation,
            upload.sequence,
            upload.slots,
            detail,
        )
        if earlier:
            with self._seldom.despite_the_disk():
                self._file.forget([upload.incarnation])
        with self._lock:
            if earlier:
                self.unsent -= 1
            elif upload.incarnation == self._incarnation:
                self._current = None  # a newer one is of no use either
                self.conflict = upload.incarnation

    def set_aside(self, outgoing: Outgoing, detail: str) -> None:
        """The server will never take it, and this process does not send it again. Of an earlier
        incarnation it stays in the file; this one's counts are in its next upload too."""
        self._replace(outgoing, None)
        log.error("the server refuses an upload as impossible: %s", detail)


# --------------------------------------------------------------------------------------- recovery


def pack(counts: Ints, visits: Ints, last_seen: Ints, age: Ints) -> bytes:
    """A player as the file keeps it: (C, S, S, N), (S, N), (N,), (N,)."""
    parts = (counts, visits, last_seen, age)
    return zlib.compress(b"".join(part.astype("<i8").tobytes() for part in parts), 1)


def unpack(snapshot: bytes, shape: Shape) -> tuple[Ints, Ints, Ints, Ints]:
    """What `pack` was given; StorageError where it was of another shape."""
    S, N = max(shape.states), shape.n_arms
    shapes = ((shape.kinds, S, S, N), (S, N), (N,), (N,))
    sizes = np.cumsum([int(np.prod(each)) for each in shapes])
    try:
        numbers = np.frombuffer(zlib.decompress(snapshot), "<i8").astype(np.int64)
    except (zlib.error, ValueError) as error:
        raise StorageError(f"a snapshot cannot be read: {error}") from None
    if numbers.size != sizes[-1]:
        raise StorageError(f"a snapshot must have {sizes[-1]} numbers, got {numbers.size}")
    parts = np.split(numbers, sizes[:-1])
    counts, visits, last_seen, age = (p.reshape(s) for p, s in zip(parts, shapes, strict=True))
    return counts, visits, last_seen, age


def recovered(
    file: AgentFile, message: RoundMessage | None, writing: Writing | None = None
) -> list[Outgoing]:
    """Uploads of what earlier incarnations left unsent, oldest first; none is sent under another
    number than before unless there is more to say."""
    writing = writing or Writing()
    uploads, empty = [], []
    for kept in file.earlier():
        try:
            outgoing = None if message is None else _recovered(kept, message, writing)
        except (StorageError, ProtocolError, ModelError) as error:
            log.error(
                "%s: incarnation %s cannot be read, and its unsent counts are lost: %s",
                file.path,
                kept.incarnation,
                error,
            )
            outgoing = None
        if outgoing is None:
            empty.append(kept.incarnation)
            continue
        uploads.append(outgoing[0])
        if kept.has_more:
            upload = outgoing[0].upload
            file.keep_upload(
                kept.incarnation, upload.sequence, outgoing[0].body, upload.slots, outgoing[1]
            )
    file.forget(empty)
    if uploads:
        slots = sum(outgoing.upload.slots for outgoing in uploads)
        log.info("%s: %d slots of %d incarnations are unsent", file.path, slots, len(uploads))
    return uploads


def _recovered(
    kept: KeptIncarnation, message: RoundMessage, writing: Writing
) -> tuple[Outgoing, bytes] | None:
    """The upload that an incarnation left, and its snapshot; None where the server has it all."""
    shape = message.shape
    if not kept.has_more:
        if kept.upload is None:
            return None
        counts = visits = None
        if kept.snapshot is not None and kept.slots == kept.told:
            counts, visits, *_ = unpack(kept.snapshot, shape)
        return writing.again(kept.upload, counts, visits, message), b""
    player = Player(message, kept.incarnation)
    if kept.snapshot is not None:
        player.counts, player.visits, player.last_seen, player.age = unpack(kept.snapshot, shape)
        player.slots = kept.slots
    for seen in kept.observations:
        player.look(seen.looks)
        player.observe(seen.arms, seen.states)
    # No report of an episode: nobody plays on in it.
    upload: Upload = replace(player.upload(kept.sequence + 1), length=0)
    snapshot = pack(player.counts, player.visits, player.last_seen, player.age)
    return writing.prepared(upload, message), snapshot
