"""Default deny: without one of the keys, only the health checks answer, and what tells of the server's state."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from openai import AuthenticationError, OpenAI

from cadence.entrypoints.server.http.auth import OPEN_PATHS, STATE_PATHS
from cadence.entrypoints.server.http.tenants import Tenants
from tests.server.helpers import RunningApp

KEYS = ["first-key", "zweiter-schlüssel"]


@pytest.fixture
def app(serve: Callable[..., RunningApp]) -> RunningApp:
    return serve(api_key=KEYS)


@pytest.mark.parametrize("protect_metrics", [False, True])
def test_which_routes_are_open(serve: Callable[..., RunningApp], protect_metrics: bool) -> None:
    free = OPEN_PATHS if protect_metrics else OPEN_PATHS | STATE_PATHS
    with serve(api_key=KEYS, protect_metrics=protect_metrics).client() as client:
        paths = {*client.get("/openapi.json", headers=bearer(KEYS[0])).json()["paths"], "/docs", "/openapi.json", "/"}
        assert {"/v1/models", *OPEN_PATHS, *STATE_PATHS} <= paths
        for path in paths:
            reply = client.get(path)
            assert (reply.status_code == 401) == (path not in free), path
        assert client.get("/no/such/path").status_code == client.post("/health/").status_code == 401
        for path in STATE_PATHS:
            assert client.get(path, headers=bearer(KEYS[1])).status_code == 200
            assert client.get(path + "/").status_code == 401


def test_the_shape_of_the_refusal(app: RunningApp) -> None:
    with app.client() as client:
        reply = client.get("/v1/models")
        assert reply.json()["error"]["reason"] == "invalid_api_key"
        assert reply.headers["www-authenticate"].startswith("Bearer")
        assert client.get("/", headers={"Accept": "text/html"}).headers["www-authenticate"].startswith("Basic")
        refusal = client.post("/v1/messages", json={}).json()
        assert refusal["type"] == "error" and refusal["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("key", KEYS)
def test_each_key_opens_in_each_way(app: RunningApp, key: str) -> None:
    with app.client() as client:
        assert client.get("/v1/models", headers=bearer(key)).status_code == 200
        assert client.get("/v1/models", headers={b"x-api-key": key.encode()}).status_code == 200
        assert client.get("/v1/models", auth=httpx.BasicAuth("anyone", key)).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer first-ke"},
        {"Authorization": "Bearer first-key2"},
        {"Authorization": "first-key"},
        {"Authorization": "Basic first-key"},
        {"Authorization": "Basic Zmlyc3Qta2V5"},
        {"x-api-key": ""},
        {b"Authorization": b"Bearer \xff\xfe"},
    ],
)
def test_anything_else_stays_out(app: RunningApp, headers: dict[str, str]) -> None:
    with app.client() as client:
        assert client.get("/v1/models", headers=headers).status_code == 401


def test_refused_before_the_body_is_read(app: RunningApp) -> None:
    with app.client() as client:
        assert client.post("/tokenize", content=b"{not json", headers={"content-type": "x/y"}).status_code == 401


def test_the_openai_client(app: RunningApp) -> None:
    assert OpenAI(base_url=app.url + "/v1", api_key=KEYS[0]).models.list().data
    with pytest.raises(AuthenticationError):
        OpenAI(base_url=app.url + "/v1", api_key="wrong", max_retries=0).models.list()


def test_without_keys_everybody_may(serve: Callable[..., RunningApp]) -> None:
    with serve().client() as client:
        assert client.get("/v1/models").status_code == 200


def test_all_keys_are_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared = []
    genuine = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(len(b)) or genuine(a, b))
    keys = Tenants(["a", "bb", "a much longer key"])
    assert keys.tenant(b"a") and keys.tenant(b"a much longer key") and keys.tenant(b"b") is None
    assert compared == [32] * 9


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"Authorization": b"Bearer " + key.encode()}
