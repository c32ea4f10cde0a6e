"""The server as a process: its address, TLS, limits, signals; uvicorn carries the requests.

It listens on loopback unless told otherwise, and on another address with TLS alone. It answers as
soon as it has its database and is ready once it can plan. It ends on SIGTERM or SIGINT: no new
connections, agents that wait for a round are let go, what is in flight is finished and committed.
SIGHUP has it read its certificate and its federation's file again.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import signal
import socket
import ssl
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
import uvloop
from starlette.types import ASGIApp

from rmab.errors import (
    FederationError,
    ModelError,
    RmabError,
    StorageError,
    StudyError,
    UnavailableError,
    is_lasting,
)
from rmab.protocol.checks import is_loopback
from rmab.protocol.config import Federation, load_federation
from rmab.service.http.certificate import CertificateWatch
from rmab.service.http.connections import Connection, Secured, Watch
from rmab.service.http.proxies import Proxies
from rmab.service.http.telemetry import ConnectionMetrics, Log, Metrics, quieten
from rmab.service.server.limits import ServerLimits
from rmab.service.server.planning import Planning
from rmab.service.server.rounds import Rounds
from rmab.service.server.routes import make_app
from rmab.service.server.unmasking import HelperAccess

__all__ = ["Http", "Listening", "Server", "Settings", "in_thread", "run_process", "serve"]

PORT, TLS_PORT = 8080, 8443
# Searches for cycles go through all that JAX has made and take long: they are made seldom.
GARBAGE_THRESHOLDS = (20_000, 20, 100)
SWITCH_SECONDS = 0.0005  # a thread's turn: the writer, which often lets go, soon gets its next one

L = TypeVar("L", bound="Listening")


@dataclass(frozen=True)
class Settings:
    """What a server is started with. Port None: 8080, or 8443 with TLS; 0: any free one.

    open: anybody may view; trusted_proxies: addresses or networks whose headers are believed;
    file: where the federation was read, to be read there again; helper: of a federation that
    has one, how to reach it.
    """

    federation: Federation
    database: str
    file: str | Path | None = None
    host: str = "127.0.0.1"
    port: int | None = None
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    open: bool = False
    trusted_proxies: Sequence[str] = ()
    verbose: bool = False
    helper: HelperAccess | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)


class Listening(ABC):
    """A service that has its address: everything that can be wrong with that is refused here.

    ports: its own without TLS and with it.
    """

    ports = (PORT, TLS_PORT)

    def __init__(
        self,
        settings: Settings,
        metrics: ConnectionMetrics,
        *,
        log: Log | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.log = log or Log(level="debug" if settings.verbose else "info")
        self._measures = metrics
        self._proxies = Proxies(settings.trusted_proxies)
        self._tls = _tls(settings)
        self._certificate = CertificateWatch(self.log, metrics, settings.limits, clock)
        family, address = _resolve(settings.host)
        self.loopback = is_loopback(address)
        if not self.loopback and self._tls is None:
            raise FederationError(
                f"host {settings.host} is not loopback and so needs --tls-cert and --tls-key"
            )
        self._socket = _bind(settings, family, address, self.ports)
        port = self._socket.getsockname()[1]
        shown = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"{'http' if self._tls is None else 'https'}://{shown}:{port}"
        self._http: Http | None = None
        self._starting: asyncio.Future[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop = threading.Event()
        self._failure: StorageError | None = None

    @abstractmethod
    async def _start(self) -> None:
        """Make ready what answers requests."""

    @abstractmethod
    def _app(self, hosts: frozenset[str] | None) -> ASGIApp:
        """What answers requests; hosts: the names of a service on loopback alone."""

    @abstractmethod
    async def _greet(
        self, http: Http, ready: Callable[[], None], prepared: Callable[[], None]
    ) -> None:
        """Tell that requests are answered, and then that all can be done."""

    @abstractmethod
    def _let_go(self) -> None:
        """From now on nobody waits."""

    @abstractmethod
    async def _finish(self, *, patient: bool) -> None:
        """Give back all that was taken; patient: wait for threads."""

    def _reloaded(self) -> dict[str, Any]:
        """Read settings again; what the log is to say of it. RmabError if they cannot be used."""
        return {}

    def close(self) -> None:
        """Give the address back without having run."""
        self._socket.close()

    async def run(
        self,
        ready: Callable[[], None] = lambda: None,
        *,
        prepared: Callable[[], None] = lambda: None,
        patient: bool = True,
    ) -> None:
        """Serve until `stop`.

        ready: called once requests are answered and, where that takes but a moment, the first round
        is open; prepared: called once plans can be made; patient: wait for the planner's thread at
        the end, should it be at work. StorageError where the database was lost to another process.
        """
        self._loop = asyncio.get_running_loop()
        limits = self.settings.limits
        quieten(self.log)
        if self.settings.tls_cert is not None:
            self._certificate.loaded(self.settings.tls_cert)
        try:
            self._starting = asyncio.ensure_future(self._start())
            try:
                await self._starting
            except asyncio.CancelledError:
                if self._stop.is_set():
                    return
                raise
            hosts = _own_names(self.settings.host) if self.loopback else None
            config = uvicorn.Config(
                self._app(hosts),
                lifespan="off",
                log_config=None,
                access_log=False,
                ws="none",
                proxy_headers=False,
                server_header=False,
                timeout_keep_alive=limits.keep_alive_seconds,
                timeout_graceful_shutdown=limits.shutdown_seconds,
            )
            self._http = Http(config, lambda: self._tls, limits)
            if self._stop.is_set():
                return
            greeting = asyncio.create_task(self._greet(self._http, ready, prepared))
            watches = [
                asyncio.create_task(watch.run())
                for watch in (
                    Watch(self._http.server_state, self._measures, limits.watch_seconds),
                    self._certificate,
                )
            ]
            try:
                await self._http.serve(sockets=[self._socket])
            finally:
                for task in (*watches, greeting):
                    task.cancel()
                await asyncio.gather(*watches, return_exceptions=True)
                with contextlib.suppress(asyncio.CancelledError):
                    await greeting
        finally:
            self._socket.close()
            await self._finish(patient=patient)
        if self._failure is not None:
            raise self._failure

    def _give_up(self, error: StorageError) -> None:
        """End, for whoever supervises this process to start another."""
        if self._failure is None:
            self._failure = error
            self._end()

    def stop(self) -> None:
        """End `run`, from any thread; a second time at once, without waiting for what is open."""
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it was closed between the two lines
                self._loop.call_soon_threadsafe(self._end)
        else:
            self._stop.set()

    def reload(self) -> None:
        """Read the certificate and the federation's file again; called in the event loop of `run`.

        Whatever is wrong with either is logged, and what was in use stays in use.
        """
        settings = self.settings
        done: dict[str, Any] = {}
        try:
            tls = _tls(settings)
            if settings.tls_cert is not None:
                done["certificate"] = self._certificate.loaded(settings.tls_cert)
            self._tls = tls
        except (RmabError, OSError) as error:
            self.log("error", "certificate not reloaded", error=str(error))
        try:
            done |= self._reloaded()
        except RmabError as error:
            self.log("error", "settings not reloaded", error=str(error))
        if done:
            self.log("info", "reloaded", **done)

    def _end(self) -> None:
        again = self._stop.is_set()
        self._stop.set()
        self._let_go()
        if self._http is not None:
            self._http.should_exit = True
            self._http.force_exit = again
        elif self._starting is not None:
            self._starting.cancel()


class Server(Listening):
    """The server of a federation."""

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
                lost=self._give_up,
                helper=self.settings.helper,
            )
        except FederationError:
            self.close()
            raise
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
        """Tell that the server answers, and then that it can plan; if it never will, end it."""
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


class Http(uvicorn.Server):
    """uvicorn's server with our connections; signals are not its business."""

    def __init__(
        self,
        config: uvicorn.Config,
        tls: Callable[[], ssl.SSLContext | None],
        limits: ServerLimits,
    ) -> None:
        super().__init__(config)
        self._tls = tls  # of connections from now on
        self._limits = limits
        self._most = _most_connections(limits)
        self.listening = asyncio.Event()
        self._arriving: set[asyncio.Transport] = set()  # whose TLS does not stand yet

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: Sequence[socket.socket] | None = None) -> None:
        def connect() -> asyncio.BaseProtocol:
            made = Connection(
                self.config, self.server_state, {}, most=self._most, limits=self._limits
            )
            tls = self._tls()
            return made if tls is None else Secured(made, tls, self._arriving)

        loop = asyncio.get_running_loop()
        # libuv accepts one connection of a socket each time round the loop, and under load a round
        # takes long: several handles on the same socket keep newcomers from waiting for seconds.
        self.servers = [
            await loop.create_server(connect, sock=sock.dup(), backlog=self._limits.backlog)
            for sock in sockets or ()
            for _ in range(self._limits.acceptors)
        ]
        self.started = True
        self.listening.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests in flight end, within their time; then no connection is open."""
        for server in self.servers:
            server.close()
        await asyncio.sleep(0)  # who has just been accepted is known from here on
        for carrier in self._arriving:
            carrier.abort()
        await super().shutdown(sockets)
        for left in tuple(self.server_state.connections):
            left.transport.abort()
        await asyncio.sleep(0)  # aborted at the loop's next turn


def serve(settings: Settings, ready: Callable[[str], None]) -> bool:
    """Run a server in this process until SIGTERM or SIGINT; `ready` is given its URL.

    SIGHUP reloads what can change.

    All is committed when it returns. False: a plan is still being made, by a thread that an
    ordinary end of the process would wait for.
    """
    server = Server(settings)
    run_process(server, ready)
    return not server.rounds.planning.busy


def run_process(server: Listening, ready: Callable[[str], None]) -> None:
    """Run a service in this process until SIGTERM or SIGINT; `ready` is given its URL."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*GARBAGE_THRESHOLDS)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        loop.add_signal_handler(signal.SIGHUP, server.reload)
        # What there is once the planner is loaded stays: searches for cycles leave it out.
        await server.run(lambda: ready(server.url), prepared=gc.freeze, patient=False)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@contextmanager
