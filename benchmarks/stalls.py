"""How long running streams wait while long prompts arrive, with max_inter_token_ms and without.

    python -m benchmarks.stalls [--model smollm2] [--out FILE]                 two servers, over HTTP
    python -m benchmarks.stalls --shape llama-3.1-8b --prompt 8192 --streams 32  the same with dummy weights
    python -m benchmarks.stalls --shape llama-3.1-8b --offline                 two engines in this process, no HTTP

Both settings have the same work, and take turns: `--streams` streams of `--output` tokens, and `--prompts` prompts of
`--prompt` tokens, each coming when the one before has had its tokens. A gap is the time between two arrivals of one
stream. Throughput is all tokens, of prompts and of outputs, by the time until the last has come.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES, write_shape
from tests.server.streams import connect, request_bytes

START_S = 300.0
STREAM_PROMPT = 32  # tokens


@dataclass(frozen=True)
class Work:
    streams: int
    output: int  # tokens of a stream
    prompts: int
    prompt: int  # tokens of a long prompt
    reply: int  # tokens that follow it
    vocab_size: int

    def ids(self, length: int, seed: int) -> list[int]:
        draw = random.Random(seed)
        return [draw.randrange(100, self.vocab_size) for _ in range(length)]

    @property
    def num_tokens(self) -> int:
        return self.streams * (STREAM_PROMPT + self.output) + self.prompts * (self.prompt + self.reply)


@dataclass
class Seen:
    """What the readers saw."""

    arrivals: dict[int, list[float]] = field(default_factory=dict)  # by stream
    first_tokens: list[float] = field(default_factory=list)  # seconds that long prompts waited
    seconds: float = 0.0
    cpu_seconds: float = 0.0  # of engine and server: does not depend on what others leave of the machine

    def figures(self, work: Work) -> dict[str, float]:
        gaps = [b - a for times in self.arrivals.values() for a, b in pairwise(times)]
        gaps.sort()
        return {
            "longest_gap_ms": round(1e3 * gaps[-1], 1),
            "p99_gap_ms": round(1e3 * gaps[int(0.99 * len(gaps))], 1),
            "median_gap_ms": round(1e3 * gaps[len(gaps) // 2], 1),
            "first_token_of_long_prompts_s": round(statistics.mean(self.first_tokens), 3),
            "tokens_per_second": round(work.num_tokens / self.seconds, 1),
            "tokens_per_cpu_second": round(work.num_tokens / self.cpu_seconds, 1),
            "load_average": round(os.getloadavg()[0], 1),  # of the last minute: who else was there
        }


class Target(Protocol):
    def run(self, work: Work, seed: int) -> Seen: ...


class Served:
    """A server, over HTTP."""

    def __init__(self, url: str, pid: int) -> None:
        self._url = url
        self._pid = pid

    def run(self, work: Work, seed: int) -> Seen:
        return asyncio.run(self._run(work, seed))

    async def _run(self, work: Work, seed: int) -> Seen:
        seen, began, spent = Seen(), time.perf_counter(), cpu_seconds(self._pid)
        streams = [asyncio.ensure_future(self._stream(work, seen, seed, number)) for number in range(work.streams)]
        while min((len(times) for times in seen.arrivals.values()), default=0) < 8:
            assert not any(stream.done() for stream in streams), "a stream ended at once"
            await asyncio.sleep(0.005)
        for number in range(work.prompts):
            sent = time.perf_counter()
            times = await self._ask(work.ids(work.prompt, 1000 * seed + 500 + number), work.reply, [])
            seen.first_tokens.append(times[0] - sent)
        await asyncio.gather(*streams)
        seen.seconds, seen.cpu_seconds = time.perf_counter() - began, cpu_seconds(self._pid) - spent
        return seen

    async def _stream(self, work: Work, seen: Seen, seed: int, number: int) -> None:
        seen.arrivals[number] = []
        await self._ask(work.ids(STREAM_PROMPT, 1000 * seed + number), work.output, seen.arrivals[number])

    async def _ask(self, prompt: list[int], output: int, times: list[float]) -> list[float]:
        """The moments at which chunks with tokens arrived."""
        body = {"prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True, "stream": True}
        reader, writer = await connect(self._url)
        writer.write(request_bytes("/v1/completions", body))
        done = False
        async for line in reader:
            if line.startswith(b"data: [DONE]"):
                done = True
            elif line.startswith(b"data: "):
                assert b'"error"' not in line, line
                times.append(time.perf_counter())
        writer.close()
        assert done and times, "the stream broke off"
        return times


class Engine:
    """An engine in this process."""

    def __init__(self, model: str, options: dict[str, Any]) -> None:
        from cadence.config.args import EngineArgs
        from cadence.engine.llm_engine import LLMEngine

        self._engine = LLMEngine.from_engine_args(EngineArgs(model=model, **options))

    def run(self, work: Work, seed: int) -> Seen:
        seen, began, spent, sent, left = Seen(), time.perf_counter(), time.process_time(), 0.0, work.prompts
        for number in range(work.streams):
            seen.arrivals[number] = []
            self._add(str(number), work.ids(STREAM_PROMPT, 1000 * seed + number), work.output)
        answers: dict[str, int] = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                now, name = time.perf_counter(), output.request_id
                if name.isdigit():
                    seen.arrivals[int(name)].append(now)
                elif name not in answers:
                    seen.first_tokens.append(now - sent)
                answers[name] = answers.get(name, 0) + len(output.outputs[0].token_ids)
            ready = min(len(times) for times in seen.arrivals.values()) >= 8
            if left and ready and all(answers.get(f"long{n}", 0) == work.reply for n in range(left, work.prompts)):
                left, sent = left - 1, time.perf_counter()
                self._add(f"long{left}", work.ids(work.prompt, 1000 * seed + 500 + left), work.reply)
        seen.seconds, seen.cpu_seconds = time.perf_counter() - began, time.process_time() - spent
        return seen

    def _add(self, name: str, prompt: list[int], output: int) -> None:
        from cadence import SamplingParams
        from cadence.core.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0, max_tokens=output, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
        )
        self._engine.add_request(name, {"prompt_token_ids": prompt}, params)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its children that live."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") + sum(cpu_seconds(int(c)) for c in children)


@contextmanager
def serving(model: str, options: dict[str, Any]) -> Iterator[Served]:
    """`cadence serve` in a process of its own."""
    words = [sys.executable, "-m", "cadence.entrypoints.cli.main", "serve", model, "--port", "0"]
    for name, value in options.items():
        flag = name.replace("_", "-")
        words.append(f"--{flag}={value}" if not isinstance(value, bool) else f"--{'' if value else 'no-'}{flag}")
    with tempfile.TemporaryFile("w+") as log:
        server = subprocess.Popen(words, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            yield Served(_address(server, log), server.pid)
        finally:
            server.terminate()
            server.wait(60)


def _address(server: subprocess.Popen[bytes], log: Any) -> str:
    ends = time.monotonic() + START_S
    while time.monotonic() < ends and server.poll() is None:
        log.seek(0)
        for line in log.read().splitlines():
            if line.startswith("serving ") and " at " in line:
                return str(line.split(" at ")[1].split()[0])
        time.sleep(0.1)
    log.seek(0)
    raise RuntimeError(f"the server did not start:\n{log.read()}")


def measure(model: str, options: dict[str, Any], work: Work, args: argparse.Namespace) -> dict[str, Any]:
    """By setting of max_inter_token_ms: medians over the turns, of which the first warms up."""
    settings: dict[str, dict[str, Any]] = {"with": {}, "without": {"max_inter_token_ms": 0}}
    if args.target is not None:
        settings["with"] = {"max_inter_token_ms": args.target}
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in settings}
    with ExitStack() as stack:
        targets: dict[str, Target] = {}
        for name, setting in settings.items():
            both = options | setting
            targets[name] = Engine(model, both) if args.offline else stack.enter_context(serving(model, both))
        for turn in range(args.turns + 1):
            for name, target in targets.items():
                figures = target.run(work, seed=turn).figures(work)
                print(json.dumps({"turn": turn, "setting": name, **figures}), flush=True)
                if turn:
                    runs[name].append(figures)
    medians = {name: _medians(found) for name, found in runs.items()}
    ratios = {
        key: round(statistics.median(a[key] / b[key] for a, b in zip(runs["with"], runs["without"], strict=True)), 3)
        for key in ("tokens_per_second", "tokens_per_cpu_second")
    }
    return {"medians": medians, "with / without, median of turns": ratios, "turns": runs}


def save_tokenizer(folder: Path, vocab_size: int) -> None:
    """A word for every id: whatever dummy weights say is text, and every token is a chunk of its own."""
    words = WordLevel({f"w{index}": index for index in range(vocab_size)}, unk_token="w0")
    Tokenizer(words).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def stalls(args: argparse.Namespace) -> dict[str, Any]:
    longest = max(args.prompt + args.reply, STREAM_PROMPT + args.output)
    options = {"max_model_len": longest + 64, "enable_prefix_caching": False, **args.options}
    with tempfile.TemporaryDirectory() as folder:
        model, vocab_size = args.model, 48_000
        if args.shape:
            model, vocab_size = str(write_shape(args.shape, Path(folder))), SHAPES[args.shape]["vocab_size"]
            options |= {"load_format": "dummy"}
            save_tokenizer(Path(model), vocab_size)
        work = Work(args.streams, args.output, args.prompts, args.prompt, args.reply, vocab_size)
        found = measure(model, options, work, args)
    what = {"model": args.shape or args.model, "path": "engine" if args.offline else "http", "work": asdict(work)}
    return {"benchmark": "stalls", **what, "options": options, **found}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default="smollm2")
    made.add_argument(
        "--shape", default="", choices=["", *SHAPES], help="dummy weights of this shape instead of --model"
    )
    made.add_argument("--offline", action="store_true", help="engines in this process, no HTTP")
    made.add_argument("--streams", type=int, default=4)
    made.add_argument("--output", type=int, default=200, help="tokens of a stream")
    made.add_argument("--prompts", type=int, default=2)
    made.add_argument("--prompt", type=int, default=2000, help="tokens of a long prompt")
    made.add_argument("--reply", type=int, default=4, help="tokens that follow it")
    made.add_argument("--target", type=float, help="max_inter_token_ms of the setting 'with'; its default if not given")
    made.add_argument("--turns", type=int, default=3, help="of each setting, after one that warms up")
    made.add_argument("--options", type=json.loads, default={}, help="engine options as JSON")
    made.add_argument("--out", type=Path)
    return made


def main() -> None:
    args = parser().parse_args()
    report = json.dumps({"machine": describe_machine(), **stalls(args)}, indent=2)
    print(report)
    if args.out:
        args.out.write_text(report + "\n")


if __name__ == "__main__":
    main()
