"""Tool calls as models have been seen to write them: each format's habits, slips and corner cases."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cadence.entrypoints.server.chat.tools.base import CallArguments, CallStart, Text, WholeCalls
from cadence.entrypoints.server.chat.tools.formats.registry import make_tool_parser

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "$defs": {"Size": {"enum": [1, 2, 3]}},
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "ratio": {"type": "number"},
        "deep": {"type": "boolean"},
        "tags": {"type": "array"},
        "opts": {"type": "object"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"type": ["integer", "string"]},
        "maybe_count": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
        "data": {"oneOf": [{"type": "object"}, {"type": "array"}]},
        "size": {"$ref": "#/$defs/Size"},
        "odd": {"type": "int64"},
        "free": {},
    },
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("find", "run")]


def read(name: str, parts: list[str]) -> tuple[str, list[tuple[str, Any]], list[str]]:
    """The text, the calls and their ids."""
    parser = WholeCalls(make_tool_parser(name, TOOLS))
    text, calls, ids = "", [], []
    for piece in [piece for part in parts for piece in parser.push(part)] + parser.finish():
        if isinstance(piece, Text):
            text += piece.text
        elif isinstance(piece, CallStart):
            calls.append([piece.name, ""])
            ids.append(piece.id)
        elif isinstance(piece, CallArguments):
            calls[-1][1] += piece.json_text
    return text, [(function, json.loads(arguments)) for function, arguments in calls], ids


def coder(*parameters: str, name: str = "find") -> str:
    """Qwen 3 Coder's call, with parameters as `key=value`."""
    written = "".join("<parameter={}>\n{}\n</parameter>\n".format(*entry.split("=", 1)) for entry in parameters)
    return f"<tool_call>\n<function={name}>\n{written}</function>\n</tool_call>"


def invoke(block: str, *lines: str) -> str:
    return f"<{block}>\n" + "\n".join(lines) + f"\n</{block}>"


FIND = ("find", {"text": "x"})
JSON_FIND = '{"name": "find", "arguments": {"text": "x"}}'
DEEP = {"opts": {"a": {"b": [1, {"c": None}]}}, "text": 'say "hi"\n\\ ünï 😀'}
SEP, BEGIN, END = "<｜tool▁sep｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SECTION = "<｜tool▁calls▁begin｜>{}<｜tool▁calls▁end｜>".format
KIMI = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>".format
ARG = "<|tool_call_argument_begin|>"
MARK = "]<]minimax[>["

