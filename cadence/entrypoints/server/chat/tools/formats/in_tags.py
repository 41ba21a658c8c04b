"""Formats whose parameters stand between tags."""

from __future__ import annotations

import re
from dataclasses import replace

from cadence.entrypoints.server.chat.tools.argument_forms import IS_STRING, KEY, KIND, TagArguments
from cadence.entrypoints.server.chat.tools.call_form import NAME, NUMBER, CallForm
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.schema import STRING
from cadence.entrypoints.server.chat.tools.syntax import Head, ObjectSyntax, OneOf
from cadence.entrypoints.server.chat.tools.tags import ANY, TagSyntax
from cadence.entrypoints.server.chat.tools.text_values import TextValues

QUOTED_NAME = re.compile(r"\s*(?P<name>\"[^\"]+\"|'[^']+'|[^\"'<>\s]+)\s*")
QUOTED_KEY = re.compile(r"\s*(?P<key>\"[^\"]+\"|'[^']+'|[^\"'<>\s]+)\s*")
K3_OPEN, K3_CLOSE, K3_SEP = "<|open|>", "<|close|>", "<|sep|>"


def qwen_coder(close: str) -> TagSyntax:
    """<function=name><parameter=key>value</parameter></function>"""
    return TagSyntax(
        Head("<function=", ">", re.compile(r"(?P<name>[^<>\n]+)")),
        Head("<parameter=", ">", re.compile(r"(?P<key>[^<>\n]+)")),
        "</parameter>",
        ("</function>",),
        ("<parameter=", "</function>", close),
    )


def glm(head: Head, suffix: str = "") -> TagSyntax:
    """name<arg_key>key</arg_key><arg_value>value</arg_value>, with a suffix in every tag's name"""
    return TagSyntax(
        head,
        Head(f"<arg_key{suffix}>", f"</arg_key{suffix}>", re.compile(r"(?P<key>[^<]+)")),
        f"</arg_value{suffix}>",
        (f"</tool_call{suffix}>",),
        value_open=f"<arg_value{suffix}>",
        trim="nothing",
        unknown=ANY,
    )


def hunyuan_3(suffix: str) -> TagSyntax:
    """<tool_call>name<tool_sep>, then as GLM"""
    return glm(Head(f"<tool_call{suffix}>", f"<tool_sep{suffix}>", re.compile(r"\s*(?P<name>[^\s<]+)\s*")), suffix)


def invoke(prefix: str, inner: re.Pattern[str], trim: str, unknown: frozenset[str]) -> TagSyntax:
    """<invoke name="name"><parameter name="key">value</parameter></invoke>, with a prefix in every tag's name"""
    return TagSyntax(
        Head(f"<{prefix}invoke name=", ">", QUOTED_NAME),
        Head(f"<{prefix}parameter name=", ">", inner),
        f"</{prefix}parameter>",
        (f"</{prefix}invoke>",),
        (f"<{prefix}parameter name=", f"</{prefix}invoke>"),
        trim=trim,
        unknown=unknown,
    )


QWEN_CODER = qwen_coder("</tool_call>")
GLM = glm(Head("", "<", re.compile(r"\s*(?P<name>[^\s<{\[\"]+)\s*"), keeps=True))
HUNYUAN_3 = OneOf((hunyuan_3(""), hunyuan_3(":opensource")))
DSML_KEY = re.compile(r"\"(?P<key>[^\"]+)\"(?:\s+string=\"(?P<string>true|false)\")?\s*")
DSML = replace(invoke("｜DSML｜", DSML_KEY, "nothing", ANY), wrappers=("arguments", "input"))
DOTS = invoke("", QUOTED_KEY, "space", STRING)
KIMI_K3 = TagSyntax(
    Head(f"{K3_OPEN}call ", K3_SEP, re.compile(r"tool=(?P<name>\"[^\"]+\")(?:\s+index=\"\d*\")?\s*")),
    Head(f"{K3_OPEN}argument ", K3_SEP, re.compile(r"key=(?P<key>\"[^\"]+\")(?:\s+type=\"(?P<type>\w+)\")?\s*")),
    f"{K3_CLOSE}argument{K3_SEP}",
    (f"{K3_CLOSE}call{K3_SEP}",),
    trim="nothing",
)
MINICPM5 = TagSyntax(
    Head("<function", ">", re.compile(r"\s*name=(?P<name>\"[^\"]+\"|'[^']+')[^>]*")),  # a model may forget the space
    Head("<param", ">", re.compile(r"\s*name=(?P<key>\"[^\"]+\"|'[^']+')\s*")),
    "</param>",
    ("</function>",),
    trim="nothing",
    unknown=ANY,
    cdata=True,
    wrappers=("arguments", "properties"),
)


def tag_arguments(syntax: TagSyntax, open: str, pad: str = "", after: str = "\n") -> TagArguments:
    return TagArguments(open, TextValues(syntax.value_end, syntax.implied, syntax.trim, pad), after=after)


def invoke_form(syntax: TagSyntax, block: str, inner: str = f'name="{KEY}"') -> CallForm:
    """Calls in one block, `name` and parameters in quotes."""
    head, parameter = syntax.head.open, syntax.parameter.open.removesuffix("name=")
    written = tag_arguments(syntax, f"{parameter}{inner}>")
    return CallForm(f'{head}"{NAME}">\n', syntax.end[0], f"<{block}>\n", f"\n</{block}>", written=written)


