"""Guards against server-side request forgery: only hosts that the operator named may have private addresses.

A URL from a caller, a redirect or an imported document can name a host inside the network of this machine, which its
author cannot reach and this process can. A public name may resolve to a private address, and to another address a
moment later. So a name is resolved once, all its addresses are checked, and the connection goes to one of those.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from toolscout.errors import BadRequest

_PORTS = {"http": 80, "https": 443}
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_IPV6_UNICAST = ipaddress.IPv6Network("2000::/3")
# Not public, though some versions of `ipaddress` say so: metadata services of clouds (Oracle, Azure), relays to IPv4,
# and ranges reserved for documentation.
_SPECIAL = tuple(
    map(ipaddress.ip_network, ("192.0.0.0/24", "168.63.129.16/32", "192.88.99.0/24", "2002::/16", "3fff::/20"))
)
_Found = tuple[Any, Any, int, str, Any]  # an answer of getaddrinfo: family, type, protocol, name, socket address


class PrivateAddress(PermissionError):
    """The host has a private address, and the operator did not name it."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """The hosts that may have private addresses, each with its port or None for every port; others must be public."""

    named: frozenset[tuple[str, int | None]] = frozenset()

    @classmethod
    def of(cls, hosts: Iterable[str]) -> Self:
        """Allow hosts such as "intranet", "localhost:8000", "10.0.0.5", "[::1]:8000". BadRequest for other text."""
        return cls(frozenset(map(_named, hosts)))

    @classmethod
    def of_url(cls, url: str) -> Self:
        """Allow the host and port of a URL; with port 80 also port 443. A malformed URL allows nothing."""
        try:
            parts = urlsplit(url)
            host, port = unquote(parts.hostname or ""), parts.port or _PORTS.get(parts.scheme.lower())
        except ValueError:
            return cls()
        ports = {port, 443} if port == 80 else {port}
        return cls(frozenset((_plain(host), one) for one in ports)) if host and port else cls()

    def names(self, host: str, port: int | None) -> bool:
        """Return whether the operator named this host and port."""
        plain = _plain(host)
        return (plain, None) in self.named or (plain, port) in self.named

    def check(self, host: str, port: int | None, address: str) -> None:
        """Raise PrivateAddress unless the address is public or the host was named."""
        if not is_public(address) and not self.names(host, port):
            # Without the address: it would tell the caller about the network of this machine.
            raise PrivateAddress(
                f"{host} is not at a public address, and whoever runs toolscout has not named it (serve "
                f"--allow-private {host}, or an address in the configuration)"
            )

    def checked(self, host: str, port: int | None, found: Iterable[_Found]) -> list[_Found]:
        """Return the answers of getaddrinfo for a host; PrivateAddress where one of them is not allowed."""
        listed = list(found)
        for *_, place in listed:
            self.check(host, port, str(place[0]))
        return listed

    def resolve(self, host: str, port: int | None) -> list[_Found]:
        """Resolve a host and return its addresses; PrivateAddress where one of them is not allowed."""
        return self.checked(host, port, socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))


def is_public(address: str) -> bool:
    """Return whether an IP address is public; an IPv6 address that maps an IPv4 address is judged by the latter."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(int(found) & 0xFFFFFFFF) if found in _NAT64 else found.ipv4_mapped
        if inner is None and found not in _IPV6_UNICAST:
            return False
        found = inner or found
    usual = found.is_global and not found.is_multicast and not found.is_reserved
    return usual and not any(found in network for network in _SPECIAL)


def _named(text: str) -> tuple[str, int | None]:
    given = text.strip()
    try:  # an IPv6 address without brackets
        return ipaddress.IPv6Address(given).compressed, None
    except ValueError:
        pass
    try:
        parts = urlsplit(f"//{given}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = None
    if not host or parts.netloc != given or "@" in given or any(sign.isspace() or sign in "*%\\" for sign in given):
        raise BadRequest(f"{text!r:.80} names no host; give host or host:port, such as localhost:8000")
    return _plain(host), port


def _plain(host: str) -> str:
    """Return the canonical spelling of a host: lower case, no brackets, no final dot, IDNA for other scripts."""
    host = host.strip("[]").lower()
    try:
        return ipaddress.ip_address(host.partition("%")[0]).compressed
    except ValueError:
        pass
    with suppress(UnicodeError):  # then nothing connects to it either
        host = host if host.isascii() else host.encode("idna").decode()
    return host.removesuffix(".")