GOOD: list[tuple[str, str, str, list[tuple[str, Any]]]] = [
    # Hermes and its kin
    ("hermes", f"<tool_call>\n{JSON_FIND}\n</tool_call>", "", [FIND]),
    ("hermes", f"<tool_call>{JSON_FIND}", "", [FIND]),  # ends without the closing tag
    ("hermes", f"Hi!<tool_call>{JSON_FIND}</tool_call>", "Hi!", [FIND]),
    ("hermes", f"<tool_call>{json.dumps({'name': 'run', 'arguments': DEEP})}</tool_call>", "", [("run", DEEP)]),
    ("hermes", '<tool_call>{"name": "find", "why": ["because"], "arguments": {}}</tool_call>', "", [("find", {})]),
    ("granite4", f"<tool_call>{JSON_FIND}</tool_call> <tool_call>{JSON_FIND}</tool_call>", "", [FIND, FIND]),
    ("ernie45", f"\n\n\n<tool_call>\n{JSON_FIND}\n</tool_call>\n", "", [FIND]),
    ("longcat", f"<longcat_tool_call>{JSON_FIND}</longcat_tool_call>", "", [FIND]),
    ("granite-20b-fc", f"<function_call> {JSON_FIND}\n<function_call> {JSON_FIND}", "", [FIND, FIND]),
    ("internlm", '<|action_start|><|plugin|>\n{"name": "find", "parameters": {"text": "x"}}<|action_end|>\n', "",
     [FIND]),
    ("gigachat3", f"Sure.<|message_sep|>\n\nfunction call<|role_sep|>\n{JSON_FIND}</s>", "Sure.", [FIND]),
    ("gigachat3", f"<|function_call|>{JSON_FIND}", "", [FIND]),
    ("inkling", '<|content_invoke_tool_json|>{"name":"find","args":{"text":"x"}}<|end_message|>', "", [FIND]),
    # Llama
    ("llama3_json", f"<|python_tag|>{JSON_FIND}", "", [FIND]),
    ("llama3_json", '{"name": "find", "parameters": {"text": "x"}}; {"name": "run", "parameters": {}}', "",
     [FIND, ("run", {})]),
    ("llama4_json", '{"type": "function", "name": "find", "parameters": {"text": "x"}}', "", [FIND]),
    ("llama4_pythonic", "<|python_start|>[find(text='x'), run()]<|python_end|>", "", [FIND, ("run", {})]),
    ("llama4_pythonic", "[find(text='x')]", "", [FIND]),
    # Lists
    ("jamba", f" <tool_calls>[\n    {JSON_FIND},\n    {JSON_FIND}\n]</tool_calls>", "", [FIND, FIND]),
    ("hunyuan_a13b", f"<tool_calls>[{JSON_FIND}]</tool_calls>", "", [FIND]),
    ("minimax", f"<tool_calls>\n{JSON_FIND}\n{JSON_FIND}\n</tool_calls>", "", [FIND, FIND]),
    ("granite", f"<|tool_call|>[{JSON_FIND}]", "", [FIND]),
    ("granite", f"<tool_call>[{JSON_FIND}]", "", [FIND]),
    ("granite", '[{"arguments": {"text": "x"}, "name": "find"}]', "", [FIND]),
    ("phi4_mini_json", f"functools[{JSON_FIND}]", "", [FIND]),
    ("phi4_mini_json", 'functools[{"name": "find", "parameters": {"text": "x"}}]', "", [FIND]),
    ("xlam", f"[{JSON_FIND}]", "", [FIND]),
    ("xlam", f"I will search.\n```json\n[{JSON_FIND}]\n```", "I will search.\n", [FIND]),
    ("xlam", f"[TOOL_CALLS][{JSON_FIND}]", "", [FIND]),
    ("xlam", f"<tool_call>[{JSON_FIND}]</tool_call>", "", [FIND]),
    ("cohere_command3",
     '<|START_ACTION|>[\n    {"tool_call_id": "0", "tool_name": "find", "parameters": {"text": "x"}}\n]'
     "<|END_ACTION|>", "", [FIND]),
    ("apertus", 'Wait. <|tools_prefix|>[{"find": {"text": "x"}}, {"run": {}}]<|tools_suffix|>', "Wait. ",
     [FIND, ("run", {})]),
    # Mistral, before and since version 11 of its tokenizer
    ("mistral", f"[TOOL_CALLS][{JSON_FIND}]", "", [FIND]),
    ("mistral", '[TOOL_CALLS] [{"arguments": {"name": "Ann"}, "name": "run"}]', "", [("run", {"name": "Ann"})]),
    ("mistral", 'Hello[TOOL_CALLS]find{"text": "x"}[TOOL_CALLS]run[ARGS]{"count": 2}', "Hello",
     [FIND, ("run", {"count": 2})]),
    # DeepSeek
    ("deepseek_v3", SECTION(f'{BEGIN}function{SEP}find\n```json\n{{"text": "x"}}\n```{END}'), "", [FIND]),
    ("deepseek_v3", "Ok. " + SECTION(f"{BEGIN}function{SEP}run\n```json\n{{}}\n```{END}\n{BEGIN}function{SEP}find\n"
     f'```json\n{{"text": "x"}}\n```{END}'), "Ok. ", [("run", {}), FIND]),
    ("deepseek_v31", SECTION(f'{BEGIN}find{SEP}{{"text": "x"}}{END}{BEGIN}run{SEP}{{}}{END}'), "", [FIND, ("run", {})]),
    ("deepseek_v32", invoke("｜DSML｜function_calls", '<｜DSML｜invoke name="find">',
     '<｜DSML｜parameter name="text" string="true">x</｜DSML｜parameter>',
     '<｜DSML｜parameter name="new" string="false">[1, 2]</｜DSML｜parameter>',
     '<｜DSML｜parameter name="other" string="true">[1, 2]</｜DSML｜parameter>', "</｜DSML｜invoke>"), "",
     [("find", {"text": "x", "new": [1, 2], "other": "[1, 2]"})]),
    ("deepseek_v32", invoke("｜DSML｜function_calls", '<｜DSML｜invoke name="run">', "</｜DSML｜invoke>"), "",
     [("run", {})]),
    ("deepseek_v4", invoke("｜DSML｜tool_calls", '<｜DSML｜invoke name="find">',
     '<｜DSML｜parameter name="count" string="true">5</｜DSML｜parameter>', "</｜DSML｜invoke>"), "", [("find",
     {"count": 5})]),
    ("deepseek_v32", invoke("｜DSML｜function_calls", '<｜DSML｜invoke name="find">',
     '<｜DSML｜parameter name="arguments" string="false">{"text": "x"}</｜DSML｜parameter>',
     "</｜DSML｜invoke>"), "", [FIND]),
    ("deepseek_v32", invoke("｜DSML｜function_calls", '<｜DSML｜invoke name="find">',
     '<｜DSML｜parameter name="input" string="true">{"other": 1}</｜DSML｜parameter>', "</｜DSML｜invoke>"), "",
     [("find", {"input": {"other": 1}})]),  # not what the tool takes: no wrapper
    # Qwen 3 Coder: types by the schema
    ("qwen3_coder", coder("text=5", "count=5", "ratio=2.50", "deep=True", "tags=[1]", 'opts={"a": 1}'), "",
     [("find", {"text": "5", "count": 5, "ratio": 2.5, "deep": True, "tags": [1], "opts": {"a": 1}})]),
    ("qwen3_coder", coder("maybe=null", "either=7", "maybe_count=null", 'data={"k": [1]}', "size=2", "odd=9"), "",
     [("find", {"maybe": None, "either": 7, "maybe_count": None, "data": {"k": [1]}, "size": 2, "odd": 9})]),
    ("qwen3_coder", coder("maybe=some", "either=seven", "opts={'a': 'b'}", "unknown=5", "count=many"), "",
     [("find", {"maybe": "some", "either": "seven", "opts": {"a": "b"}, "unknown": "5", "count": "many"})]),
    ("qwen3_coder", coder("ratio=1e999", "tags=[1e999]"), "", [("find", {"ratio": "1e999", "tags": "[1e999]"})]),
    ("qwen3_coder",
     "<tool_call><function=find><parameter=text>\n\n  def f():\n    pass\n\n</parameter></function></tool_call>",
     "", [("find", {"text": "\n  def f():\n    pass\n"})]),  # one line break at each end is the template's
    ("qwen3_coder", "<function=find><parameter=text>x</parameter></function>", "", [FIND]),
    ("qwen3_coder",
     "<tool_call><function=find><parameter=text>x<parameter=count>1</parameter></function></tool_call>", "",
     [("find", {"text": "x", "count": 1})]),  # a forgotten </parameter>
    ("qwen3_coder", "<tool_call><function=find><parameter=text>x</parameter></tool_call>", "", [FIND]),  # … </function>
    ("qwen3_coder", "<tool_call><function=find><parameter=text>a <b> </c> & d</parameter></function></tool_call>", "",
     [("find", {"text": "a <b> </c> & d"})]),
    ("seed_oss", "<seed:tool_call>\n<function=find>\n<parameter=text>x</parameter>\n</function>\n</seed:tool_call>",
     "", [FIND]),
    ("step3p5", "First.\n" + coder("text=x") + "\nThen.\n" + coder("count=1", name="run"), "First.\n\nThen.\n",
     [FIND, ("run", {"count": 1})]),
    # GLM
    ("glm45", "<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>x</arg_value>\n</tool_call>", "", [FIND]),
    ("glm47", "<tool_call>find<arg_key>text</arg_key><arg_value>x</arg_value></tool_call>", "", [FIND]),
    ("glm47", "Now. <tool_call>run</tool_call>", "Now. ", [("run", {})]),
    ("glm45", "<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>  kept  </arg_value>\n<arg_key>new</arg_key>\n"
     "<arg_value>[1]</arg_value>\n</tool_call>", "", [("find", {"text": "  kept  ", "new": [1]})]),
    ("hy_v3",
     "<tool_calls>\n<tool_call>find<tool_sep>\n<arg_key>text</arg_key>\n<arg_value>x</arg_value>\n</tool_call>\n"
     "<tool_call>run<tool_sep></tool_call>\n</tool_calls>", "", [FIND, ("run", {})]),
    ("hy_v3", "<tool_calls:opensource>\n<tool_call:opensource>find<tool_sep:opensource>\n<arg_key:opensource>text"
     "</arg_key:opensource>\n<arg_value:opensource>x</arg_value:opensource>\n</tool_call:opensource>\n"
     "</tool_calls:opensource>", "", [FIND]),
    # MiniMax, dots, Step, Muse, MiniCPM
    ("minimax_m2", invoke("minimax:tool_call", '<invoke name="find">', '<parameter name="text">x</parameter>',
     "</invoke>",
     "<invoke name='run'>", "<parameter name=count>3</parameter>", "</invoke>"), "", [FIND, ("run", {"count": 3})]),
    ("minimax_m2", '<invoke name="find">\n<parameter name="text">x</parameter>\n</invoke>', "", [FIND]),
    ("minimax_m3", f'{MARK}<tool_call>\n{MARK}<invoke name="find">{MARK}<text>x{MARK}</text>{MARK}<opts>{MARK}<tag>a'
     f"{MARK}</tag>{MARK}<tag>b{MARK}</tag>{MARK}</opts>{MARK}</invoke>\n{MARK}</tool_call>", "",
     [("find", {"text": "x", "opts": {"tag": ["a", "b"]}})]),
    ("dots", invoke("dots_function_call", '<invoke name="find">', '<parameter name="text"> x </parameter>',
     "</invoke>"), "",
     [FIND]),
    ("dots", f"<dots_function_call>{JSON_FIND}</dots_function_call>", "", [FIND]),
    ("step3", '<｜tool_calls_begin｜><｜tool_call_begin｜><steptml:invoke name="find"><steptml:parameter name="text">x'
     "</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>", "", [FIND]),
    ("muse_glimmer", invoke("atem:function_calls", '<atem:invoke name="find">',
     '<atem:parameter name="text">x</atem:parameter>', '<atem:parameter name="new">{"a": 1}</atem:parameter>',
     "</atem:invoke>"), "", [("find", {"text": "x", "new": {"a": 1}})]),
    ("minicpm5", '<function name="find"><param name="text"><![CDATA[a < b\n]]></param></function>', "",
     [("find", {"text": "a < b\n"})]),
    ("minicpm5", "<functionname=\"find\"><paramname='text'>x</param></function>", "", [FIND]),
    # Kimi
    ("kimi_k2", "Looking. " + KIMI(f'<|tool_call_begin|>functions.find:0{ARG}{{"text": "x"}}<|tool_call_end|>'),
     "Looking. ",
     [FIND]),
    ("kimi_k2", KIMI(f'<|tool_call_begin|> functions.find:0 {ARG} {{"text": "x"}} <|tool_call_end|>'), "", [FIND]),
    ("kimi_k2", KIMI(f"<|tool_call_begin|>functions.run:0{ARG}<|tool_call_end|>") + "and so on", "", [("run", {})]),
    ("kimi_k3", '<|open|>tools<|sep|><|open|>call tool="find" index="1"<|sep|><|open|>argument key="text" type="string"'
     '<|sep|>x<|close|>argument<|sep|><|open|>argument key="new" type="number"<|sep|>3<|close|>argument<|sep|>'
     "<|close|>call<|sep|><|close|>tools<|sep|>", "", [("find", {"text": "x", "new": 3})]),
    # gpt-oss
    ("openai", '<|channel|>commentary to=functions.find <|constrain|>json<|message|>{"text": "x"}<|call|>', "", [FIND]),
    ("openai", '<|start|>assistant to=functions.find<|channel|>commentary json<|message|>{"text": "x"}', "", [FIND]),
    ("openai", '<|channel|>analysis to=functions.find code<|message|>{"text": "x"}', None, []),  # not JSON: text
    ("openai", '<|channel|>commentary to=math.sum<|message|>{"count": 1}<|end|>', "", [("math.sum", {"count": 1})]),
    ("openai", "<|channel|>commentary to=functions.run<|message|><|call|>", "", [("run", {})]),
    ("openai", '<|channel|>final to=functions.find <|constrain|>json<|message|>{"text": "x"}<|call|>', "", [FIND]),
    ("openai", '<|channel|>comment to=find<|message|>{"text": "x"}<|call|>', "", [FIND]),
    # Python
    ("pythonic", "[find(text='x'), run(count=1, deep=False, maybe=None, tags=[1, 'a'], opts={'k': (1, 2)})]", "",
     [FIND, ("run", {"count": 1, "deep": False, "maybe": None, "tags": [1, "a"], "opts": {"k": [1, 2]}})]),
    ("pythonic", "[math.find-all(text='Martha\\'s \"x\"')]", "", [("math.find-all", {"text": 'Martha\'s "x"'})]),
    ("pythonic", "[run(text='two\nlines', count=007, tags={1, 2})]", "",
     [("run", {"text": "two\nlines", "count": 7, "tags": [1, 2]})]),
    ("lfm2", "<|tool_call_start|>[find(text='grep \"]\" x')]<|tool_call_end|>Done.", "Done.", [("find",
     {"text": 'grep "]" x'})]),
    ("olmo3", "<function_calls>\nfind(text='x')\nrun(deep=true, maybe=null)\n</function_calls>", "",
     [FIND, ("run", {"deep": True, "maybe": None})]),
    # Gemma
    ("gemma4",
     '<|tool_call>call:find{text:<|"|>a {b}, c:<|"|>,count:5,deep:true,opts:{k:[1,<|"|>z<|"|>]}}<tool_call|>', "",
     [("find", {"text": "a {b}, c:", "count": 5, "deep": True, "opts": {"k": [1, "z"]}})]),
    ("gemma4", "<|tool_call>call:run{}<tool_call|>", "", [("run", {})]),
    ("functiongemma",
     "<start_function_call>call:find{text:<escape>x<escape>,count:<escape>5<escape>}<end_function_call>", "",
     [("find", {"text": "x", "count": 5})]),
]  # fmt: skip


