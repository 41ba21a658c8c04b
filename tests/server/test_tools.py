"""Tool parsers: what each dialect means, and that it does not matter where the text is cut."""

from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cadence.core.errors import ConfigError
from cadence.entrypoints.server.chat.choice import calls_in_json
from cadence.entrypoints.server.chat.tools.base import CallBroken, CallStart, Piece, Text, WholeCalls
from cadence.entrypoints.server.chat.tools.formats.registry import FORMATS, make_tool_parser
from tests.helpers.wide import examples

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {
                "type": "object",
                "properties": {"n": {"type": "integer"}, "s": {"type": "string"}, "o": {"type": "object"}},
            },
        },
    }
]


def joined(pieces: list[Piece]) -> list[tuple]:
    """Neighbouring pieces of one kind put together."""
    out: list[list] = []
    for piece in pieces:
        if isinstance(piece, CallBroken):
            continue  # streams have shown the call by then
        if isinstance(piece, CallStart):
            out.append(["call", piece.call, piece.name])
            continue
        key = ("text",) if isinstance(piece, Text) else ("json", piece.call)
        new = piece.text if isinstance(piece, Text) else piece.json_text
        if out and tuple(out[-1][:-1]) == key:
            out[-1][-1] += new
        else:
            out.append([*key, new])
    return [tuple(entry) for entry in out]


def run(name: str, parts: list[str], whole: bool = False) -> list[tuple]:
    parser = make_tool_parser(name, TOOLS)
    parser = WholeCalls(parser) if whole else parser
    return joined([piece for part in parts for piece in parser.push(part)] + parser.finish())


def outcome(name: str, text: str) -> tuple[str, list[tuple[str, object]]]:
    """All the text, and the calls with their arguments parsed."""
    whole = run(name, [text])
    assert whole == run(name, list(text)), "cut into characters it means something else"
    calls = [(entry[2], "") for entry in whole if entry[0] == "call"]
    for entry in whole:
        if entry[0] == "json":
            calls[entry[1]] = (calls[entry[1]][0], json.loads(entry[2]))
    return "".join(entry[1] for entry in whole if entry[0] == "text"), calls


HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": {"b": "}{\\"é"}, "l": [1, 2.5e3, true, null]}}\n</tool_call>'
HERMES_ARGS = {"a": {"b": '}{"é'}, "l": [1, 2.5e3, True, None]}
CODER = """<tool_call>
<function=f>
<parameter=n>
3
</parameter>
<parameter=s>
3
</parameter>
</function>
</tool_call>"""

GOOD = [
    ("hermes", HERMES, "", [("f", HERMES_ARGS)]),
    ("qwen", f"Let me see.\n{HERMES}\n{HERMES}\nDone.", "Let me see.\n\nDone.", [("f", HERMES_ARGS)] * 2),
    ("hermes", '<tool_call>{"arguments": {"x": 1}, "name": "g"}</tool_call>', "", [("g", {"x": 1})]),
    ("hermes", '<tool_call>{"name": "g"}</tool_call>', "", [("g", {})]),
    ("hermes", '<tool_call>{"name": "g", "arguments": "{\\"x\\": \\"é\\"}"}</tool_call>', "", [("g", {"x": "é"})]),
    ("hermes", '<tool_call>{"name": "g", "arguments": null, "id": 3}</tool_call>', "", [("g", {})]),
    ("hermes", '<tool_call>{"name": "no such tool!", "arguments": {}}', "", [("no such tool!", {})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"s": "a\nb"}}</tool_call>', "", [("f", {"s": "a\nb"})]),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"s": 1}</tool_call> bye', " bye", [("f", {"s": 1})]),
    ("hermes", '<tool_call>{"name":"f","arguments":{}}{"name":"g","arguments":{}}</tool_call>', "",
     [("f", {}), ("g", {})]),
    ("hermes", '<tool_call>{"name":"f","arguments":{"s":"\\ud83d\\ude00"}}</tool_call>', "", [("f", {"s": "😀"})]),
    ("llama3_json", '{"name": "f", "parameters": {"s": "{;}"}}', "", [("f", {"s": "{;}"})]),
    ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}', "", [("f", {})]),
    ("llama3_json", '{"name":"f","parameters":{"n":1}}; {"type":"function","name":"g","arguments":{}}', "",
     [("f", {"n": 1}), ("g", {})]),
    ("llama3_json", 'So {"a": 1} and {"name": "f", "parameters": {"n": 1}} end', 'So {"a": 1} and  end',
     [("f", {"n": 1})]),
    ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"n": [1]}}, {"name": "g", "arguments": {}}]', "",
     [("f", {"n": [1]}), ("g", {})]),
    ("mistral", 'Hm. [TOOL_CALLS] [{"name": "f", "arguments": {"s": "]"}, "id": "abcdefghi"}] ok', "Hm.  ok",
     [("f", {"s": "]"})]),
    ("mistral", '[TOOL_CALLS]f{"n": 1}[TOOL_CALLS]my-tool.v2[ARGS]{}', "", [("f", {"n": 1}), ("my-tool.v2", {})]),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]abc123DEF[ARGS]{"n": {"x": "}"}}', "", [("f", {"n": {"x": "}"}})]),
    ("pythonic", '[f(a=1), g.h(b="x)]", c=[1, {"k": (True, None)}], d=-2.5)]', "",
     [("f", {"a": 1}), ("g.h", {"b": "x)]", "c": [1, {"k": [True, None]}], "d": -2.5})]),
    ("pythonic", "See [this](u) and a[0]: [f(s='it\\'s é', b=true)]", "See [this](u) and a[0]: ",
     [("f", {"s": "it's é", "b": True})]),
    ("pythonic", "[f()] then [g()]", " then ", [("f", {}), ("g", {})]),
    ("qwen3_coder", CODER, "", [("f", {"n": 3, "s": "3"})]),
    ("qwen3_coder", f'Go. <function=f><parameter=o>{{"k": "<b>"}}</parameter></function>\n{CODER}',
     "Go. ", [("f", {"o": {"k": "<b>"}}), ("f", {"n": 3, "s": "3"})]),
    ("qwen3_coder", "<tool_call><function=g></function></tool_call>", "", [("g", {})]),
    ("", HERMES, HERMES, []),
]  # fmt: skip


