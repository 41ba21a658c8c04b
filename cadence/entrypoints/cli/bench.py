"""`cadence bench latency|throughput|serve`: how long a batch takes, how much a queue of requests gets done, and how a
server does under load."""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cadence.config.args import nearest
from cadence.config.cli import Parser, add_engine_flags, checked_options
from cadence.config.command_line import values
from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.shared.draft_counts import DraftCounts, draft_rows
from cadence.entrypoints.cli.shared.report import Measure, mean, percentile, table

if TYPE_CHECKING:
    from cadence.core.outputs import RequestOutput
    from cadence.core.sampling_params import SamplingParams
    from cadence.entrypoints.llm import LLM

PERCENTILES = (10, 25, 50, 75, 90, 99)
Counts = Mapping[str, tuple[int, str]]  # flags: default and help
LATENCY: Counts = {
    "input_len": (32, "prompt tokens of each request"),
    "output_len": (128, "tokens to generate for each request"),
    "batch_size": (8, "requests at once"),
    "num_iters_warmup": (2, "iterations before the clock runs"),
    "num_iters": (10, "iterations measured"),
}
THROUGHPUT: Counts = {
    "num_prompts": (32, "requests in all"),
    "input_len": (128, "prompt tokens of each request"),
    "output_len": (128, "tokens to generate for each request"),
}


def run(argv: Sequence[str]) -> int:
    kinds = {"latency": run_latency, "throughput": run_throughput, "serve": run_serve}
    if not argv or argv[0] in ("-h", "--help"):
        print(f"usage: cadence bench {{{','.join(kinds)}}} [flags]\n\n" + (__doc__ or ""))
        return 0
    if argv[0] not in kinds:
        raise ConfigError(
            f"unknown benchmark {argv[0]}{nearest(argv[0], kinds)} (serve, latency or throughput)", "bench"
        )
    return kinds[argv[0]](argv[1:])


def run_serve(argv: Sequence[str]) -> int:
    from cadence.entrypoints.cli.bench_serve import command

    return command.run(argv)


def _parser(kind: str, description: str, counts: Counts) -> Parser:
    parser = Parser(f"cadence bench {kind}", description)
    add_flags(parser, counts)
    return parser


def add_flags(parser: argparse.ArgumentParser, counts: Counts) -> None:
    """counts: `LATENCY` or `THROUGHPUT`"""
    for name, (default, text) in counts.items():
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=values.human_int, default=default, metavar="N", help=f"{text} [{default}]")
    parser.add_argument("--output-json", metavar="FILE", help="write the numbers there too; - = stdout, no table")
    add_engine_flags(parser)


def _counts(flags: argparse.Namespace, names: Sequence[str]) -> dict[str, int]:
    counts = {name: int(getattr(flags, name)) for name in names}
    for name, value in counts.items():
        low = 0 if name == "num_iters_warmup" else 1
        if value < low:
            raise ConfigError(f"{name}={value} is not at least {low}", name)
    return counts


def _load(flags: argparse.Namespace) -> LLM:
    defaults = {"enable_prefix_caching": False, "use_tqdm_on_load": sys.stderr.isatty()}  # iterations repeat prompts
    options = checked_options(flags, **defaults)

    from cadence.entrypoints.llm import LLM

    return LLM(**options)


def _workload(llm: LLM, count: int, input_len: int, output_len: int) -> tuple[list[Any], SamplingParams]:
    """Random prompts, the same in every run, and exactly `output_len` tokens for each."""
    from cadence.core.sampling_params import SamplingParams

    limit = llm.llm_engine.config.model.max_model_len
    if input_len + output_len > limit:
        raise ConfigError(
            f"input_len + output_len = {input_len + output_len} is above max_model_len={limit}", "input_len"
        )
    vocabulary = int(llm.llm_engine.config.model.hf["vocab_size"])
    draw = random.Random(0)
    prompts = [{"prompt_token_ids": [draw.randrange(vocabulary) for _ in range(input_len)]} for _ in range(count)]
    return prompts, SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output_len, detokenize=False)


def run_latency(argv: Sequence[str]) -> int:
    measure_latency(_parser("latency", "Time one batch from start to end, again and again.", LATENCY).parse(argv))
    return 0


