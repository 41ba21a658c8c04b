"""Which format a model writes, read off the markers of its chat template, or its name where the template shows none."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

# (markers that the template has, all of them; the format), the most distinctive first
TOOLS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>", "<|start|>", "commentary"), "openai"),
    (("<|START_ACTION|>",), "cohere_command3"),
    (("｜DSML｜", "function_calls>"), "deepseek_v32"),
    (("｜DSML｜",), "deepseek_v4"),
    (("<｜tool▁call▁begin｜>", "```json"), "deepseek_v3"),
    (("<｜tool▁call▁begin｜>",), "deepseek_v31"),
    (("<steptml:invoke",), "step3"),
    (("<|tool_calls_section_begin|>",), "kimi_k2"),
    (("<|open|>", "<|sep|>"), "kimi_k3"),
    (("<seed:tool_call>",), "seed_oss"),
    (("]<]minimax[>[",), "minimax_m3"),
    (("<minimax:tool_call>",), "minimax_m2"),
    (("<dots_function_call>",), "dots"),
    (("<atem:invoke",), "muse_glimmer"),
    (("<|content_invoke_tool_json|>",), "inkling"),
    (("<tool_sep", "<arg_key"), "hy_v3"),
    (("<arg_key>",), "glm45"),
    (("<longcat_tool_call>",), "longcat"),
    (("<function=", "<parameter="), "qwen3_coder"),
    (("<function name=",), "minicpm5"),
    (("<|tool_call_start|>",), "lfm2"),
    (("<|tool_list_start|>",), "lfm2"),
    (("List of tools: [",), "lfm2"),
    (("<start_function_call>",), "functiongemma"),
    (("<|tool_call>", "call:"), "gemma4"),
    (("<|tools_prefix|>",), "apertus"),
    (("[TOOL_CALLS]",), "mistral"),
    (("<|action_start|>",), "internlm"),
    (("<function_calls>",), "olmo3"),
    (("<|python_start|>",), "llama4_pythonic"),
    (("<|python_tag|>",), "llama3_json"),
    (("dictionary of argument name and its value",), "llama3_json"),
    (("[func_name1(",), "pythonic"),
    (("function call<|role_sep|>",), "gigachat3"),
    (("<|function_call|>",), "gigachat3"),
    (("function call", "<|role_sep|>"), "gigachat3"),
    (("<TOOLCALL>",), "nemotron_json"),
    (("<|tool_call:begin|>",), "solar_open"),
    (("functools",), "phi4_mini_json"),
    (("<|tool_call|>",), "granite"),
    (("<|start_of_role|>", "<tool_call>"), "granite4"),
    (("<tool_calls>", "<|bom|>"), "jamba"),
    (("<tool_calls>", "<beginning_of_sentence>"), "minimax"),
    (("<tool_calls>",), "hunyuan_a13b"),
    (("<function_call>",), "granite-20b-fc"),
    (("<tool_call>",), "hermes"),
)

# (what is in the model's name, in lower case; the format), of families whose templates take tools and show no marker of
# their calls, or the marker of the family that they were trained from
TOOL_MODELS: tuple[tuple[str, str], ...] = (
    ("xlam", "xlam"),
    ("toolace", "pythonic"),
    ("ernie", "ernie45"),
)

REASONING: tuple[tuple[tuple[str, ...], str], ...] = (
    (("<|channel|>", "<|start|>", "analysis"), "openai_gptoss"),
    (("<|START_THINKING|>",), "cohere_command3"),
    (("<|open|>", "<|sep|>", "think"), "kimi_k3"),
    (("<seed:think>",), "seed_oss"),
    (("<mm:think>",), "minimax_m3"),
    (("<|content_thinking|>",), "inkling"),
    (("<|channel>thought",), "gemma4"),
    (("[THINK]",), "mistral"),
    (("to=self<|message|>",), "muse_glimmer"),
    (("Here is my thought process:",), "granite"),
    (("｜DSML｜", "tool_calls>"), "deepseek_v4"),
    (("<｜Assistant｜>", "</think>", "thinking"), "deepseek_v3"),
    (("<｜Assistant｜>", "</think>"), "deepseek_r1"),
    (("'<think{}>'",), "hy_v3"),
    (("<think>", "<answer>"), "hunyuan_a13b"),
    (("<tool_calls>", "<think>"), "hunyuan_a13b"),
    (("<minimax:tool_call>", "<think>"), "minimax_m2"),
    (("<|start_of_role|>", "</think>"), "granite"),
    (("</think>", "<response>"), "ernie45"),
    (("<|tool_calls_section_begin|>", "<think>"), "kimi_k2"),
    (("<arg_key>", "<think>"), "glm45"),
    (("<steptml:invoke", "<think>"), "step3"),
    (("<think>",), "qwen3"),
    (("</think>",), "qwen3"),
)


def detect_tools(template: str, model_name: str = "") -> tuple[str, str] | None:
    """The format and what gives it away. `model_name`: a path, or an id of the hub."""
    if "tools" in template:
        last = PurePath(model_name).name.lower()
        for part, name in TOOL_MODELS:
            if part in last:
                return name, f"the model's name has {part}"
    return _detect(TOOLS, template)


def detect_reasoning(template: str) -> tuple[str, str] | None:
    """As `detect_tools`."""
    return _detect(REASONING, template)


def _detect(table: Sequence[tuple[tuple[str, ...], str]], template: str) -> tuple[str, str] | None:
    for markers, name in table:
        if all(marker in template for marker in markers):
            return name, f"the chat template has {markers[0]}"
    return None
