"""What the tests of the store do with it: enrol, give uploads, open rounds."""

from __future__ import annotations

import numpy as np
import pytest

from rmab.errors import ProtocolError
from rmab.protocol.growth import Merged
from rmab.protocol.shape import Upload
from rmab.service.http.tokens import make_token
from rmab.service.server.uploads import Status, receive
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import OpenRound, Store

# A claim that another process has is given up soon.
IMPATIENT = StoreLimits(claim_seconds=0.1)


def enrolled(
    store: Store, name: str = "alice", role: str = "agent", now: float = 1.0
) -> tuple[str, bytes]:
    """Enroll a name; its key id and the digest of its secret."""
    _, key_id, secret_hash = make_token()
    store.enroll(name, role, key_id, secret_hash, now)
    return key_id, secret_hash


def enrolled_before(store: Store, name: str = "alice") -> tuple[str, bytes]:
    """Enroll an agent in a database of a version in which agents had no owners."""
    _, key_id, secret_hash = make_token()
    with store.transaction():
        store.database.run(
            "INSERT INTO agents (name, role, lane, enrolled, refused) "
            "VALUES (?, 'agent', 0, 1.0, 0)",
            (name,),
        )
        store.database.run(
            "INSERT INTO credentials (key_id, agent, secret_hash, created) VALUES (?, ?, ?, 1.0)",
            (key_id, name, secret_hash),
        )
    return key_id, secret_hash


def given_before(store: Store, upload: Upload, name: str = "alice") -> None:
    """Count an upload in such a database."""
    with store.transaction():
        store.accept(name, upload, 2.0)


def given(
    store: Store, token: tuple[str, bytes], upload: Upload, round: int = 1, now: float = 2.0
) -> Status:
    """Receive an upload in a transaction of its own."""
    with store.transaction():
        return receive(store, *token, upload, round, 2, now)


def refused(store, token, upload, round=1):
    """The error with which an upload is refused."""
    with pytest.raises(ProtocolError) as caught:
        given(store, token, upload, round)
    return caught.value


def some_round(number, federation, **changes):
    """An open round with recognisable content."""
    shape = federation.shape
    counts = np.arange(shape.kinds * 4 * shape.n_arms).reshape(shape.kinds, 2, 2, shape.n_arms)
    merged = Merged(counts + number, np.full((2, shape.n_arms), 2**40), 3)
    values = {"opened": 10.5, "limit": 7, "visit_factor": 2, "merged": merged, "plan_json": b"{}"}
    return OpenRound(number, **{**values, **changes})
