"""Uploads that an agent has to send, numbered and kept until acknowledged.

Uploads are numbered and kept in the agent's file before they are sent. Of earlier incarnations
there may be several, each sent until it is acknowledged; of this one the newest is enough, as
counts are cumulative. Only uploads at marks (`rmab.privacy.masks`), which an agent with a mask key
makes beside the others, are all sent, in their order. The exchange (`rmab.service.agent.exchange`)
asks for the next upload and reports its fate.

A server takes only slots that the agent has credit for (429 `slots`). So *parts* of
this incarnation are kept: its counts after fewer slots. The largest that fits is sent next. An
agent that was away for a week is taken in parts, a day's slots first and the others as time goes
on. Masked uploads need no parts, as those at marks are parts already.

Recovery: counts that earlier incarnations left unsent are made into uploads again when a process
begins. The snapshot of an incarnation is its player after some slots: counts, visits and, of each
arm, the state last observed and the slots since. The observations of the slots after it are played
again, which gives all observations of the incarnation.

An agent with a mask key goes on with the incarnation of the process before it, with no arm observed
(`resumed`): slots after a mark go out with those of the next process, at the next mark.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError, ProtocolError, StorageError
from rmab.privacy.masks import MaskKey, is_mark
from rmab.protocol.messages import RoundMessage
from rmab.protocol.player import Player
from rmab.protocol.shape import Shape, Upload
from rmab.service.agent.state_file import AgentFile, KeptIncarnation

__all__ = [
    "Offer",
    "Outbox",
    "Outgoing",
    "RateLimitedLog",
    "Resumed",
    "Writing",
    "pack",
    "recovered",
    "resumed",
    "unpack",
]

_CLEAR, _MASKED = "/v1/uploads", "/v1/masked"
# Parts of an incarnation, and bytes of all of them: with 4096 slots of a second between two, they
# are no more than a day apart for four months.
_MOST_PARTS, _PART_BYTES = 128, 2**25

log = logging.getLogger("rmab.agent")
Ints = npt.NDArray[np.int64]


class RateLimitedLog:
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
    def tolerating_storage_errors(self) -> Iterator[None]:
        """Go on where the file cannot be written."""
        try:
            yield
        except StorageError as error:
            if self.is_due("file"):
                log.error("%s", error)


class Offer(NamedTuple):
    """Counts that the agent hands over, and each arm's state last observed and its age.

    upload: it is numbered here; last_seen, age: (N,); send: the counts are to be sent and not only
    kept; mark: they are to be sent though newer ones come.
    """

    upload: Upload
    last_seen: Ints
    age: Ints
    send: bool
    mark: bool = False


class _UploadPart(NamedTuple):
    """Counts of this incarnation after `slots` slots; packed: as `pack` returns them."""

    slots: int
    round: int
    length: int
    packed: bytes


@dataclass(frozen=True)
class Outgoing:
    """An upload on its way; its body is all that leaves this machine, and may be masked.

    player: of one at a mark, the player then, packed.
    """

    upload: Upload
    body: bytes
    path: str
    player: bytes | None = None


class Writing:
    """How uploads become bodies: in clear, or with a key masked and in no other way."""

    def __init__(self, key: MaskKey | None = None) -> None:
        self._key = key
        self.since = 0  # the position at which the incarnation began

    @property
    def masks(self) -> bool:
        """Whether nothing leaves this machine unmasked."""
        return self._key is not None

    @property
    def name(self) -> bytes | None:
        """Name of the mask key."""
        return None if self._key is None else self._key.name

    def at_mark(self, slots: int) -> bool:
        """Return whether counts are to be masked after `slots` slots of the incarnation."""
        return self.masks and is_mark(self.since + slots)

    def prepared(
        self, upload: Upload, message: RoundMessage, player: bytes | None = None
    ) -> Outgoing:
        """An upload, ready to be sent; message: any round of the agent's; player: of one at a
        mark."""
        if self._key is None:
            return Outgoing(upload, upload.to_json(message.shape, message.federation), _CLEAR)
        masked = self._key.masked(
            upload, message.fingerprint, message.agent, message.shape, self.since
        )
        body = masked.to_json(message.shape, message.federation)
        return Outgoing(upload, body, _MASKED, player)

    def again(
        self, body: bytes, counts: Ints | None, visits: Ints | None, message: RoundMessage
    ) -> Outgoing:
        """An upload whose body was kept, which is sent as it is if it may be; counts, visits: that
        it tells of, where they are known. ProtocolError or StorageError if that cannot be."""
        from rmab.protocol.uploads import parse_masked, parse_upload  # seldom needed

        if b'"masked":' not in body:
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


class Resumed(NamedTuple):
    """An incarnation that an agent with a mask key goes on with: its player with no arm observed,
    the uploads that are to be sent, and the last number used."""

    player: Player
    uploads: list[Outgoing]
    sequence: int


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
        limited_log: RateLimitedLog,
        writing: Writing,
        before: Resumed | None = None,
    ) -> None:
        """before: of an incarnation that is gone on with."""
        self._writing = writing
        self.acknowledged = 0 if before is None or before.uploads else before.player.slots
        self.uploads = 0
        self.conflict: str | None = None
        self._file = file
        self._limited_log = limited_log
        self._lock = threading.Lock()
        self._incarnation = incarnation
        self._sequence = 0 if before is None else before.sequence
        self._earlier = deque(earlier)
        self.unsent = len(self._earlier)
        self._earlier_first = True
        # Of this incarnation, in their order: those at marks, and of the others the newest.
        self._current: list[Outgoing] = [] if before is None else before.uploads
        self._parts: list[
            _UploadPart
        ] = []  # in clear, that the server does not have, by their slots
        self._offers: deque[Offer] = deque()

    # ----------------------------------------------------------------- from the agent's own thread

    def offer(self, offer: Offer) -> None:
        """Hand over counts, to be kept and perhaps sent."""
        self._offers.append(offer)

    def has_all(self, slots: int) -> bool:
        """Whether all is acknowledged, that many slots of this incarnation included."""
        with self._lock:
            return self.unsent == 0 and self.acknowledged >= slots

    def renew(self, incarnation: str, since: int = 0) -> None:
        """Counts are of a new incarnation from now on; since: the position at which it begins."""
        with self._lock:
            self._writing.since = since
            self._incarnation = incarnation
            self._sequence = self.acknowledged = 0
            self._current = []
            self._parts = []
            self.conflict = None

    # --------------------------------------------------------------------------- in the background

    def keep_offers(self, message: RoundMessage | None) -> None:
        """Write offers into the file; message: any round, for the arms' shape."""
        while self._offers:
            offer = self._offers.popleft()
            if offer.upload.incarnation == self._incarnation != self.conflict:
                assert message is not None  # nothing is counted before the first
                self._keep(offer, message)
        self._file.tidy()

    def _keep(self, offer: Offer, message: RoundMessage) -> None:
        upload = offer.upload
        snapshot = pack(upload.counts, upload.visits, offer.last_seen, offer.age)
        if not self._writing.masks:
            self._keep_part(_UploadPart(upload.slots, upload.round, upload.length, snapshot))
        if not offer.send:
            with self._limited_log.tolerating_storage_errors():
                self._file.keep_snapshot(upload.incarnation, upload.slots, snapshot)
            return
        self._sequence += 1
        upload = replace(upload, sequence=self._sequence)
        if offer.mark:
            self._current.append(self._writing.prepared(upload, message, snapshot))
            self._keep_marks(upload.incarnation, (upload.slots, snapshot))
            return
        newest = self._writing.prepared(upload, message)
        self._current = [*self._marks, newest]
        self._keep_upload(newest, snapshot)

    @property
    def _marks(self) -> list[Outgoing]:
        return [outgoing for outgoing in self._current if outgoing.player is not None]

    def _keep_marks(self, incarnation: str, last: tuple[int, bytes] | None) -> None:
        """Before they are sent; last: the slots and the player of the last one where it is new."""
        uploads = [(one.upload.sequence, one.body, one.player or b"") for one in self._marks]
        with self._limited_log.tolerating_storage_errors():
            self._file.keep_marks(incarnation, uploads, last)

    def _keep_part(self, part: _UploadPart) -> None:
        """Keep a part; where there are many, every other one is dropped."""
        parts = [one for one in self._parts if self.acknowledged < one.slots < part.slots]
        parts.append(part)
        while len(parts) > 1 and (
            len(parts) > _MOST_PARTS or sum(len(one.packed) for one in parts) > _PART_BYTES
        ):
            parts = parts[-1::-2][::-1]
        self._parts = parts

    def send_part(self, outgoing: Outgoing, slots: int, message: RoundMessage) -> bool:
        """Send the largest part with at most `slots` more slots than the server has; False where
        there is none.

        message: any round of the agent's; a part reports no episode.
        """
        if not self._is_current(outgoing):
            return False
        fits = [one for one in self._parts if one.slots <= self.acknowledged + slots]
        if not fits or fits[-1].slots >= outgoing.upload.slots:
            return False
        self._send_part(fits[-1], message, outgoing.upload.round, 0)
        return True

    def _send_part(
        self, part: _UploadPart, message: RoundMessage, number: int, length: int
    ) -> None:
        """Make a part the upload of this incarnation."""
        counts, visits, *_ = unpack(part.packed, message.shape)
        self._sequence += 1
        upload = Upload(
            self._incarnation, self._sequence, number, part.slots, length, counts, visits
        )
        self._current = [self._writing.prepared(upload, message)]
        self._keep_upload(self._current[0], None)

    def send_rest(self, message: RoundMessage) -> None:
        """After a part was acknowledged: send all that there is."""
        if self._current or not self._parts:
            return
        last = self._parts[-1]
        length = last.length if last.round == message.round else 0
        self._send_part(last, message, message.round, length)

    def _keep_upload(self, outgoing: Outgoing, snapshot: bytes | None) -> None:
        """Keep an upload before it is sent. Where the disk refuses it is sent nevertheless: if the
        process ends then, the file's counts do not follow the server's, and are refused."""
        upload = outgoing.upload
        with self._limited_log.tolerating_storage_errors():
            self._file.keep_upload(
                upload.incarnation, upload.sequence, outgoing.body, upload.slots, snapshot
            )

    @property
    def has_current(self) -> bool:
        """Whether there is an upload of this incarnation to send."""
        return bool(self._current)

    def next(self) -> Outgoing | None:
        """The upload to send now: of an earlier incarnation first, unless that has just failed."""
        if self._earlier and (self._earlier_first or not self._current):
            return self._earlier[0]
        return self._current[0] if self._current else None

    def failed(self, outgoing: Outgoing) -> None:
        """Try another upload before this one comes again, so that it does not block the others for
        ever."""
        earlier = self._is_earlier(outgoing)
        self._earlier_first = not earlier
        if earlier:
            self._earlier.rotate(-1)

    def _is_earlier(self, outgoing: Outgoing) -> bool:
        return bool(self._earlier) and self._earlier[0] is outgoing

    def _replace(self, outgoing: Outgoing, new: Outgoing | None) -> None:
        """Another upload instead of this one, unless the agent has handed over a newer one."""
        instead = [] if new is None else [new]
        self._earlier_first = True
        if self._is_earlier(outgoing):
            self._earlier.popleft()
            self._earlier.extendleft(instead)
        elif self._is_current(outgoing):
            self._current[:1] = instead

    def _is_current(self, outgoing: Outgoing) -> bool:
        return bool(self._current) and self._current[0] is outgoing

    def acknowledge(self, outgoing: Outgoing) -> None:
        """The server has it."""
        upload, earlier = outgoing.upload, self._is_earlier(outgoing)
        self._replace(outgoing, None)
        with self._limited_log.tolerating_storage_errors():
            self._file.acknowledge(upload.incarnation, upload.sequence)
        with self._lock:
            self.uploads += 1
            if earlier:
                self.unsent -= 1
            elif upload.incarnation == self._incarnation:
                self.acknowledged = max(self.acknowledged, upload.slots)
                self._parts = [one for one in self._parts if one.slots > upload.slots]

    def restamp(self, outgoing: Outgoing, number: int, message: RoundMessage) -> None:
        """Its round is closed: the same counts under the one that is open now, as are those of
        this incarnation that come after it."""
        if self._is_earlier(outgoing):
            new = self._again(outgoing, number, outgoing.upload.sequence + 1, message)
            self._keep_upload(new, None)
            self._replace(outgoing, new)
            return
        if not self._is_current(outgoing):
            return  # a newer one is there
        self._earlier_first = True
        first = self._sequence + 1
        self._sequence += len(self._current)
        self._current = [
            self._again(one, number, first + place, message)
            for place, one in enumerate(self._current)
        ]
        if self._marks:
            self._keep_marks(outgoing.upload.incarnation, None)
        for one in self._current:
            if one.player is None:
                self._keep_upload(one, None)

    def _again(
        self, outgoing: Outgoing, number: int, sequence: int, message: RoundMessage
    ) -> Outgoing:
        """The same counts under another round and sequence."""
        again = replace(outgoing.upload, sequence=sequence, round=number, length=0)
        return self._writing.prepared(again, message, outgoing.player)

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
            with self._limited_log.tolerating_storage_errors():
                self._file.forget([upload.incarnation])
        with self._lock:
            if earlier:
                self.unsent -= 1
            elif upload.incarnation == self._incarnation:
                self._current = []  # newer ones are of no use either
                self.conflict = upload.incarnation

    def quarantine(self, outgoing: Outgoing, detail: str) -> None:
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
    """Return the arrays that `pack` was given; StorageError where their shape was another."""
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
    """Return uploads of counts that earlier incarnations left unsent, oldest first; none is sent
    under another number than before unless there is more to say."""
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
    player = _replayed(kept, message, lambda _: None)
    # No report of an episode: nobody plays on in it.
    upload: Upload = replace(player.upload(kept.sequence + 1), length=0)
    return writing.prepared(upload, message), _packed(player)


