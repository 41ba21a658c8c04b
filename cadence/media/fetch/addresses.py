"""Which addresses a server may be asked to connect to: those of the public internet."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address

AddressPolicy = Callable[[str], bool]
Resolve = Callable[[str, int], list[str]]  # host, port -> addresses

# Of clouds, which tell machines about themselves: these lie in public ranges; the others are link-local or private.
_METADATA = frozenset(map(ip_address, ("168.63.129.16", "192.0.0.192")))


def is_public(address: str) -> bool:
    """Neither private, loopback, link-local, multicast, reserved nor of a cloud's metadata; nor an address of IPv6 that
    stands for one of IPv4 (6to4 among them, on which versions of Python disagree)."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and (found.is_site_local or found.sixtofour is not None):
        return False
    if found in _METADATA or not found.is_global:
        return False
    return not (found.is_multicast or found.is_reserved or found.is_unspecified or found.is_loopback)


def resolved(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))
