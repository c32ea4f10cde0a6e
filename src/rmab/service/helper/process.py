"""The helper as a process: it listens, is secured and ends as a server does."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.types import ASGIApp

from rmab.privacy.noise import discrete_gaussian
from rmab.service.helper.routes import HelperExecutor, HelperMetrics, make_helper_app
from rmab.service.helper.store import HelperLimits, HelperStore, Terms, open_helper_store
from rmab.service.http.listener import Http, Listener, ListenerSettings
from rmab.service.http.telemetry import Log

__all__ = ["Helper", "HelperSettings"]


@dataclass(frozen=True)
class HelperSettings(ListenerSettings):
    """Settings of a helper."""

    terms: Terms
    database: str
    store_limits: HelperLimits = field(default_factory=HelperLimits)


class Helper(Listener):
    """The helper of a federation."""

    ports = (9080, 9443)
    settings: HelperSettings

    def __init__(
        self,
        settings: HelperSettings,
        *,
        log: Log | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.metrics = HelperMetrics()
        super().__init__(settings, self.metrics, log=log, clock=clock)
        self.executor = HelperExecutor(self._open_store)

    def _open_store(self) -> HelperStore:
        settings, terms = self.settings, self.settings.terms
        if terms.budget is not None:  # the library that draws it must be there from the start
            discrete_gaussian(terms.budget, terms.plays, 1)
        store = open_helper_store(settings.database, terms, limits=settings.store_limits)
        try:
            store.claim()
        except BaseException:
            store.close()
            raise
        return store

    async def _start(self) -> None:
        await self.executor.start()
        agents = await self.executor.run(lambda store: store.agents())
        enrolled = sum(agent.revoked is None for agent in agents)
        detail = self.settings.terms.cost_warning(enrolled)
        if detail is not None:
            self.log("warning", "much noise for few agents", agents=enrolled, detail=detail)

    def _app(self, hosts: frozenset[str] | None) -> ASGIApp:
        return make_helper_app(
            self.executor,
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
        """Do nothing: no request waits here for long."""

    async def _finish(self, *, patient: bool) -> None:  # noqa: ARG002 - nothing takes long here
        await self.executor.stop()
        if self._http is not None:
            self.log("info", "stopped")
