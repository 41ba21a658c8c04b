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

from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.bench_serve import work
from cadence.entrypoints.cli.bench_serve.flags import BACKENDS, build_parser
from cadence.entrypoints.cli.bench_serve.load import Load, Pace, Ramp, Sample
from cadence.entrypoints.cli.bench_serve.numbers import (
    WantedMetrics,
    complaints,
    details,
    numbers,
    readable,
    series,
    tokens_by_second,
)
from cadence.entrypoints.cli.bench_serve.plot import LatencyPlot, check_plotting, save_latency_plot
from cadence.entrypoints.cli.remote.client import Remote, RemoteError
from cadence.entrypoints.cli.shared.draft_counts import DraftCounts

RETRY_SECONDS = 0.5  # between looks at a server that is not up yet
_RAMP = ("ramp_up_strategy", "ramp_up_start_rps", "ramp_up_end_rps")
SETTLE_SECONDS = 1.2  # an engine's own counters reach /metrics once a second


def run(argv: Sequence[str]) -> int:
    return 0 if run_flags(build_parser().parse(argv))["completed"] else 1


def run_flags(flags: argparse.Namespace) -> dict[str, Any]:
    """Measures, and publishes what was found. -> its numbers"""
    _check(flags)
    wanted = WantedMetrics.parse(flags.percentile_metrics, flags.metric_percentiles, flags.goodput)
    ramp = Ramp.of(flags.ramp_up_strategy, flags.ramp_up_start_rps, flags.ramp_up_end_rps, flags.request_rate)
    pace = Pace(flags.request_rate, flags.burstiness, flags.max_concurrency, flags.seed, ramp)
    check_plotting(flags.plot)
    _raise_file_limit()
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        found = runner.run(measure(flags, pace))
    drafts = found.drafts.numbers() if found.drafts is not None else {}
    result = {**_about(flags, found.model), **numbers(found.samples, found.duration, wanted), **drafts}
    publish(flags, result, found.samples, wanted)
    return result


def _check(flags: argparse.Namespace) -> None:
    for name in ("num_prompts", "random_input_len"):
        if getattr(flags, name) < 1:
            raise ConfigError(f"{name}={getattr(flags, name)} is not at least 1", name)
    for name in ("num_warmups", "output_len", "random_prefix_len"):
        if getattr(flags, name) < 0:
            raise ConfigError(f"{name}={getattr(flags, name)} is not at least 0", name)
    for name in ("extra_body", "chat_template_kwargs"):
        if not isinstance(getattr(flags, name), dict):
            raise ConfigError(f"{name} is not a JSON object", name)
    if flags.dataset_path and flags.dataset_name is None:
        flags.dataset_name = "sharegpt" if flags.dataset_path.endswith(".json") else "custom"
    flags.dataset_name = flags.dataset_name or "random"
    if flags.dataset_name not in work.DRAWN and not flags.dataset_path:
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
    if flags.dataset_name in work.DRAWN:
        requests = await _drawn(flags, remote, model, chat, count, dice)
    else:
        requests = await _read(flags, remote, model, chat, count, dice)
    models = list(work.models(model, flags.lora_modules, flags.lora_assignment, len(requests), dice))
    extra = work.extra_fields(flags, chat)
    bodies = [work.request_body(request, name, chat, extra) for request, name in zip(requests, models, strict=True)]
    return work.with_ids(bodies, flags.request_id_prefix)


async def _drawn(
    flags: argparse.Namespace, remote: Remote, model: str, chat: bool, count: int, dice: random.Random
) -> list[work.BenchRequest]:
    if flags.dataset_name == "random":
        output_len = flags.output_len or work.RANDOM_OUTPUT_LEN
        shape = work.RandomShape(flags.random_input_len, output_len, flags.random_range_ratio, flags.random_prefix_len)
        return list(itertools.islice(await work.random_requests(remote, model, shape, chat, dice), count))
    repetition = work.PrefixRepetition(
        flags.prefix_repetition_prefix_len,
        flags.prefix_repetition_suffix_len,
        flags.prefix_repetition_num_prefixes,
        flags.prefix_repetition_output_len,
    )
    units = work.PromptUnits.of(await work.tokenize(remote, model, work.ALL_WORDS), chat)
    return repetition.requests(units, count, not flags.disable_shuffle, dice)


async def _read(
    flags: argparse.Namespace, remote: Remote, model: str, chat: bool, count: int, dice: random.Random
) -> list[work.BenchRequest]:
    path = Path(flags.dataset_path)
    if flags.dataset_name == "custom":
        found = work.custom_requests(path, flags.output_len, chat)
    else:
        shuffled = None if flags.disable_shuffle else dice
        found = await work.sharegpt_requests(remote, model, path, flags.output_len, chat, count, shuffled)
    if len(found) < flags.num_prompts and flags.no_oversample:
        flags.num_prompts = len(found)
    elif len(found) < flags.num_prompts:
        print(f"{path} holds {len(found)} prompts; they are asked again", file=sys.stderr)
    return work.repeated(found, flags.num_prompts + flags.num_warmups, path)


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
        **({name: getattr(flags, name) for name in _RAMP} if flags.ramp_up_strategy else {}),
    }


def publish(
    flags: argparse.Namespace, result: dict[str, Any], samples: Sequence[Sample], wanted: WantedMetrics
) -> None:
    numbers = {**result, **(details(samples) if flags.save_detailed else {})}
    document = json.dumps(numbers, indent=2)
    if flags.output_json == "-":
        print(document)
    else:
        print(f"{result['model_id']}, {flags.endpoint}")
        print(readable(result, wanted))
    for complaint in complaints(samples):
        print(complaint, file=sys.stderr)
    if flags.output_json and flags.output_json != "-":
        _write(Path(flags.output_json), document)
    if flags.save_result or flags.append_result or flags.result_filename:
        path = Path(flags.result_dir) / (flags.result_filename or _file_name(result))
        if flags.append_result:
            _write(path, json.dumps(numbers), "a")
        else:
            _write(path, document)
    if flags.plot:
        save_latency_plot(_picture(result, samples), flags.plot)


def _picture(result: dict[str, Any], samples: Sequence[Sample]) -> LatencyPlot:
    done = [sample for sample in samples if not sample.error]
    title = (
        f"{result['model_id']}: {result['completed']} requests, rate {result['request_rate']}/s, "
        f"{result['output_throughput']:.0f} output tokens/s"
    )
    rates = tokens_by_second(done, result["duration"])
    return LatencyPlot(title, series(samples), [sample.start for sample in done], rates)


def _file_name(result: dict[str, Any]) -> str:
    limit = f"-concurrency{result['max_concurrency']}" if result["max_concurrency"] else ""
    model = str(result["model_id"]).rstrip("/").rpartition("/")[2]
    return f"{result['label'] or result['backend']}-{result['request_rate']}qps{limit}-{model}-{result['date']}.json"


def _write(path: Path, document: str, mode: str = "w") -> None:
    try:
        path.expanduser().parent.mkdir(parents=True, exist_ok=True)
        with path.expanduser().open(mode, encoding="utf-8") as file:
            file.write(document + "\n")
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
