"""Flags for the fields of SamplingParams."""

from __future__ import annotations

import argparse
import dataclasses
import typing
from typing import Any

from cadence.config.cli import Flag, add_flag
from cadence.config.command_line import values
from cadence.core.sampling_params import SamplingParams

# Fields of SamplingParams that make sense for one streamed text. The seed is the engine's flag of that name.
HELP = {
    "max_tokens": "most tokens to generate",
    "min_tokens": "no end before this many tokens",
    "temperature": "0 = always the most likely token",
    "top_p": "sample from the likeliest tokens that together have this probability",
    "top_k": "sample from this many of the likeliest tokens; 0 = all",
    "min_p": "sample from tokens at least this likely, relative to the likeliest",
    "presence_penalty": "against tokens already generated",
    "frequency_penalty": "against tokens already generated, growing with their count",
    "repetition_penalty": "against tokens of prompt and output; 1 = none",
    "stop": "end before this text (may be given several times)",
    "stop_token_ids": "end at this token (may be given several times)",
    "bad_words": "never generate this text (may be given several times)",
    "allowed_token_ids": "generate only this token (may be given several times)",
    "logit_bias": "added to logits, by token id",
    "ignore_eos": "go on after the end-of-text token",
    "skip_special_tokens": "leave special tokens out of the text",
    "include_stop_str_in_output": "keep the text that ended the answer",
}


def add_sampling_flags(parser: argparse.ArgumentParser, max_tokens: int) -> None:
    """`max_tokens` is this command's default."""
    group = parser.add_argument_group("sampling")
    for flag in _flags():
        add_flag(group, dataclasses.replace(flag, default=max_tokens) if flag.name == "max_tokens" else flag)


def sampling_options(namespace: argparse.Namespace) -> dict[str, Any]:
    """The sampling options given on the command line, checked; the rest is up to the model's defaults."""
    hints = sampling_types()
    given = {name: values.coerce(name, hints[name], value) for name, value in vars(namespace).items() if name in hints}
    SamplingParams(**given)
    return given


def sampling_types() -> dict[str, Any]:
    return {flag.name: flag.hint for flag in _flags()}


def _flags() -> list[Flag]:
    hints = typing.get_type_hints(SamplingParams)
    defaults = {field.name: field.default for field in dataclasses.fields(SamplingParams)}
    return [Flag(name, hints[name], text, default=defaults[name]) for name, text in HELP.items()]
