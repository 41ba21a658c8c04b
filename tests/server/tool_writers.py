"""How models write tool calls, by format: what their chat templates show them. The oracle of the tool parsers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Call = tuple[str, Mapping[str, Any]]
Writer = Callable[[Sequence[Call]], str]


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def plain(value: Any) -> str:
    """As templates write a parameter between tags: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else dumps(value)


def objects(opening: str, closing: str, arguments: str = "arguments", between: str = "\n") -> Writer:
    def write(calls: Sequence[Call]) -> str:
        blocks = [f"{opening}{dumps({'name': name, arguments: args})}{closing}" for name, args in calls]
        return between.join(blocks)

    return write


def listed(opening: str, closing: str, arguments: str = "arguments") -> Writer:
    return lambda calls: opening + dumps([{"name": name, arguments: args} for name, args in calls]) + closing


def tagged(block: tuple[str, str], head: str, parameter: str, end: str, each: bool = True) -> Writer:
    """`head` with {name}, `parameter` with {key} and {value}; a block around each call, or one around all."""

    def one(call: Call) -> str:
        name, args = call
        written = "".join(parameter.format(key=key, value=plain(value)) for key, value in args.items())
        return head.format(name=name) + written + end

    if each:
        return lambda calls: "\n".join(block[0] + one(call) + block[1] for call in calls)
    return lambda calls: block[0] + "\n".join(map(one, calls)) + block[1]


def python_calls(calls: Sequence[Call]) -> list[str]:
    return [f"{name}({', '.join(f'{key}={value!r}' for key, value in args.items())})" for name, args in calls]


def kimi_k2(calls: Sequence[Call]) -> str:
    written = "".join(
        f"<|tool_call_begin|>functions.{name}:{number}<|tool_call_argument_begin|>{dumps(args)}<|tool_call_end|>"
        for number, (name, args) in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def kimi_k3(calls: Sequence[Call]) -> str:
    def argument(key: str, value: Any) -> str:
        kind = "string" if isinstance(value, str) else "object"
        return f'<|open|>argument key="{key}" type="{kind}"<|sep|>{plain(value)}<|close|>argument<|sep|>'

    written = "".join(
        f'<|open|>call tool="{name}" index="{number}"<|sep|>'
        + "".join(argument(key, value) for key, value in args.items())
        + "<|close|>call<|sep|>"
        for number, (name, args) in enumerate(calls, 1)
    )
    return f"<|open|>tools<|sep|>{written}<|close|>tools<|sep|>"


def deepseek(header: str, footer: str) -> Writer:
    def write(calls: Sequence[Call]) -> str:
        written = "\n".join(
            f"<｜tool▁call▁begin｜>{header.format(name=name)}{dumps(args)}{footer}<｜tool▁call▁end｜>"
            for name, args in calls
        )
        return f"<｜tool▁calls▁begin｜>{written}<｜tool▁calls▁end｜>"

    return write


def dsml(block: str) -> Writer:
    def parameter(key: str, value: Any) -> str:
        text = "true" if isinstance(value, str) else "false"
        return f'<｜DSML｜parameter name="{key}" string="{text}">{plain(value)}</｜DSML｜parameter>\n'

    def write(calls: Sequence[Call]) -> str:
        written = "".join(
            f'<｜DSML｜invoke name="{name}">\n{"".join(parameter(*pair) for pair in args.items())}</｜DSML｜invoke>\n'
            for name, args in calls
        )
        return f"<｜DSML｜{block}>\n{written}</｜DSML｜{block}>"

    return write


def harmony(calls: Sequence[Call]) -> str:
    return "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{dumps(args)}<|call|>"
        for name, args in calls
    )


def cohere(calls: Sequence[Call]) -> str:
    entries = [
        {"tool_call_id": str(number), "tool_name": name, "parameters": args}
        for number, (name, args) in enumerate(calls)
    ]
    return f"<|START_ACTION|>{dumps(entries)}<|END_ACTION|>"


def gemma(quote: str, block: tuple[str, str]) -> Writer:
    def value(item: Any) -> str:
        if isinstance(item, str):
            return f"{quote}{item}{quote}"
        if isinstance(item, list):
            return "[" + ",".join(map(value, item)) + "]"
        if isinstance(item, Mapping):
            return "{" + ",".join(f"{key}:{value(inner)}" for key, inner in item.items()) + "}"
        return dumps(item)

    def write(calls: Sequence[Call]) -> str:
        return "".join(f"{block[0]}call:{name}{value(args)}{block[1]}" for name, args in calls)

    return write


def functiongemma(calls: Sequence[Call]) -> str:
    def one(name: str, args: Mapping[str, Any]) -> str:
        written = ",".join(f"{key}:<escape>{plain(value)}<escape>" for key, value in args.items())
        return f"<start_function_call>call:{name}{{{written}}}<end_function_call>"

    return "".join(one(*call) for call in calls)


MARK = "]<]minimax[>["


def minimax_m3(calls: Sequence[Call]) -> str:
    def element(key: str, value: Any) -> str:
        if isinstance(value, Mapping):
            inner = "".join(element(*pair) for pair in value.items())
        elif isinstance(value, list):
            inner = "".join(element("item", item) for item in value)
        else:
            inner = plain(value)
        return f"{MARK}<{key}>{inner}{MARK}</{key}>"

    written = "\n".join(
        f'{MARK}<invoke name="{name}">{"".join(element(*pair) for pair in args.items())}{MARK}</invoke>'
        for name, args in calls
    )
    return f"{MARK}<tool_call>\n{written}\n{MARK}</tool_call>"


