"""Thoughts and answers, told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence.core.errors import ConfigError
from cadence.entrypoints.server.chat.reasoning import FORMATS, Thought, reasoning_parser, think_format
from cadence.entrypoints.server.chat.tools.base import Text
from tests.helpers.wide import examples


def run(name: str, parts: list[str], opened: bool = False) -> tuple[str, str]:
    return read(name, "<think>\n" if opened else "", parts)


@pytest.mark.parametrize(
    ("name", "text", "thoughts", "answer"),
    [
        ("deepseek_r1", "<think>\nI see.\n\nSo.\n</think>\n\nYes.", "I see.\n\nSo.", "Yes."),
        ("deepseek_r1", "I see.</think>Yes.", "I see.", "Yes."),
        ("deepseek_r1", "cut off whi", "cut off whi", ""),
        ("deepseek_r1", "a < b </thin", "a < b </thin", ""),
        ("deepseek_r1", "<think></think>Yes.", "", "Yes."),
        ("qwen3", "<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("qwen3", "<think>Hm</think>Yes <think>no</think>", "Hm", "Yes <think>no</think>"),
        ("qwen3", "Just yes.", "", "Just yes."),
        ("qwen3", " <thinking> is fun", "", " <thinking> is fun"),
        ("qwen3", "<thi", "", "<thi"),
        ("", "<think>a</think>b", "", "<think>a</think>b"),
    ],
)
def test_think_tags(name: str, text: str, thoughts: str, answer: str) -> None:
    assert run(name, [text]) == run(name, list(text)) == (thoughts, answer)


def test_the_tag_may_stand_in_the_prompt() -> None:
    assert run("qwen3", ["Hm\n</think>", "\nYes"], opened=True) == ("Hm", "Yes")


def test_thoughts_are_not_held_back() -> None:
    assert reasoning_parser(think_format("deepseek_r1")).push("I see a") == [Thought("I see a")]


# What models write, by format: (prompt's end, text, thoughts, answer)
HARMONY = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Yes."
TRANSCRIPTS = [
    ("deepseek_v3", "<｜Assistant｜><think>", "Hm.</think>Yes.", "Hm.", "Yes."),
    ("deepseek_v3", "<｜Assistant｜></think>", "Yes.", "", "Yes."),
    ("holo2", "", "<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("deepseek_v4", "<think>", "Hm.</think>One. <think>Well.</think>Two.", "Hm.Well.", "One. Two."),
    ("deepseek_r1", "<think>\n\n</think>", "Yes.", "", "Yes."),
    ("mimo", "<think>\n", "Hm.</think>\n\nYes.", "Hm.", "Yes."),
    ("glm45", "", "\n<think>Hm.</think>\nYes.", "Hm.", "Yes."),
    ("glm45", "<|assistant|>\n<think></think>", "\nYes.", "", "\nYes."),
    ("glm47", "<|assistant|><think>", "Hm.</think>Yes.", "Hm.", "Yes."),
    ("ling3", "<think>", "Hm.</think>Yes.", "Hm.", "Yes."),
    ("poolside_v1", "<think>", "Hm.</think>Yes.", "Hm.", "Yes."),
    ("hy_v3", "", "<think>Hm.</think>Yes.", "Hm.", "Yes."),
    ("kimi_k2", "", "Hm.</think>Yes.", "Hm.", "Yes."),
    ("minimax_m2", "<think>\n", "Hm.\n</think>\n\nYes.", "Hm.", "Yes."),
    ("minimax_m2_append_think", "<think>\n", "Hm.</think>Yes.", "", "<think>Hm.</think>Yes."),
    ("nemotron_v3", "", "Hm.</think>Yes.", "Hm.", "Yes."),
    ("olmo3", "<think>", "Hm.</think>Yes.", "Hm.", "Yes."),
    ("step3", "<think>\n", "Hm.\n</think>\nYes.", "Hm.", "Yes."),
    ("step3p5", "", "</think>Yes.", "", "Yes."),
    ("ernie45", "<think>\n", "Hm.\n</think>\n\n<response>\nYes.\n</response>\n", "Hm.", "Yes."),
    ("ernie45", "<think>\n", "Hm.\n</think>\nYes.", "Hm.", "Yes."),
    ("hunyuan_a13b", "", "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer>", "Hm.", "Yes."),
    ("hunyuan_a13b", "", "<answer>\nYes.\n</answer>", "", "Yes."),
    ("seed_oss", "", "<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes."),
    ("minimax_m3", "", "<mm:think>Hm.</mm:think>Yes.", "Hm.", "Yes."),
    ("mistral", "", "[THINK]Hm.[/THINK]Yes.", "Hm.", "Yes."),
    ("granite", "", "Here is my thought process: Hm. Here is my response: Yes.", "Hm.", "Yes."),
    ("granite", "", "Here's my thought process: Hm. Here's my response: Yes.", "Hm.", "Yes."),
    ("granite", "", "Here is the answer.", "", "Here is the answer."),
    ("cohere_command3", "", "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>", "Hm.",
     "Yes."),
    ("cohere_command4", "",
     "<|START_THINKING|>A <co>b</co: 0:[1]>.<|END_THINKING|>\n<|START_TEXT|>c <co>d</co: 0:[1,2],1:[3]> e"
     "<|END_TEXT|>", "A b.", "c d e"),
    ("gemma4", "", "<|channel>thought\nHm.<channel|>Yes.", "Hm.", "Yes."),
    ("gemma4", "", "<|channel>thousand<channel|>Yes.", "thousand", "Yes."),
    ("gemma4", "", "Before\n<|channel>thought\nHm.<channel|>\nAfter", "Hm.", "Before\nAfter"),
    ("openai_gptoss", "<|start|>assistant", HARMONY, "Hm.", "Yes."),
    ("openai_gptoss", "<|start|>assistant", "<|channel|>final<|message|>Yes.<|return|>", "", "Yes."),
    ("openai_gptoss", "<|start|>assistant", "<|channel|>analysis<|message|>cut off", "cut off", ""),
    ("openai_gptoss", "<|start|>assistant", "<|channel|>commentary<|message|>I look.<|end|>" + HARMONY, "Hm.",
     "I look.\nYes."),
    ("openai_gptoss", "<|start|>assistant", HARMONY.replace("<|end|>", ""), "Hm.", "Yes."),
    ("openai_gptoss", "", "<|channel|>final <|constrain|>json<|message|>{}", "", "{}"),
    ("inkling", "",
     "<|message_model|><|content_thinking|>Hm.<|end_message|><|message_model|><|content_text|>Yes.<|end_message|>",
     "Hm.", "Yes."),
    ("kimi_k3", "", "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.<|close|>response<|sep|>",
     "Hm.", "Yes."),
    ("kimi_k3", "<|open|>think<|sep|>", "Hm.<|close|>think<|sep|><|open|>response<|sep|>Yes.", "Hm.", "Yes."),
    ("muse_glimmer", "<|start|>assistant",
     " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.<|eot|>", "Hm.", "Yes."),
    ("qwen3", "", "</think>\n\nYes.", "", "Yes."),  # a closing tag that opens the answer means nothing
    ("identity", "<think>", "Hm.</think>Yes.", "", "Hm.</think>Yes."),
]  # fmt: skip


def read(name: str, prompt: str, parts: list[str]) -> tuple[str, str]:
    parser = reasoning_parser(think_format(name) if name else None, prompt)
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.finish()
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    return thoughts, "".join(piece.text for piece in pieces if not isinstance(piece, Thought))


@pytest.mark.parametrize(("name", "prompt", "text", "thoughts", "answer"), TRANSCRIPTS)
def test_transcripts_cut_anywhere(name: str, prompt: str, text: str, thoughts: str, answer: str) -> None:
    assert read(name, prompt, [text]) == read(name, prompt, list(text)) == (thoughts, answer)
    for at in range(1, len(text)):
        assert read(name, prompt, [text[:at], text[at:]]) == (thoughts, answer), at


def test_every_format_has_a_transcript() -> None:
    tested = {think_format(name) for name, *_ in TRANSCRIPTS}
    assert {"deepseek_r1", "qwen3", "openai_gptoss", "identity"} <= set(FORMATS)
    assert set(map(think_format, FORMATS)) == tested
    assert all(format.models for format in tested)


def test_a_tool_call_ends_the_thoughts() -> None:
    parser = reasoning_parser(think_format("qwen3"), "<think>\n")
    assert parser.push("Hm. I look </thi") == [Thought("Hm. I look")]
    assert parser.end() == [Thought(" </thi")]
    assert parser.push("\n</think>\nYes </think>.") == [Text("Yes </think>.")]  # the closing tag that came too late
    assert parser.end() == [] == parser.finish()


MARKS = sorted({mark for name in FORMATS for mark in think_format(name).marks})
FRAGMENTS = st.sampled_from([*MARKS, "<", "</", "think>", " ", "\n", "word", "é", "<thi", "Here", "to=", "<|"])
TEXTS = st.lists(FRAGMENTS, max_size=10).map("".join)


@examples(80, 600)
@given(st.sampled_from(sorted(FORMATS)), TEXTS, st.booleans(), st.data())
def test_any_cut_means_the_same(name: str, text: str, opened: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    prompt = think_format(name).open[0] if opened and name != "identity" else ""
    assert read(name, prompt, parts) == read(name, prompt, [text])


def test_names() -> None:
    with pytest.raises(ConfigError, match="reasoning_parser must be one of"):
        think_format("nope")