def _replayed(
    kept: KeptIncarnation, message: RoundMessage, after: Callable[[Player], None]
) -> Player:
    """The player that an incarnation left; after: called with it after each slot since its
    snapshot."""
    player = Player(message, kept.incarnation)
    if kept.snapshot is not None:
        counts, visits, last_seen, age = unpack(kept.snapshot, message.shape)
        player.counts, player.visits, player.last_seen, player.age = counts, visits, last_seen, age
        player.slots = kept.slots
    for seen in kept.observations:
        player.look(seen.looks)
        player.observe(seen.arms, seen.states)
        after(player)
    return player


def _packed(player: Player) -> bytes:
    return pack(player.counts, player.visits, player.last_seen, player.age)


def resumed(file: AgentFile, message: RoundMessage, writing: Writing) -> Resumed | None:
    """Return the incarnation that an agent with a mask key goes on with; the file is then used with
    that key. None if there is none.

    Counts that an agent without a key kept in clear go out masked. `writing` is set to the position
    at which the incarnation began.
    """
    assert writing.name is not None
    try:
        if file.masked_by() is None:
            return _gathered(file, message, writing)
        found = file.masked()
        if found is None or file.masked_by() != writing.name:
            return None
        kept, writing.since = found
        going_on = _went_on(kept, file.marks(kept.incarnation), message, writing)
    except (ProtocolError, ModelError, StorageError) as error:
        if isinstance(error, StorageError) and error.lasting:
            raise
        log.error("%s cannot be read, and its unsent counts are lost: %s", file.path, error)
        writing.since = 0
        return None
    marks = [one for one in going_on.uploads if one.player is not None]
    file.keep_marks(
        kept.incarnation,
        [(one.upload.sequence, one.body, one.player or b"") for one in marks],
        None,
    )
    for one in going_on.uploads[len(marks) :]:
        file.keep_upload(kept.incarnation, one.upload.sequence, one.body, one.upload.slots, None)
    file.go_on(kept.incarnation, going_on.player.slots, _packed(going_on.player))
    return going_on


