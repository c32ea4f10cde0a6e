"""POST /v1/uploads, the one route that must be fast under any load.

The order is the bound on uploads in flight, credential, the agent's rate, type, size, body, the
bound once more, and only then is the body parsed, so that a refusal costs little. Memory is
bounded: bytes of bodies at once, a quarter of them of one owner, and uploads that are parsed and
not yet committed; beyond that the answer is 503, try again. `rmab.service.http.connections` ends
requests whose body does not come.

The fate of an upload is one decision, `receive`, made in one job of the writer; the upload is
acknowledged when that is committed. In this order, each the answer if it holds:

    the credential is unknown, revoked, wrong or no agent's     401 credential
    an upload is stored under (agent, incarnation, sequence)    repeat if it is the same one,
                                                                409 conflict if not
    the sequence is below the incarnation's last                409 backwards
    the incarnation's counts were taken out                     409 forgotten
    the incarnation has ended, or may have and be forgotten     repeat if it is its last upload,
                                                                409 conflict, backwards, ended
    the round is not the open one                               410 round, which is the open one
    masked, it is not of the agent's last incarnation           409 ended
    masked, it begins one elsewhere than at its position        409 since
    it cannot follow the incarnation's last upload              409 backwards, 422 malformed
    the agent's owner has too little credit for its slots       429 slots
    it begins an incarnation, too soon after others             429 rate
    else it is new                                              stored

A repeat is recognised before the round is checked: an agent whose answer was lost learns that its
upload was kept, also after the round has closed.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

from starlette.types import Receive, Scope, Send

from rmab.errors import ProtocolError
from rmab.privacy.masks import MaskedUpload
from rmab.protocol.checks import malformed
from rmab.protocol.config import Federation
from rmab.protocol.growth import check_growth
from rmab.protocol.shape import Upload
from rmab.protocol.uploads import most_bytes, parse_masked, parse_upload
from rmab.service.http.body import announced_size, check_type, read_body
from rmab.service.http.tokens import matches
from rmab.service.server.identity import Access, Identity
from rmab.service.server.metrics import Metrics
from rmab.service.server.rounds import Rounds
from rmab.service.store.credentials import Credential
from rmab.service.store.store import Store

__all__ = ["Rate", "UploadRules", "Uploads", "authenticate", "receive"]

Status = Literal["new", "repeat"]


def authenticate(store: Store, key_id: str, secret_hash: bytes, role: str) -> Credential:
    """Return a token's credential; ProtocolError 401 unless it is valid and of this role.

    The answer does not tell which of the reasons it is.
    """
    credential = store.credentials.credential(key_id)
    if (
        credential is None
        or not matches(credential.secret_hash, secret_hash)
        or credential.revoked
        or credential.role != role
    ):
        raise ProtocolError(401, "credential", f"a valid credential of role {role} is needed")
    return credential


class UploadRules(NamedTuple):
    """Rules for uploads of a federation that the database does not have."""

    slot_seconds: float = 0.0  # of the shortest slot; 0: no limit
    wait: float = 0.0  # seconds until the agent may begin another incarnation
    always: Sequence[int] = ()  # arms that are observed in every slot


_NO_RULES = UploadRules()


def receive(
    store: Store,
    key_id: str,
    secret_hash: bytes,
    upload: Upload,
    current_round: int,
    plays: int,
    now: float,
    rules: UploadRules = _NO_RULES,
) -> Status:
    """Accept an upload or recognise a repeat; a refusal is a ProtocolError and writes nothing.

    plays: K; now: seconds since 1970.
    """
    credential = authenticate(store, key_id, secret_hash, "agent")
    agent = credential.name
    before = store.uploads.record(agent, upload.incarnation)
    if before is not None and upload.sequence <= before.sequence:
        stored = store.uploads.digest(agent, upload.incarnation, upload.sequence)
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
        return "repeat"
    if before is None and store.uploads.is_gone(agent, upload.incarnation):
        raise ProtocolError(
            409,
            "forgotten",
            "the counts of this incarnation were forgotten; begin a new one",
        )
    if before is None and _is_last_of_ended(store, agent, upload):
        return "repeat"
    if upload.round != current_round:
        raise ProtocolError(
            410,
            "round",
            f"round must be the open one, {current_round}, got {upload.round}",
            round=current_round,
        )
    if store.openings is not None:
        assert isinstance(upload, MaskedUpload)
        store.openings.check(agent, upload)
    check_growth(before, upload, plays, rules.always)
    credit = None
    if rules.slot_seconds:
        more = upload.slots - (before.slots if before else 0)
        credit = store.spent_credit(credential, more, now, rules.slot_seconds)
    if before is None and rules.wait > 0:
        raise _too_often("begun incarnations", rules.wait)
    store.accept(agent, upload, now)
    if credit is not None:
        store.pace.keep(credential.owner, credit)
    return "new"


def _too_often(what: str, wait: float) -> ProtocolError:
    seconds = math.ceil(wait)
    return ProtocolError(
        429,
        "rate",
        f"the agent has {what} faster than it may; try again in {seconds} s",
        retry_after=seconds,
    )


def _is_last_of_ended(store: Store, agent: str, upload: Upload) -> bool:
    """Whether it is the last upload of an incarnation that has ended; ProtocolError if it is
    another one of such an incarnation, or may be; False if its incarnation is new."""
    ended = store.uploads.ended(agent, upload.incarnation)
    if ended is None:
        floor = store.uploads.floor(agent)
        if upload.round <= floor:
            raise ProtocolError(
                409,
                "ended",
                f"incarnations of round {floor} and before are not known any more; begin a new one",
            )
        return False
    if upload.sequence > ended.sequence:
        raise ProtocolError(
            409, "ended", "the agent has uploaded under another incarnation since; begin a new one"
        )
    if upload.sequence < ended.sequence:
        raise ProtocolError(
            409, "backwards", f"sequence must be above {ended.sequence}, got {upload.sequence}"
        )
    if upload.digest != ended.digest:
        raise ProtocolError(
            409, "conflict", f"another upload was accepted as sequence {upload.sequence}"
        )
    return True


class Rate:
    """Rate limit of each owner's agents, with a burst after they have been quiet.

    burst: seconds, in which the rate allows as much as may be done at once, if not one. Of each
    owner one time is kept, until which its actions fill its rate: each moves it on by 1 / rate, and
    it may be ahead of now by the burst. Actions beyond that are owed, and waited for.
    """

    def __init__(self, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        self._filled: dict[str, float] = {}

    def wait(self, name: str, rate: float) -> float:
        """Seconds until they may do it once more, 0 for now; rate: times a second, 0: any."""
        if rate <= 0:
            return 0.0
        now, each = self._clock(), 1 / rate
        filled = max(now, self._filled.get(name, now))
        return max(0.0, filled + each - max(self._burst, each) - now)

    def done(self, name: str, rate: float) -> None:
        """One of them has done it."""
        if rate > 0:
            now = self._clock()
            self._filled[name] = max(now, self._filled.get(name, now)) + 1 / rate


class Uploads:
    """Application of the route; masked: of masked uploads."""

    def __init__(
        self, rounds: Rounds, access: Access, metrics: Metrics, *, masked: bool = False
    ) -> None:
        self._parse = parse_masked if masked else parse_upload
        self._refusal = _other_mode(rounds.federation, masked=masked)
        self._rounds = rounds
        self._access = access
        self._metrics = metrics
        self._limits = rounds.limits
        self._most_in_flight = self._limits.uploads_in_flight
        self._overload = json.dumps(
            {
                "error": "overload",
                "detail": f"{self._most_in_flight} uploads are being committed; try again",
            }
        ).encode()
        self._shape = rounds.federation.shape
        self._name = rounds.federation.name
        self._most = most_bytes(self._shape)
        self._room = max(self._limits.body_room, 4 * self._most)
        self._held = 0
        self._held_of: Counter[str] = Counter()
        self._in_flight = 0
        self._results: dict[str, Any] = {}
        self._sent = Rate(self._limits.upload_burst_seconds)
        self._begun = Rate(self._limits.incarnation_burst_seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._in_flight >= self._most_in_flight:
            await self._turn_away(send)
            return
        agent = None
        try:
            headers = dict(scope["headers"])
            agent = await self._access.agent(scope, headers, again=True)
            self._rounds.check_open()
            self._check_rate(agent.owner)
            if self._refusal is not None:
                raise malformed(self._refusal)
            check_type(headers)
            size = self._take(agent.owner, headers)
            try:
                body = await read_body(receive, self._most)
                if self._in_flight >= self._most_in_flight:
                    await self._turn_away(send)
                    return
                started = time.perf_counter()
                self._in_flight += 1
                try:
                    upload = await self._parsed(body)
                    status = await self._keep(agent, upload)
                finally:
                    self._in_flight -= 1
            finally:
                self._give_back(agent.owner, size)
        except ProtocolError as error:
            self._count(error.code)
            if agent is not None and error.status not in (410, 503):  # no fault of the agent's
                self._rounds.presence.refused(agent.name)
            raise
        self._metrics.upload_seconds.observe(time.perf_counter() - started)
        self._count(status)
        answer = (
            f'{{"status":"{status}","sequence":{upload.sequence},"round":{self._rounds.number}}}'
        ).encode()
        await _send_json(send, 201 if status == "new" else 200, answer)

    def _check_rate(self, owner: str) -> None:
        """ProtocolError 429 where the agents of an owner send more than they may."""
        rate = self._rounds.federation.uploads_per_second
        wait = self._sent.wait(owner, rate)
        if wait > 0:
            raise _too_often("sent uploads", wait)
        self._sent.done(owner, rate)

    async def _turn_away(self, send: Send) -> None:
        """Answer 503 in the fewest steps: under overload most requests get it."""
        self._count("overload")
        await _send_json(send, 503, self._overload, (b"retry-after", b"1"))

    async def _parsed(self, body: bytes) -> Upload:
        if len(body) <= self._limits.parse_inline_bytes:
            return self._parse(body, self._shape, self._name)
        return await asyncio.to_thread(self._parse, body, self._shape, self._name)

    async def _keep(self, agent: Identity, upload: Upload) -> Status:
        """Keep an upload; returns when it is committed. ProtocolError if it is refused."""
        federation, now = self._rounds.federation, self._rounds.clock()
        rate = federation.incarnations_per_hour / 3600
        wait = self._begun.wait(agent.owner, rate)

        def job(store: Store) -> tuple[Status, bool]:
            key_id, secret_hash = agent.key_id, agent.secret_hash
            begins = store.uploads.record(agent.name, upload.incarnation) is None
            try:
                status = receive(
                    store,
                    key_id,
                    secret_hash,
                    upload,
                    store.open_number(),
                    federation.plays,
                    now,
                    UploadRules(federation.slot_seconds, wait, self._shape.always),
                )
            except ProtocolError as error:
                if error.status == 409 and store.openings is not None:
                    # Where the incarnation begins that the agent must begin now.
                    error.extra["position"] = store.openings.position(agent.name)
                raise
            return status, begins

        try:
            status, begins = await self._rounds.jobs.run(job)
        except ProtocolError as error:
            if error.status == 401:  # revoked since it was last checked
                self._rounds.forget(agent.name)
            raise
        if status == "new":
            if begins:  # together with others, perhaps: that much is owed
                self._begun.done(agent.owner, rate)
            self._rounds.accepted(agent.name, upload)
        return status

    def _take(self, owner: str, headers: dict[bytes, bytes]) -> int:
        """Room for a body of the size that is announced, else of the most it may be."""
        size = announced_size(headers, self._most)
        of_owner = self._held_of[owner] + size
        if self._held + size > self._room or of_owner > self._room // 4:
            raise ProtocolError(503, "overload", "too many bodies are being received; try again")
        self._held += size
        self._held_of[owner] = of_owner
        return size

    def _give_back(self, owner: str, size: int) -> None:
        self._held -= size
        left = self._held_of[owner] - size
        if left:
            self._held_of[owner] = left
        else:
            del self._held_of[owner]

    def _count(self, result: str) -> None:
        counter = self._results.get(result)
        if counter is None:
            counter = self._results[result] = self._metrics.uploads.labels(result)
        counter.inc()


def _other_mode(federation: Federation, *, masked: bool) -> str | None:
    """Why the route takes nothing in this federation; None: it does."""
    if masked == federation.masks:
        return None
    if masked:
        return "this federation has no helper that could open masked uploads"
    return (
        "this federation takes masked uploads alone, by POST /v1/masked: the agent needs the mask "
        "key that `rmab helper-enroll` printed"
    )


async def _send_json(send: Send, status: int, body: bytes, *more: tuple[bytes, bytes]) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
