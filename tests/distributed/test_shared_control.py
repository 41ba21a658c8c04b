"""Pauses, sleep and weights of engines that several API processes share: whichever is asked, all of them act, those too
that are started later."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from tests.distributed.test_shared_adapters import AdapterServer as SharedServer
from tests.distributed.test_shared_adapters import connected, wait_until
from tests.helpers.processes import children_of

pytestmark = [pytest.mark.engine, pytest.mark.warm]

COUNT = 3  # API processes
STEP_S = 0.05  # of the slow engine, which writes tokens one at a time
LONG, SHORT = 480, 40  # tokens: of an answer that is not over before all have begun, and of one that is waited for
FLAGS = ("--max-model-len", "512", "--server-dev-mode", "--api-server-count", str(COUNT))
BODY: dict[str, Any] = {"prompt": [5, 6, 7, 8], "max_tokens": 12, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path]) -> Iterator[SharedServer]:
    with SharedServer(tiny_model("llama"), "--dtype", "float32", *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def slow_server(tiny_model: Callable[[str], Path]) -> Iterator[SharedServer]:
    slow = {"CADENCE_TOY_STEP_S": str(STEP_S)}
    with SharedServer(tiny_model("llama"), *FLAGS, engine="toy", environment=slow) as server:
        yield server


def of_each_process(server: SharedServer, *after: str) -> Iterator[list[httpx.Client]]:
    """Clients. after: what engines are told then, so that they go on"""
    clients = server.clients()
    yield clients
    for path in after:
        assert clients[0].post(path).status_code == 200
    for client in clients:
        client.close()


@pytest.fixture
def clients(server: SharedServer) -> Iterator[list[httpx.Client]]:
    yield from of_each_process(server, "/wake_up", "/resume")


@pytest.fixture
def of_slow(slow_server: SharedServer) -> Iterator[list[httpx.Client]]:
    yield from of_each_process(slow_server, "/resume")


def said(client: httpx.Client) -> list[int]:
    answer = client.post("/v1/completions", json=BODY | {"return_token_ids": True})
    assert answer.status_code == 200, answer.text
    return list(answer.json()["choices"][0]["token_ids"])


class Stream:
    """A long answer, read by a thread."""

    def __init__(self, client: httpx.Client, pool: ThreadPoolExecutor, **fields: Any) -> None:
        self.num_chunks = 0
        self._has_begun = threading.Event()
        self._body = BODY | {"max_tokens": LONG, "stream": True} | fields
        self._reading = pool.submit(self._read, client)
        assert self._has_begun.wait(200)

    def finish_reason(self) -> str:
        return self._reading.result(200)

    def done(self) -> bool:
        return self._reading.done()

    def _read(self, client: httpx.Client) -> str:
        with client.stream("POST", "/v1/completions", json=self._body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.num_chunks += 1
                    self._has_begun.set()
                    event = json.loads(line[6:])
                    reason = event["choices"][0]["finish_reason"] if "choices" in event else event["error"]["message"]
        return str(reason)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2 * COUNT) as pool:
        yield pool


def everywhere(clients: list[httpx.Client], path: str) -> list[bool]:
    return [next(iter(client.get(path).json().values())) for client in clients]


def stand_still(streams: list[Stream]) -> bool:
    before = [stream.num_chunks for stream in streams]
    time.sleep(10 * STEP_S)
    return [stream.num_chunks for stream in streams] == before


def aborted(client: httpx.Client, streams: list[Stream]) -> bool:
    assert client.post("/pause?mode=abort").status_code == 200
    return all("aborted" in stream.finish_reason() for stream in streams)


def test_what_one_pauses_all_hold(of_slow: list[httpx.Client], pool: ThreadPoolExecutor) -> None:
    """Streams of all processes stand still, requests of all wait, and any of them lets all go on."""
    wanted = said(of_slow[0])
    streams = [Stream(client, pool) for client in of_slow]
    assert of_slow[0].post("/pause?mode=keep&clear_cache=false").status_code == 200
    others = [httpx.Client(base_url=client.base_url, trust_env=False, timeout=200) for client in of_slow]
    assert everywhere(others, "/is_paused") == [True] * COUNT
    wait_until(lambda: stand_still(streams))  # after what was on its way
    before = [stream.num_chunks for stream in streams]
    waiting = [pool.submit(said, client) for client in others]
    time.sleep(0.3)
    assert not any(one.done() for one in (*streams, *waiting))
    assert all(client.get("/health").status_code == 200 for client in others)
    assert others[-1].post("/resume").status_code == 200
    assert [one.result(200) for one in waiting] == [wanted] * COUNT
    assert everywhere(others, "/is_paused") == [False] * COUNT
    wait_until(lambda: all(now.num_chunks > then for now, then in zip(streams, before, strict=True)))
    assert aborted(others[0], streams)


def test_what_runs_anywhere_is_aborted_or_waited_for(
    slow_server: SharedServer, of_slow: list[httpx.Client], pool: ThreadPoolExecutor
) -> None:
    """A process that is started meanwhile holds its requests as the others do."""
    assert aborted(of_slow[0], [Stream(client, pool) for client in of_slow])
    struck = slow_server.api()[0]
    struck.kill()
    wait_until(lambda: len(slow_server.api()) == COUNT and struck.pid not in {one.pid for one in slow_server.api()})
    of_slow[:] = slow_server.clients()
    assert everywhere(of_slow, "/is_paused") == [True] * COUNT
    of_slow[1].post("/resume")
    streams = [Stream(client, pool, max_tokens=SHORT) for client in of_slow]
    assert of_slow[0].post("/pause?mode=wait").status_code == 200
    of_slow[0].post("/pause?mode=keep")  # what is not over now will never be
    assert [one.finish_reason() for one in streams] == ["length"] * COUNT


def test_a_wait_ends_with_the_pause(of_slow: list[httpx.Client], pool: ThreadPoolExecutor) -> None:
    stream = Stream(of_slow[1], pool)
    waiting = pool.submit(of_slow[0].post, "/pause?mode=wait")
    wait_until(lambda: everywhere(of_slow[2:], "/is_paused") == [True])
    assert of_slow[2].post("/resume").status_code == 200
    assert waiting.result(200).status_code == 200 and everywhere(of_slow, "/is_paused") == [False] * COUNT
    assert aborted(of_slow[2], [stream])


def test_what_one_puts_to_sleep_another_wakes(
    server: SharedServer, clients: list[httpx.Client], pool: ThreadPoolExecutor
) -> None:
    """Whatever dies meanwhile."""
    wanted = said(clients[0])
    for level, victim in ((1, "core_process"), (2, "api_process")):
        assert clients[0].post(f"/sleep?level={level}").status_code == 200
        struck = children_of(server.process.pid, victim)
        asked = connected(clients[1], struck) if victim == "api_process" else 0
        for one in struck:
            if one.pid != asked:
                one.kill()
        wait_until(lambda: len(server.api()) == COUNT and all(each.is_running() for each in server.api()))
        fresh = [httpx.Client(base_url=server.url, trust_env=False, timeout=200) for _ in range(COUNT)]
        wait_until(lambda now=fresh: everywhere(now, "/is_sleeping") == [True] * COUNT)
        waiting = [pool.submit(said, client) for client in fresh]
        time.sleep(0.3)
        assert not any(one.done() for one in waiting)
        assert clients[1].post("/wake_up").status_code == 200
        assert [one.result(200) for one in waiting] == [wanted] * COUNT
        clients[:] = server.clients()


def test_weights_are_those_of_all(
    server: SharedServer, clients: list[httpx.Client], tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """They outlive the engine, and the process that was told of them."""
    first = tiny_model("llama")
    other = shutil.copytree(first, tmp_path / "other")
    tensors = load_file(first / "model.safetensors")
    save_file({name: tensor.flip(0) for name, tensor in tensors.items()}, other / "model.safetensors")
    wanted = said(clients[0])
    refused = clients[0].post("/update_weights", json={"path": str(tmp_path / "none")})
    assert refused.status_code == 400 and "there is no" in refused.json()["error"]["message"]
    empty = clients[0].post("/update_weights", json={"path": str(tmp_path)})
    assert empty.status_code == 400 and "no *.safetensors" in empty.json()["error"]["message"]
    assert clients[0].post("/update_weights", json={"path": str(other)}).json() == {"success": True}
    (changed,) = {tuple(said(client)) for client in clients}
    assert list(changed) != wanted
    (engine,) = children_of(server.process.pid, "core_process")
    engine.kill()
    assert {tuple(said(client)) for client in clients} == {changed}
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(first)}}
    assert clients[2].post("/collective_rpc", json=body).json() == {"results": [None]}
    assert [said(client) for client in clients] == [wanted] * COUNT
    by_name = clients[1].post("/collective_rpc", json={"method": "update_weights", "args": [{"x": [1.0]}]})
    assert by_name.status_code == 400 and "a folder" in by_name.json()["error"]["message"]


@pytest.mark.wide
def test_a_process_that_says_nothing_holds_no_pause_up(server: SharedServer, clients: list[httpx.Client]) -> None:
    """One that begins to serve meanwhile is as good as the others."""
    before = server.api()
    asked = connected(clients[0], before)
    stopped, ended = (one for one in before if one.pid != asked)
    stopped.suspend()
    ended.kill()
    pausing = threading.Thread(target=clients[0].post, args=["/pause"])
    pausing.start()
    wait_until(lambda: len({one.pid for one in server.api()} - {one.pid for one in before}) == 1)
    (begun,) = {one.pid for one in server.api()} - {one.pid for one in before}
    pausing.join()
    left = {one.pid for one in server.api()}
    assert stopped.pid not in left and begun in left
    wait_until(lambda: len(server.api()) == COUNT)
    clients[:] = server.clients()
    assert everywhere(clients, "/is_paused") == [True] * COUNT
