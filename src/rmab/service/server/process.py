"""The server of a federation as a process: settings, start, reload and end.

It answers as soon as it has its database and is ready once it can plan. Address, TLS and signals
are in `rmab.service.http.listener`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from rmab.errors import FederationError, ModelError, StudyError
from rmab.protocol.config import Federation, load_federation
from rmab.service.http.listener import Http, Listener, ListenerSettings, run_process
from rmab.service.http.telemetry import Log
from rmab.service.server.limits import ServerLimits
from rmab.service.server.metrics import Metrics
from rmab.service.server.planning import Planning
from rmab.service.server.rounds import Rounds
from rmab.service.server.routes import make_app
from rmab.service.server.unmasking import HelperAccess

__all__ = ["PORT", "Server", "Settings", "serve"]

PORT, TLS_PORT = 8080, 8443


@dataclass(frozen=True)
class Settings(ListenerSettings):
    """Settings of a server. file: read again on reload; helper: where the federation has one."""

    federation: Federation
    database: str
    file: str | Path | None = None
    helper: HelperAccess | None = None
    limits: ServerLimits = field(default_factory=ServerLimits, kw_only=True)


class Server(Listener):
    """The server of a federation."""

    ports = (PORT, TLS_PORT)
    settings: Settings

    def __init__(
        self,
        settings: Settings,
        *,
        planner: Planning | None = None,
        log: Log | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.metrics = Metrics()
        super().__init__(settings, self.metrics, log=log, clock=clock)
        self._planner = planner

    async def _start(self) -> None:
        await self.rounds.start()

    async def run(
        self,
        ready: Callable[[], None] = lambda: None,
        *,
        prepared: Callable[[], None] = lambda: None,
        patient: bool = True,
    ) -> None:
        """Serve until `stop`."""
        try:
            self.rounds = Rounds(
                self.settings.federation,
                self.settings.database,
                planner=self._planner,
                log=self.log,
                metrics=self.metrics,
                limits=self.settings.limits,
                helper=self.settings.helper,
            )
        except FederationError:
            self.close()
            raise
        self.rounds.lost = self._give_up
        await super().run(ready, prepared=prepared, patient=patient)

    def _app(self, hosts: frozenset[str] | None) -> ASGIApp:
        return make_app(
            self.rounds,
            hosts=hosts,
            log=self.log,
            metrics=self.metrics,
            open=self.settings.open,
            proxies=self._proxies,
        )

    async def _greet(
        self, http: Http, ready: Callable[[], None], prepared: Callable[[], None]
    ) -> None:
        """Report that the server answers, and then that it can plan; end it if it never will."""
        await http.listening.wait()
        self.log("info", "listening", url=self.url)
        rounds, preparing = self.rounds, self.rounds.preparing
        assert preparing is not None
        try:
            if not rounds.number:
                await asyncio.wait({preparing}, timeout=self.settings.limits.greeting_seconds)
            if not preparing.done() or preparing.exception() is None:
                ready()
            await asyncio.shield(preparing)
        except (FederationError, ModelError, StudyError):
            http.should_exit = True
            raise
        self.log("info", "ready", url=self.url, round=rounds.number)
        prepared()

    def _let_go(self) -> None:
        self.rounds.release()

    async def _finish(self, *, patient: bool) -> None:
        await self.rounds.stop(patient=patient)
        if self._http is not None:
            self.log("info", "stopped", round=self.rounds.number)

    def _reloaded(self) -> dict[str, Any]:
        if self.settings.file is None:
            return {}
        changed, others = self.rounds.reconfigure(load_federation(self.settings.file))
        return {"changed": changed, "needs_restart": others}


def serve(settings: Settings, ready: Callable[[str], None]) -> bool:
    """Run a server in this process until SIGTERM or SIGINT; `ready` is given its URL.

    Everything is committed when it returns. False: a thread is still making a plan, and an ordinary
    end of the process would wait for it.
    """
    server = Server(settings)
    run_process(server, ready)
    return not server.rounds.planning.busy
