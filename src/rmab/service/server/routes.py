"""Routes of the server, and the role that each needs.

    GET /v1/round?after=R&wait=S         agent   the open round if its number is above R, or 204
    GET /v1/laws                         agent   summaries of the arms, where draws = "own"
    POST /v1/uploads                     agent   cumulative counts; `rmab.service.server.uploads`
    POST /v1/masked                      agent   likewise, masked, where only sums are learnt
    POST /v1/leave                       agent   not awaited until it fetches again
    GET /v1/status, /v1/overview         viewer  the federation in numbers; all that the page shows
    GET / and the files that it loads    viewer  the page
    GET /metrics                         viewer  for Prometheus
    GET, POST /v1/agents                 admin   list; enrol
    DELETE /v1/agents/NAME               admin   revoke
    DELETE /v1/agents/NAME/counts        admin   take all counts of the agent out
    GET /healthz, /readyz, /openapi.json all

`rmab.service.server.identity` tells agents, admins and viewers apart.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import ASGIApp

from rmab.errors import ProtocolError
from rmab.protocol.checks import MAX_WHOLE, malformed, read_object
from rmab.protocol.shape import NAME_RULE, is_name
from rmab.service.http.body import announced_size, check_type, read_body
from rmab.service.http.middleware import Middleware, json_answer
from rmab.service.http.proxies import Proxies
from rmab.service.http.telemetry import Log
from rmab.service.server.identity import Access
from rmab.service.server.metrics import Metrics
from rmab.service.server.openapi import document
from rmab.service.server.page import ADDRESSES, asset
from rmab.service.server.rounds import Rounds
from rmab.service.server.status import Status
from rmab.service.server.uploads import Uploads
from rmab.service.store.credentials import ROLES
from rmab.text import shown

__all__ = ["make_app"]


def make_app(
    rounds: Rounds,
    *,
    hosts: frozenset[str] | None,
    log: Log,
    metrics: Metrics,
    open: bool = False,
    proxies: Proxies | None = None,
) -> ASGIApp:
    """Return the application.

    hosts: accepted names of a server on loopback, None: any; open: anybody may view.
    """
    access = Access(rounds, open=open, log=log)
    routes = _ServerRoutes(rounds, access, metrics, open=open)
    router = Router(routes.all(), redirect_slashes=False)
    return Middleware(
        router,
        fast=routes.fast,
        hosts=hosts,
        proxies=proxies or Proxies(),
        log=log,
        metrics=metrics,
    )


class _ServerRoutes:
    def __init__(
        self, rounds: Rounds, access: Access, metrics: Metrics, *, open: bool = False
    ) -> None:
        self._rounds = rounds
        self._access = access
        self._metrics = metrics
        self._limits = rounds.limits
        self._open = open
        uploads = [
            Route(path, Uploads(rounds, access, metrics, masked=masked), methods=["POST"])
            for path, masked in (("/v1/uploads", False), ("/v1/masked", True))
        ]
        self.fast = {("POST", route.path): route for route in uploads}

    @cached_property
    def _status(self) -> Status:
        return Status(self._rounds)

    @cached_property
    def _document(self) -> dict[str, Any]:
        return document(self._rounds.federation, open=self._open)

    def all(self) -> list[Route]:
        return [
            *self.fast.values(),
            Route("/v1/round", self.round),
            Route("/v1/laws", self.laws),
            Route("/v1/leave", self.leave, methods=["POST"]),
            Route("/v1/status", self.status),
            Route("/v1/overview", self.overview),
            Route("/v1/agents", self.agents, methods=["GET", "POST"]),
            Route("/v1/agents/{name}", self.revoke, methods=["DELETE"]),
            Route("/v1/agents/{name}/counts", self.forget, methods=["DELETE"]),
            *(Route(path, self.page) for path in ADDRESSES),
            Route("/metrics", self.metrics),
            Route("/healthz", self.alive),
            Route("/readyz", self.ready),
            Route("/openapi.json", self.openapi),
        ]

    # ------------------------------------------------------------------------------------ agents

    async def round(self, request: Request) -> Response:
        agent = await self._access.agent(request.scope, _headers(request))
        after = _after(request.query_params.get("after", "0"))
        wait = _wait(request.query_params.get("wait", "0"), self._limits.round_wait_seconds)
        if not await self._rounds.newer(agent.name, after, wait):
            return Response(status_code=204)
        if wait and await request.is_disconnected():
            raise ClientDisconnect  # who is gone does not take part in the round
        federation = self._rounds.federation
        headers = {}  # keys of a round that old agents do not know would be refused
        if federation.draws == "own":
            headers["rmab-draws"] = "own"
        if federation.slot_seconds:
            headers["rmab-slot-seconds"] = str(federation.slot_seconds)
        return json_answer(await self._rounds.message(agent.name, agent.lane), headers=headers)

    async def laws(self, request: Request) -> Response:
        await self._access.agent(request.scope, _headers(request))
        if self._rounds.federation.draws != "own":
            raise ProtocolError(404, "laws", "agents of this federation do not draw for themselves")
        self._rounds.check_open()
        return json_answer(await self._rounds.planning.laws())

    async def leave(self, request: Request) -> Response:
        agent = await self._access.agent(request.scope, _headers(request))
        self._rounds.check_open()
        self._rounds.leave(agent.name)
        return json_answer({"round": self._rounds.number})

    # ----------------------------------------------------------------------------------- viewers

    async def status(self, request: Request) -> Response:
        await self._access.viewer(_headers(request))
        return json_answer(await self._status.numbers())

    async def overview(self, request: Request) -> Response:
        await self._access.viewer(_headers(request))
        return json_answer(await self._status.page())

    async def page(self, request: Request) -> Response:
        await self._access.viewer(_headers(request))
        content, kind = asset(ADDRESSES[request.url.path])
        return Response(content, media_type=kind)

    async def metrics(self, request: Request) -> Response:
        await self._access.viewer(_headers(request))
        await self._status.measure(self._metrics)
        return Response(self._metrics.text(), media_type=Metrics.media_type)

    # ------------------------------------------------------------------------------------ admins

    async def agents(self, request: Request) -> Response:
        headers = _headers(request)
        admin = await self._access.admin(headers)
        if request.method != "POST":
            return json_answer({"agents": await self._status.agents()})
        check_type(headers)
        announced_size(headers, self._limits.enrolment_bytes)
        name, role, owner = _enrolment(
            await read_body(request.receive, self._limits.enrolment_bytes)
        )
        token = await self._access.enroll(name, role, owner, admin)
        return json_answer({"name": name, "role": role, "token": token}, 201)

    async def revoke(self, request: Request) -> Response:
        admin = await self._access.admin(_headers(request))
        name = request.path_params["name"]
        if not is_name(name) or not await self._access.revoke(name, admin):
            raise ProtocolError(404, "agent", f"no agent {shown(name)} is enrolled")
        return Response(status_code=204)

    async def forget(self, request: Request) -> Response:
        admin = await self._access.admin(_headers(request))
        name = request.path_params["name"]
        done = await self._access.erase(name, admin) if is_name(name) else None
        if done is None:
            raise ProtocolError(404, "agent", f"no agent {shown(name)} was ever enrolled")
        return json_answer(done.to_table())

    # --------------------------------------------------------------------------------------- all

    async def alive(self, _: Request) -> Response:
        return json_answer({"status": "alive"})

    async def ready(self, _: Request) -> Response:
        waits_for = await self._rounds.waits_for()
        if waits_for is not None:
            raise ProtocolError(503, "unready", waits_for)
        return json_answer({"status": "ready", "round": self._rounds.number})

    async def openapi(self, _: Request) -> Response:
        return json_answer(self._document)


def _headers(request: Request) -> dict[bytes, bytes]:
    return dict(request.scope["headers"])


def _after(text: str) -> int:
    """The number of a round, or 0."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= MAX_WHOLE):
        raise malformed(f"after must be a whole number from 0 to 2^53, got {shown(text)}")
    return int(text)


def _wait(text: str, most: float) -> float:
    """Seconds."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= most:
        raise malformed(f"wait must be a number from 0 to {most:g}, got {shown(text)}")
    return number


def _enrolment(body: bytes) -> tuple[str, str, str | None]:
    """Name, role, and owner where one is given."""
    table = read_object(body)
    for key in table:
        if key not in ("name", "role", "owner"):
            raise malformed(f"unknown key {shown(key)}; known are name, role, owner")
    name, role, owner = table.get("name"), table.get("role", "agent"), table.get("owner")
    if not isinstance(name, str) or not is_name(name):
        raise malformed(f"name must have {NAME_RULE}, got {shown(name)}")
    if role not in ROLES:
        raise malformed(f"role must be agent, admin or viewer, got {shown(role)}")
    if owner is not None and not (isinstance(owner, str) and is_name(owner)):
        raise malformed(f"owner must have {NAME_RULE}, got {shown(owner)}")
    if owner is not None and role != "agent":
        raise malformed(f"owner goes with the role agent, got role {role}")
    return name, role, owner
