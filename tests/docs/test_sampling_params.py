"""docs/using/sampling_params.md and from_vllm.md name everything there is, and its defaults."""

from __future__ import annotations

import dataclasses
import re

import pytest

from cadence.core.sampling_params import _REFUSED, BeamSearchParams, SamplingParams
from cadence.entrypoints.cli import complete, generate
from cadence.entrypoints.cli.chat import command as chat
from cadence.entrypoints.cli.remote import answers
from cadence.vllm.names import MODULES
from tests.arch.source import ROOT

PAGE = (ROOT / "docs/using/sampling_params.md").read_text(encoding="utf-8")
HIDDEN = {  # refused, or not for users
    SamplingParams: {*_REFUSED, "bad_words_token_ids", "thinking_token_ids", "speech_rules", "skip_clone", "grammar"},
    BeamSearchParams: set(),
}


def table(heading: str) -> dict[str, str]:
    """Fields and defaults below a heading."""
    section = re.split(r"^#+ ", PAGE.split(f"# {heading}\n", 1)[1], flags=re.MULTILINE)[0]
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", section, flags=re.MULTILINE)
    return {name: default.strip("`") for name, default in rows}


@pytest.mark.parametrize("kind", HIDDEN)
def test_every_field_has_its_row_and_default(kind: type) -> None:
    fields = [field for field in dataclasses.fields(kind) if field.name not in HIDDEN[kind]]
    shown = table(kind.__name__)
    assert sorted(shown) == sorted(field.name for field in fields)
    for field in fields:
        default = "–" if field.default is dataclasses.MISSING else str(field.default)
        assert shown[field.name] == default, field.name


def test_default_lengths_are_those_of_the_code() -> None:
    lengths = PAGE.split("## Default lengths\n", 1)[1].split("\n## ")[0]
    assert f"`LLMEngine`, `AsyncLLM` | {SamplingParams().max_tokens};" in lengths
    assert generate.MAX_TOKENS == complete.MAX_TOKENS and chat.MAX_TOKENS == answers.MOST_PIECES
    assert f"| `cadence generate`, `cadence complete` | {generate.MAX_TOKENS} |" in lengths
    assert f"| `cadence chat` | {chat.MAX_TOKENS:,} an answer " in lengths


def test_every_module_is_listed() -> None:
    page = (ROOT / "docs/using/from_vllm.md").read_text(encoding="utf-8")
    families = {"." + name.split(".")[0] for name in MODULES if name} - {
        ".version",
        ".model_executor",
        ".v1",
        ".engine",
    }
    assert sorted(family for family in families if f"`{family}" not in page) == []
