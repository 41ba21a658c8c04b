"""`cadence bench serve`: load on an OpenAI-compatible server, and what its clients saw of it."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.config import values
from cadence.config.cli import Parser
from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.bench_serve import work
from cadence.entrypoints.cli.bench_serve.load import Load, Pace, Sample
from cadence.entrypoints.cli.bench_serve.numbers import (
    METRICS,
    WantedMetrics,
    complaints,
    details,
    numbers,
    readable,
    series,
    tokens_by_second,
)
from cadence.entrypoints.cli.bench_serve.plot import Picture, check_plotting, save_latency_plot
from cadence.entrypoints.cli.remote.client import Remote, RemoteError
from cadence.entrypoints.cli.shared.draft_counts import DraftCounts

BACKENDS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
    "cadence": "/v1/completions",
}
RETRY_SECONDS = 0.5  # between looks at a server that is not up yet
SETTLE_SECONDS = 1.2  # an engine's own counters reach /metrics once a second


def build_parser() -> Parser:
    parser = Parser("cadence bench serve", "Load a server with streamed requests and time what comes back.")
    _add_server_flags(parser.add_argument_group("server"))
    _add_load_flags(parser.add_argument_group("load"))
    _add_prompt_flags(parser.add_argument_group("prompts"))
    _add_report_flags(parser.add_argument_group("report"))
    return parser


def _add_server_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--url", "--base-url", dest="base_url", metavar="URL", help="where it is, for example http://127.0.0.1:8000"
    )
    group.add_argument("--host", default="127.0.0.1", help="used without --url [127.0.0.1]")
    group.add_argument("--port", type=int, default=8000, metavar="N", help="used without --url [8000]")
    group.add_argument("--backend", "--endpoint-type", default="openai", choices=tuple(BACKENDS), help="[openai]")
    group.add_argument("--endpoint", metavar="PATH", help="/v1/completions or /v1/chat/completions [by --backend]")
    group.add_argument("--model", metavar="NAME", help="the name to ask for [the first the server lists]")
    group.add_argument("--served-model-name", metavar="NAME", help="the same; wins over --model")
    group.add_argument("--api-key", default="", metavar="KEY", help="sent as a bearer token")
    group.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="sent with every request")
    group.add_argument(
        "--ready-check-timeout-sec", type=float, default=0, metavar="S", help="wait this long for the server [0]"
    )


def _add_load_flags(group: argparse._ArgumentGroup) -> None:
    count: dict[str, Any] = {"type": values.human_int, "metavar": "N"}
    group.add_argument("--num-prompts", default=1000, help="requests in all [1000]", **count)
    group.add_argument("--num-warmups", default=1, help="requests before the clock runs, one by one [1]", **count)
    group.add_argument(
        "--request-rate", type=float, default=float("inf"), metavar="X", help="requests a second; inf = at once [inf]"
    )
    group.add_argument(
        "--burstiness", type=float, default=1.0, metavar="X", help="1 = Poisson, less = bursts, more = even [1]"
    )
    group.add_argument("--max-concurrency", default=0, help="most requests under way; 0 = no limit [0]", **count)
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrival times [0]")
    group.add_argument("--ignore-eos", action="store_true", help="ask for exactly as many tokens as --output-len says")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="[0]")
    group.add_argument("--extra-body", type=json.loads, default={}, metavar="JSON", help="more fields of the requests")


def _add_prompt_flags(group: argparse._ArgumentGroup) -> None:
    count: dict[str, Any] = {"type": values.human_int, "metavar": "N"}
    group.add_argument(
        "--dataset-name", choices=("random", "sharegpt", "custom"), help="[random, or by --dataset-path]"
    )
    group.add_argument("--dataset-path", metavar="FILE", help="custom: JSONL with prompt or messages; sharegpt: JSON")
    group.add_argument("--random-input-len", "--input-len", default=1024, help="prompt tokens [1024]", **count)
    group.add_argument(
        "--output-len", "--random-output-len", "--sharegpt-output-len", "--custom-output-len",
        dest="output_len", default=0, help="most tokens to generate [random: 128, custom: the line's, or 256]", **count,
    )  # fmt: skip
    group.add_argument("--random-range-ratio", type=float, default=0.0, metavar="X", help="spread of lengths, ± X [0]")
    group.add_argument("--random-prefix-len", default=0, help="tokens all prompts begin with [0]", **count)


def _add_report_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--percentile-metrics", default="ttft,tpot,itl,e2el", help=f"of {', '.join(METRICS)} [all]")
    group.add_argument("--metric-percentiles", default="90,99", metavar="P,P,…", help="[90,99]")
    group.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="limits of a good request: ttft:200")
    group.add_argument("--save-result", action="store_true", help="write the numbers as JSON")
    group.add_argument("--save-detailed", action="store_true", help="with every request's times")
    group.add_argument("--result-dir", default=".", metavar="DIR", help="[.]")
    group.add_argument("--result-filename", metavar="FILE", help="[made of the backend, rate, model and time]")
    group.add_argument("--output-json", metavar="FILE", help="write the numbers there; - = stdout, no table")
    group.add_argument("--metadata", nargs="+", default=[], metavar="KEY=VALUE", help="kept with the numbers")
    group.add_argument("--label", default="", help="kept with the numbers")
    group.add_argument("--plot", default="", metavar="FILE.png", help="draw the latencies (needs matplotlib)")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    _check(flags)
    wanted = WantedMetrics.parse(flags.percentile_metrics, flags.metric_percentiles, flags.goodput)
    pace = Pace(flags.request_rate, flags.burstiness, flags.max_concurrency, flags.seed)
    check_plotting(flags.plot)
    _raise_file_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        found = runner.run(measure(flags, pace))
    drafts = found.drafts.numbers() if found.drafts is not None else {}
    result = {**_about(flags, found.model), **numbers(found.samples, found.duration, wanted), **drafts}
    publish(flags, result, found.samples, wanted)
    return 0 if result["completed"] else 1


def _check(flags: argparse.Namespace) -> None:
    for name in ("num_prompts", "random_input_len"):
        if getattr(flags, name) < 1:
            raise ConfigError(f"{name}={getattr(flags, name)} is not at least 1", name)
    for name in ("num_warmups", "output_len", "random_prefix_len"):
        if getattr(flags, name) < 0:
            raise ConfigError(f"{name}={getattr(flags, name)} is not at least 0", name)
    if not isinstance(flags.extra_body, dict):
        raise ConfigError("extra_body is not a JSON object", "extra_body")
    if flags.dataset_path and flags.dataset_name is None:
        flags.dataset_name = "sharegpt" if flags.dataset_path.endswith(".json") else "custom"
    flags.dataset_name = flags.dataset_name or "random"
    if flags.dataset_name != "random" and not flags.dataset_path:
        raise ConfigError(f"--dataset-name {flags.dataset_name} needs --dataset-path", "dataset_path")
    flags.endpoint = flags.endpoint or BACKENDS[flags.backend]
    if not flags.endpoint.endswith(("/completions",)) or not flags.endpoint.startswith("/"):
        raise ConfigError(f"endpoint={flags.endpoint!r} is not /v1/completions or /v1/chat/completions", "endpoint")


@dataclass(frozen=True, slots=True)
class Measured:
    model: str
    samples: list[Sample]  # one for each request
    duration: float  # seconds the load took
    drafts: DraftCounts | None  # None = the server tells nothing of them


async def measure(flags: argparse.Namespace, pace: Pace) -> Measured:
    url = flags.base_url or f"http://{flags.host}:{flags.port}"
    async with Remote.at(url, flags.api_key, dict(_pair(text, "header") for text in flags.header)) as remote:
        await _wait_for(remote, flags.ready_check_timeout_sec)
        model = flags.served_model_name or flags.model or await remote.model_name()
        bodies = await _bodies(flags, remote, model)
        load = Load(remote, flags.endpoint)
        for body in bodies[flags.num_prompts :]:
            warm_up = await load.one(body, time.perf_counter())
            if warm_up.error:
                raise RemoteError(f"the warm-up request failed: {warm_up.error}")
        before = await _settled_drafts(remote)
        with _bar(flags.num_prompts, flags.disable_tqdm or not sys.stderr.isatty()) as on_end:
            samples, duration = await load.run(bodies[: flags.num_prompts], pace, on_end)
        after = await _settled_drafts(remote) if before is not None else None
    drafts = after.minus(before) if before is not None and after is not None else None
    return Measured(model, samples, duration, drafts)


async def _settled_drafts(remote: Remote) -> DraftCounts | None:
    """What the server has counted, once that has had time to reach its metrics."""
    try:
        if DraftCounts.of_metrics(await remote.text("/metrics")) is None:
            return None
        await asyncio.sleep(SETTLE_SECONDS)
        return DraftCounts.of_metrics(await remote.text("/metrics"))
    except RemoteError:
        return None


async def _wait_for(remote: Remote, seconds: float) -> None:
    """Returns when the server answers anything at all; the last error when it does not in time."""
    give_up = time.monotonic() + seconds
    while True:
        try:
            await remote.get("/health")
            return
        except RemoteError as error:
            if error.status not in (0, 503):
                return
            if time.monotonic() >= give_up:
                raise
        await asyncio.sleep(RETRY_SECONDS)


async def _bodies(flags: argparse.Namespace, remote: Remote, model: str) -> list[bytes]:
    """Those of the load, then those of the warm-up."""
    chat = flags.endpoint.endswith("/chat/completions")
    count = flags.num_prompts + flags.num_warmups
    dice = random.Random(flags.seed)
    if flags.dataset_name == "random":
        output_len = flags.output_len or work.RANDOM_OUTPUT_LEN
        shape = work.RandomShape(flags.random_input_len, output_len, flags.random_range_ratio, flags.random_prefix_len)
        asks = list(itertools.islice(await work.random_asks(remote, model, shape, chat, dice), count))
    else:
        path = Path(flags.dataset_path)
        if flags.dataset_name == "custom":
            found = work.custom_asks(path, flags.output_len, chat)
        else:
            found = await work.sharegpt_asks(remote, model, path, flags.output_len, chat, count, dice)
        if len(found) < flags.num_prompts:
            print(f"{path} holds {len(found)} prompts; they are asked again", file=sys.stderr)
        asks = work.repeated(found, count, path)
    extra = {"temperature": flags.temperature, **({"ignore_eos": True} if flags.ignore_eos else {}), **flags.extra_body}
    return [work.request_body(ask, model, chat, extra) for ask in asks]


@contextmanager
def _bar(total: int, silent: bool) -> Iterator[Any]:
    """Yields what is called with each sample."""
    try:
        from tqdm import tqdm
    except ImportError:
        silent = True
    if silent:
        yield lambda sample: None
        return
    with tqdm(total=total, desc="Requests", dynamic_ncols=True) as bar:
        seen = {"tokens": 0, "failed": 0}
        start = time.perf_counter()

        def on_end(sample: Sample) -> None:
            seen["tokens"] += sample.output_tokens
            seen["failed"] += bool(sample.error)
            rate = seen["tokens"] / max(time.perf_counter() - start, 1e-9)
            bar.set_postfix_str(f"output: {rate:.1f} tok/s, failed: {seen['failed']}", refresh=False)
            bar.update(1)

        yield on_end


def _about(flags: argparse.Namespace, model: str) -> dict[str, Any]:
    rate = "inf" if flags.request_rate == float("inf") else flags.request_rate
    return {
        **dict(_pair(text, "metadata") for text in flags.metadata),
        "date": time.strftime("%Y%m%d-%H%M%S"),
        "backend": flags.backend,
        "endpoint": flags.endpoint,
        "label": flags.label or None,
        "model_id": model,
        "num_prompts": flags.num_prompts,
        "request_rate": rate,
        "burstiness": flags.burstiness,
        "max_concurrency": flags.max_concurrency or None,
    }


def publish(
    flags: argparse.Namespace, result: dict[str, Any], samples: Sequence[Sample], wanted: WantedMetrics
) -> None:
    document = json.dumps({**result, **(details(samples) if flags.save_detailed else {})}, indent=2)
    if flags.output_json == "-":
        print(document)
    else:
        print(f"{result['model_id']}, {flags.endpoint}")
        print(readable(result, wanted))
    for complaint in complaints(samples):
        print(complaint, file=sys.stderr)
    if flags.output_json and flags.output_json != "-":
        _write(Path(flags.output_json), document)
    if flags.save_result or flags.result_filename:
        _write(Path(flags.result_dir) / (flags.result_filename or _file_name(result)), document)
    if flags.plot:
        save_latency_plot(_picture(result, samples), flags.plot)


def _picture(result: dict[str, Any], samples: Sequence[Sample]) -> Picture:
    done = [sample for sample in samples if not sample.error]
    title = (
        f"{result['model_id']}: {result['completed']} requests, rate {result['request_rate']}/s, "
        f"{result['output_throughput']:.0f} output tokens/s"
    )
    rates = tokens_by_second(done, result["duration"])
    return Picture(title, series(samples), [sample.start for sample in done], rates)


def _file_name(result: dict[str, Any]) -> str:
    limit = f"-concurrency{result['max_concurrency']}" if result["max_concurrency"] else ""
    model = str(result["model_id"]).rstrip("/").rpartition("/")[2]
    return f"{result['label'] or result['backend']}-{result['request_rate']}qps{limit}-{model}-{result['date']}.json"


def _write(path: Path, document: str) -> None:
    try:
        path.expanduser().parent.mkdir(parents=True, exist_ok=True)
        path.expanduser().write_text(document + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", "result_filename") from None


def _pair(text: str, field: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ConfigError(f"{field}: {text!r} is not of the form NAME=VALUE", field)
    return name, value


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed: it halves what this client takes from the machine. None = asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = uvloop.new_event_loop
    return factory


def _raise_file_limit() -> None:
    """A connection is an open file; many systems allow 1024 until asked."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
