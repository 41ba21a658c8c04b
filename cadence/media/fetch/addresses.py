"""Which addresses a server may be asked to connect to: those of the public internet."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address

Address = IPv4Address | IPv6Address
AddressPolicy = Callable[[str], bool]
Resolve = Callable[[str, int], list[str]]  # host, port -> addresses

# Of clouds, which tell machines about themselves: these lie in public ranges; the others are link-local or private.
_METADATA = frozenset(map(ip_address, ("168.63.129.16", "192.0.0.192")))


def is_public(address: str) -> bool:
    """Neither private, loopback, link-local, multicast, reserved nor of a cloud's metadata; nor an address of IPv6 that
    stands for one of IPv4: those that carry it within are reserved, or looked at (6to4)."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    carried = found.sixtofour if isinstance(found, IPv6Address) else None
    return _is_public(found) and (carried is None or _is_public(carried))


def _is_public(address: Address) -> bool:
    if address in _METADATA or not address.is_global or (isinstance(address, IPv6Address) and address.is_site_local):
        return False
    return not (address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback)


def resolved(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
