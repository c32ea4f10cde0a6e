"""What earlier incarnations of an agent left unsent, from its file to uploads.

A life's snapshot is its player after some slots: counts, visits and, of each arm, the state seen
last and the slots since. The looks of the slots after it are played again, which gives all that the
life has seen.
"""

from __future__ import annotations

import logging
import zlib
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rmab.errors import ModelError, ProtocolError, StorageError
from rmab.federation.messages import RoundMessage, Shape, Upload, parse_upload
from rmab.federation.player import Player
from rmab.service.agent.state_file import AgentFile, Life

__all__ = ["Ints", "Outgoing", "leftovers", "pack", "unpack"]

log = logging.getLogger("rmab.agent")
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Outgoing:
    """An upload on its way."""

    upload: Upload
    body: bytes


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


def leftovers(file: AgentFile, message: RoundMessage | None) -> list[Outgoing]:
    """Uploads of what earlier incarnations left unsent, oldest first; none is sent under another
    number than before unless there is more to say."""
    uploads, empty = [], []
    for life in file.lives():
        try:
            outgoing = None if message is None else _leftover(life, message)
        except (StorageError, ProtocolError, ModelError) as error:
            log.error(
                "%s: incarnation %s cannot be read, and its unsent counts are lost: %s",
                file.path,
                life.incarnation,
                error,
            )
            outgoing = None
        if outgoing is None:
            empty.append(life.incarnation)
            continue
        uploads.append(outgoing[0])
        if life.has_more:
            upload = outgoing[0].upload
            file.keep_upload(
                life.incarnation, upload.sequence, outgoing[0].body, upload.slots, outgoing[1]
            )
    file.forget(empty)
    if uploads:
        slots = sum(outgoing.upload.slots for outgoing in uploads)
        log.info("%s: %d slots of %d incarnations are unsent", file.path, slots, len(uploads))
    return uploads


def _leftover(life: Life, message: RoundMessage) -> tuple[Outgoing, bytes] | None:
    """The upload that a life left, and its snapshot; None where the server has it all."""
    shape, name = message.shape, message.federation
    if not life.has_more:
        if life.upload is None:
            return None
        return Outgoing(parse_upload(life.upload, shape, name), life.upload), b""
    player = Player(message, life.incarnation)
    if life.snapshot is not None:
        player.counts, player.visits, player.last_seen, player.age = unpack(life.snapshot, shape)
        player.slots = life.slots
    for look in life.looks:
        player.observe(look.arms, look.states)
    # No report of an episode: nobody plays on in it.
    upload: Upload = replace(player.upload(life.sequence + 1), length=0)
    snapshot = pack(player.counts, player.visits, player.last_seen, player.age)
    return Outgoing(upload, upload.to_json(shape, name)), snapshot
