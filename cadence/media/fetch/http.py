"""GET over http and https, for a file that a stranger names.

Only hosts that the server's owner named are asked, and only at addresses that the policy allows: a name is resolved
once, and the connection goes to an address that was looked at, so that a second answer of the DNS changes nothing. A
redirect is a new URL under the same rules. One deadline holds for everything from the first name to the last byte, and
bytes are counted as they come. No proxy of the environment is used, no cookie kept, no credential sent.

The standard library does it: its client of HTTP takes a socket as it is, and blocks, as its callers here do.
"""

from __future__ import annotations

import http.client
import io
import socket
import ssl
import time
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import SplitResult, quote, urljoin, urlsplit

from cadence.core.errors import InvalidRequestError
from cadence.core.shown import cut, shown
from cadence.media.fetch.addresses import AddressPolicy, Resolve
from cadence.media.limits import MediaAccess

_CHUNK = 1 << 16
_REDIRECTS = (301, 302, 303, 307, 308)
_SAFE = "/%:@!$&'()*+,;=?~-._"  # of a path or a query; other characters are escaped
_PORTS = {"http": 80, "https": 443}
_HEADERS = {"User-Agent": "cadence", "Accept": "image/*, video/*, */*;q=0.5", "Accept-Encoding": "identity"}


class _LateError(Exception):
    """The deadline has passed."""


@dataclass(frozen=True, slots=True)
class Deadline:
    end: float  # by time.monotonic()

    def left(self) -> float:
        seconds = self.end - time.monotonic()
        if seconds <= 0:
            raise _LateError
        return seconds


@dataclass(frozen=True, slots=True)
class HttpFetch:
    access: MediaAccess
    most_bytes: int
    allows: AddressPolicy
    resolve: Resolve

    def read(self, url: str, seconds: float, where: str) -> bytes:
        deadline = Deadline(time.monotonic() + seconds)
        try:
            for _ in range(self.access.max_redirects + 1):
                found = self._get(url, deadline, where)
                if isinstance(found, bytes):
                    return found
                url = found
        except (_LateError, TimeoutError):
            raise InvalidRequestError(f"{where}: the URL took more than {seconds:g} seconds", where) from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            if isinstance(error, InvalidRequestError):
                raise
            reason = cut(str(getattr(error, "strerror", "") or error or type(error).__name__)).rstrip(".")
            raise InvalidRequestError(f"{where}: the URL cannot be fetched: {reason}", where) from None
        most = self.access.max_redirects
        raise InvalidRequestError(f"{where}: the URL redirects more than {most} times", where)

    def _get(self, url: str, deadline: Deadline, where: str) -> bytes | str:
        """The file, or where it is said to be."""
        target = _target(url, where)
        host = self._host(target, where)
        port = target.port or _PORTS[target.scheme]
        plain = self._connect(target.scheme, host, port, deadline, where)
        try:
            connection = http.client.HTTPConnection(host, port)
            connection.sock = TimedSocket(plain, deadline)
            path = quote(target.path or "/", safe=_SAFE) + (
                f"?{quote(target.query, safe=_SAFE)}" if target.query else ""
            )
            connection.request("GET", path, headers=_HEADERS)
            with connection.getresponse() as response:
                if response.status in _REDIRECTS and (location := response.getheader("location")):
                    return _redirected(url, location, where)
                if response.status != 200:
                    message = f"{where}: the URL answers with the status {response.status}"
                    raise InvalidRequestError(message, where)
                return self._body(response, deadline, where)
        finally:
            plain.close()

    def _host(self, target: SplitResult, where: str) -> str:
        host = (target.hostname or "").rstrip(".")
        try:
            host = host if ":" in host else host.encode("idna").decode()
        except UnicodeError:
            raise InvalidRequestError(f"{where}: the URL has no valid host", where) from None
        if not host:
            raise InvalidRequestError(f"{where}: the URL has no host", where)
        domains = self.access.domains
        if "*" not in domains and host.lower() not in domains:
            message = f"{where}: nothing is fetched from {shown(host)}: --allowed-media-domains names the hosts; "
            raise InvalidRequestError(f"{message}or send the file itself, as a data URL", where)
        return host.lower()

    def _connect(self, scheme: str, host: str, port: int, deadline: Deadline, where: str) -> socket.socket:
        addresses = [address for address in self.resolve(host, port) if self.allows(address)]
        deadline.left()  # names cannot be given up while they are looked up
        if not addresses:
            raise InvalidRequestError(f"{where}: {shown(host)} has no public address", where)
        plain = _opened(addresses, port, deadline)
        try:
            if scheme == "https":
                plain.settimeout(deadline.left())
                plain = _tls().wrap_socket(plain, server_hostname=host)
        except BaseException:
            plain.close()
            raise
        return plain

    def _body(self, response: http.client.HTTPResponse, deadline: Deadline, where: str) -> bytes:
        coding = (response.getheader("content-encoding") or "identity").lower()
        if coding != "identity":
            raise InvalidRequestError(f"{where}: the URL answers in the coding {shown(coding)}, unasked", where)
        data = bytearray()
        while chunk := response.read1(_CHUNK):
            data += chunk
            deadline.left()
            if len(data) > self.most_bytes:
                raise InvalidRequestError(f"{where}: the file must have at most {self.most_bytes} bytes", where)
        if response.length:  # bytes that were promised and did not come
            raise InvalidRequestError(f"{where}: the URL ends {response.length} bytes early", where)
        return bytes(data)


class TimedSocket:
    """What http.client uses of a socket, which is closed by who opened it. Every wait ends at the deadline, however
    many there are."""

    def __init__(self, plain: socket.socket, deadline: Deadline) -> None:
        self._plain = plain
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        self._plain.settimeout(self._deadline.left())
        self._plain.sendall(data)

    def makefile(self, mode: str) -> io.BufferedReader:
        return io.BufferedReader(_Incoming(self._plain, self._deadline))

    def close(self) -> None:
        pass


class _Incoming(io.RawIOBase):
    def __init__(self, plain: socket.socket, deadline: Deadline) -> None:
        self._plain = plain
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._plain.settimeout(self._deadline.left())
        return self._plain.recv_into(buffer)


def _target(url: str, where: str) -> SplitResult:
    if any(ord(character) <= 0x20 or ord(character) == 0x7F or character == "\\" for character in url):
        raise InvalidRequestError(f"{where}: the URL has spaces, backslashes or control characters", where)
    try:
        target = urlsplit(url)
        _ = target.port
    except ValueError:
        raise InvalidRequestError(f"{where} is no URL", where) from None
    if target.scheme not in _PORTS:
        raise InvalidRequestError(f"{where}: only http and https are fetched, not {shown(target.scheme)}", where)
    if target.username is not None or target.password is not None:
        raise InvalidRequestError(f"{where}: the URL must have no user and no password", where)
    return target


def _redirected(url: str, location: str, where: str) -> str:
    new = urljoin(url, location)
    if url.startswith("https:") and not new.startswith("https:"):
        raise InvalidRequestError(f"{where}: the URL redirects from https to another scheme", where)
    return new


def _opened(addresses: list[str], port: int, deadline: Deadline) -> socket.socket:
    """Connected to the first address that answers."""
    for number, address in enumerate(addresses):
        try:
            return socket.create_connection((address, port), timeout=deadline.left())
        except OSError:
            if number == len(addresses) - 1:
                raise
    raise OSError("no address")


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