hermes = objects("<tool_call>\n", "\n</tool_call>")
qwen_coder = tagged(
    ("<tool_call>\n", "\n</tool_call>"),
    "<function={name}>\n",
    "<parameter={key}>\n{value}\n</parameter>\n",
    "</function>",
)
glm = tagged(
    ("<tool_call>", "</tool_call>"),
    "{name}\n", "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n", "",
)  # fmt: skip
INVOKE = ('<invoke name="{name}">\n', '<parameter name="{key}">{value}</parameter>\n', "</invoke>")

WRITERS: dict[str, Writer] = {
    **dict.fromkeys(("hermes", "qwen", "qwen25", "granite4", "ernie45"), hermes),
    "longcat": objects("<longcat_tool_call>\n", "\n</longcat_tool_call>"),
    "granite-20b-fc": objects("<function_call> ", "", between=" "),
    "internlm": objects("<|action_start|><|plugin|>\n", "\n<|action_end|>", "parameters"),
    "gigachat3": objects("<|function_call|>", ""),
    "inkling": objects("<|message_model|><|content_invoke_tool_json|>", "<|end_message|>", "args", between=""),
    **dict.fromkeys(("llama3_json", "llama4_json"), objects("", "", "parameters", between="; ")),
    **dict.fromkeys(("jamba", "hunyuan_a13b"), listed("<tool_calls>", "</tool_calls>")),
    "minimax": lambda calls: "<tool_calls>\n" + objects("", "")(calls) + "\n</tool_calls>",
    "granite": listed("<|tool_call|>", ""),
    **dict.fromkeys(("nemotron_json", "llama_nemotron_json"), listed("<TOOLCALL>", "</TOOLCALL>")),
    "solar_open": lambda calls: "".join(
        f"<|tool_call:begin|>id{number}<|tool_call:name|>{name}<|tool_call:args|>{dumps(args)}<|tool_call:end|>"
        for number, (name, args) in enumerate(calls)
    ),
    "phi4_mini_json": listed("functools", ""),
    "xlam": listed("```json\n", "\n```"),
    **dict.fromkeys(("cohere_command3", "cohere_command4", "cohere", "command"), cohere),
    "apertus": lambda calls: f"<|tools_prefix|>{dumps([{name: args} for name, args in calls])}<|tools_suffix|>",
    "mistral": lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{dumps(args)}" for name, args in calls),
    "deepseek_v3": deepseek("function<｜tool▁sep｜>{name}\n```json\n", "\n```"),
    "deepseek_v31": deepseek("{name}<｜tool▁sep｜>", ""),
    "deepseek_v32": dsml("function_calls"),
    "deepseek_v4": dsml("tool_calls"),
    "kimi_k2": kimi_k2,
    "kimi_k3": kimi_k3,
    **dict.fromkeys(("openai", "gpt_oss"), harmony),
    **dict.fromkeys(("qwen3_coder", "qwen3_xml", "mimo", "step3p5"), qwen_coder),
    "seed_oss": tagged(
        ("<seed:tool_call>\n", "\n</seed:tool_call>"), "<function={name}>\n",
        "<parameter={key}>{value}</parameter>\n", "</function>",
    ),
    **dict.fromkeys(("glm45", "glm47", "ling3", "poolside_v1"), glm),
    "hy_v3": tagged(
        ("<tool_calls>\n", "\n</tool_calls>"), "<tool_call>{name}<tool_sep>\n",
        "<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n", "</tool_call>", each=False,
    ),
    "minimax_m2": tagged(("<minimax:tool_call>\n", "\n</minimax:tool_call>"), *INVOKE, each=False),
    "dots": tagged(("<dots_function_call>\n", "\n</dots_function_call>"), *INVOKE, each=False),
    "step3": tagged(
        ("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>"),
        '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{name}">',
        '<steptml:parameter name="{key}">{value}</steptml:parameter>', "</steptml:invoke><｜tool_call_end｜>",
        each=False,
    ),
    "muse_glimmer": tagged(
        ("<atem:function_calls>\n", "\n</atem:function_calls>"), '<atem:invoke name="{name}">\n',
        '<atem:parameter name="{key}">{value}</atem:parameter>\n', "</atem:invoke>", each=False,
    ),
    "minicpm5": tagged(("", ""), '<function name="{name}">', '<param name="{key}">{value}</param>', "</function>"),
    "pythonic": lambda calls: f"[{', '.join(python_calls(calls))}]",
    "llama4_pythonic": lambda calls: f"<|python_start|>[{', '.join(python_calls(calls))}]<|python_end|>",
    "lfm2": lambda calls: f"<|tool_call_start|>[{', '.join(python_calls(calls))}]<|tool_call_end|>",
    "olmo3": lambda calls: "<function_calls>\n" + "\n".join(python_calls(calls)) + "\n</function_calls>",
    "gemma4": gemma('<|"|>', ("<|tool_call>", "<tool_call|>")),
    "functiongemma": functiongemma,
    "minimax_m3": minimax_m3,
}  # fmt: skip
