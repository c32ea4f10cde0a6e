"""Processes that answer HTTP: address, TLS, limits, signals; uvicorn carries the requests.

A `Listener` serves on loopback by default, and on another address only with TLS. It ends on SIGTERM
or SIGINT: it takes no new connections, lets waiting requests go and finishes requests in flight.
SIGHUP makes it read its certificate and its settings again.
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

from rmab.errors import FederationError, RmabError, StorageError, UnavailableError, is_lasting
from rmab.service.http.certificate import CertificateWatch
from rmab.service.http.connections import Connection, HttpLimits, Secured, Watch
from rmab.service.http.proxies import Proxies
from rmab.service.http.telemetry import ConnectionMetrics, Log, quieten
from rmab.text import is_loopback

__all__ = [
    "Http",
    "Listener",
    "ListenerSettings",
    "in_thread",
    "most_connections",
    "run_process",
]

# Objects between searches for cycles. A search goes through all that JAX has made: it must be rare.
GARBAGE_THRESHOLDS = (20_000, 20, 100)
# Longest turn of a thread: the writer, which often lets go, soon gets its next one.
SWITCH_SECONDS = 0.0005

L = TypeVar("L", bound="Listener")


@dataclass(frozen=True, kw_only=True)
class ListenerSettings:
    """Address, TLS and limits of a process that listens."""

    host: str = "127.0.0.1"
    port: int | None = None  # None: the service's own; 0: any free port
    tls_cert: str | Path | None = None
    tls_key: str | Path | None = None
    open: bool = False  # anybody may read metrics, and of a server the page
    trusted_proxies: Sequence[str] = ()  # addresses or networks whose headers are believed
    verbose: bool = False
    limits: HttpLimits = field(default_factory=HttpLimits)


class Listener(ABC):
    """A service with its address bound; a wrong address or certificate is refused here."""

    ports: tuple[int, int]  # without TLS and with it

    def __init__(
        self,
        settings: ListenerSettings,
        metrics: ConnectionMetrics,
        *,
        log: Log | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.log = log or Log(level="debug" if settings.verbose else "info")
        self._metrics = metrics
        self._proxies = Proxies(settings.trusted_proxies)
        self._tls = _tls(settings)
        self._certificate = None
        if self._tls is not None:
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
        """Prepare to answer requests."""

    @abstractmethod
    def _app(self, hosts: frozenset[str] | None) -> ASGIApp:
        """Return the application; hosts: accepted names of a service on loopback, None: any."""

    @abstractmethod
    async def _greet(
        self, http: Http, ready: Callable[[], None], prepared: Callable[[], None]
    ) -> None:
        """Report that requests are answered, and then that the service is complete."""

    @abstractmethod
    def _let_go(self) -> None:
        """Let waiting requests go, and accept no others."""

    @abstractmethod
    async def _finish(self, *, patient: bool) -> None:
        """Release all resources; patient: wait for threads."""

    def _reloaded(self) -> dict[str, Any]:
        """Read settings again and return log fields; RmabError if they cannot be used."""
        return {}

    def close(self) -> None:
        """Release the address without having run."""
        self._socket.close()

    async def run(
        self,
        ready: Callable[[], None] = lambda: None,
        *,
        prepared: Callable[[], None] = lambda: None,
        patient: bool = True,
    ) -> None:
        """Serve until `stop`; StorageError where another process took the database over.

        Parameters
        ----------
        ready
            Called once requests are answered; a server waits a moment for its first round.
        prepared
            Called once plans can be made.
        patient
            Wait at the end for the planner's thread, if it is at work.
        """
        self._loop = asyncio.get_running_loop()
        limits = self.settings.limits
        quieten(self.log)
        if self._certificate is not None and self.settings.tls_cert is not None:
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
                    Watch(self._http.server_state, self._metrics, limits.watch_seconds),
                    self._certificate,
                )
                if watch is not None
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
        """End with an error, so that a supervisor starts another process."""
        if self._failure is None:
            self._failure = error
            self._end()

    def stop(self) -> None:
        """End `run`, from any thread; a second call ends it without waiting for open requests."""
        if self._loop is not None and not self._loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it was closed between the two lines
                self._loop.call_soon_threadsafe(self._end)
        else:
            self._stop.set()

    def reload(self) -> None:
        """Read certificate and settings again; called in the event loop of `run`.

        Errors are logged, and the certificate and settings in use stay in use.
        """
        settings = self.settings
        done: dict[str, Any] = {}
        try:
            tls = _tls(settings)
            if self._certificate is not None and settings.tls_cert is not None:
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


class Http(uvicorn.Server):
    """uvicorn's server with our connections; it handles no signals."""

    def __init__(
        self,
        config: uvicorn.Config,
        tls: Callable[[], ssl.SSLContext | None],
        limits: HttpLimits,
    ) -> None:
        super().__init__(config)
        self._tls = tls  # of connections from now on
        self._limits = limits
        self._most = most_connections(limits)
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
        """Finish requests in flight within their time, then close every connection."""
        for server in self.servers:
            server.close()
        await asyncio.sleep(0)  # connections accepted just now are known from here on
        for carrier in self._arriving:
            carrier.abort()
        await super().shutdown(sockets)
        for left in tuple(self.server_state.connections):
            left.transport.abort()
        await asyncio.sleep(0)  # aborted at the loop's next turn


def run_process(server: Listener, ready: Callable[[str], None]) -> None:
    """Run a service in this process until SIGTERM or SIGINT; `ready` is given its URL."""
    sys.setswitchinterval(SWITCH_SECONDS)
    gc.set_threshold(*GARBAGE_THRESHOLDS)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, server.stop)
        loop.add_signal_handler(signal.SIGHUP, server.reload)
        # Objects made before the planner is loaded stay: searches for cycles leave them out.
        await server.run(lambda: ready(server.url), prepared=gc.freeze, patient=False)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@contextmanager
def in_thread(server: L) -> Iterator[L]:
    """Run the service in a thread during the block; it is ready when the block begins."""
    is_up = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(server.run(is_up.set))
        except BaseException as error:  # raised again in the waiting thread
            failures.append(error)
        finally:
            is_up.set()

    thread = threading.Thread(target=work, name="rmab-server", daemon=True)
    thread.start()
    try:
        is_up.wait()
        if failures:
            raise failures[0]
        yield server
    finally:
        server.stop()
        thread.join()
    if failures:
        raise failures[0]


def _tls(settings: ListenerSettings) -> ssl.SSLContext | None:
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
    """Return the first address of a host, IPv4 before IPv6."""
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
    settings: ListenerSettings, family: socket.AddressFamily, address: str, ports: tuple[int, int]
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
    """Return the names by which requests may address a server on loopback."""
    return frozenset({"localhost", "127.0.0.1", "::1", host.lower()})


def most_connections(limits: HttpLimits) -> int:
    """Return the number of connections that file limits allow, after raising the limit."""
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
