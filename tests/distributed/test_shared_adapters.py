"""Adapters that come and go on a server with several API processes: all serve the same ones, also those that are
started later."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest

from cadence.core.contract.adapter_messages import NamedAdapter, TableCall, TableVerb
from cadence.entrypoints.server.shared_adapters import SharedAdapters
from tests.helpers.adapters import make_adapter
from tests.helpers.leftovers import still_running
from tests.helpers.processes import children_of, connections_of
from tests.server.helpers import ServerProcess

pytestmark = pytest.mark.warm

PROMPT = [5, 6, 7, 8]
COUNT = 3  # API processes


class AdapterServer(ServerProcess):
    """Each client is one connection, to one process: they are dealt out in turn."""

    def clients(self) -> list[httpx.Client]:
        clients = [httpx.Client(base_url=self.url, trust_env=False, timeout=200) for _ in range(COUNT)]
        for client in clients:
            assert client.get("/livez").status_code == 200
        return clients

    def api(self) -> list[psutil.Process]:
        return children_of(self.process.pid, "api_process")


@pytest.fixture(scope="module")
def root(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("shared")
    for name, rank in (("first", 4), ("second", 8)):
        modules = ["q_proj", "k_proj", "v_proj", "o_proj"]
        make_adapter(tiny_model("llama"), place / name, seed=rank, r=rank, lora_alpha=rank, target_modules=modules)
    return place


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path], root: Path) -> Iterator[AdapterServer]:
    options = (
        "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "128",
        "--num-gpu-blocks-override", "200", "--api-server-count", str(COUNT),
        "--enable-lora", "--max-loras", "2", "--max-lora-rank", "16", "--lora-modules", f"first={root / 'first'}",
        "--allow-runtime-lora-updating", "--lora-root", str(root),
    )  # fmt: skip
    with AdapterServer(tiny_model("llama"), *options) as server:
        yield server


def said(client: httpx.Client, model: str) -> str:
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    reply = client.post("/v1/completions", json=body)
    return str(reply.json()["choices"][0]["text"]) if reply.status_code == 200 else str(reply.status_code)


def change(client: httpx.Client, what: str, name: str, path: Path | None = None) -> int:
    fields = {"lora_name": name} | ({} if path is None else {"lora_path": str(path)})
    return client.post(f"/v1/{what}_lora_adapter", json=fields).status_code


@pytest.mark.engine
def test_what_one_loads_and_unloads_all_serve(server: AdapterServer, root: Path) -> None:
    clients = server.clients()
    (plain,) = {said(client, "tiny") for client in clients}
    (first,) = {said(client, "first") for client in clients}
    for number, client in enumerate(clients):
        assert [said(one, "second") for one in clients] == ["404"] * COUNT
        assert change(client, "load", "second", root / "second") == 200
        (second,) = {said(one, "second") for one in clients}
        assert len({plain, first, second}) == 3
        assert change(clients[number - 1], "load", "second", root / "first") == 400
        assert change(clients[number - 1], "unload", "second") == 200
        assert change(client, "unload", "second") == 404
    assert {said(client, "first") for client in clients} == {first}


@pytest.mark.engine
def test_one_of_several_that_take_a_name_gets_it(server: AdapterServer, root: Path) -> None:
    clients = server.clients()
    with ThreadPoolExecutor(COUNT) as pool:
        found = list(pool.map(lambda client: change(client, "load", "same", root / "second"), clients))
    assert sorted(found) == [200, 400, 400]
    assert change(clients[0], "unload", "same") == 200


@pytest.mark.engine
def test_a_process_that_is_started_later_serves_the_same(server: AdapterServer, root: Path) -> None:
    clients = server.clients()
    (first,) = {said(client, "first") for client in clients}
    assert change(clients[0], "unload", "first") == 200
    assert change(clients[1], "load", "again", root / "first") == 200
    before = server.api()
    for child in before:
        child.kill()
    ends = time.monotonic() + 200
    while time.monotonic() < ends:
        try:
            fresh = server.clients()
            if len(server.api()) == COUNT and not {one.pid for one in before} & {one.pid for one in server.api()}:
                break
        except httpx.HTTPError:
            time.sleep(0.1)
    found = [(said(client, "again"), said(client, "first")) for client in fresh]
    assert found == [(first, "404")] * COUNT


@pytest.mark.wide
@pytest.mark.engine
def test_a_process_that_says_nothing_holds_no_change_up(server: AdapterServer, root: Path) -> None:
    """It would be killed for its silence as well, but later: here, because it lacks the change."""
    clients = server.clients()
    before = server.api()
    asked = connected(clients[0], before)
    stopped = next(one for one in before if one.pid != asked)
    stopped.suspend()
    assert change(clients[0], "load", "late", root / "second") == 200
    assert not still_running([stopped])
    wait_until(lambda: len(server.api()) == COUNT and stopped.pid not in {one.pid for one in server.api()})
    wait_until(lambda: len({said(client, "late") for client in server.clients()}) == 1)
    found = {said(client, "late") for client in server.clients()}
    assert len(found) == 1 and found != {"404"}
    assert change(server.clients()[0], "unload", "late") == 200


def connected(client: httpx.Client, processes: list[psutil.Process]) -> int:
    """The pid of the process that has this client's connection."""
    assert client.get("/livez").status_code == 200
    (pool,) = client._transport._pool.connections  # type: ignore[attr-defined]
    own = pool._connection._network_stream.get_extra_info("client_addr")
    (found,) = [one.pid for one in processes if own in {each.raddr for each in connections_of([one])}]
    return found


def wait_until(happened: Callable[[], bool], seconds: float = 200.0) -> None:
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        try:
            if happened():
                return
        except httpx.HTTPError:
            """A process is gone."""
        time.sleep(0.1)
    raise TimeoutError


def test_numbers_are_given_once() -> None:
    shared = SharedAdapters([NamedAdapter("a", 1, "/a")])
    asked = TableCall(TableVerb.NUMBER, NamedAdapter("", 0, ""))
    assert [shared.take(asked).number for _ in range(2)] == [2, 3]
    assert not shared.take(TableCall(TableVerb.ADD, NamedAdapter("a", 2, "/b"))).done and shared.table.version == 0
    assert shared.take(TableCall(TableVerb.REMOVE, NamedAdapter("a", 0, ""))).done and shared.table.version == 1
    assert not shared.take(TableCall(TableVerb.REMOVE, NamedAdapter("a", 0, ""))).done
    assert shared.take(TableCall(TableVerb.ADD, NamedAdapter("b", 3, "/b"))).done
    assert [adapter.number for adapter in shared.table.adapters] == [3] and shared.take(asked).number == 4
