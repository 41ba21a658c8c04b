"""`cadence serve` as a process: its start, its end, its signals, its logs."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from openai import OpenAI

from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.cli.main import main
from cadence.entrypoints.server.app import create_app
from cadence.entrypoints.server.http.sockets import listen
from cadence.entrypoints.server.server import ServerLifecycle
from tests.server.helpers import ROOT, FakeLLM, ServerProcess

FAST = ("--max-model-len", "512", "--kv-cache-memory-bytes", "16M", "--served-model-name", "tiny")
LONG = {"model": "tiny", "prompt": "to be or not to be", "max_tokens": 450, "ignore_eos": True, "stream": True}


@pytest.fixture
def server(tiny_model: Callable[[str], Path]) -> Iterator[ServerProcess]:
    with ServerProcess(tiny_model("llama"), *FAST) as process:
        yield process


def test_start_serve_and_drain(server: ServerProcess) -> None:
    stages = server.output().splitlines()
    assert len(stages) >= 3 and all(line.endswith(" s)") or " s from start)" in line for line in stages)
    assert stages[-1].startswith("serving ") and server.url in stages[-1]
    client = OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
    assert [model.id for model in client.models.list()] == ["tiny"]
    secret = "the slow river runs to the sea"
    assert client.completions.create(model="tiny", prompt=secret, max_tokens=3).choices[0].finish_reason == "length"
    with server.client() as wire, ThreadPoolExecutor(3) as pool:
        assert wire.post("/v1/completions", json={"model": "tiny", "prompt": secret, "n": "many"}).status_code == 400
        running = [pool.submit(stream_all, server) for _ in range(3)]
        wait_for(lambda: wire.get("/load").json()["server_load"] == 3)
        server.signal(signal.SIGTERM)
        wait_for(lambda: wire.get("/readyz").status_code == 503)
        assert wire.get("/livez").status_code == 200
        refused = wire.post("/v1/completions", json=LONG)
        assert refused.status_code == 503 and refused.json()["error"]["type"] == "service_unavailable_error"
        finished = [job.result() for job in running]
    assert all(lines[-1] == "[DONE]" and len(lines) > 10 for lines in finished)
    assert finished[0][:-1] and server.wait() == 0
    assert secret not in server.output()


@pytest.mark.usefixtures("warm_start")
def test_a_second_signal_ends_streams_with_an_error(server: ServerProcess) -> None:
    with server.client() as wire, ThreadPoolExecutor(2) as pool:
        began = [threading.Event(), threading.Event()]
        running = [pool.submit(stream_all, server, event) for event in began]
        assert all(event.wait(240) for event in began)
        server.signal(signal.SIGTERM)
        wait_for(lambda: wire.get("/readyz").status_code == 503)
        server.signal(signal.SIGTERM)
        ends = [job.result()[-1] for job in running]
    assert all("error" in json.loads(end) for end in ends)
    assert server.wait() == 1


def test_a_port_in_use_is_one_clear_line() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        line = [sys.executable, "-m", "cadence.entrypoints.cli.main", "serve", "smollm2", "--port", port]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == f"cadence serve: port {port} on 127.0.0.1 is in use; choose another with --port\n"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--headless"], "headless is for the nodes after the first"),
        (["--middleware", "os.system"], "middleware='os.system' is neither a class nor"),
        (["--middleware", "no.such.module"], "middleware='no.such.module' cannot be imported"),
        (["--chat-template", "does/not/exist"], "chat_template does/not/exist cannot be read"),
        (["--block-size", "7"], "block_size=7 is not between 8 and 256"),
        (["--max-num-seqs", "0"], "max_num_seqs=0 is not at least 1"),
        (["--max-num-seqs", "64", "--max-num-batched-tokens", "32"], "is below max_num_seqs=64"),
        (["--gpu-memory-utilization", "3"], "not above 0 and at most 1"),
        (["--decode-context-parallel-size", "2"], "not shared out among ranks"),
        (["--tool-call-parser", "nothing"], "tool_call_parser must be one of"),
        (["--reasoning-parser", "nothing"], "reasoning_parser"),
        (["--tool-parser-plugin", "/nowhere.py"], "tool_parser_plugin: /nowhere.py cannot be read"),
        (["--ssl-keyfile", "key.pem"], "ssl_certfile"),
        (["--port", "70000"], "65535"),
        (["--prot", "1"], "did you mean --port?"),
        (["--model", "other"], "two models"),
    ],
)
def test_flags_are_checked_before_anything_is_loaded(
    flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["serve", "smollm2", "--port", "0", *flags])
    complaint = capsys.readouterr().err
    assert left.value.code == 2 and said in complaint and complaint.count("\n") == 1, complaint


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_engine_starts(number: int, tiny_model: Callable[[str], Path]) -> None:
    server = ServerProcess(tiny_model("llama"), *FAST)
    try:
        wait_for(lambda: "found " in server.output(), 60.0)
        server.signal(number)
        assert server.wait() == 0
        lines = server.output().splitlines()
        assert lines[-1] == "stopped before it was ready" and "Traceback" not in server.output()
    finally:
        server.stop()


def stream_all(server: ServerProcess, began: threading.Event | None = None) -> list[str]:
    """The payloads of all events; `began` is set when the first is there."""
    lines: list[str] = []
    with server.client() as client, client.stream("POST", "/v1/completions", json=LONG) as reply:
        assert reply.status_code == 200
        for line in filter(None, reply.iter_lines()):
            lines.append(line.removeprefix("data: "))
            if began is not None:
                began.set()
    return lines


def wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.01)


def test_the_engine_given_up_ends_the_server(fake_model: Path) -> None:
    async def scenario(bound: socket.socket) -> tuple[int, str]:
        llm = FakeLLM(fake_model, delay=0.02)
        options = ServeOptions()
        life = ServerLifecycle(create_app(llm, options), options)  # type: ignore[arg-type]
        serving = asyncio.Event()
        running = asyncio.create_task(life.run(bound, serving.set))
        await serving.wait()
        async with httpx.AsyncClient(base_url=listen.url_of(bound, options), trust_env=False) as client:
            body = {**LONG, "model": "fake", "stream": False}
            asked = asyncio.create_task(client.post("/v1/completions", json=body))
            while not llm.started:
                await asyncio.sleep(0.01)
            llm.die("three deaths in a minute")
            reply = await asked
        return await running, reply.json()["error"]["message"]

    with listen.bind(ServeOptions(port=0)) as bound:
        status, message = asyncio.run(scenario(bound))
    assert status == 1 and "not available" in message and "deaths" not in message


@pytest.mark.usefixtures("warm_start")
def test_unix_socket(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "api.sock"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()
    with ServerProcess(tiny_model("llama"), *FAST, "--uds", str(path), environment={"VLLM_API_KEY": "k"}) as server:
        assert path.stat().st_mode & 0o777 == 0o600
        wire = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=wire, base_url="http://server") as client:
            assert client.get("/v1/models").status_code == 401
            reply = client.get("/v1/models", headers={"Authorization": "Bearer k"})
            assert reply.json()["data"][0]["id"] == "tiny"
        assert server.stop() == 0