def _went_on(
    kept: KeptIncarnation,
    marks: Sequence[tuple[bytes, bytes]],
    message: RoundMessage,
    writing: Writing,
) -> Resumed:
    """Return an incarnation to go on with; marks: body and player of its uploads at marks."""
    uploads = []
    for body, packed in marks:
        counts, visits, *_ = unpack(packed, message.shape)
        uploads.append(replace(writing.again(body, counts, visits, message), player=packed))
    sequence = kept.sequence

    def mask_at_mark(player: Player) -> None:
        nonlocal sequence
        if writing.at_mark(player.slots):
            sequence += 1
            upload = replace(player.upload(sequence), length=0)
            uploads.append(writing.prepared(upload, message, _packed(player)))

    before = _replayed(kept, message, mask_at_mark)
    if kept.has_more or kept.upload is not None:
        sequence += 1
        uploads.append(writing.prepared(replace(before.upload(sequence), length=0), message))
    player = Player(message, kept.incarnation)
    player.counts, player.visits, player.slots = before.counts, before.visits, before.slots
    return Resumed(player, uploads, sequence)


def _gathered(file: AgentFile, message: RoundMessage, writing: Writing) -> Resumed | None:
    """All that was kept in clear, as the beginning of an incarnation."""
    kept = [_replayed(each, message, lambda _: None) for each in file.earlier()]
    if not kept or writing.name is None:
        return None
    player = Player(message, secrets.token_hex(16))
    player.counts = np.sum([each.counts for each in kept], axis=0)
    player.visits = np.sum([each.visits for each in kept], axis=0)
    player.slots = sum(each.slots for each in kept)
    upload = writing.prepared(replace(player.upload(1), length=0), message)
    file.begin_masked(player.incarnation, 0, writing.name, player.slots, _packed(player))
    file.keep_upload(player.incarnation, 1, upload.body, player.slots, None)
    return Resumed(player, [upload], 1)
