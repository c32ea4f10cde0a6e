"""A helper's routes.

    POST /v1/openings     server   the masks of a sum; `rmab.privacy.unmasking`
    GET /v1/agents        server   who the helper is, its rules, and its agents with their groups
    GET /metrics          server   for Prometheus; anybody, where the helper is open
    GET /healthz, /readyz all

The server asks with the token that `rmab helper-enroll --server` printed, as `Authorization: Bearer
TOKEN`. The database is used in one thread, one request after another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from prometheus_client import Counter, Gauge
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from rmab.errors import ProtocolError
from rmab.privacy.masks import in_base64
from rmab.privacy.unmasking import MOST_MEMBERS, parse_job
from rmab.service.helper.store import HelperStore
from rmab.service.http.body import announced_size, check_type, read_body
from rmab.service.http.middleware import Middleware, json_answer
from rmab.service.http.proxies import Proxies
from rmab.service.http.telemetry import ConnectionMetrics, Log
from rmab.service.http.tokens import parse_token

__all__ = ["HelperExecutor", "HelperMetrics", "make_helper_app"]

T = TypeVar("T")

_MOST_BYTES = 4096 + 320 * MOST_MEMBERS  # of an opening


class HelperMetrics(ConnectionMetrics):
    """The metrics of one helper."""

    def __init__(self) -> None:
        super().__init__()
        self.openings = Counter(
            "rmab_helper_openings",
            "Openings that were asked for, by what became of them",
            ["result"],
            registry=self.registry,
        )
        self.last_opening = Gauge(
            "rmab_helper_last_opening", "Number of the last opening", registry=self.registry
        )
        self.agents = Gauge(
            "rmab_helper_agents", "Agents: enrolled, revoked", ["state"], registry=self.registry
        )
        self.releases_left = Gauge(
            "rmab_helper_releases_left",
            "Releases that are left of a group, where sums have noise",
            ["group"],
            registry=self.registry,
        )


class HelperExecutor:
    """A helper's store behind one thread; used in one event loop."""

    def __init__(self, open_store: Callable[[], HelperStore]) -> None:
        self._open_store = open_store
        self._executor = ThreadPoolExecutor(1, "rmab-helper")
        self._store: HelperStore | None = None

    async def start(self) -> None:
        """Open the database."""
        self._store = await self._in_thread(self._open_store)

    async def run(self, job: Callable[[HelperStore], T]) -> T:
        """Do something with the store."""
        store = self._store
        assert store is not None
        return await self._in_thread(lambda: job(store))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def stop(self) -> None:
        """Finish running work, and release the database."""
        if self._store is not None:
            await self.run(lambda store: store.close())
            self._store = None
        self._executor.shutdown()


def make_helper_app(
    executor: HelperExecutor,
    *,
    hosts: frozenset[str] | None,
    log: Log,
    metrics: HelperMetrics,
    open: bool,
    proxies: Proxies,
) -> ASGIApp:
    """Return the application.

    hosts: accepted names of a helper on loopback, None: any; open: anybody may read the metrics.
    """
    routes = _HelperRoutes(executor, log, metrics, open=open)
    router = Router(routes.all(), redirect_slashes=False)
    return Middleware(router, fast={}, hosts=hosts, proxies=proxies, log=log, metrics=metrics)


class _HelperRoutes:
    def __init__(
        self, executor: HelperExecutor, log: Log, metrics: HelperMetrics, *, open: bool
    ) -> None:
        self._executor = executor
        self._log = log
        self._metrics = metrics
        self._open = open

    def all(self) -> list[Route]:
        return [
            Route("/v1/openings", self.openings, methods=["POST"]),
            Route("/v1/agents", self.agents),
            Route("/metrics", self.metrics),
            Route("/healthz", self.alive),
            Route("/readyz", self.ready),
        ]

    async def openings(self, request: Request) -> Response:
        headers = dict(request.scope["headers"])
        await self._check_server(headers)
        check_type(headers)
        announced_size(headers, _MOST_BYTES)
        opening = parse_job(await read_body(request.receive, _MOST_BYTES))
        started = time.perf_counter()
        try:
            masks = await self._executor.run(lambda store: store.open(opening))
        except ProtocolError as error:
            self._metrics.openings.labels(error.code).inc()
            raise
        self._metrics.openings.labels("opened").inc()
        self._log(
            "info",
            "opened",
            opening=opening.number,
            group=opening.group,
            members=len(opening.reports),
            ms=round(1000 * (time.perf_counter() - started), 1),
        )
        return json_answer({"opening": opening.number, "masks": in_base64(masks)})

    async def agents(self, request: Request) -> Response:
        await self._check_server(dict(request.scope["headers"]))
        return json_answer(await self._executor.run(HelperStore.to_table))

    async def metrics(self, request: Request) -> Response:
        if not self._open:
            await self._check_server(dict(request.scope["headers"]))
        rows, (last, _) = await self._executor.run(lambda store: (store.agents(), store.last()))
        revoked = [row.revoked is not None for row in rows]
        self._metrics.agents.labels("enrolled").set(revoked.count(False))
        self._metrics.agents.labels("revoked").set(revoked.count(True))
        self._metrics.last_opening.set(last)
        for group, left in (await self._executor.run(lambda store: store.releases_left())).items():
            self._metrics.releases_left.labels(str(group)).set(left)
        return Response(self._metrics.text(), media_type=HelperMetrics.media_type)

    async def alive(self, _: Request) -> Response:
        return json_answer({"status": "alive"})

    async def ready(self, _: Request) -> Response:
        last, _digest = await self._executor.run(lambda store: store.last())
        return json_answer({"status": "ready", "opening": last})

    async def _check_server(self, headers: dict[bytes, bytes]) -> None:
        """ProtocolError 401 unless the server asks."""
        scheme, _, text = headers.get(b"authorization", b"").partition(b" ")
        parsed = (
            parse_token(text.strip().decode("latin-1")) if scheme.lower() == b"bearer" else None
        )
        if parsed is None or not await self._executor.run(lambda store: store.is_server(*parsed)):
            raise ProtocolError(
                401,
                "credential",
                "the server's credential is needed, one that was not revoked "
                "(rmab helper-enroll --server)",
            )