def function_form(block: str, pad: str) -> CallForm:
    """<function=name>, in a block each."""
    syntax = qwen_coder(f"</{block}>")
    written = tag_arguments(syntax, f"<parameter={KEY}>{pad}", pad)
    end = f"</function>\n</{block}>"
    return CallForm(f"<{block}>\n<function={NAME}>\n", end, written=written, over="</function>")


MINIMAX_M2, STEP3 = invoke("", QUOTED_KEY, "nothing", STRING), invoke("steptml:", QUOTED_KEY, "space", STRING)
MUSE = invoke("atem:", QUOTED_KEY, "nothing", ANY)
ARGUMENT = f"<arg_key>{KEY}</arg_key>\n<arg_value>"
GLM_FORM = CallForm(f"<tool_call>{NAME}\n", "</tool_call>", written=tag_arguments(GLM, ARGUMENT))
HUNYUAN_FORM = CallForm(f"<tool_call>{NAME}<tool_sep>\n", "</tool_call>", "<tool_calls>\n", "\n</tool_calls>",
                        written=tag_arguments(hunyuan_3(""), ARGUMENT))  # fmt: skip
STEP3_FORM = CallForm(
    f'<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="{NAME}">',
    "</steptml:invoke><｜tool_call_end｜>",
    "<｜tool_calls_begin｜>", "<｜tool_calls_end｜>",
    written=tag_arguments(STEP3, f'<steptml:parameter name="{KEY}">', after=""),
)  # fmt: skip
K3_FORM = CallForm(
    f'{K3_OPEN}call tool="{NAME}" index="{NUMBER}"{K3_SEP}', f"{K3_CLOSE}call{K3_SEP}", f"{K3_OPEN}tools{K3_SEP}",
    f"{K3_CLOSE}tools{K3_SEP}", between="", is_message=True,
    written=tag_arguments(KIMI_K3, f'{K3_OPEN}argument key="{KEY}" type="{KIND}"{K3_SEP}', after=""),
)  # fmt: skip
MINICPM5_FORM = CallForm(f'<function name="{NAME}">', "</function>",
                         written=tag_arguments(MINICPM5, f'<param name="{KEY}">', after=""))  # fmt: skip
DSML_KEYS = f'name="{KEY}" string="{IS_STRING}"'

FORMATS = (
    ToolFormat(("qwen3_coder", "qwen3_xml", "mimo", "step3p5"), QWEN_CODER, ("<tool_call>",), ("</tool_call>",),
               ("<function=",), form=function_form("tool_call", "\n"),
               models="Qwen 3 Coder, Qwen 3.5, MiMo, Nemotron 3, Step 3.5"),
    ToolFormat(("seed_oss",), qwen_coder("</seed:tool_call>"), ("<seed:tool_call>",), ("</seed:tool_call>",),
               ("<function=",), form=function_form("seed:tool_call", ""), models="Seed OSS"),
    ToolFormat(("glm45", "glm47", "ling3", "poolside_v1"), GLM, ("<tool_call>",), form=GLM_FORM,
               models="GLM 4.5 to 5, Ling 3, Laguna"),
    ToolFormat(("hy_v3",), HUNYUAN_3, ("<tool_calls>", "<tool_calls:opensource>"),
               ("</tool_calls>", "</tool_calls:opensource>"), form=HUNYUAN_FORM, models="Hunyuan 3"),
    ToolFormat(("deepseek_v32",), DSML, ("<｜DSML｜function_calls>",), ("</｜DSML｜function_calls>",),
               form=invoke_form(DSML, "｜DSML｜function_calls", DSML_KEYS), models="DeepSeek V3.2"),
    ToolFormat(("deepseek_v4",), DSML, ("<｜DSML｜tool_calls>",), ("</｜DSML｜tool_calls>",),
               form=invoke_form(DSML, "｜DSML｜tool_calls", DSML_KEYS), models="DeepSeek V4"),
    ToolFormat(("minimax_m2",), MINIMAX_M2, ("<minimax:tool_call>",),
               ("</minimax:tool_call>",), ("<invoke name=",), form=invoke_form(MINIMAX_M2, "minimax:tool_call"),
               models="MiniMax M2"),
    ToolFormat(("dots",), OneOf((DOTS, ObjectSyntax())), ("<dots_function_call>",), ("</dots_function_call>",),
               form=invoke_form(DOTS, "dots_function_call"), models="dots"),
    ToolFormat(("step3",), STEP3, ("<｜tool_calls_begin｜>",),
               ("<｜tool_calls_end｜>",), form=STEP3_FORM, models="Step 3",
               noise=("<｜tool_call_begin｜>", "function<｜tool_sep｜>", "<｜tool_sep｜>", "<｜tool_call_end｜>")),
    ToolFormat(("muse_glimmer",), MUSE, ("<atem:function_calls>",),
               ("</atem:function_calls>",), ends_thinking=False, form=invoke_form(MUSE, "atem:function_calls"),
               models="Muse Glimmer"),
    ToolFormat(("kimi_k3",), KIMI_K3, (f"{K3_OPEN}tools{K3_SEP}",), (f"{K3_CLOSE}tools{K3_SEP}",),
               form=K3_FORM, models="Kimi K3"),
    ToolFormat(("minicpm5",), MINICPM5, bare=("<function",), form=MINICPM5_FORM, models="MiniCPM 5"),
)  # fmt: skip
