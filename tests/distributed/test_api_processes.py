"""Several API processes at one address, with the same two engines behind them: each may die, and the others serve."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import ConfigError
from tests.helpers.leftovers import still_running
from tests.helpers.processes import children_of, connections_of, family_of
from tests.helpers.wide import KILLED_AND_STOPPED
from tests.server.engines import RAISES
from tests.server.helpers import ServerProcess
from tests.server.ledger import assert_nothing_lost
from tests.server.streams import connect, request_bytes

pytestmark = pytest.mark.warm

FLAGS = ("--data-parallel-size", "2", "--api-server-count", "2", "--max-model-len", "512")
STREAMS, TOKENS = 12, 480
STEP_S = 0.005  # of an engine: a stream is not over before all have begun
HEARTBEAT_S = 5.0  # what a busy machine does not keep a process from, and what a stopped one is waited for


@dataclass
class Stream:
    port: int  # of the client's end
    pid: int = 0  # of the API process that serves it
    text: str = ""
    done: bool = False


class Cluster(ServerProcess):
    """Toy engines, which start in no time."""

    def __init__(self, model: Path, *flags: str) -> None:
        flags = (*FLAGS, "--engine-heartbeat-timeout", str(HEARTBEAT_S), *flags)
        super().__init__(model, *flags, engine="toy", environment={"CADENCE_TOY_STEP_S": str(STEP_S)})

    def children(self, module: str) -> list[psutil.Process]:
        return children_of(self.process.pid, module)

    @property
    def api(self) -> list[psutil.Process]:
        return self.children("api_process")

    @property
    def engines(self) -> list[psutil.Process]:
        return self.children("tests.server.engines")

    def serving_pids(self) -> dict[int, int]:
        """By the port of a client's end: the API process at the other."""
        found: dict[int, int] = {}
        for child in self.api:
            found |= {one.raddr.port: child.pid for one in connections_of([child]) if one.raddr}
        return found

    def serving_pid(self, port: int) -> int:
        return self.serving_pids().get(port, 0)

    def both_serve(self) -> bool:
        """Whether connections go to two API processes."""
        found = set()
        for _ in range(4):
            with socket.create_connection(("127.0.0.1", int(self.url.rpartition(":")[2]))) as connection:
                connection.sendall(b"GET /livez HTTP/1.1\r\nhost: x\r\n\r\n")
                connection.recv(1000)
                found.add(self.serving_pid(connection.getsockname()[1]))
        return len(found) == 2

    async def stream(self, number: int, begun: list[Stream]) -> Stream:
        reader, writer = await connect(self.url)
        body = {
            "prompt": [5 + number, 6, 7],
            "max_tokens": TOKENS,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
        writer.write(request_bytes("/v1/completions", body))
        await reader.readline()
        found = Stream(writer.get_extra_info("sockname")[1])
        begun.append(found)
        try:
            async for line in reader:
                if line.startswith(b"data: [DONE]"):
                    found.done = True
                elif line.startswith(b"data: "):
                    found.text += "".join(choice["text"] for choice in json.loads(line[6:]).get("choices", ()))
        except ConnectionError:
            pass
        writer.close()
        return found

    async def streams(self, strike: Callable[[], None] = lambda: None) -> list[Stream]:
        begun: list[Stream] = []
        jobs = [asyncio.ensure_future(self.stream(number, begun)) for number in range(STREAMS)]
        while len(begun) < STREAMS:
            await asyncio.sleep(0.005)
        by_port = self.serving_pids()
        for stream in begun:
            stream.pid = by_port[stream.port]
        async with httpx.AsyncClient(base_url=self.url, trust_env=False, timeout=60) as client:
            load = 0
            while load < STREAMS:  # who answers asks the others, and the counts of one that dies are those it has told
                load = (await client.get("/load")).json()["server_load"]
                assert not any(stream.done for stream in begun), "one was over before all had begun"
        strike()
        return list(await asyncio.gather(*jobs))

    def settled(self) -> dict[str, float]:
        """`assert_nothing_lost`, in as much time as a busy machine needs."""
        ends = time.monotonic() + 120
        while True:
            try:
                return assert_nothing_lost(self)
            except AssertionError:
                if time.monotonic() > ends:
                    raise

    def until(self, condition: Callable[[], bool], seconds: float = 120.0) -> None:
        ends = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < ends, "it did not happen:\n" + self.output()
            time.sleep(0.02)


@pytest.fixture(scope="module")
def cluster(tiny_model: Callable[[str], Path]) -> Iterator[Cluster]:
    with Cluster(tiny_model("llama")) as running:  # type: ignore[assignment]
        yield running


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> list[str]:
    found = asyncio.run(cluster.streams())
    assert all(stream.done for stream in found) and len({stream.pid for stream in found}) == 2
    return [stream.text for stream in found]


def counters(text: str) -> dict[str, float]:
    return {name: float(value) for name, value in re.findall(r"^(\S+_total(?:\{\S*\})?) (\S+)$", text, re.MULTILINE)}


def scrapes(cluster: Cluster) -> list[dict[str, float]]:
    """Of each API process, without what is about itself."""
    seen: dict[int, dict[str, float]] = {}
    while len(seen) < 2:
        with httpx.Client(base_url=cluster.url, trust_env=False) as client, client.stream("GET", "/metrics") as reply:
            port = reply.extensions["network_stream"].get_extra_info("client_addr")[1]
            pid = cluster.serving_pid(port)
            reply.read()
            seen[pid] = {name: count for name, count in counters(reply.text).items() if not name.startswith("process_")}
    return list(seen.values())


def test_metrics_are_those_of_all_processes(cluster: Cluster, undisturbed: list[str]) -> None:
    """What engines say is a second old at most, and each process has heard it at another moment."""
    cluster.settled()
    found: list[dict[str, float]] = []

    def agree() -> bool:
        found[:] = scrapes(cluster)
        return found[0] == found[1]

    cluster.until(agree)
    one = found[0]
    tokens = [value for name, value in one.items() if name.startswith("vllm:generation_tokens_total")]
    assert len(tokens) == 2 and sum(tokens) == STREAMS * TOKENS
    assert one["cadence:http_requests_accepted_total"] == one["cadence:http_requests_finished_total"] == STREAMS


def test_the_page_and_the_load_report_show_all_engines(cluster: Cluster, undisturbed: list[str]) -> None:
    with cluster.client() as client:
        state = client.get("/engine/state").json()
        asked = {"endpoint-load-metrics-format": "JSON"}
        body = {"prompt": [5, 6], "max_tokens": 1}
        report = client.post("/v1/completions", json=body, headers=asked).headers["endpoint-load-metrics"]
    assert len(state["engines"]) == 2 and state["blocks"]["count"] == 2 * 4000
    assert sum(one["prefix"]["queries"] for one in state["engines"]) == state["prefix"]["queries"] == 3 * STREAMS
    assert json.loads(report.removeprefix("JSON "))["named_metrics"]["num_requests_waiting"] == 0


def test_nothing_listens_beyond_loopback(cluster: Cluster) -> None:
    found = [one for one in connections_of(family_of(cluster.process.pid)) if one.status == psutil.CONN_LISTEN]
    assert {one.laddr.ip for one in found} == {"127.0.0.1"} and len({one.laddr.port for one in found}) == 1


@pytest.mark.parametrize("sent", KILLED_AND_STOPPED)
def test_an_engine_is_struck_and_no_stream_notices(
    cluster: Cluster, undisturbed: list[str], sent: signal.Signals
) -> None:
    struck = cluster.engines[0]
    found = asyncio.run(cluster.streams(lambda: os.kill(struck.pid, sent)))
    assert [stream.text for stream in found] == undisturbed and all(stream.done for stream in found)
    cluster.until(lambda: len(cluster.engines) == 2 and struck.pid not in [one.pid for one in cluster.engines])
    cluster.settled()


@pytest.mark.parametrize("sent", KILLED_AND_STOPPED)
def test_an_api_process_is_struck_and_the_streams_of_the_other_go_on(
    cluster: Cluster, undisturbed: list[str], sent: signal.Signals
) -> None:
    """What was in its engines is aborted there, another one takes its place, and no counter goes back."""
    cluster.until(cluster.both_serve)
    struck = cluster.api[0]
    engines = [one.pid for one in cluster.engines]
    with cluster.client() as client:
        before = counters(client.get("/metrics").text)
    aborted = cluster.settled()["aborted"]
    found = asyncio.run(cluster.streams(lambda: os.kill(struck.pid, sent)))
    for stream, text in zip(found, undisturbed, strict=True):
        assert stream.text == text if stream.pid != struck.pid else text.startswith(stream.text)
        assert stream.done or stream.pid == struck.pid
    assert 0 < sum(stream.done for stream in found) < STREAMS
    cluster.until(lambda: len(cluster.api) == 2 and struck.pid not in [one.pid for one in cluster.api])
    num_lost = STREAMS - sum(stream.done for stream in found)
    cluster.until(lambda: cluster.settled()["aborted"] - aborted == num_lost)
    assert [one.pid for one in cluster.engines] == engines

    def has_all() -> bool:
        """What engines say is a second old at most."""
        with cluster.client() as client:
            now = counters(client.get("/metrics").text)
        counted = re.compile(
            "cadence:http|cadence:engine_restarts|vllm:(generation|prompt)_tokens|vllm:request_success"
        )
        return all(now[name] >= value for name, value in before.items() if counted.match(name))

    cluster.until(has_all)
    cluster.until(cluster.both_serve)
    assert [stream.text for stream in asyncio.run(cluster.streams())] == undisturbed


@pytest.mark.wide
def test_a_request_that_kills_engines_fails_alone(cluster: Cluster, undisturbed: list[str]) -> None:
    """Though innocent requests of two processes are in the same engines."""

    async def check() -> None:
        streams = asyncio.ensure_future(cluster.streams())
        await asyncio.sleep(0.2)
        async with httpx.AsyncClient(base_url=cluster.url, trust_env=False, timeout=200) as client:
            reply = await client.post("/v1/completions", json={"prompt": [RAISES, 6, 7], "max_tokens": 50})
        assert reply.status_code == 500 and "times while this request was in it" in reply.text
        assert [stream.text for stream in await streams] == undisturbed

    asyncio.run(check())
    cluster.until(lambda: len(cluster.engines) == 2)
    cluster.settled()


def test_engines_that_do_not_start_end_the_server(tiny_model: Callable[[str], Path]) -> None:
    server = ServerProcess(tiny_model("llama"), *FLAGS, engine="silent_death")
    assert server.wait(120) == 1
    assert server.output().count("cadence serve: ") == 1 and "the engine did not start" in server.output()


def test_draining_lets_streams_of_all_processes_finish(tiny_model: Callable[[str], Path]) -> None:
    """With one engine."""
    with Cluster(tiny_model("llama"), "--data-parallel-size", "1") as cluster:
        assert isinstance(cluster, Cluster)
        family = [*cluster.api, *cluster.engines]
        assert len(family) == 3
        found = asyncio.run(cluster.streams(lambda: cluster.signal(signal.SIGTERM)))
        assert all(stream.done for stream in found)
        assert cluster.wait(120) == 0
        assert not still_running(family)


def test_the_children_end_with_the_server(tiny_model: Callable[[str], Path]) -> None:
    with Cluster(tiny_model("llama")) as cluster:
        assert isinstance(cluster, Cluster)
        family = psutil.Process(cluster.process.pid).children(recursive=True)
        cluster.process.kill()
        assert not still_running(family)


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ConfigError, match="api_server_count=0 is not between 1 and"):
        ServeOptions(api_server_count=0)


def test_a_port_in_use_is_said_at_once(cluster: Cluster, tiny_model: Callable[[str], Path]) -> None:
    port = cluster.url.rpartition(":")[2]
    second = ServerProcess(tiny_model("llama"), *FLAGS, "--port", port, engine="toy")
    assert second.wait(120) == 1 and "in use" in second.output()