def expected(text: str, said: str | None) -> str:
    return text if said is None else said


@pytest.mark.parametrize(("name", "text", "said", "calls"), GOOD)
def test_transcripts(name: str, text: str, said: str | None, calls: list[tuple[str, Any]]) -> None:
    assert read(name, [text])[:2] == (expected(text, said), calls)
    assert read(name, list(text))[:2] == (expected(text, said), calls)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "find", "arguments": {"text": "x", oops}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "find", "arguments": {"text": "x'),
        ("jamba", "<tool_calls>not a list</tool_calls>"),
        ("jamba", '<tool_calls>[{"name": "find", "arguments": {"text'),
        ("granite", "[1, 2] and [x]"),
        ("phi4_mini_json", "import functools\nfunctools.cache"),
        ("apertus", '<|tools_prefix|>[{"find": 3}]<|tools_suffix|>'),
        ("deepseek_v3", SECTION(f"{BEGIN}function{SEP}find\nno fence, no object{END}")),
        ("deepseek_v31", SECTION(f"{BEGIN}find{SEP}nothing{END}")),
        ("kimi_k2", KIMI(f'<|tool_call_begin|>functions.find{ARG}{{"text": "x"}}<|tool_call_end|>')),
        ("qwen3_coder", "<tool_call>\n<function=find>\n<parameter=text>\nnever ends"),
        ("glm45", "<tool_call>find\n<arg_key>text</arg_key>\n<arg_value>never ends"),
        ("minimax_m2", '<minimax:tool_call>\n<invoke name="find">\n</minimax:tool_call>'),
        ("gemma4", '<|tool_call>call:find{text:<|"|>never ends'),
        ("pythonic", "[find(text='x', 'positional')]"),
        ("olmo3", "<function_calls>\nfind(text=\n</function_calls>"),
        ("openai", "<|channel|>final<|message|>All is well."),
    ],
)
def test_broken_calls_are_text(name: str, text: str) -> None:
    assert read(name, [text])[:2] == (text, []) == read(name, list(text))[:2]


