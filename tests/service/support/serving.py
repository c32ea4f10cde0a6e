"""A server for the tests, with a planner that needs no JAX, and agents that talk to it by hand."""

from __future__ import annotations

import io
import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest

from rmab.errors import UnreachableError
from rmab.policies.plans import IndexPlan
from rmab.protocol.config import Federation, KnownArm
from rmab.protocol.growth import Merged
from rmab.protocol.messages import parse_round
from rmab.protocol.player import Player
from rmab.protocol.shape import Upload
from rmab.service.admin import DatabaseAdmin
from rmab.service.http.listener import in_thread
from rmab.service.http.telemetry import Log
from rmab.service.server.planning import Planning
from rmab.service.server.process import Server, Settings

PATIENCE = 60.0  # seconds; a machine may be slow, and only what fails takes so long


class Planned(NamedTuple):
    """As `rmab.protocol.planner` has it, which would load JAX."""

    plan: IndexPlan
    limit: int | None


class Flat(Planning):
    """Plans that tell what they were made for: every index is the round's number plus lane / 16."""

    def __init__(self, federation: Federation) -> None:
        self.shape = federation.shape
        self.calls: list[tuple[int, int]] = []
        self.fail = 0  # how many plans are to fail yet
        self.gate = threading.Event()  # plans wait for it
        self.gate.set()

    def plan(
        self, merged: Merged, number: int, lane: int = 0, each: Any = None, memory: Any = None
    ) -> Planned:
        assert self.gate.wait(PATIENCE)
        if self.fail:
            self.fail -= 1
            raise RuntimeError("no plan today")
        self.calls.append((number, lane))
        index = np.full((self.shape.n_arms, 5), number + lane / 16, np.float32)
        index[:, 0] = merged.visits.sum()
        return Planned(IndexPlan(2, 2, index, self.shape.states), None)

    def estimates(self, merged: Merged) -> list[dict[str, Any]]:
        one = {"mean": 0.5, "low": 0.25, "high": 0.75}
        return [{"p01": one, "p11": one} for _ in self.shape.states]

    def laws(self, merged: Merged, number: int, groups: Any = None) -> Any:
        raise AssertionError("agents draw nothing here")

    def remember(self, memory: Any, before: Any, now: Any, length: int) -> Any:
        raise AssertionError("nothing is forgotten here")


def spectrum(**changes: Any) -> Federation:
    """Four channels, of which two are played."""
    arms = tuple(KnownArm(2, (0.0, reward)) for reward in (0.4, 0.9, 0.7, 0.6))
    return Federation("spectrum", 2, arms, **changes)


class Served:
    """A running server, its log and its planner; anybody may view unless the settings say no."""

    def __init__(
        self,
        folder: Path,
        federation: Federation,
        planner: Any,
        clock: Callable[[], float] = time.time,
        **settings: Any,
    ) -> None:
        self.federation = federation
        self.planner = planner
        self.database = settings.pop("database", str(folder / "federation.db"))
        self.log = io.StringIO()
        self.server = Server(
            Settings(federation, self.database, **{"port": 0, "open": True} | settings),
            planner=planner,
            log=Log(self.log, "debug"),
            clock=clock,
        )
        self.url = self.server.url
        self.port = int(self.url.rpartition(":")[2])
        self._clients: list[httpx.Client] = []

    def enroll(self, name: str, role: str = "agent") -> str:
        with DatabaseAdmin(self.federation, self.database) as admin:
            return admin.enroll(name, role)

    def client(self, token: str | None = None) -> httpx.Client:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        made = httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, verify=False)
        self._clients.append(made)
        return made

    def close_clients(self) -> None:
        for client in self._clients:
            client.close()

    def agent(self, name: str) -> ByHand:
        return ByHand(self, name, self.enroll(name))

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


@contextmanager
def served(
    folder: Path, federation: Federation, planner: Any = None, **settings: Any
) -> Iterator[Served]:
    made = Served(folder, federation, planner or Flat(federation), **settings)
    try:
        with in_thread(made.server):
            yield made
    finally:
        made.close_clients()


class ByHand:
    """An agent whose every request is made by the test."""

    def __init__(self, served: Served, name: str, token: str) -> None:
        self.served, self.name, self.token = served, name, token
        self.client = served.client(token)
        self.incarnation = secrets.token_hex(16)
        self.player: Any = None
        self.sequence = 0

    def fetch(self, after: int = 0, wait: float = 0) -> Any:
        """The round, and begin its episode; None if there is none that is newer."""
        answer = self.client.get("/v1/round", params={"after": after, "wait": wait})
        assert answer.status_code in (200, 204), answer.text
        if answer.status_code == 204:
            assert not answer.content
            return None
        message = parse_round(answer.content)
        if self.player is None:
            self.player = Player(message, self.incarnation)
        else:
            self.player.begin(message)
        return message

    def play(self) -> Any:
        """To the end of the episode; all arms always show 1."""
        assert self.player is not None
        while not self.player.over:
            arms = self.player.choose().tolist()
            self.player.observe(arms, [1] * len(arms))
        self.sequence += 1
        return self.player.upload(self.sequence)

    def body(self, upload: Upload) -> bytes:
        return upload.to_json(self.served.federation.shape, self.served.federation.name)

    def send(self, upload: Upload | bytes, **headers: str) -> httpx.Response:
        content = upload if isinstance(upload, bytes) else self.body(upload)
        kind = {"Content-Type": "application/json"}
        return self.client.post("/v1/uploads", content=content, headers=kind | headers)

    def episode(self, after: int = 0, wait: float = 0) -> httpx.Response:
        """Fetch, play, upload."""
        assert self.fetch(after, wait) is not None
        return self.send(self.play())


def until(condition: Any, seconds: float = PATIENCE) -> None:
    """Wait for something that is about to happen."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def gives_up(
    start: Callable[[float], Any], words: str, seen: Callable[[], Any] = lambda: True
) -> None:
    """An agent's first start, given seconds of patience, must fail, and tell why in these words.

    seen: what must have happened, too. Where it took longer than the agent had patience, the start
    is tried again with more.
    """
    for patience in (0.3, 3.0, 30.0):
        with pytest.raises(UnreachableError) as told:
            start(patience)
        if re.search(words, str(told.value)) and seen():
            return
    raise AssertionError(f"{words!r} was to be told, got: {told.value}")
