"""`cadence complete`: a server goes on with a text."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from cadence.config.cli import Parser
from cadence.entrypoints.cli.shared.sampling import add_sampling_flags, sampling_options
from cadence.entrypoints.cli.shared.terminal import read_prompt, write

MAX_TOKENS = 256
URL = "http://127.0.0.1:8000"


def build_parser() -> Parser:
    parser = Parser("cadence complete", "Let a server complete a prompt.", positional="[PROMPT]")
    parser.add_argument("prompt", nargs="?", help="the text to complete; - or nothing: read it from stdin")
    parser.add_argument("-q", "--quick", metavar="TEXT", help="the prompt, as a flag")
    parser.add_argument("--stats", action="store_true", help="print tokens/s on stderr at the end")
    parser.add_argument("--seed", type=int, default=argparse.SUPPRESS, metavar="N", help="of the sampling")
    group = parser.add_argument_group("server")
    group.add_argument("--url", "--base-url", default=URL, metavar="URL", help=f"[{URL}]")
    group.add_argument("--model-name", default="", metavar="NAME", help="its model [the first it lists]")
    group.add_argument("--api-key", default="", metavar="KEY", help="sent to it as a bearer token")
    add_sampling_flags(parser, MAX_TOKENS)
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    fields = {"max_tokens": MAX_TOKENS, **sampling_options(flags)}
    if hasattr(flags, "seed"):
        fields["seed"] = flags.seed
    fields["prompt"] = read_prompt(flags.prompt if flags.quick is None else flags.quick, "complete")

    from cadence.entrypoints.cli.remote.answers import Server

    answer = Server.find(flags.url, flags.api_key, flags.model_name).stream("/v1/completions", fields, write)
    write("\n")
    if flags.stats:
        print(answer.summary(), file=sys.stderr)
    return 130 if answer.finish_reason == "abort" else 0
