"""The helper as a process: it listens, is secured and ends as a server does."""

from __future__ import annotations

import time
from collections.abc import Callable

from starlette.types import ASGIApp

from rmab.privacy.noise import discrete_gaussian
from rmab.service.helper.routes import Desk, HelperMetrics, make_helper_app
from rmab.service.helper.store import HelperStore, open_helper_store
from rmab.service.http.telemetry import Log, warn_of_noise
from rmab.service.server.process import Http, Listening, Settings

__all__ = ["Helper"]


class Helper(Listening):
    """The helper of a federation."""

    ports = (9080, 9443)

    def __init__(
        self,
        settings: Settings,
        *,
        log: Log | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.metrics = HelperMetrics()
        super().__init__(settings, self.metrics, log=log, clock=clock)
        self.desk = Desk(settings.federation, self._open_store)

    def _open_store(self) -> HelperStore:
        settings = self.settings
        budget = settings.federation.budget
        if budget is not None:  # what draws it must be there before anybody asks
            discrete_gaussian(budget, settings.federation.plays, 1)
        store = open_helper_store(
            settings.database, settings.federation, limits=settings.limits.store
        )
        try:
            store.claim()
        except BaseException:
            store.close()
            raise
        return store

    async def _start(self) -> None:
        await self.desk.start()
        agents = await self.desk.run(lambda store: store.agents())
        enrolled = sum(agent.revoked is None for agent in agents)
        warn_of_noise(self.settings.federation, enrolled, self.log)

    def _app(self, hosts: frozenset[str] | None) -> ASGIApp:
        return make_helper_app(
            self.desk,
            hosts=hosts,
            log=self.log,
            metrics=self.metrics,
            open=self.settings.open,
            proxies=self._proxies,
        )

    async def _greet(
        self, http: Http, ready: Callable[[], None], prepared: Callable[[], None]
    ) -> None:
        await http.listening.wait()
        self.log("info", "listening", url=self.url)
        ready()
        prepared()

    def _let_go(self) -> None:
        """Nobody waits here for long."""

    async def _finish(self, *, patient: bool) -> None:  # noqa: ARG002 - nothing takes long here
        await self.desk.stop()
        if self._http is not None:
            self.log("info", "stopped")
