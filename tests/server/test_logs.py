"""Logs: nobody waits for their reader, and no request can fake a line of them."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from cadence.engine.log_format import MAX_MESSAGE, OutputHandler, SafeFormatter, escaped
from cadence.engine.log_queue import LogQueue, QueuedStream
from cadence.process.framing import framed
from tests.server.helpers import ROOT, free_port
from tests.server.test_app_process import FAST

SECRET = "the slow river runs to the sea"
FORGED = "\n\r\x0b\x0c\x1b[2Jwarning\x85\u2028\u2029\u202e\x00\x7f"


@contextlib.contextmanager
def full_pipe() -> Iterator[tuple[int, int]]:
    """(reading end, writing end) of a pipe that takes nothing more until it is read from."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * 1023 + b"\n")
    os.set_blocking(writer, True)
    try:
        yield reader, writer
    finally:
        for end in (reader, writer):
            with contextlib.suppress(OSError):
                os.close(end)


def read_in_a_thread(reader: int) -> list[bytes]:
    """All that comes, until the last writer is gone."""
    pieces: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):
            while piece := os.read(reader, 65536):
                pieces.append(piece)

    threading.Thread(target=read, daemon=True).start()
    return pieces


def until(condition: Any, seconds: float = 240.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.05)


def test_a_server_whose_output_nobody_reads(tiny_model: Any) -> None:
    """It serves; a later reader is told what is missing, and finds whole lines."""
    port = free_port()
    flags = [*FAST, "--port", str(port), "--enable-log-requests", "--uvicorn-log-level", "info"]
    words = [sys.executable, "-m", "cadence.entrypoints.cli.main", "serve", str(tiny_model("llama")), *flags]
    with full_pipe() as (reader, writer):
        process = subprocess.Popen(words, cwd=ROOT, stdout=writer, stderr=writer, stdin=subprocess.DEVNULL)
        os.close(writer)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=240, trust_env=False) as client:
                _check_service(client, process)
                pieces = read_in_a_thread(reader)
                until(lambda: b"lines of output were dropped: they were not read in time" in b"".join(pieces))
                assert client.get("/a%0aINFO:%20forged%1b[2J%e2%80%a8").status_code == 404
            process.send_signal(signal.SIGTERM)
            assert process.wait(240) == 0
            text = b"".join(pieces).decode().lstrip("x\n")
        finally:
            process.kill()
            process.wait(240)
    assert SECRET not in text and "\x1b" not in text and "\u2028" not in text
    assert r"/a\nINFO: forged\x1b[2J\u2028 404" in text
    lines = [line for line in text.splitlines() if line.strip("x")]
    unknown = [line for line in lines if not re.match(r"[A-Z]+: |found |read |engine |serving |draining", line)]
    assert not unknown, unknown[:5]