def in_thread(server: L) -> Iterator[L]:
    """The server in a thread of its own, ready; stopped at the end of the block."""
    is_up = threading.Event()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(server.run(is_up.set))
        except BaseException as error:  # handed to the thread that waits
            failed.append(error)
        finally:
            is_up.set()

    thread = threading.Thread(target=work, name="rmab-server", daemon=True)
    thread.start()
    try:
        is_up.wait()
        if failed:
            raise failed[0]
        yield server
    finally:
        server.stop()
        thread.join()
    if failed:
        raise failed[0]


def _tls(settings: Settings) -> ssl.SSLContext | None:
    cert, key = settings.tls_cert, settings.tls_key
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise FederationError("--tls-cert and --tls-key go together, got only one of them")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2

    def password() -> str:
        raise FederationError(f"--tls-key {key}: must not be encrypted")

    for name, file in (("--tls-cert", cert), ("--tls-key", key)):
        try:
            Path(file).read_bytes()
        except OSError as error:
            raise FederationError(f"{name} {file}: cannot be read: {error.strerror}") from None
    try:
        context.load_cert_chain(cert, key, password)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or error
        raise FederationError(
            f"--tls-cert {cert}, --tls-key {key}: must be a certificate and its key in PEM: "
            f"{reason}"
        ) from None
    return context


