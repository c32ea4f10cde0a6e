"""Origin of a request and the address by which it calls the server: proxies, Host, Origin.

A proxy names its client in headers that anybody can write:

    X-Forwarded-For     addresses, each proxy adding the one that it was called from
    X-Forwarded-Proto   http or https, as the client called it
    X-Forwarded-Host    the name by which the client called it; without it, Host

They count only where they come from a proxy that the server trusts. They give no right to read or
write: they go into the log, decide on HSTS and are compared with Origin.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from starlette.types import Scope

from rmab.errors import FederationError

__all__ = ["HSTS", "Caller", "Proxies", "origin"]

HSTS = f"max-age={365 * 86_400}"  # seconds that a browser asks by TLS alone

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Caller(NamedTuple):
    """Caller of a request, and the address by which it called. host: b"" where there is not exactly
    one.

    proxied: a trusted proxy asks for somebody; hosts: the number of Host headers.
    """

    client: str
    scheme: str
    host: bytes
    proxied: bool
    hosts: int = 1


def origin(scheme: str, host: bytes) -> str:
    """The origin of an address, in the one form in which two are compared."""
    text = host.decode("latin-1").lower()
    return f"{scheme}://{text.removesuffix(_DEFAULT_PORTS.get(scheme, ''))}"


class Proxies:
    """Trusted proxies: addresses, or networks such as 10.0.0.0/8."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._networks = tuple(_network(text) for text in trusted)
        self._trusts = lru_cache(maxsize=1024)(self._is_trusted)

    def caller(self, scope: Scope) -> Caller:
        """Return the caller, as far as the request can be believed."""
        client = scope.get("client")
        peer = "" if client is None else client[0]
        hosts = _values(scope, b"host")
        host = hosts[0] if len(hosts) == 1 else b""
        if not self._networks or not self._trusts(peer):
            return Caller(peer, scope["scheme"], host, False, len(hosts))
        schemes = _listed(scope, b"x-forwarded-proto")
        scheme = schemes[-1].lower() if schemes else ""
        names = _listed(scope, b"x-forwarded-host")
        return Caller(
            self._client(peer, _listed(scope, b"x-forwarded-for")),
            scheme if scheme in _DEFAULT_PORTS else scope["scheme"],
            names[-1].encode("latin-1") if names else host,
            True,
            len(hosts),
        )

    def _client(self, peer: str, addresses: list[str]) -> str:
        """The last address that no trusted proxy has: those before it may be made up."""
        found = peer
        for text in reversed(addresses):
            address = _address(text)
            if address is None:
                break
            found = str(address)
            if not self._trusts(found):
                break
        return found

    def _is_trusted(self, text: str) -> bool:
        address = _address(text)
        return address is not None and any(address in network for network in self._networks)


def _values(scope: Scope, name: bytes) -> list[bytes]:
    return [value for key, value in scope["headers"] if key == name]


def _listed(scope: Scope, name: bytes) -> list[str]:
    """The entries of a header that is a list, in however many lines it came."""
    text = b",".join(_values(scope, name)).decode("latin-1")
    return [entry for part in text.split(",") if (entry := part.strip())]


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        found = ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return mapped or found


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text)
    except ValueError as error:
        raise FederationError(
            f"--trusted-proxy must be an address or a network such as 10.0.0.0/8, got {text!r}: "
            f"{error}"
        ) from None