DIGITS = "7" * 5_000  # more than Python makes an integer of


@pytest.mark.parametrize(("name", "text", "said", "calls"), GOOD)
def test_dialects(name: str, text: str, said: str, calls: list[tuple[str, object]]) -> None:
    assert outcome(name, text) == (said, calls)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "no call at all"),
        ("hermes", "a < b, <tool_cal"),
        ("hermes", "<tool_call>"),
        ("hermes", "<tool_call>not json</tool_call> after"),
        ("hermes", '<tool_call>{"name": "f", "arguments": {bad}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": 3, "arguments": {}}</tool_call>'),
        pytest.param("hermes", f'<tool_call>{{"name": {DIGITS}, "arguments": {{}}}}</tool_call>', id="a long name"),
        pytest.param("hermes", f'<tool_call>{{"name": "f", "arguments": {DIGITS}}}</tool_call>', id="long arguments"),
        pytest.param("pythonic", f"[f(a={DIGITS})]", id="a long argument"),
        pytest.param("pythonic", f"[f(a=0x{DIGITS})]", id="a long argument in hexadecimal"),
        ("pythonic", "[f(a=b'x')]"),
        ("pythonic", "[f(a=1j)]"),
        ("pythonic", "[f(a=...)]"),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": {"a": 1}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "argum'),
        ("llama3_json", '{"name": "Bob"}'),
        ("llama3_json", 'fn main() { println!("{}", {"name"}); }'),
        ("llama3_json", '<|python_tag|>search.call(query="x")'),
        ("llama3_json", '{"name": {"name": {"name": 1}}}'),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS][]"),
        ("mistral", "[TOOL_CALLS] two words {"),
        ("mistral", "[TOOL_CALLS][1, 2]"),
        ("mistral", "[TOOL_CALLS]f{broken}"),
        ("mistral", "[TOOL_C"),
        ("pythonic", "[f(1)]"),
        ("pythonic", "[f(a=open('x'))]"),
        ("pythonic", "[f(a=1), and so on"),
        ("pythonic", "[f(a=1)}"),
        ("pythonic", "[f(a=1e999)]"),
        ("pythonic", "[f(a=1), 2]"),
        ("pythonic", "[f(" + "(" * 60 + ")" * 60 + ")]"),
        ("pythonic", "[f(a='"),
        ("qwen3_coder", "<tool_call>nothing</tool_call>"),
        ("qwen3_coder", "<function=>"),
        ("qwen3_coder", "<tool_call><function=f>junk</function></tool_call>"),
    ],
)
def test_what_is_no_call_comes_back_as_it_was(name: str, text: str) -> None:
    assert outcome(name, text) == (text, [])


@pytest.mark.parametrize(
    ("written", "found"), [('"x1"', "x1"), ("3", "3"), (DIGITS, DIGITS), ("null", ""), ('"\\ud800"', "")],
    ids=["text", "number", "long number", "null", "half a character"],
)  # fmt: skip
def test_ids_that_models_give(written: str, found: str) -> None:
    for name, key in (("mistral", "id"), ("cohere", "tool_call_id")):
        opening = {"mistral": "[TOOL_CALLS]", "cohere": "<|START_ACTION|>"}[name]
        parser = make_tool_parser(name, TOOLS)
        pieces = parser.push(f'{opening}[{{"{key}": {written}, "name": "f", "arguments": {{}}}}]') + parser.finish()
        assert [(piece.name, piece.id) for piece in pieces if isinstance(piece, CallStart)] == [("f", found)]


