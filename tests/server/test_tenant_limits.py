"""Named tenants: weights that reach the engine, limits per minute, and places that others keep."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI, RateLimitError

from cadence.config.server.tenants import TenantSpec
from cadence.core.outputs import RequestOutput
from cadence.entrypoints.server.http import tenant_ledger
from cadence.entrypoints.server.http.tenant_ledger import TenantLedger
from tests.server.helpers import FakeLLM, RunningApp

pytestmark = pytest.mark.warm

Serve = Callable[..., RunningApp]
TENANTS = [
    {"name": "anna", "api_keys": ["key-a", "key-a2"], "weight": 3, "requests_per_minute": 4},
    {"name": "bert", "api_keys": ["key-b"], "tokens_per_minute": 60},
    {"name": "cleo", "api_keys": ["key-c"]},
]
ASKED = {"prompt": "to be or not to be", "max_tokens": 5}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "tenants.json"
    path.write_text(json.dumps({"tenants": TENANTS}))
    return str(path)


class Clock:
    """In place of the time of the ledger."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(tenant_ledger.time, "monotonic", lambda: self.now)


class WeighedLLM(FakeLLM):
    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self.seen: list[tuple[str, float]] = []

    async def generate(self, prompt: Any, params: Any, request_id: str, *, priority: int = 0) -> Any:
        request = (await self.inputs.process(request_id, prompt, params, priority=priority)).request
        self.seen.append((request.tenant, request.weight))
        async for output in super().generate(prompt, params, request_id, priority=priority):
            found: RequestOutput = output
            yield found


def test_the_engine_is_told_whose_request_it_is_and_its_weight(serve: Serve, fake_model: Path, config: str) -> None:
    llm = WeighedLLM(fake_model)
    app = serve(llm, tenant_config=config, api_key=["key-d"])
    with app.client() as client:
        for key in ("key-a", "key-a2", "key-b", "key-d"):
            assert client.post("/v1/completions", json=ASKED, headers=bearer(key)).status_code == 200
        assert client.post("/v1/completions", json=ASKED, headers=bearer("key-e")).status_code == 401
    (first, second, third, (unnamed, weight)) = llm.seen
    assert first == second == ("anna", 3.0) and third == ("bert", 1.0)
    assert unnamed not in ("", "anna", "bert", "cleo") and weight == 1.0


def test_a_real_client_is_told_when_to_come_again(serve: Serve, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And comes in then; others are not held up, and metrics count them all."""
    clock = Clock(monkeypatch)
    app = serve({"script": "Good day."}, tenant_config=config)
    client = OpenAI(base_url=f"{app.url}/v1", api_key="key-a", max_retries=0)

    def ask(key: str) -> None:
        client.with_options(api_key=key).completions.create(model="fake", prompt="hi", max_tokens=2)

    for key in ("key-a", "key-a2", "key-a", "key-a2"):
        ask(key)
    with pytest.raises(RateLimitError) as caught:
        ask("key-a")
    assert caught.value.response.headers["retry-after"] == "15", "four a minute: one in fifteen seconds"
    assert "4 requests a minute" in str(caught.value)
    ask("key-c")
    clock.now += 14.5
    with pytest.raises(RateLimitError):
        ask("key-a2")
    clock.now += 0.6
    ask("key-a")
    metrics = app.client().get("/metrics", headers=bearer("key-c")).text
    assert 'cadence:tenant_requests_accepted_total{tenant="anna"} 5.0' in metrics
    assert 'cadence:tenant_requests_refused_total{tenant="anna"} 2.0' in metrics
    assert 'cadence:tenant_requests_accepted_total{tenant="cleo"} 1.0' in metrics


def test_tokens_count_when_they_are_known(serve: Serve, config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written for a tenant is taken from its minute, too, and may leave a debt."""
    clock = Clock(monkeypatch)
    app = serve({"script": "one two three four five six seven eight nine ten " * 9}, tenant_config=config)
    with app.client() as client:
        body = {"prompt": "count", "max_tokens": 90}
        assert client.post("/v1/completions", json=body, headers=bearer("key-b")).status_code == 200
        reply = client.post("/v1/completions", json=body, headers=bearer("key-b"))
        assert reply.status_code == 429 and "60 tokens a minute" in reply.json()["error"]["message"]
        assert 30 <= int(reply.headers["retry-after"]) <= 40, "some thirty tokens of debt, at one a second"
        clock.now += float(reply.headers["retry-after"])
        assert client.post("/v1/completions", json=body, headers=bearer("key-b")).status_code == 200


def test_one_tenant_leaves_places_for_others(serve: Serve, fake_model: Path, config: str) -> None:
    llm = FakeLLM(fake_model, delay=0.05, script="word " * 200, max_num_seqs=2)
    app = serve(llm, tenant_config=config, max_queued_requests=6)
    body = {"prompt": "count", "max_tokens": 100}
    statuses: list[int] = []

    def ask() -> None:
        with app.client() as client:
            statuses.append(client.post("/v1/completions", json=body, headers=bearer("key-c")).status_code)

    threads = [threading.Thread(target=ask) for _ in range(7)]
    for thread in threads:
        thread.start()
    while len(statuses) < 3:
        threading.Event().wait(0.01)
    with app.client() as client:
        reply = client.post("/v1/completions", json={**body, "max_tokens": 2}, headers=bearer("key-b"))
    for thread in threads:
        thread.join()
    assert reply.status_code == 200, "seven of one tenant do not fill eight places"
    assert statuses.count(200) == 4 and statuses.count(429) == 3


def test_processes_share_one_ledger() -> None:
    """A process that opens it by its path takes from the same minute; one that ends leaves what it took."""
    specs = [TenantSpec("anna", ("a",), requests_per_minute=100)]
    ledger = TenantLedger(specs)
    program = (
        "from cadence.config.server.tenants import TenantSpec\n"
        "from cadence.entrypoints.server.http.tenant_ledger import TenantLedger\n"
        "specs = [TenantSpec('anna', ('a',), requests_per_minute=100)]\n"
        f"ledger = TenantLedger(specs, {ledger.opened_by()!r})\n"
        "print(sum(ledger.enter('anna', 1) is None for _ in range(60)))"
    )
    children = [subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    let_in = sum(int(child.communicate(timeout=120)[0]) for child in children)
    counts = ledger.counts()["anna"]
    assert 100 <= let_in <= 110 and counts.requests_accepted == let_in and counts.requests_refused == 120 - let_in
