"""What becomes of an upload: one decision, made in one job of the writer.

In this order, each the answer if it holds:

    the credential is unknown, revoked, wrong or no agent's     401 credential
    an upload is stored under (agent, incarnation, sequence)    repeat if it is the same one,
                                                                409 conflict if not
    the sequence is below the incarnation's last                409 backwards
    the round is not the open one                               410 round, which is the open one
    it cannot follow the incarnation's last upload              409 backwards, 422 malformed
    else it is new                                              stored

A repeat is known before the round is looked at: an agent whose answer was lost learns that its
upload was kept, also after the round has closed.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from rmab.errors import ProtocolError
from rmab.federation.messages import Upload, check_growth
from rmab.service.store.store import Credential, Store
from rmab.service.tokens import matches

__all__ = ["Received", "authenticate", "receive"]


class Received(NamedTuple):
    """An upload that is in the database, or will be when the transaction commits."""

    status: Literal["new", "repeat"]
    agent: str
    lane: int
    slots: int  # that it adds; 0 for a repeat
    visits: npt.NDArray[np.int64]  # (S, N), that it adds


def authenticate(store: Store, key_id: str, secret_hash: bytes, role: str) -> Credential:
    """Who holds a token; ProtocolError 401 unless it is valid and for this role.

    The answer does not tell which of the reasons it is.
    """
    credential = store.credential(key_id)
    if (
        credential is None
        or not matches(credential.secret_hash, secret_hash)
        or credential.revoked
        or credential.role != role
    ):
        raise ProtocolError(401, "credential", f"a valid credential of role {role} is needed")
    return credential


def receive(
    store: Store,
    key_id: str,
    secret_hash: bytes,
    upload: Upload,
    current_round: int,
    plays: int,
    now: float,
) -> Received:
    """Accept an upload or know it again; ProtocolError if it is refused, with nothing written."""
    credential = authenticate(store, key_id, secret_hash, "agent")
    agent = credential.name
    before = store.record(agent, upload.incarnation)
    if before is not None and upload.sequence <= before.sequence:
        stored = store.digest(agent, upload.incarnation, upload.sequence)
        if stored is None:
            raise ProtocolError(
                409,
                "backwards",
                f"sequence must be above {before.sequence}, got {upload.sequence}",
            )
        if stored != upload.digest:
            raise ProtocolError(
                409, "conflict", f"another upload was accepted as sequence {upload.sequence}"
            )
        return Received("repeat", agent, credential.lane, 0, np.zeros_like(upload.visits))
    if upload.round != current_round:
        raise ProtocolError(
            410,
            "round",
            f"round must be the open one, {current_round}, got {upload.round}",
            round=current_round,
        )
    check_growth(before, upload, plays)
    store.accept(agent, upload, now)
    if before is None:
        return Received("new", agent, credential.lane, upload.slots, upload.visits)
    return Received(
        "new",
        agent,
        credential.lane,
        upload.slots - before.slots,
        upload.visits - before.visits,
    )
