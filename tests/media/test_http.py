"""Files behind http URLs: from hosts that are named, at addresses that are public, in bounded time and memory.

The servers are on the loopback interface: a resolver of the tests leads names there, and a policy of theirs lets it.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import IMAGE, VIDEO
from cadence.media.fetch.addresses import is_public
from cadence.media.fetch.read_url import UrlReader
from cadence.media.limits import DEFAULT_LIMITS, MediaAccess
from cadence.media.parts import MediaPart
from tests.media.pictures import picture
from tests.media.web import HOST, Web, web

LIMITS = replace(DEFAULT_LIMITS, image_bytes=200_000)
SECONDS = 0.6
ACCESS = MediaAccess(domains=frozenset((HOST,)), seconds={IMAGE: SECONDS, VIDEO: 30.0})
WHERE = "messages[0].content[0].image_url.url"


@pytest.fixture(scope="module")
def pictures_web() -> Iterator[Web]:
    with web() as running:
        yield running


def reader(server: Web, access: MediaAccess = ACCESS, **parts: Callable[..., object]) -> UrlReader:
    given: dict[str, Callable[..., object]] = {"allows": lambda address: True, "resolve": server.resolve, **parts}
    return UrlReader(LIMITS, access, **given)  # type: ignore[arg-type]


def fetch(url: str, reader: UrlReader) -> bytes:
    (data,) = reader.read(MediaPart(IMAGE, WHERE, url))
    return data


@pytest.mark.parametrize("path", ["/good.png", "/chunked.png", "/to-good", "/hop2"])
def test_files_are_fetched(pictures_web: Web, path: str) -> None:
    assert fetch(pictures_web.url(path), reader(pictures_web)) == picture()
    assert fetch(pictures_web.url(path, HOST.upper() + "."), reader(pictures_web)) == picture()


def test_what_is_asked_says_little(pictures_web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy of the environment is used, and no header has more than a server needs."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    pictures_web.asked.clear()
    fetch(pictures_web.url("/good.png?a=b ä".replace(" ", "%20")), reader(pictures_web))
    head = pictures_web.asked[0].decode()
    lines = head.split("\r\n")
    assert lines[0] == "GET /good.png?a=b%20%C3%A4 HTTP/1.1" and f"Host: {HOST}:{pictures_web.port}" in lines
    assert sorted(line.partition(":")[0] for line in lines[1:] if line) == [
        "Accept", "Accept-Encoding", "Host", "User-Agent",
    ]  # fmt: skip


WRONG = {
    "/hangs": "seconds", "/hangs-after-head": "seconds", "/trickles": "seconds", "/trickles-head": "seconds",
    "/endless": "bytes", "/endless-chunks": "bytes", "/endless-head": "fetched", "/claims-more": "early",
    "/gzip": "coding", "/empty": "empty", "/no-http": "fetched", "/closes": "fetched", "/500": "500", "/401": "401",
    "/missing": "404", "/to-itself": "redirects more than 3 times", "/hop5": "redirects",
    "/to-file": "only http and https", "/to-data": "only http and https", "/to-ftp": "only http and https",
    "/to-other": "other.test", "/to-loopback": "localhost", "/to-metadata": "169.254.169.254",
    "/to-nowhere": "redirects", "/without-location": "302",
}  # fmt: skip


@pytest.mark.parametrize("path", WRONG)
def test_what_servers_do_wrong_is_an_error_in_time(pictures_web: Web, path: str) -> None:
    start = time.monotonic()
    with pytest.raises(InvalidRequestError) as caught:
        fetch(pictures_web.url(path), reader(pictures_web))
    assert time.monotonic() - start < SECONDS + 1.0
    assert caught.value.field == WHERE and WRONG[path] in str(caught.value)


def test_a_body_ends_where_its_length_says(pictures_web: Web) -> None:
    assert fetch(pictures_web.url("/claims-less"), reader(pictures_web)) == picture()[:20]


def test_hosts_must_be_named(pictures_web: Web) -> None:
    other = pictures_web.url("/good.png", "other.test")
    with pytest.raises(InvalidRequestError, match="--allowed-media-domains"):
        fetch(other, reader(pictures_web))
    for host in (f"evil{HOST}", f"{HOST}.evil.test", f"a.{HOST}"):
        with pytest.raises(InvalidRequestError, match="--allowed-media-domains"):
            fetch(pictures_web.url("/good.png", host), reader(pictures_web))
    with pytest.raises(InvalidRequestError, match="--allowed-media-domains"):
        fetch(pictures_web.url("/good.png"), reader(pictures_web, MediaAccess()))
    everything = replace(ACCESS, domains=frozenset("*"))
    assert fetch(other, reader(pictures_web, everything)) == picture()


def test_redirects_may_be_off(pictures_web: Web) -> None:
    with pytest.raises(InvalidRequestError, match="redirects more than 0 times"):
        fetch(pictures_web.url("/to-good"), reader(pictures_web, replace(ACCESS, max_redirects=0)))


def test_addresses_are_looked_at_after_every_name(pictures_web: Web) -> None:
    """Nothing is connected to that the policy does not allow: not by a name, and not after a redirect."""
    inward = reader(pictures_web, allows=is_public)
    with pytest.raises(InvalidRequestError, match=f"'{HOST}' has no public address"):
        fetch(pictures_web.url("/good.png"), inward)
    everything = replace(ACCESS, domains=frozenset("*"))
    allows = lambda address: address == "127.0.0.1"  # noqa: E731
    resolve = {HOST: ["127.0.0.1"], "169.254.169.254": ["169.254.169.254"], "other.test": ["10.0.0.1"]}
    strict = reader(pictures_web, everything, allows=allows, resolve=lambda host, port: resolve[host])
    for path in ("/to-metadata", "/to-other"):
        with pytest.raises(InvalidRequestError, match="has no public address"):
            fetch(pictures_web.url(path), strict)


def test_a_name_that_changes_its_address_changes_nothing(pictures_web: Web) -> None:
    """What was looked at is what is connected to: each connection asks for a name once."""
    asked: list[str] = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["127.0.0.1"] if len(asked) == 1 else ["10.0.0.1"]

    found = reader(pictures_web, allows=lambda address: address == "127.0.0.1", resolve=rebinding)
    assert fetch(pictures_web.url("/good.png"), found) == picture() and asked == [HOST]
    with pytest.raises(InvalidRequestError, match="has no public address"):
        fetch(pictures_web.url("/good.png"), found)


def test_of_several_addresses_only_allowed_ones_are_used(pictures_web: Web) -> None:
    resolve = lambda host, port: ["10.255.255.1", "::1", "127.0.0.1"]  # noqa: E731
    found = reader(pictures_web, allows=lambda address: address == "127.0.0.1", resolve=resolve)
    assert fetch(pictures_web.url("/good.png"), found) == picture()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_certificates_are_checked(pictures_web: Web, tmp_path: Path) -> None:
    """A server that only says who it is: its certificate is its own."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", f"/CN={HOST}"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(certificate)], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_greet, args=(listener, context))
        thread.start()
        with pytest.raises(InvalidRequestError, match=r"cannot be fetched.*CERTIFICATE_VERIFY_FAILED"):
            fetch(f"https://{HOST}:{listener.getsockname()[1]}/", reader(pictures_web))
        thread.join()


def _greet(listener: socket.socket, context: ssl.SSLContext) -> None:
    connection, _ = listener.accept()
    with connection, contextlib.suppress(OSError):
        context.wrap_socket(connection, server_side=True).close()


def test_nobody_listens(pictures_web: Web) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(InvalidRequestError, match="cannot be fetched"):
        fetch(f"http://{HOST}:{port}/", reader(pictures_web))


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700:4700::1111"])
def test_public_addresses(address: str) -> None:
    assert is_public(address)


@pytest.mark.parametrize(
    "address", ["", "a", "127.0.0.1", "fe80::1%eth0", "::ffff:8.8.8.8", "2002:a00:1::1", "2002:808:808::1"]
)
def test_other_addresses(address: str) -> None:
    assert not is_public(address)
