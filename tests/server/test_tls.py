"""TLS: the flags lead to a server that a client trusts by its certificate, and that asks for one where it should."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import websocket

from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import ConfigError
from tests.server.helpers import RunningApp

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
STREAM: dict[str, Any] = {"prompt": "to be or not", "max_tokens": 8, "stream": True}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(key, certificate), signed by itself."""
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key.pem", folder / "cert.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*words.split(), *names], check=True, capture_output=True, timeout=240)
    return key, certificate


def trusting(app: RunningApp, certificate: Path, **own: str) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(certificate))
    if own:
        context.load_cert_chain(**own)
    return httpx.Client(base_url=app.url, verify=context, trust_env=False, timeout=240)


def test_a_stream_over_tls(serve: Callable[..., RunningApp], certificate: tuple[Path, Path]) -> None:
    key, cert = certificate
    app = serve(ssl_keyfile=str(key), ssl_certfile=str(cert))
    with trusting(app, cert) as client:
        assert app.url.startswith("https") and client.get("/livez").status_code == 200
        assert client.post("/v1/completions", json=STREAM).text.endswith("data: [DONE]\n\n")
    with pytest.raises(httpx.ConnectError), app.client() as distrustful:  # it is signed by nobody else
        distrustful.get("/livez")
    with pytest.raises(httpx.TransportError):
        httpx.get(app.url.replace("https", "http") + "/livez", trust_env=False)


def test_clients_are_asked_for_a_certificate(serve: Callable[..., RunningApp], certificate: tuple[Path, Path]) -> None:
    key, cert = map(str, certificate)
    ciphers = "ECDHE-ECDSA-AES128-GCM-SHA256"
    app = serve(ssl_keyfile=key, ssl_certfile=cert, ssl_ca_certs=cert, ssl_cert_reqs=2, ssl_ciphers=ciphers)
    with trusting(app, Path(cert), certfile=cert, keyfile=key) as client:
        assert client.get("/livez").status_code == 200
    with pytest.raises(httpx.TransportError), trusting(app, Path(cert)) as stranger:
        stranger.get("/livez")


def test_half_of_a_pair_is_refused() -> None:
    with pytest.raises(ConfigError, match="together"):
        ServeOptions(ssl_certfile="cert.pem")


def test_a_websocket_over_tls(serve: Callable[..., RunningApp], certificate: tuple[Path, Path]) -> None:
    key, cert = map(str, certificate)
    app = serve(ssl_keyfile=key, ssl_certfile=cert)
    url = f"wss://127.0.0.1:{app.port}/v1/realtime"
    socket = websocket.create_connection(url, timeout=60, sslopt={"ca_certs": cert})
    assert json.loads(socket.recv())["type"] == "session.created"
    socket.send('{"type": "nothing"}')
    assert json.loads(socket.recv())["type"] == "error"
    socket.close()