def test_a_broken_call_does_not_hide_the_next() -> None:
    bad, good = (f'<|tool_call_begin|>functions.{name}:0{ARG}{{"text": {value}}}<|tool_call_end|>'
                 for name, value in (("run", "oops"), ("find", '"x"')))  # fmt: skip
    assert read("kimi_k2", [KIMI(bad + good)])[1] == [FIND]
    assert read("hermes", ["<tool_call>oops</tool_call>\n<tool_call>" + JSON_FIND])[1] == [FIND]


@pytest.mark.parametrize(
    ("name", "text", "ids"),
    [
        ("kimi_k2", KIMI(f"<|tool_call_begin|>functions.run:3{ARG}{{}}<|tool_call_end|>"), ["functions.run:3"]),
        ("mistral", "[TOOL_CALLS]run[CALL_ID]a1B2c3D4e[ARGS]{}", ["a1B2c3D4e"]),
        ("mistral", '[TOOL_CALLS][{"name": "run", "id": "a1B2c3D4e", "arguments": {}}]', ["a1B2c3D4e"]),
        ("cohere_command3", '<|START_ACTION|>[{"tool_call_id": "7", "tool_name": "run", "parameters": {}}]', ["7"]),
        ("hermes", '<tool_call>{"name": "run", "id": "7", "arguments": {}}</tool_call>', [""]),
    ],
)
def test_ids_of_the_model(name: str, text: str, ids: list[str]) -> None:
    assert read(name, [text])[2] == ids


def test_strings_between_tags_stream() -> None:
    for name, text in (
        ("qwen3_coder", "<tool_call><function=find><parameter=text>\nline one\nline tw"),
        ("glm45", "<tool_call>find<arg_key>text</arg_key><arg_value>line one\nline tw"),
        ("minimax_m2", '<minimax:tool_call><invoke name="find"><parameter name="text">line one\nline tw'),
    ):
        pieces = make_tool_parser(name, TOOLS).push(text)
        assert "".join(p.json_text for p in pieces if isinstance(p, CallArguments)) == '{"text": "line one\\nline tw'
