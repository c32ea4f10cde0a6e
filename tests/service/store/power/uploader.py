"""The process whose power is cut: a store and a writer at work, and a file of acknowledgements.

    python -m tests.service.store.power.uploader DATABASE ACKNOWLEDGEMENTS [BUG]

Every line of acknowledgements is written when the future of a job has resolved. BUG plants one:
"unsynced" and "seldom" make SQLite sync never or only at checkpoints, "early" acknowledges when a
job has run, before the commit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.shape import Upload
from rmab.service.server.uploads import receive
from rmab.service.store.limits import StoreLimits
from rmab.service.store.store import OpenRound, Store, open_store
from rmab.service.store.writer import Writer
from tests.service.support.counting import Counting

AGENTS = 4
LIVES = 3
UPLOADS = 16  # of each life
SYNCHRONOUS = {"unsynced": "OFF", "seldom": "NORMAL"}


def federation() -> Federation:
    """Two channels; what an upload counts fills more than a page of SQLite's."""
    arms = (KnownArm(2, (0.0, 0.4)), KnownArm(2, (0.0, 0.9)))
    return Federation("spectrum", 1, arms, policy="fedtswi-gap", options={"gaps": 80})


def uploads(agent: int, life: int) -> list[Upload]:
    """What a life of an agent sends: sequences 1, 2, ..."""
    counting = Counting(federation().shape, f"{agent} {life}")
    return [counting.upload(sequence, round=life + 1) for sequence in range(1, UPLOADS + 1)]


def credential(agent: int) -> tuple[str, bytes]:
    """The key id and digest of an agent's secret."""
    return f"{agent:016x}", bytes([agent]) * 32


def main() -> None:
    """Three servers, one after the other, each with a life of every agent, and a round."""
    path, acknowledged = sys.argv[1:3]
    bug = sys.argv[3] if len(sys.argv) > 3 else ""
    limits = StoreLimits(checkpoint_pages=40)  # so that there are many in a short run
    lines = os.open(acknowledged, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for life in range(LIVES):
        store = open_store(path, federation(), limits=limits)
        if bug in SYNCHRONOUS:
            store.database.run(f"PRAGMA synchronous = {SYNCHRONOUS[bug]}")
        store.claim()
        with Writer(store) as writer:
            serve(writer, life, lines, early=bug == "early")


def serve(writer: Writer, life: int, lines: int, *, early: bool) -> None:
    """One server's life."""

    def acknowledge(line: str) -> None:
        os.write(lines, f"{line}\n".encode())

    def submit(line: str, job: Callable[[Store], Any]) -> Callable[[], None]:
        def run(store: Store) -> None:
            job(store)
            if early:
                acknowledge(line)

        future = writer.submit(run)

        def finish() -> None:
            future.result()
            if not early:
                acknowledge(line)

        return finish

    if life == 0:
        for agent in range(AGENTS):
            submit(f"enrolled {agent}", enrolling(agent))()
    submit(f"round {life + 1}", turning(life + 1))()
    series = [uploads(agent, life) for agent in range(AGENTS)]
    for at in range(0, UPLOADS, 2):
        waiting = [
            submit(f"upload {agent} {life} {upload.sequence}", receiving(agent, upload))
            for agent in range(AGENTS)
            for upload in series[agent][at : at + 2]
        ]
        for finish in waiting:
            finish()


def enrolling(agent: int) -> Callable[[Store], Any]:
    """A job."""
    return lambda store: store.enroll(f"agent{agent}", "agent", *credential(agent), 1.0)


def receiving(agent: int, upload: Upload) -> Callable[[Store], Any]:
    """A job."""
    return lambda store: receive(store, *credential(agent), upload, upload.round, 1, 2.0)


def turning(number: int) -> Callable[[Store], Any]:
    """A job that closes a round, if one is open, and opens the next."""

    def turn(store: Store) -> None:
        if number > 1:
            store.close_round(number - 1, 3.0, "all", AGENTS, 10, 0.5)
        plan = b"plan " * 2000
        store.open_round(OpenRound(number, 2.0, number, None, store.merged(), plan))

    return turn


if __name__ == "__main__":
    main()