def measure_latency(flags: argparse.Namespace) -> None:
    shape = _counts(flags, list(LATENCY))
    llm = _load(flags)
    prompts, params = _workload(llm, shape["batch_size"], shape["input_len"], shape["output_len"])
    times: list[float] = []
    outputs: list[RequestOutput] = []
    for iteration in range(shape["num_iters_warmup"] + shape["num_iters"]):
        start = time.perf_counter()
        done = llm.generate(prompts, params, use_tqdm=False)
        if iteration >= shape["num_iters_warmup"]:
            times.append(time.perf_counter() - start)
            outputs += done
    tokens = shape["batch_size"] * shape["output_len"]
    numbers = {
        "avg_latency": mean(times),
        "latencies": times,
        "percentiles": {str(p): percentile(times, p) for p in PERCENTILES},
        "output_tokens_per_s": tokens / mean(times),
        **DraftCounts.of_outputs(outputs).numbers(),
    }
    rows = [
        Measure("mean latency", numbers["avg_latency"], "s"),
        *(Measure(f"p{p} latency", numbers["percentiles"][str(p)], "s") for p in PERCENTILES),
        Measure("output", numbers["output_tokens_per_s"], "tokens/s"),
        *draft_rows(numbers),
    ]
    _publish("latency", flags, llm, {**shape, **numbers}, rows)


def run_throughput(argv: Sequence[str]) -> int:
    measure_throughput(_parser("throughput", "Time many requests given all at once.", THROUGHPUT).parse(argv))
    return 0


def measure_throughput(flags: argparse.Namespace) -> None:
    shape = _counts(flags, list(THROUGHPUT))
    llm = _load(flags)
    prompts, params = _workload(llm, shape["num_prompts"], shape["input_len"], shape["output_len"])
    warm_up = params.clone()
    warm_up.max_tokens = min(4, shape["output_len"])
    llm.generate(prompts[: min(4, len(prompts))], warm_up, use_tqdm=False)
    start = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())
    elapsed = time.perf_counter() - start
    numbers = throughput_numbers(outputs, elapsed)
    rows = [
        Measure("elapsed", numbers["elapsed_time"], "s"),
        Measure("requests", numbers["requests_per_second"], "/s"),
        Measure("output", numbers["output_tokens_per_second"], "tokens/s"),
        Measure("input + output", numbers["tokens_per_second"], "tokens/s"),
        *(Measure(f"{name} p{p}", numbers[name][p], "s") for name in ("ttft", "tpot") for p in ("50", "99")),
        *draft_rows(numbers),
    ]
    _publish("throughput", flags, llm, {**shape, **numbers}, rows)


def throughput_numbers(outputs: Sequence[RequestOutput], elapsed: float) -> dict[str, Any]:
    produced = sum(len(output.outputs[0].token_ids) for output in outputs)
    total = produced + sum(len(output.prompt_token_ids or ()) for output in outputs)
    first: list[float] = []
    each: list[float] = []
    for output in outputs:
        if times := output.metrics:
            first.append(times.first_token_time - times.arrival_time)
            steps = max(len(output.outputs[0].token_ids) - 1, 1)
            each.append((times.last_token_time - times.first_token_time) / steps)
    return {
        "elapsed_time": elapsed,
        "num_requests": len(outputs),
        "total_num_tokens": total,
        "requests_per_second": len(outputs) / elapsed,
        "output_tokens_per_second": produced / elapsed,
        "tokens_per_second": total / elapsed,
        "ttft": {str(p): percentile(first, p) for p in PERCENTILES},
        "tpot": {str(p): percentile(each, p) for p in PERCENTILES},
        **DraftCounts.of_outputs(outputs).numbers(),
    }


def _publish(kind: str, flags: argparse.Namespace, llm: LLM, numbers: dict[str, Any], rows: list[Measure]) -> None:
    from cadence.device.probe import probe_caps

    config = llm.llm_engine.config
    caps = probe_caps(config.device.kind)
    about = {"benchmark": kind, "model": config.model.files.name, "dtype": config.model.dtype, "device": caps.name}
    document = json.dumps({**about, **numbers}, indent=2)
    if flags.output_json == "-":
        print(document)
        return
    print(", ".join(about.values()))
    print(table(rows))
    if flags.output_json:
        Path(flags.output_json).write_text(document + "\n", encoding="utf-8")