@pytest.mark.parametrize("value", [DIGITS, "{1, 2}", "b'x'", "[" * 5_000, "{'n': b'x'}", "{'n': {1}}"], ids=range(6))
def test_values_that_json_has_no_word_for(value: str) -> None:
    """They are texts, whether they are one argument or may be all of them."""
    for key in ("arguments", "o"):
        text = f'<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="{key}">{value}'
        calls = outcome("deepseek_v32", text + "</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>")[1]
        assert calls == [("f", {key: value})]


@pytest.mark.parametrize("demanded", ["required", "f"])
@pytest.mark.parametrize("name", [DIGITS, '"f"'], ids=["number", "text"])
@pytest.mark.parametrize(
    "arguments", [DIGITS, f'{{"a": {DIGITS}}}', '{"a": "\\ud800"}', "[" * 5_000],
    ids=["number", "inner number", "half a character", "nested"],
)  # fmt: skip
def test_an_answer_of_json_that_cannot_be_a_call(demanded: str, name: str, arguments: str) -> None:
    assert calls_in_json(f'{{"name": {name}, "arguments": {arguments}}}', demanded) == []


def test_arguments_arrive_while_they_are_written() -> None:
    for name, text in (
        ("hermes", '<tool_call>{"name": "f", "arguments": {"s": "one two three'),
        ("llama3_json", '{"name": "f", "parameters": {"s": "one two three'),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"s": "one two three'),
        ("mistral", '[TOOL_CALLS]f{"s": "one two three'),
    ):
        pieces = joined(make_tool_parser(name, TOOLS).push(text))
        assert pieces == [("call", 0, "f"), ("json", 0, '{"s": "one two three')]


def test_text_is_not_held_back() -> None:
    for name in FORMATS:
        parser = make_tool_parser(name, TOOLS)
        assert joined(parser.push("Hello. The answer is 4")) == [("text", "Hello. The answer is 4")]


def test_a_call_cut_off_or_spoilt_does_not_parse() -> None:
    cut = run("hermes", ['<tool_call>{"name": "f", "arguments": {"n": 12'])
    assert cut == [("call", 0, "f"), ("json", 0, '{"n": 12')]
    spoilt = run("hermes", ['<tool_call>{"name": "f", "arguments": {"n": 12, oops}}</tool_call>'])
    assert spoilt == [("call", 0, "f"), ("json", 0, '{"n": 12, '), ("text", "oops}}</tool_call>")]


def test_names() -> None:
    assert {"hermes", "llama3_json", "mistral", "qwen", "qwen3_coder", "pythonic"} <= set(FORMATS)
    with pytest.raises(ConfigError, match="tool_call_parser must be one of"):
        make_tool_parser("nope", [])


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", *"{}[](),;: \n\\\"'f"),
    *('"name"', '"arguments"', '"parameters"', '"f"', "a=1", "-1.5e2", "tru", "é😀"),
    *("<function=f>", "</function>", "<parameter=n>", "</parameter>", "word", '{"name": "f", "arguments": {"x": '),
    *('{"name": "f", "parameters": {}}', "[f(a='x')]", "1}}", "\\u00e9", "\\ud8"),
]
texts = st.one_of(
    st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
    st.sampled_from([text for _, text, _, _ in GOOD]),
)


@examples(80, 600)
@given(name=st.sampled_from(sorted(FORMATS)), text=texts, data=st.data())
def test_any_cut_means_the_same(name: str, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    assert run(name, parts) == run(name, [text])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(st.text(max_size=6), json_values, max_size=4)


@examples(50, 400)
@given(arguments=objects, ascii_only=st.booleans(), size=st.integers(1, 9))
@example(arguments={"}{": "]}</tool_call>"}, ascii_only=False, size=3)
def test_any_arguments_come_through(arguments: dict, ascii_only: bool, size: int) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    for name, text in (
        ("hermes", f'<tool_call>\n{{"name": "f", "arguments": {written}}}\n</tool_call>'),
        ("llama3_json", f'{{"name": "f", "parameters": {written}}}'),
        ("mistral", f"[TOOL_CALLS]f{written}"),
    ):
        whole = run(name, [text[at : at + size] for at in range(0, len(text), size)])
        assert [entry[0] for entry in whole] == ["call", "json"]
        assert json.loads(whole[1][2]) == arguments


NONSENSE = ('{"name": ', '{"id":[', "[f(", '[f("', "<tool_call>{", "[TOOL_CALLS]f{", "<function=f><parameter=n>")


def test_long_nonsense_is_text() -> None:
    for name in sorted({format.names[0] for format in FORMATS.values()}):
        for unit in NONSENSE:
            text = unit * (4_000 // len(unit))
            assert run(name, [text], whole=True) == [("text", text)], (name, unit)