def _resolve(host: str) -> tuple[socket.AddressFamily, str]:
    """The address of a host's name; of several the first, IPv4 before IPv6."""
    if not host:
        raise FederationError("host must be an address or a name, got ''")
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except UnicodeError as error:
        raise FederationError(f"host {host!r} is no address of this machine: {error}") from None
    except OSError as error:  # names may not be resolved yet when a machine starts
        raise UnavailableError(
            f"host {host!r} is no address of this machine: {error.strerror}"
        ) from None
    family, _, _, _, address = min(found, key=lambda entry: entry[0] != socket.AF_INET)
    return family, str(address[0])


def _bind(
    settings: Settings, family: socket.AddressFamily, address: str, ports: tuple[int, int]
) -> socket.socket:
    tls = settings.tls_cert is not None
    port = settings.port if settings.port is not None else ports[tls]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        # A socket that listens elsewhere is found now, not once the round is planned.
        sock.listen(settings.limits.backlog)
    except (OSError, OverflowError) as error:
        sock.close()
        # A port is free again, or an address there, some time; a right to it does not come.
        passing = isinstance(error, OSError) and not is_lasting(error)
        kind = UnavailableError if passing else FederationError
        reason = getattr(error, "strerror", None) or error
        raise kind(f"cannot listen on {settings.host} port {port}: {reason}") from None
    sock.setblocking(False)
    return sock


def _own_names(host: str) -> frozenset[str]:
    """What a request to a loopback server may call it."""
    return frozenset({"localhost", "127.0.0.1", "::1", host.lower()})


def _most_connections(limits: ServerLimits) -> int:
    """Connections that there are files for, after asking for more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = limits.open_files
    wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    if soft == resource.RLIM_INFINITY:
        soft = most
    return max(1, min(limits.connections, soft - limits.own_files))
