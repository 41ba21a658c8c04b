"""Formats whose arguments are JSON: calls as objects, one by one or in a list, or with a name before the object."""

from __future__ import annotations

import re
from dataclasses import replace

from cadence.entrypoints.server.chat.tools.call_form import NAME, NUMBER, CallForm, list_form, object_form
from cadence.entrypoints.server.chat.tools.call_object import Keys
from cadence.entrypoints.server.chat.tools.format import SPACE, ToolFormat
from cadence.entrypoints.server.chat.tools.syntax import NamedSyntax, ObjectSyntax, OneOf

OBJECT = ObjectSyntax()
DEEPSEEK_OPEN, DEEPSEEK_CLOSE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
DEEPSEEK_CALL, DEEPSEEK_SEP, DEEPSEEK_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
DEEPSEEK_NAME = r"\s*+(?P<name>[^\s<{](?:[^\n<{]*[^\s<{])?)\s*"
HARMONY_CHANNEL = "(?:commentary|comment|analysis|final)"  # whom a message goes to makes it a call, not its channel
HARMONY_HEADER = re.compile(
    rf"(?:<\|channel\|>)?{HARMONY_CHANNEL}?\s*to=(?:functions\.)?(?P<name>[\w.-]+)"
    rf"(?:<\|channel\|>{HARMONY_CHANNEL})?\s*+(?:<\|constrain\|>)?\s*+(?:json)?\s*+"
)
HARMONY_CALL = "<|channel|>commentary to=functions."
TOOL_CALL = object_form("<tool_call>", "</tool_call>")
TOOL_CALLS = list_form("<tool_calls>", "</tool_calls>")
COHERE = ObjectSyntax(Keys(name=("tool_name", "name"), id=("tool_call_id",)))

OBJECTS = (
    ToolFormat(("hermes", "qwen", "qwen25"), OBJECT, ("<tool_call>",), ("</tool_call>",), form=TOOL_CALL,
               models="Hermes 2 Pro and 3, Qwen 2.5, Qwen 3, QwQ, SmolLM3"),
    ToolFormat(("granite4",), OBJECT, ("<tool_call>",), ("</tool_call>",), form=TOOL_CALL, models="Granite 4"),
    ToolFormat(("ernie45",), OBJECT, ("<tool_call>",), ("</tool_call>",), form=TOOL_CALL, models="ERNIE 4.5 and X1"),
    ToolFormat(("longcat",), OBJECT, ("<longcat_tool_call>",), ("</longcat_tool_call>",),
               form=object_form("<longcat_tool_call>", "</longcat_tool_call>"), models="LongCat Flash"),
    ToolFormat(("granite-20b-fc",), OBJECT, ("<function_call>",), form=object_form("<function_call>", ""),
               models="Granite 20B function calling"),
    ToolFormat(("internlm",), OBJECT, ("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"),
               ("<|action_end|>",), form=object_form("<|action_start|><|plugin|>", "<|action_end|>", "parameters"),
               models="InternLM 2 and 2.5"),
    ToolFormat(("gigachat3",), OBJECT,
               ("<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n", "<|function_call|>"),
               ("</s>", "<|message_sep|>"), models="GigaChat 3",
               form=CallForm(f'function call<|role_sep|>\n{{"name": "{NAME}", "arguments": ', "}", once=True)),
    ToolFormat(("inkling",), ObjectSyntax(Keys(arguments=("args", "arguments", "parameters"))),
               ("<|message_model|><|content_invoke_tool_json|>", "<|content_invoke_tool_json|>"), ("<|end_message|>",),
               form=CallForm(f'<|content_invoke_tool_json|>{{"name": "{NAME}", "args": ', "}<|end_message|>",
                             between="<|message_model|>", is_message=True),
               models="Inkling"),
    ToolFormat(("llama3_json", "llama4_json"), ObjectSyntax(Keys(arguments_required=True, strict=True)),
               ("<|python_tag|>",), bare=("{",), between=SPACE + ";", ends_thinking=False,
               form=CallForm(f'{{"name": "{NAME}", "parameters": ', "}", between="; "),
               models="Llama 3.1, 3.2, 3.3 and 4 with their JSON templates"),
)  # fmt: skip

LISTS = (
    ToolFormat(("jamba",), OBJECT, ("<tool_calls>",), ("</tool_calls>",), listed="must", form=TOOL_CALLS,
               models="Jamba 1.5 and 1.6"),
    ToolFormat(("hunyuan_a13b",), OBJECT, ("<tool_calls>",), ("</tool_calls>",), listed="must", form=TOOL_CALLS,
               models="Hunyuan A13B"),
    ToolFormat(("minimax",), OBJECT, ("<tool_calls>",), ("</tool_calls>",), listed="may", form=TOOL_CALLS,
               models="MiniMax M1"),
    ToolFormat(("granite",), OBJECT, ("<|tool_call|>", "<tool_call>"), bare=("[",), listed="must", ends_thinking=False,
               form=list_form("<|tool_call|>", ""), models="Granite 3"),
    ToolFormat(("phi4_mini_json",), OBJECT, ("functools",), listed="must", form=list_form("functools", ""),
               models="Phi-4-mini, FireFunction v2"),
    ToolFormat(("nemotron_json", "llama_nemotron_json"), OBJECT, ("<TOOLCALL>",), ("</TOOLCALL>",), listed="must",
               form=list_form("<TOOLCALL>", "</TOOLCALL>"), models="Nemotron Nano v2, Llama Nemotron"),
    ToolFormat(("xlam",), OBJECT, ("```json", "```", "[TOOL_CALLS]", "<tool_call>"), ("```", "</tool_call>"), ("[",),
               listed="must", ends_thinking=False, form=list_form("", ""), models="xLAM (Llama and Qwen)"),
    ToolFormat(("cohere_command3", "cohere_command4", "cohere", "command"), COHERE, ("<|START_ACTION|>",),
               ("<|END_ACTION|>",), listed="may",
               form=CallForm(f'{{"tool_call_id": "{NUMBER}", "tool_name": "{NAME}", "parameters": ', "}",
                             "<|START_ACTION|>[", "]<|END_ACTION|>", between=", "),
               models="Command R7B, Command A"),
    ToolFormat(("apertus",), ObjectSyntax(Keys(name_is_key=True)), ("<|tools_prefix|>",), ("<|tools_suffix|>",),
               listed="must", form=CallForm(f'{{"{NAME}": ', "}", "<|tools_prefix|>[", "]<|tools_suffix|>", ", "),
               models="Apertus"),
)  # fmt: skip

