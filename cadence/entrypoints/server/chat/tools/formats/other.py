"""Formats that read as Python, and those with an argument language of their own."""

from __future__ import annotations

import re

from cadence.entrypoints.server.chat.tools.argument_forms import KEY, TagArguments
from cadence.entrypoints.server.chat.tools.call_form import NAME, CallForm
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.literal_forms import GemmaArguments, PythonArguments
from cadence.entrypoints.server.chat.tools.pythonic import PythonSyntax
from cadence.entrypoints.server.chat.tools.syntax import Head, TextSyntax
from cadence.entrypoints.server.chat.tools.text_values import TextValues
from cadence.entrypoints.server.chat.tools.written_values import MARK, functiongemma, gemma4, minimax_m3

LIST = PythonSyntax()
CALL = Head("call:", "{", re.compile(r"(?P<name>[\w.:-]+)"))
INVOKE = Head(f'{MARK}<invoke name="', '">', re.compile(r"(?P<name>[^\"<>]+)"))
ESCAPED = TagArguments(f"{KEY}:<escape>", TextValues("<escape>"), between=",", keys=re.compile(r"[^:,{}\[\]\s<]+"))
ELEMENTS = TagArguments(f"{MARK}<{KEY}>", TextValues(MARK), after=f"</{KEY}>", keys=re.compile(r"[^<>/\s]+"))
OLMO_END = "</function_calls>"
OLMO_FORM = CallForm(f"{NAME}(", ")", "<function_calls>\n", f"\n{OLMO_END}", written=PythonArguments((OLMO_END,)))


def python_form(open: str, close: str) -> CallForm:
    return CallForm(f"{NAME}(", ")", open, close, ", ", PythonArguments())


FORMATS = (
    ToolFormat(("pythonic",), LIST, ("<|python_tag|>",), bare=("[",), ends_thinking=False,
               form=python_form("[", "]"),
               models="Llama 3.2 (1B, 3B), ToolACE, Gemma 3 with the pythonic template"),
    ToolFormat(("llama4_pythonic",), LIST, ("<|python_start|>",), ("<|python_end|>",), ("[",), ends_thinking=False,
               form=python_form("<|python_start|>[", "]<|python_end|>"),
               models="Llama 4"),
    ToolFormat(("lfm2",), LIST, ("<|tool_call_start|>",), ("<|tool_call_end|>",),
               form=python_form("<|tool_call_start|>[", "]<|tool_call_end|>"), models="LFM 2 and 2.5"),
    ToolFormat(("olmo3",), PythonSyntax("</function_calls>"), ("<function_calls>",), ("</function_calls>",),
               form=OLMO_FORM,
               models="Olmo 3"),
    ToolFormat(("gemma4",), TextSyntax(CALL, "}<tool_call|>", gemma4, '<|"|>'), ("<|tool_call>",),
               form=CallForm(f"<|tool_call>call:{NAME}{{", "}<tool_call|>", between="",
                             written=GemmaArguments('<|"|>')),
               models="Gemma 4"),
    ToolFormat(("functiongemma",), TextSyntax(CALL, "}<end_function_call>", functiongemma, "<escape>"),
               ("<start_function_call>",),
               form=CallForm(f"<start_function_call>call:{NAME}{{", "}<end_function_call>", between="",
                             written=ESCAPED), models="FunctionGemma"),
    ToolFormat(("minimax_m3",), TextSyntax(INVOKE, f"{MARK}</invoke>", minimax_m3), (f"{MARK}<tool_call>",),
               (f"{MARK}</tool_call>",),
               form=CallForm(f'{MARK}<invoke name="{NAME}">', f"{MARK}</invoke>", f"{MARK}<tool_call>\n",
                             f"\n{MARK}</tool_call>", written=ELEMENTS), models="MiniMax M3"),
)  # fmt: skip
