"""How models write their thoughts: a row for each format."""

from __future__ import annotations

import re
from dataclasses import dataclass

ANY_TEXT = re.compile(r"[^\n]*")


@dataclass(frozen=True, slots=True)
class SpanMarker:
    """A marker with a text of its own, which is not for the reader."""

    open: str
    close: str
    inner: re.Pattern[str] = ANY_TEXT
    inline: bool = False  # it stands inside a text, whose white space stays


@dataclass(frozen=True, slots=True)
class ThinkFormat:
    names: tuple[str, ...]  # what users call it; the first is the one the log says
    open: tuple[str, ...]
    close: tuple[str, ...]
    always: bool = False  # thoughts begin with the first token, tag or not, unless the prompt has closed them
    again: bool = False  # thoughts may come again after the answer's text
    implied: tuple[str, ...] = ()  # what follows thoughts that were not closed
    drop: tuple[str, ...] = ()  # markers of the answer, which are not for the reader
    inline: tuple[str, ...] = ()  # such that stand inside a text, also a thought, whose white space stays
    spans: tuple[SpanMarker, ...] = ()
    turn: str = ""  # begins each message of an answer, also the one after thoughts
    lead: str = ""  # begins the message that is for the reader
    tail: str = ""  # may end it
    put_back: str = ""  # the thoughts stay in the answer, after this tag
    models: str = ""  # for the documents

    @property
    def marks(self) -> tuple[str, ...]:
        spans = [mark for span in self.spans for mark in (span.open, span.close)]
        return (*self.open, *self.close, *self.implied, *self.drop, *self.inline, *spans)

    def begun(self, prompt: str) -> bool:
        """Whether thoughts have begun at the end of the prompt."""
        end = prompt.rstrip()
        if end.endswith(tuple(tag.rstrip() for tag in self.open)):
            return True
        return self.always and not end.endswith(tuple(tag.rstrip() for tag in self.close))


THINK, THINK_END = ("<think>",), ("</think>",)
K3_THINK, K3_ANSWER = "think<|sep|>", "response<|sep|>"

FORMATS = (
    ThinkFormat(("deepseek_r1",), THINK, THINK_END, always=True, models="DeepSeek R1 and its distillations, QwQ"),
    ThinkFormat(("deepseek_v3", "holo2", "poolside_v1"), THINK, THINK_END,
                models="DeepSeek V3.1 and V3.2, Holo 2, Laguna"),
    ThinkFormat(("deepseek_v4",), THINK, THINK_END, again=True, models="DeepSeek V4"),
    ThinkFormat(("qwen3", "mimo"), THINK, THINK_END, models="Qwen 3, Qwen 3.5, MiMo, SmolLM3"),
    ThinkFormat(("glm45", "glm47", "ling3"), THINK, THINK_END, models="GLM 4.5 to 5, Ling 3"),
    ThinkFormat(("hy_v3",), (*THINK, "<think:opensource>"), (*THINK_END, "</think:opensource>"), models="Hunyuan 3"),
    ThinkFormat(("kimi_k2",), THINK, THINK_END, always=True, models="Kimi K2 Thinking, Kimi K2.5"),
    ThinkFormat(("minimax_m2",), THINK, THINK_END, always=True, models="MiniMax M2"),
    ThinkFormat(("minimax_m2_append_think",), THINK, THINK_END, always=True, put_back="<think>",
                models="MiniMax M2, reasoning left in the answer"),
    ThinkFormat(("nemotron_v3",), THINK, THINK_END, always=True, models="Nemotron 3"),
    ThinkFormat(("olmo3",), THINK, THINK_END, always=True, models="Olmo 3 Think"),
    ThinkFormat(("step3", "step3p5"), THINK, THINK_END, always=True, models="Step 3, Step 3.5"),
    ThinkFormat(("ernie45",), THINK, THINK_END, always=True, drop=("<response>", "</response>"),
                models="ERNIE 4.5 and X1"),
    ThinkFormat(("hunyuan_a13b",), THINK, THINK_END, drop=("<answer>", "</answer>"), models="Hunyuan A13B"),
    ThinkFormat(("seed_oss",), ("<seed:think>",), ("</seed:think>",), models="Seed OSS"),
    ThinkFormat(("minimax_m3",), ("<mm:think>",), ("</mm:think>",), models="MiniMax M3"),
    ThinkFormat(("mistral",), ("[THINK]",), ("[/THINK]",), models="Magistral, Ministral 3"),
    ThinkFormat(("granite",), ("Here is my thought process:", "Here's my thought process:", "<think>"),
                ("Here is my response:", "Here's my response:", "</think>"), drop=("<response>", "</response>"),
                models="Granite 3.2 and 3.3"),
    ThinkFormat(("cohere_command3", "cohere_command4", "cohere", "command"), ("<|START_THINKING|>",),
                ("<|END_THINKING|>",), drop=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>",
                 "<|END_TEXT|>"),
                inline=("<co>",), spans=(SpanMarker("</co:", ">", inline=True),), models="Command A Reasoning"),
    ThinkFormat(("gemma4",), ("<|channel>thought\n", "<|channel>"), ("<channel|>",), again=True, models="Gemma 4"),
    ThinkFormat(("openai_gptoss", "gpt_oss"), ("<|channel|>analysis<|message|>",), ("<|end|>",), again=True,
                implied=("<|start|>", "<|channel|>"), drop=("<|start|>assistant", "<|end|>", "<|return|>", "<|call|>"),
                spans=(SpanMarker("<|channel|>", "<|message|>"),), turn="<|start|>assistant",
                lead="<|channel|>final<|message|>", models="gpt-oss"),
    ThinkFormat(("inkling",), ("<|message_model|><|content_thinking|>", "<|content_thinking|>"), ("<|end_message|>",),
                again=True, implied=("<|message_model|>", "<|content_text|>"),
                drop=("<|message_model|>", "<|content_text|>", "<|end_message|>", "<|content_model_end_sampling|>"),
                turn="<|message_model|>", lead="<|content_text|>", tail="<|end_message|>", models="Inkling"),
    ThinkFormat(("kimi_k3",), (f"<|open|>{K3_THINK}",), (f"<|close|>{K3_THINK}",), always=True,
                implied=(f"<|open|>{K3_ANSWER}", "<|open|>tools<|sep|>"),
                drop=(f"<|open|>{K3_ANSWER}", f"<|close|>{K3_ANSWER}", "<|close|>message<|sep|>"),
                lead=f"<|open|>{K3_ANSWER}", tail=f"<|close|>{K3_ANSWER}", models="Kimi K3"),
    ThinkFormat(("muse_glimmer",), ("to=self<|message|>",), ("<|eom|>", "<|eot|>"), again=True, implied=("<|start|>",),
                drop=("<|start|>assistant", "<|eom|>", "<|eot|>", "<|message|>"),
                spans=(SpanMarker("to=", "<|message|>", re.compile(r"[\w.-]+")),), turn="<|start|>assistant",
                lead=" to=user<|message|>", models="Muse Glimmer"),
    ThinkFormat(("identity",), (), (), models="any: nothing is separated"),
)  # fmt: skip