NAMED = (
    ToolFormat(
        ("mistral",),
        OneOf((ObjectSyntax(Keys(id=("id",))), NamedSyntax("", "{", re.compile(
            r"(?P<name>[\w.:/-]+)\s*(?:\[CALL_ID\](?P<id>[\w-]*)\s*)?(?:\[ARGS\]\s*)?"
        ), inner=("[CALL_ID]", "[ARGS]")))),
        ("[TOOL_CALLS]",), listed="may", random_ids="mistral",
        form=replace(list_form("[TOOL_CALLS]", ""), other=CallForm(f"[TOOL_CALLS]{NAME}[ARGS]", "", between="")),
        models="Mistral, Ministral, Magistral, Devstral",
    ),
    ToolFormat(
        ("deepseek_v3",),
        NamedSyntax(DEEPSEEK_CALL, "\n", re.compile(rf"\w+{DEEPSEEK_SEP}{DEEPSEEK_NAME}"), ("```json",)),
        (DEEPSEEK_OPEN,), (DEEPSEEK_CLOSE,), (DEEPSEEK_CALL,), noise=("```", DEEPSEEK_END),
        form=CallForm(f"{DEEPSEEK_CALL}function{DEEPSEEK_SEP}{NAME}\n```json\n", f"\n```{DEEPSEEK_END}",
                      DEEPSEEK_OPEN, DEEPSEEK_CLOSE),
        models="DeepSeek V3 and R1 of 2024 to March 2025",
    ),
    ToolFormat(
        ("deepseek_v31",),
        NamedSyntax(DEEPSEEK_CALL, DEEPSEEK_SEP, re.compile(DEEPSEEK_NAME), empty=(DEEPSEEK_END,)),
        (DEEPSEEK_OPEN,), (DEEPSEEK_CLOSE,), (DEEPSEEK_CALL,), noise=(DEEPSEEK_END,),
        form=CallForm(f"{DEEPSEEK_CALL}{NAME}{DEEPSEEK_SEP}", DEEPSEEK_END, DEEPSEEK_OPEN, DEEPSEEK_CLOSE,
                      between=""),
        models="DeepSeek V3.1",
    ),
    ToolFormat(
        ("kimi_k2",),
        NamedSyntax("<|tool_call_begin|>", "<|tool_call_argument_begin|>",
                    re.compile(r"\s*(?P<id>(?:[\w-]+\.)*(?P<name>[\w-]+):\d+)\s*"), empty=("<|tool_call_end|>",)),
        ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>"),
        ("<|tool_calls_section_end|>", "<|tool_call_section_end|>"),
        ("<|tool_call_begin|>",), noise=("<|tool_call_end|>",), silent=True,
        form=CallForm(f"<|tool_call_begin|>functions.{NAME}:{NUMBER}<|tool_call_argument_begin|>", "<|tool_call_end|>",
                      "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", between=""),
         models="Kimi K2, Kimi K2 Thinking, Kimi K2.5",
    ),
    ToolFormat(
        ("solar_open",),
        NamedSyntax("<|tool_call:begin|>", "<|tool_call:args|>",
                    re.compile(r"(?P<id>[^<]*)<\|tool_call:name\|>(?P<name>[^<]+)"), empty=("<|tool_call:end|>",)),
        bare=("<|tool_call:begin|>",), noise=("<|tool_call:end|>",),
        form=CallForm(f"<|tool_call:begin|>{NUMBER}<|tool_call:name|>{NAME}<|tool_call:args|>", "<|tool_call:end|>",
                      between=""),
        models="Solar Open",
    ),
    ToolFormat(
        ("openai", "gpt_oss"),
        NamedSyntax("", "<|message|>", HARMONY_HEADER, empty=("<|call|>",)),
        ("<|start|>assistant", "<|channel|>"), ("<|call|>", "<|end|>"),
        form=CallForm(f"{HARMONY_CALL}{NAME} <|constrain|>json<|message|>", "", once=True, trigger=HARMONY_CALL,
                      is_message=True),
        models="gpt-oss",
    ),
)  # fmt: skip

# Of models without a form of their own for calls that a request demands.
JSON_CALLS = ToolFormat(("json",), OBJECT, bare=("[",), listed="must", ends_thinking=False,
                        form=list_form("", "", "parameters"))  # fmt: skip

FORMATS = (*OBJECTS, *LISTS, *NAMED)
