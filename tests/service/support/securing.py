"""A federation whose server learns sums alone: a helper, a server, and agents that mask by hand."""

from __future__ import annotations

import io
import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from rmab.privacy.masks import MaskKey, is_mark, parse_key
from rmab.privacy.settings import Privacy
from rmab.protocol.config import Federation
from rmab.protocol.shape import Upload
from rmab.service.helper.process import Helper, HelperSettings
from rmab.service.helper.store import HelperStore, open_helper_store
from rmab.service.http.listener import in_thread
from rmab.service.http.telemetry import Log
from rmab.service.server.limits import ServerLimits
from rmab.service.server.unmasking import HelperAccess
from rmab.service.terms import terms_of
from tests.service.support.serving import ByHand, Flat, Served, spectrum

# A helper that is away is tried again at once.
QUICK = ServerLimits(first_retry_seconds=0.02, last_retry_seconds=0.05, helper_seconds=5.0)


class Securing:
    """A helper and a server that can each be stopped and started; enrols agents at both."""

    def __init__(self, folder: Path, live_seconds: float | None = None, **privacy: Any) -> None:
        self.folder = folder
        self._least_and_groups = privacy
        self.federation = spectrum(
            privacy=Privacy("http://127.0.0.1:9", **privacy),
            slot_seconds=0,
            live_seconds=live_seconds,
        )
        self.planner: Any = Flat
        self.helper_database = str(folder / "helper.db")
        self.server_database = str(folder / "federation.db")
        self.helper_log, self.log = io.StringIO(), io.StringIO()
        with self.helper_store() as store:
            self.token = store.enroll_server(1.0)
        self._running = ExitStack()
        self._helper = ExitStack()
        self._port = 0
        self.agents: dict[str, Masking] = {}

    @contextmanager
    def helper_store(self) -> Iterator[HelperStore]:
        store = open_helper_store(self.helper_database, terms_of(self.federation))
        try:
            yield store
        finally:
            store.close()

    def start_helper(self, federation: Federation | None = None) -> None:
        helper = Helper(
            HelperSettings(
                terms_of(federation or self.federation),
                self.helper_database,
                port=self._port,
                open=True,
            ),
            log=Log(self.helper_log, "debug"),
        )
        self._port = int(helper.url.rpartition(":")[2])
        self.use_helper(helper.url)
        self._helper.enter_context(in_thread(helper))

    def use_helper(self, url: str) -> None:
        """The helper is at this address."""
        self.helper_url = url
        self.federation = replace(self.federation, privacy=Privacy(url, **self._least_and_groups))

    def stop_helper(self) -> None:
        self._helper.close()

    def start_server(self, **settings: Any) -> Served:
        settings = {"limits": QUICK, "helper": HelperAccess(self.token), **settings}
        self.served = Served(
            self.folder,
            self.federation,
            self.planner(self.federation),
            database=self.server_database,
            **settings,
        )
        self.served.log = self.log
        self.served.server.log = Log(self.log, "debug")
        self._running.enter_context(in_thread(self.served.server))
        for agent in self.agents.values():
            agent.move(self.served)
        return self.served

    def stop_server(self) -> None:
        self._running.close()
        self.served.close_clients()

    def close(self) -> None:
        self._running.close()
        if hasattr(self, "served"):
            self.served.close_clients()
        self._helper.close()

    def agent(self, name: str, group: int | None = None) -> Masking:
        with self.helper_store() as store:
            text, _ = store.enroll(name, group, 1.0)
        made = Masking(self.served, name, self.served.enroll(name), text)
        self.agents[name] = made
        return made

    def status(self) -> dict[str, Any]:
        with httpx.Client(base_url=self.served.url) as client:
            found: dict[str, Any] = client.get("/v1/status").raise_for_status().json()
            return found

    def ledger(self) -> Any:
        """Visits that all agents have counted and told the server of."""
        return sum(agent.told_visits for agent in self.agents.values())

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.log.getvalue().splitlines()]


class Masking(ByHand):
    """An agent that masks, by hand, at marks on the way too."""

    def __init__(self, served: Served, name: str, token: str, mask_key: str) -> None:
        super().__init__(served, name, token)
        self.mask_key = mask_key
        key = parse_key(mask_key)
        assert key is not None
        self.key = MaskKey(key)
        self.since = 0
        self.marks: list[Upload] = []
        self.told_counts: Any = 0
        self.told_visits: Any = 0

    def move(self, served: Served) -> None:
        self.served = served
        self.client = served.client(self.token)

    def begin_anew(self, since: int) -> None:
        """Another incarnation."""
        self.since, self.sequence, self.player = since, 0, None
        self.incarnation = secrets.token_hex(16)
        self.marks.clear()

    def play(self, slots: int | None = None) -> Upload:
        """To the end of the episode, or so many slots; the upload after the last one."""
        player = self.player
        upload: Upload = player.upload(self.sequence)
        last = None if slots is None else player.slots + slots
        while player.slots < last if last is not None else not player.over:
            arms = player.choose().tolist()
            player.observe(arms, [1] * len(arms))
            self.sequence += 1
            upload = player.upload(self.sequence)
            if is_mark(self.since + player.slots):
                self.marks.append(replace(upload, length=0))
        return upload

    def body(self, upload: Upload) -> bytes:
        federation = self.served.federation
        masked = self.key.masked(
            upload, federation.fingerprint(), self.name, federation.shape, self.since
        )
        return masked.to_json(federation.shape, federation.name)

    def send(self, upload: Upload | bytes, **headers: str) -> httpx.Response:
        """Send an upload, after those at marks before it."""
        while self.marks and isinstance(upload, Upload):
            mark = self.marks.pop(0)
            if mark.sequence == upload.sequence:
                continue  # the report is at the mark
            answer = self._post(self.body(mark))
            if answer.status_code != 201:
                return answer
        return self._post(upload, **headers)

    def _post(self, upload: Upload | bytes, **headers: str) -> httpx.Response:
        content = upload if isinstance(upload, bytes) else self.body(upload)
        kind = {"Content-Type": "application/json"}
        answer = self.client.post("/v1/masked", content=content, headers=kind | headers)
        if answer.status_code == 201 and isinstance(upload, Upload):
            self.told_counts = upload.counts.copy()
            self.told_visits = upload.visits.copy()
        return answer


@contextmanager
def secured(folder: Path, **privacy: Any) -> Iterator[Securing]:
    """A running helper and server."""
    made = Securing(folder, **privacy)
    try:
        made.start_helper()
        made.start_server()
        yield made
    finally:
        made.close()
