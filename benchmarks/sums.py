"""What it costs that a server learns sums alone: to an agent, to the server and to the helper.

Processor time of this process. An agent makes the body of an upload; the server chooses members,
writes an opening down, takes the masks off and adds the sum; the helper checks the members and adds
their masks. Both with their own stores on SQLite, in openings after the first, which go on from
where the last one was. 200 agents are enrolled and 50 of them are away.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from benchmarks.records import Part, Row

from rmab.privacy.batches import check_sum, choose_batch
from rmab.privacy.masks import MaskKey, make_key, numbers_of, parse_key, vector_size
from rmab.privacy.settings import Privacy
from rmab.privacy.unmasking import parse_job
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.shape import Upload
from rmab.service.helper.store import open_helper_store
from rmab.service.http.tokens import make_token
from rmab.service.store.store import Store, open_store
from rmab.service.store.unmasking import Enrolment
from rmab.service.terms import terms_of

__all__ = ["PACKAGES", "measure"]

PACKAGES = ("numpy",)
AGENTS, AWAY, GAPS = 200, 50, 32
AGENT_MS, LARGE_AGENT_MS, SIDE_MS, UPLOAD_KIB = 0.5, 3.0, 20.0, 6.0


def federation(arms: int) -> Federation:
    """Channels, two of them played, pairs counted at 32 gaps."""
    known = tuple(KnownArm(2, (0.0, 0.5)) for _ in range(arms))
    privacy = Privacy("http://127.0.0.1:9")
    return Federation(
        "spectrum", 2, known, policy="fedtswi-gap", options={"gaps": GAPS}, privacy=privacy
    )


def upload(served: Federation, incarnation: str, sequence: int, slots: int) -> Upload:
    """An upload of slots in which nothing was seen: that costs the same."""
    counts, visits = numbers_of(np.zeros(vector_size(served.shape), np.int64), served.shape)
    return Upload(incarnation, sequence, 1, slots, 1, counts, visits)


@contextmanager
def processor(times: list[float]) -> Iterator[None]:
    """Milliseconds of this process."""
    begun = time.process_time()
    yield
    times.append(1000 * (time.process_time() - begun))


def agent_ms(served: Federation, repetitions: int) -> tuple[list[float], int]:
    """The body of an upload, and its bytes."""
    key = parse_key(make_key())
    assert key is not None
    mask_key, fingerprint = MaskKey(key), served.fingerprint()
    given = upload(served, "ab" * 16, 1, 4)
    times: list[float] = []
    body = b""
    for _ in range(repetitions):
        with processor(times):
            for _ in range(20):
                masked = mask_key.masked(given, fingerprint, "radio-1", served.shape)
                body = masked.to_json(served.shape, served.name)
        times[-1] /= 20
    return times, len(body)


class Openings:
    """A server's store and a helper's, and agents that upload in between."""

    def __init__(self, folder: Path, served: Federation) -> None:
        self.served = served
        self.store: Store = open_store(str(folder / "server.db"), served)
        self.helper = open_helper_store(str(folder / "helper.db"), terms_of(served))
        self.keys: dict[str, MaskKey] = {}
        with self.store.transaction():
            for n in range(AGENTS):
                name = f"agent{n}"
                _, key_id, secret_hash = make_token()
                self.store.enroll(name, "agent", key_id, secret_hash, 1.0)
        for n in range(AGENTS):
            key = parse_key(self.helper.enroll(f"agent{n}", 1, 1.0)[0])
            assert key is not None
            self.keys[f"agent{n}"] = MaskKey(key)
        openings = self.store.openings
        assert openings is not None
        self.openings = openings
        with self.store.transaction():
            openings.begin_chain(self.helper.name)
        self.sequence = 0
        self.server_ms: list[float] = []
        self.helper_ms: list[float] = []

    def turn(self) -> None:
        """Uploads of those who are not away, and an opening."""
        self.sequence += 1
        with self.store.transaction():
            for n in range(AGENTS - AWAY):
                name = f"agent{n}"
                given = upload(self.served, f"{n:032x}", self.sequence, 4 * self.sequence)
                masked = self.keys[name].masked(
                    given, self.served.fingerprint(), name, self.served.shape
                )
                self.store.accept(name, masked, float(self.sequence))
        rows = self.helper.agents()
        enrolled = {row.name: Enrolment(row.group, row.cohort) for row in rows}
        away = {f"agent{n}" for n in range(AGENTS - AWAY, AGENTS)}
        times: list[float] = []
        with processor(times), self.store.transaction():
            members = choose_batch(self.openings.waiting(enrolled), 3, away).reports
            pending = self.openings.write(1, members, 1, 1.0)
            body = pending.opening.to_json()
        with processor(self.helper_ms):
            masks = self.helper.open(parse_job(body))
        with processor(times):
            vector = (pending.difference - masks).view(np.int64)
            numbers = numbers_of(vector, self.served.shape)
            wrong = check_sum(*numbers, pending.slots, len(members), self.served.shape)
            assert wrong is None, wrong
            with self.store.transaction():
                self.openings.answer(pending.opening.number, vector)
            with self.store.transaction():
                self.openings.add()
            assert not self.store.merged().visits.any()
        self.server_ms.append(sum(times))

    def close(self) -> None:
        """Give the databases back."""
        self.store.close()
        self.helper.close()


def measure(quick: bool, say: Callable[[str], None]) -> Part:
    """All tables."""
    load = os.getloadavg()[0]
    repetitions = 3 if quick else 10
    small, large = federation(4), federation(100)
    agent, size = agent_ms(small, repetitions)
    large_agent, _ = agent_ms(large, repetitions)
    say("agents")
    with tempfile.TemporaryDirectory(prefix="rmab-bench-", dir="/var/tmp") as folder:
        openings = Openings(Path(folder), small)
        try:
            for _ in range(repetitions + 1):
                openings.turn()
        finally:
            openings.close()
    say("openings")
    numbers = vector_size(small.shape)
    rows = [
        Row.of("agent, an upload of 4 arms", agent, unit="ms", limit=AGENT_MS),
        Row.of("agent, an upload of 100 arms", large_agent, unit="ms", limit=LARGE_AGENT_MS),
        Row.of("server, an opening", openings.server_ms[1:], unit="ms", limit=SIDE_MS),
        Row.of("helper, an opening", openings.helper_ms[1:], unit="ms", limit=SIDE_MS),
        Row.of("an upload's size", [size / 1024], unit="KiB", limit=UPLOAD_KIB),
    ]
    notes = {"numbers": numbers, "agents": AGENTS, "away": AWAY}
    return Part.now({"sums": rows}, PACKAGES, load, None, **notes)