def _check_service(client: httpx.Client, process: subprocess.Popen[bytes]) -> None:
    def is_ready() -> bool:
        assert process.poll() is None
        try:
            return client.get("/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def dropped() -> float:
        found = re.search(r"^cadence:log_lines_dropped_total (\S+)$", client.get("/metrics").text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    until(is_ready)
    ask = {"model": "tiny", "prompt": SECRET, "max_tokens": 3, "temperature": 0}
    first = client.post("/v1/completions", json=ask).json()["choices"][0]["text"]
    for _ in range(300):  # two lines each, together more than is kept
        assert client.get(f"/{'long' * 1000}").status_code == 404
    assert dropped() > 0
    assert client.post("/v1/completions", json=ask).json()["choices"][0]["text"] == first


@pytest.mark.parametrize("end", ["", "raise ValueError('dead')"], ids=["exit", "death"])
def test_a_process_ends_though_nobody_reads(end: str) -> None:
    program = f"""
import sys
from cadence.engine.log_queue import queue_output
queue_output()
for number in range(100_000):
    print("a line of output", number, file=sys.stdout if number % 2 else sys.stderr)
{end}
"""
    with full_pipe() as (_, writer):
        process = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=writer, stderr=writer)
        try:
            assert process.wait(240) == (1 if end else 0)
        finally:
            process.kill()
            process.wait(240)


def test_an_engine_ends_though_nobody_reads_what_it_died_of() -> None:
    front, engine = socket.socketpair()
    with full_pipe() as (_, writer), front:
        words = [sys.executable, "-m", "cadence.engine.core_process"]
        process = subprocess.Popen(words, cwd=ROOT, stdin=engine, stdout=writer, stderr=writer)
        engine.close()
        try:
            front.settimeout(240)
            front.sendall(framed(json.dumps({"no_such_option": 1}).encode()))
            told = b""
            while piece := front.recv(65536):
                told += piece
            assert b"no_such_option" in told and process.wait(240) == 1
        finally:
            process.kill()
            process.wait(240)


def test_a_queue_drops_and_counts_and_goes_on() -> None:
    with full_pipe() as (reader, writer):
        queue = LogQueue(max_bytes=1000)
        for number in range(100):
            queue.put(writer, f"line {number:04}\n")  # 10 bytes
        assert not queue.flush(0.1)
        assert queue.dropped == 0
        queue.put(writer, "one too many\n")
        assert queue.dropped == 1
        pieces = read_in_a_thread(reader)
        assert queue.flush(20)
        queue.put(writer, "after\n")
        assert queue.flush(20)
        os.close(writer)
        until(lambda: b"after\n" in b"".join(pieces))
    lines = b"".join(pieces).decode().splitlines()
    lines = [line for line in lines if not line.startswith("x")]
    assert [line for line in lines if line.startswith("line")] == [f"line {number:04}" for number in range(100)]
    assert [line for line in lines if "dropped" in line] == [
        "WARNING: 1 lines of output were dropped: they were not read in time"
    ]
    assert lines[-1] == "after"


def test_a_reader_that_is_gone_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    queue = LogQueue()
    queue.put(writer, "to nobody\n")
    assert queue.flush(20) and queue.dropped == 1
    os.close(writer)


def test_lines_of_several_threads_stay_whole(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w+") as file:
        queue = LogQueue()
        stream: Any = QueuedStream(file, queue)

        def speak(name: str) -> None:
            for number in range(200):
                print(name * 20, number, file=stream, flush=number % 2 == 0)

        threads = [threading.Thread(target=speak, args=(name,)) for name in "abcd"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert queue.flush(20)
    lines = (tmp_path / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{name * 20} {number}" for name in "abcd" for number in range(200))


def test_what_is_escaped() -> None:
    assert escaped("a\nb\r\tc") == r"a\nb\r\tc"
    assert escaped("\x1b[31m\x85\u2028\u202e\x7f") == r"\x1b[31m\x85\u2028\u202e\x7f"
    assert escaped("Köln → 東京 🙂 \\n") == "Köln → 東京 🙂 \\n"
    assert escaped("\ud800") == r"\ud800"
    assert len(escaped("x" * 10_000_000)) == MAX_MESSAGE + 1


@pytest.mark.parametrize("text", [FORGED, FORGED * 200], ids=["short", "long"])
def test_no_message_fakes_a_line(text: str) -> None:
    record = logging.LogRecord("cadence.server", logging.INFO, "f", 1, "%s", (text,), None)
    line = SafeFormatter("%(levelname)s: %(message)s").format(record)
    assert line.isprintable() and line.splitlines() == [line] and line.startswith("INFO: ")


def test_tracebacks_keep_their_lines_and_escape_their_texts() -> None:
    try:
        try:
            raise ValueError("inner" + FORGED)
        except ValueError as error:
            raise ExceptionGroup("many" + FORGED, [KeyError("member" + FORGED)]) from error
    except ExceptionGroup as error:
        record = logging.LogRecord(
            "x", logging.ERROR, "f", 1, "it broke", (), (type(error), error, error.__traceback__)
        )
    text = SafeFormatter("%(levelname)s: %(message)s").format(record)
    lines = text.split("\n")
    assert all(line.isprintable() for line in lines)
    assert sum(line.startswith("Traceback") for line in lines) == 2
    assert any('raise ValueError("inner" + FORGED)' in line for line in lines)  # our own source
    assert any(line.startswith(r"ValueError: inner\n\r") for line in lines)
    assert any(line.startswith(r"ExceptionGroup: many\n\r") for line in lines)
    assert any(line.startswith("KeyError: ") and "member" in line for line in lines)


def test_the_handler_writes_access_lines_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    handler = OutputHandler()
    for name in ("uvicorn.access", "uvicorn.error", "cadence.server"):
        handler.handle(logging.LogRecord(name, logging.INFO, "f", 1, name + "\n", (), None))
    said = capsys.readouterr()
    assert said.out == "INFO: uvicorn.access\\n\n"
    assert said.err == "INFO: uvicorn.error\\n\nINFO: cadence.server\\n\n"
