"""The flags of `cadence bench serve`: ours, which are named as vLLM's are, and the rest of vLLM's with what becomes of
them."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from cadence.config.cli import Parser
from cadence.config.command_line import values
from cadence.entrypoints.cli.bench_serve.numbers import METRICS
from cadence.entrypoints.cli.bench_serve.peer_flags import OTHER_DATASETS, PEER_FLAGS

DATASETS = ("random", "prefix_repetition", "sharegpt", "custom")
BACKENDS = {
    "openai": "/v1/completions",
    "vllm": "/v1/completions",
    "openai-chat": "/v1/chat/completions",
    "cadence": "/v1/completions",
}


def build_parser() -> Parser:
    parser = Parser("cadence bench serve", "Load a server with streamed requests and time what comes back.")
    add_flags(parser)
    return parser


def add_flags(parser: argparse.ArgumentParser) -> None:
    _add_server_flags(parser.add_argument_group("server"))
    _add_load_flags(parser.add_argument_group("load"))
    _add_prompt_flags(parser.add_argument_group("prompts"))
    _add_report_flags(parser.add_argument_group("report"))
    for flag in PEER_FLAGS:
        parser.add_argument(flag.name, action=_Named, why=flag.why, refuses=flag.refused, help=argparse.SUPPRESS)


class _Named(argparse.Action):
    """A flag of vLLM's benchmark that is refused, or accepted and named, with the reason."""

    def __init__(self, *, why: str, refuses: bool, **given: Any) -> None:
        super().__init__(**given, nargs="*", default=argparse.SUPPRESS)
        self._why = why
        self._refuses = refuses

    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> None:
        name = self.option_strings[0]
        if self._refuses:
            parser.error(f"{name} cannot be honoured: {self._why}")
        print(f"{name} has no effect here: {self._why}", file=sys.stderr)


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
    group.add_argument("--ramp-up-strategy", choices=("linear", "exponential"), help="from one rate to another")
    group.add_argument("--ramp-up-start-rps", type=float, metavar="X", help="requests a second at the start")
    group.add_argument("--ramp-up-end-rps", type=float, metavar="X", help="requests a second at the end")
    group.add_argument("--temperature", type=float, default=0.0, metavar="X", help="[0]")
    for name in ("top-p", "min-p", "frequency-penalty", "presence-penalty", "repetition-penalty"):
        group.add_argument(f"--{name}", type=float, metavar="X", help="[the server's]")
    group.add_argument("--top-k", type=int, metavar="N", help="[the server's]")
    group.add_argument("--logprobs", type=int, metavar="N", help="logprobs of so many tokens at each place")
    group.add_argument("--chat-template-kwargs", type=json.loads, default={}, metavar="JSON", help="for chats")
    group.add_argument("--request-id-prefix", default="", metavar="TEXT", help="ids of requests: TEXT and a number")
    group.add_argument("--lora-modules", nargs="+", default=[], metavar="NAME", help="adapters to ask for")
    group.add_argument(
        "--lora-assignment", default="random", choices=("random", "round-robin"), help="of them to requests [random]"
    )
    group.add_argument("--extra-body", type=json.loads, default={}, metavar="JSON", help="more fields of the requests")


def _add_prompt_flags(group: argparse._ArgumentGroup) -> None:
    count: dict[str, Any] = {"type": values.human_int, "metavar": "N"}
    group.add_argument(
        "--dataset-name", type=_dataset, metavar="NAME", help=f"{', '.join(DATASETS)} [random, or by --dataset-path]"
    )
    group.add_argument("--dataset-path", metavar="FILE", help="custom: JSONL with prompt or messages; sharegpt: JSON")
    group.add_argument("--random-input-len", "--input-len", default=1024, help="prompt tokens [1024]", **count)
    group.add_argument(
        "--output-len", "--random-output-len", "--sharegpt-output-len", "--custom-output-len",
        dest="output_len", default=0, help="most tokens to generate [random: 128, custom: the line's, or 256]", **count,
    )  # fmt: skip
    group.add_argument("--random-range-ratio", type=float, default=0.0, metavar="X", help="spread of lengths, ± X [0]")
    for name, default, text in (
        ("prefix-len", 256, "tokens that several prompts begin with"),
        ("suffix-len", 256, "tokens after them, of each prompt alone"),
        ("num-prefixes", 10, "different beginnings"),
        ("output-len", 128, "most tokens to generate"),
    ):
        group.add_argument(f"--prefix-repetition-{name}", default=default, help=f"{text} [{default}]", **count)
    group.add_argument("--disable-shuffle", action="store_true", help="prompts in the order of their file or prefix")
    group.add_argument("--no-oversample", action="store_true", help="no prompt of a file is asked twice")
    group.add_argument("--random-prefix-len", default=0, help="tokens all prompts begin with [0]", **count)


def _add_report_flags(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--percentile-metrics", default="ttft,tpot,itl,e2el", help=f"of {', '.join(METRICS)} [all]")
    group.add_argument("--metric-percentiles", default="90,99", metavar="P,P,…", help="[90,99]")
    group.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="limits of a good request: ttft:200")
    group.add_argument("--save-result", action="store_true", help="write the numbers as JSON")
    group.add_argument("--append-result", action="store_true", help="as a line at the end of that file")
    group.add_argument("--save-detailed", action="store_true", help="with every request's times")
    group.add_argument("--result-dir", default=".", metavar="DIR", help="[.]")
    group.add_argument("--result-filename", metavar="FILE", help="[made of the backend, rate, model and time]")
    group.add_argument("--output-json", metavar="FILE", help="write the numbers there; - = stdout, no table")
    group.add_argument("--metadata", nargs="+", default=[], metavar="KEY=VALUE", help="kept with the numbers")
    group.add_argument("--label", default="", help="kept with the numbers")
    group.add_argument("--plot", default="", metavar="FILE.png", help="draw the latencies (needs matplotlib)")
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")


def _dataset(name: str) -> str:
    if name in DATASETS:
        return name
    raise argparse.ArgumentTypeError(OTHER_DATASETS.get(name, f"{name!r} is not one of {', '.join(DATASETS)}"))
