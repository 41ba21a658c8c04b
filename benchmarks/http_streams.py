"""What HTTP costs where the model is small and the device fast: streams through API processes beside the same offline.

    python -m benchmarks.http_streams --tokenizer FOLDER [--shape smollm2-135m] [--streams 256] [--api 1 4 8]
        [--clients 4] [--input 128] [--output 256] [--rounds 2] [--quantization fp8] [--out results.json]

A well-known shape with dummy weights, served with each number of API processes. Clients are processes of their own,
each with its part of the streams, which read the answers without a look. Of every process: CPU per token.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from benchmarks.machine import describe_machine
from benchmarks.serve import completion_bytes, prompts
from benchmarks.shapes import write_shape
from cadence import LLM, SamplingParams
from tests.server.helpers import ServerProcess
from tests.server.light_client import LightClient

START_S = 180.0


def model_of(shape: str, tokenizer: Path, folder: Path) -> Path:
    directory = write_shape(shape, folder)
    shutil.copy(tokenizer / "tokenizer.json", directory)
    return directory


def offline(directory: Path, work: list[list[int]], asked: argparse.Namespace) -> float:
    """Tokens per second."""
    options = {"quantization": asked.quantization} if asked.quantization else {}
    llm = LLM(str(directory), load_format="dummy", max_model_len=2048, enable_prefix_caching=False, **options)
    out, rounds = asked.output, asked.rounds
    params = SamplingParams(temperature=0, max_tokens=out, ignore_eos=True)
    rates = []
    for _ in range(1 + rounds):
        start = time.perf_counter()
        llm.generate([{"prompt_token_ids": prompt} for prompt in work], params, use_tqdm=False)
        rates.append(len(work) * out / (time.perf_counter() - start))
    return statistics.median(rates[1:])


async def streamed(url: str, work: list[list[int]], out: int) -> None:
    async def one(prompt: list[int]) -> None:
        client = await LightClient.connect(url)
        assert await client.ask(completion_bytes(prompt, out)) == 200 and b"[DONE]" in client.tail
        client.close()

    await asyncio.gather(*(one(prompt) for prompt in work))


def client(url: str, work: list[list[int]], out: int, ready: Any, done: Any) -> None:
    """A round each time all are ready."""
    while True:
        ready.wait()
        asyncio.run(streamed(url, work, out))
        done.wait()


def cpu_by_role(server: ServerProcess) -> dict[str, float]:
    """Seconds of CPU so far, of each kind of process."""
    spent: dict[str, float] = {}
    root = psutil.Process(server.process.pid)
    for process in (root, *root.children(recursive=True)):
        words = " ".join(process.cmdline())
        role = "engine" if "core_process" in words else "api" if "api_process" in words else "front"
        times = process.cpu_times()
        spent[role] = spent.get(role, 0.0) + times.user + times.system
    return spent


def through_http(directory: Path, asked: argparse.Namespace, work: list[list[int]], api: int) -> dict[str, Any]:
    flags = ["--load-format", "dummy", "--max-model-len", "2048", "--no-enable-prefix-caching"]
    flags += ["--max-num-seqs", str(asked.streams), "--api-server-count", str(api)]
    flags += ["--quantization", asked.quantization] if asked.quantization else []
    server = ServerProcess(directory, *flags)
    server.wait_ready(START_S)
    context = multiprocessing.get_context("spawn")
    ready, done = context.Barrier(asked.clients + 1), context.Barrier(asked.clients + 1)
    parts = [work[number :: asked.clients] for number in range(asked.clients)]
    clients = [
        context.Process(target=client, args=(server.url, part, asked.output, ready, done), daemon=True)
        for part in parts
    ]
    try:
        for each in clients:
            each.start()
        rates, costs = [], []
        for _ in range(1 + asked.rounds):
            ready.wait(START_S)
            before, start = cpu_by_role(server), time.perf_counter()
            done.wait(START_S)
            tokens = len(work) * asked.output
            rates.append(tokens / (time.perf_counter() - start))
            after = cpu_by_role(server)
            costs.append({role: round((after[role] - before.get(role, 0.0)) / tokens * 1e6, 2) for role in after})
    finally:
        for each in clients:
            each.kill()
        server.stop()
    return {"api_processes": api, "tokens_per_s": round(statistics.median(rates[1:])), "cpu_us_per_token": costs[-1]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="smollm2-135m")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--api", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--input", type=int, default=128)
    parser.add_argument("--output", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quantization", default="")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    work = prompts(asked.streams, asked.input, 100, 40000)
    with tempfile.TemporaryDirectory() as folder:
        directory = model_of(asked.shape, asked.tokenizer, Path(folder))
        alone = multiprocessing.get_context("spawn").Pool(1)  # its device is free again before a server begins
        rate = alone.apply(offline, (directory, work, asked))
        alone.terminate()
        alone.join()
        report = {"machine": describe_machine(), "shape": asked.shape, "streams": asked.streams, "offline": round(rate)}
        report |= {"input": asked.input, "output": asked.output, "quantization": asked.quantization}
        print(json.dumps(report), flush=True)
        lines = []
        for api in asked.api:
            line = through_http(directory, asked, work, api)
            line["share_of_offline"] = round(line["tokens_per_s"] / rate, 3)
            lines.append(line)
            print(json.dumps(line), flush=True)
    if asked.out:
        asked.out.write_text(json.dumps({**report, "lines": lines}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
