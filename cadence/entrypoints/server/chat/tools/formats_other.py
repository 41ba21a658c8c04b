"""Formats that read as Python, and those with an argument language of their own."""

from __future__ import annotations

import re

from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.pythonic import PythonSyntax
from cadence.entrypoints.server.chat.tools.syntax import Head, TextSyntax
from cadence.entrypoints.server.chat.tools.written_values import MARK, functiongemma, gemma4, minimax_m3

LIST = PythonSyntax()
CALL = Head("call:", "{", re.compile(r"(?P<name>[\w.:-]+)"))
INVOKE = Head(f'{MARK}<invoke name="', '">', re.compile(r"(?P<name>[^\"<>]+)"))

FORMATS = (
    ToolFormat(("pythonic",), LIST, ("<|python_tag|>",), bare=("[",), ends_thinking=False,
               models="Llama 3.2 (1B, 3B), ToolACE, Gemma 3 with the pythonic template"),
    ToolFormat(("llama4_pythonic",), LIST, ("<|python_start|>",), ("<|python_end|>",), ("[",), ends_thinking=False,
               models="Llama 4"),
    ToolFormat(("lfm2",), LIST, ("<|tool_call_start|>",), ("<|tool_call_end|>",), models="LFM 2 and 2.5"),
    ToolFormat(("olmo3",), PythonSyntax("</function_calls>"), ("<function_calls>",), ("</function_calls>",),
               models="Olmo 3"),
    ToolFormat(("gemma4",), TextSyntax(CALL, "}<tool_call|>", gemma4, '<|"|>'), ("<|tool_call>",), models="Gemma 4"),
    ToolFormat(("functiongemma",), TextSyntax(CALL, "}<end_function_call>", functiongemma, "<escape>"),
               ("<start_function_call>",), models="FunctionGemma"),
    ToolFormat(("minimax_m3",), TextSyntax(INVOKE, f"{MARK}</invoke>", minimax_m3), (f"{MARK}<tool_call>",),
               (f"{MARK}</tool_call>",), models="MiniMax M3"),
)  # fmt: skip
