"""`cadence generate`: one prompt in, text out as it is made."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from cadence.config.cli import Parser, add_engine_flags, checked_options
from cadence.entrypoints.cli.shared.open_llm import open_llm
from cadence.entrypoints.cli.shared.sampling import add_sampling_flags, sampling_options
from cadence.entrypoints.cli.shared.streaming import stream_answer, streaming_params
from cadence.entrypoints.cli.shared.terminal import read_prompt, write

MAX_TOKENS = 256


def build_parser() -> Parser:
    about = "Complete a prompt. The text goes to stdout, the speed to stderr."
    parser = Parser("cadence generate", about, positional="[PROMPT]")
    parser.add_argument("prompt", nargs="?", help="the text to complete; - or nothing: read it from stdin")
    parser.add_argument("--chat", action="store_true", help="ask it as a question, through the model's chat template")
    parser.add_argument(
        "--stats", action=argparse.BooleanOptionalAction, default=True, help="print tokens/s on stderr at the end"
    )
    add_sampling_flags(parser, MAX_TOKENS)
    add_engine_flags(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    given = sampling_options(flags)
    options = checked_options(flags, use_tqdm_on_load=sys.stderr.isatty())
    text = read_prompt(flags.prompt, "generate")

    llm = open_llm(options)
    prompt: Any = text
    if flags.chat:
        from cadence.text.chat_template import ChatRequest

        prompt = llm.chat_prompt(ChatRequest([{"role": "user", "content": text}]))
    answer = stream_answer(llm.llm_engine, prompt, streaming_params(llm, given, MAX_TOKENS), write)
    write("\n")
    if flags.stats:
        print(answer.summary(), file=sys.stderr)
    return 130 if answer.finish_reason == "abort" else 0
