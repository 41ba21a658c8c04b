# ruff: noqa: E501 (a template's line breaks are part of it)
"""Chat templates render as transformers renders them, and a bad one ends with a clear error."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cadence.core.errors import InvalidRequestError, TemplateError
from cadence.text.chat_template import ChatRequest, ChatTemplates
from cadence.text.hf_directory import load_tokenizer
from cadence.text.special_tokens import SpecialTokens
from cadence.text.template_limits import LimitError, TemplateLimits, check_format
from cadence.text.tokenizer import Tokenizer
from tests.helpers import tiny_tokenizers

SPECIAL = SpecialTokens(bos_token="<s>", eos_token="</s>", bos_id=1, eos_id=2)
USER = {"role": "user", "content": "What is <b>2 & 2</b>? é"}
DIALOGUE = [
    {"role": "system", "content": "Be brief."},
    USER,
    {"role": "assistant", "content": "4  "},
    {"role": "user", "content": "  And 3 & 3? "},
]
CALL = [
    USER,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "add", "arguments": {"a": 2, "b": [2]}}}],
    },
    {"role": "tool", "content": "4", "tool_call_id": "1"},
]
TOOLS = [
    {"type": "function", "function": {"name": "add", "description": "<adds> & more", "parameters": {"type": "object"}}}
]

TEMPLATES = {
    "chatml": """{%- for m in messages %}
    {{- '<|im_start|>' + m['role'] + '\n' + (m['content'] or '') + '<|im_end|>' + '\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}""",
    "plain blocks": """
{% for m in messages %}
    {% if m.role == 'system' %}
[{{ m.content | trim }}]
    {% else %}
<{{ m.role }}>{{ m.content }}</{{ m.role }}>
    {% endif %}
{% endfor %}
{% if add_generation_prompt %}
<assistant>
{% endif %}
""",
    "tools as json": """{{ bos_token }}{% if tools %}{{ tools | tojson }}
{{ tools | tojson(indent=2) }}{% for t in tools %}{{ t.function | tojson(sort_keys=true, separators=(',', ':')) }}{% endfor %}
{% endif %}{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls %}{% for c in m.tool_calls %}
<call>{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }}</call>{{ c.function.arguments | tojson }}
{% endfor %}{% elif m.role == 'tool' %}<result>{{ m.content }}</result>{% else %}{{ m.content }}{% endif %}{% endfor %}""",
    "namespace and loop controls": """{% set ns = namespace(system='', count=0) %}{% for m in messages %}
{% if m.role == 'system' %}{% set ns.system = m.content %}{% continue %}{% endif %}
{% set ns.count = ns.count + 1 %}{{ loop.index0 ~ ':' ~ ns.count ~ m.content }}{% if loop.last %}{{ eos_token }}{% endif %}
{% if ns.count == 2 %}{% break %}{% endif %}{% endfor %}{{ ns.system }}""",
    "generation tag": """{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{% set x = m.content %}{{ x }}
{{ eos_token }}{% endgeneration %}{% else %}{{ m.content }}{{ x }}{% endif %}{% endfor %}""",
    "macros and slices": """{% macro turn(m, tag='t') -%}<{{ tag }} {{ m.role | upper }}>{{ caller() if caller else m.content }}
{%- endmacro %}{% set rest = messages[1:] %}{% if messages[0]['role'] == 'system' %}{{ messages[0].content }}{% endif %}
{% for m in rest %}{{ turn(m) }}{% call turn(m, tag='u') %}{{ m.content | length }}{% endcall %}{% endfor %}
{{ rest | map(attribute='role') | join(', ') }}{{ rest[::-1][0].content.split('?')[0].strip() }}{{ pad_token is defined }}""",
    "set blocks and filters": """{% set head %}{% for m in messages %}{{ m.role }};{% endfor %}{% endset %}{{ head }}{{ head | replace(';', '|') }}
{{ "%s has %05.1f" | format("x", 2.5) }}{{ "{}-{:>4}".format(1, 2) }}{{ "a" * 3 + "b" ~ 1 }}{{ "%d" % 7 }}{{ 2 ** 10 }}
{{ messages | selectattr('role', 'equalto', 'user') | list | length }}{{ documents is none }}{{ dict(a=1) | tojson }}
{% filter upper %}{{ bos_token }}{% endfilter %}{{ missing }}{{ missing.also if missing is defined }}{{ range(3) | list }}""",
    "with a variable": """{% if thinking is defined and thinking %}<think>{% endif %}{{ messages[-1].content }}""",
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Any]:
    directory: Path = tmp_path_factory.mktemp("chat")
    tiny_tokenizers.save(tiny_tokenizers.byte_level(), directory)
    from transformers import PreTrainedTokenizerFast

    return load_tokenizer(directory), PreTrainedTokenizerFast.from_pretrained(directory)


def render(template: str, messages: Any = (USER,), **options: Any) -> str:
    limits = TemplateLimits(max_chars=200_000, max_ticks=50_000, max_seconds=2.0)
    now = lambda: datetime(2026, 1, 31, 12, 0)  # noqa: E731
    chat = ChatRequest(list(messages), **{"add_generation_prompt": False, **options})
    return ChatTemplates(limits, now).render(template, chat, SPECIAL)


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("messages", [[USER], DIALOGUE, CALL], ids=["one", "dialogue", "call"])
@pytest.mark.parametrize("tools", [None, TOOLS], ids=["", "tools"])
def test_renders_as_transformers(pair: tuple[Tokenizer, Any], name: str, messages: Any, tools: Any) -> None:
    ours, theirs = pair
    filled = [{**message, "content": message["content"] or ""} for message in messages]
    for options in ({"add_generation_prompt": True}, {"add_generation_prompt": False, "thinking": True}):
        given = {"chat_template": TEMPLATES[name], "tools": tools, **options}
        try:
            expected = theirs.apply_chat_template(filled, tokenize=False, **given)
        except Exception as error:
            with pytest.raises(TemplateError, match=type(error).__name__):
                ours.apply_chat_template(messages, tokenize=False, **given)
            continue
        assert ours.apply_chat_template(messages, tokenize=False, **given) == expected
        ids = theirs.apply_chat_template(filled, tokenize=True, return_dict=False, **given)
        assert ours.apply_chat_template(messages, **given) == ids


@pytest.mark.parametrize("content", ["The answer", "The answer ", " x\n", "4<|im_end|>"])
@pytest.mark.parametrize("trim", ["", " | trim"])
@pytest.mark.parametrize("parts", [True, False])
def test_continue_final_message_as_transformers(
    pair: tuple[Tokenizer, Any], content: str, trim: str, parts: bool
) -> None:
    ours, theirs = pair
    text = f"{{% for p in m.content %}}{{{{ p.text{trim} }}}}{{% endfor %}}" if parts else f"{{{{ m.content{trim} }}}}"
    template = f"{{% for m in messages %}}<{{{{ m.role }}}}>{text}<|im_end|>\n{{% endfor %}}"
    wrap = (lambda s: [{"type": "text", "text": s}]) if parts else (lambda s: s)
    messages = [{"role": "user", "content": wrap("hi")}, {"role": "assistant", "content": wrap(content)}]
    options: dict[str, Any] = {"tokenize": False, "chat_template": template, "continue_final_message": True}
    assert ours.apply_chat_template(messages, **options) == theirs.apply_chat_template(messages, **options)
    assert messages[1]["content"] == wrap(content)  # untouched


def test_continue_final_message_needs_a_final_message() -> None:
    with pytest.raises(TemplateError, match="final message") as caught:
        render("{{ messages[0].content }}", DIALOGUE, continue_final_message=True)
    assert caught.value.field == "continue_final_message"
    with pytest.raises(InvalidRequestError, match="contradict"):
        render("x", continue_final_message=True, add_generation_prompt=True)
    with pytest.raises(InvalidRequestError, match=r"messages\[1\]\.content has no text"):
        render("x", CALL[:2], continue_final_message=True)


def test_messages_without_content() -> None:
    """Beside tool calls and thoughts there is none: an empty text, except where the template asks."""
    thoughts = [USER, {"role": "assistant", "content": None, "reasoning": "hm"}, {"role": "tool", "content": None}]
    assert render("{% for m in messages %}{{ m.content + ';' }}{% endfor %}", [USER, *CALL[1:]]).endswith("é;;4;")
    assert render("{% for m in messages %}{{ m.content + ';' }}{% endfor %}", thoughts).endswith("é;;;")
    assert render("{{ messages[1].reasoning_content + messages[1].reasoning }}", thoughts) == "hmhm"
    assert render("{% for m in messages %}{{ m['content'] is none }};{% endfor %}", CALL) == "False;True;False;"
    refused = [USER, {"role": "assistant", "content": None, "refusal": "No."}]
    assert render("{{ messages[1].content }}", refused) == "No."


def test_results_of_tools_are_strings() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "user", "content": parts}, {"role": "tool", "content": parts}]
    template = "{% if m is string %}{% endif %}{% for m in messages %}{% if m.content is string %}{{ m.content }}"
    template += "{% else %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endif %}|{% endfor %}"
    assert render(template, messages) == "<a><b>|a\nb|"


def test_tool_arguments_given_as_json_text_are_parsed() -> None:
    template = "{{ messages[0].tool_calls[0].function.arguments.a }}"
    function: dict[str, Any] = {"name": "add", "arguments": '{"a": 2}'}
    messages = [{"role": "assistant", "tool_calls": [{"function": function}]}]
    assert render(template, messages) == "2"
    assert function["arguments"] == '{"a": 2}'  # untouched
    function["arguments"] = ""
    assert render("{{ messages[0].tool_calls[0].function.arguments | tojson }}", messages) == "{}"


PARTS = [{"role": "user", "content": [{"type": "text", "text": "one"}, "two"]}]


@pytest.mark.parametrize(
    ("template", "parts", "string"),
    [
        ("{{ messages[0].content }}", "one\ntwo", "s"),
        ("{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}", "[one][two]", "[s]"),
        (
            "{% for m in messages %}{% for p in m['content'] %}{{ p.type }},{% endfor %}{% endfor %}",
            "text,text,",
            "text,",
        ),
        ("{% set c = messages[0].content %}{% for p in c | list %}{{ p.text }}{% endfor %}", "onetwo", "s"),
        (
            "{% macro show(c) %}{% if c is string %}={{ c }}{% else %}{% for p in c %}{{ p.text }}{% endfor %}{% endif %}"
            "{% endmacro %}{{ show(messages[0].content) }}",
            "onetwo",
            "=s",
        ),
    ],
)
def test_content_fits_the_template(template: str, parts: str, string: str) -> None:
    """Parts reach only templates that loop over them; strings are wrapped only for those that do nothing else."""
    assert render(template, PARTS) == parts
    assert render(template, [{"role": "user", "content": "s"}]) == string


def test_content_format_can_be_given() -> None:
    template = "{{ messages[0].content }}"
    assert render(template, PARTS, content_format="string") == "one\ntwo"
    assert render(template, [USER], content_format="openai").startswith("[{'type': 'text'")
    with pytest.raises(InvalidRequestError, match="content_format"):
        render(template, PARTS, content_format="xml")


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ("hi", "messages"),
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([USER, {"content": "x"}], "messages[1].role"),
        ([{"role": 3, "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": "user", "content": [7]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": ["a", {"type": "image_url", "image_url": {}}]}], "messages[0].content[1].type"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [1]}], "messages[0].tool_calls[0]"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "{"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[1]"}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
    ],
)
def test_bad_messages_name_the_field(messages: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        ChatTemplates().render("x", ChatRequest(messages), SPECIAL)
    assert caught.value.field == field
    assert field in str(caught.value)


def test_bad_tools_and_kwargs_name_the_field() -> None:
    with pytest.raises(InvalidRequestError, match=r"tools\[0\]"):
        render("x", tools=["add"])
    with pytest.raises(InvalidRequestError, match=r"chat_template_kwargs\.messages"):
        render("x", kwargs={"messages": []})
    assert render("{{ tools is none }}", tools=[]) == "True"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{% for m in messages %}", "not valid, line 1"),
        ("{{ raise_exception('roles must alternate') }}", "refused the messages: roles must alternate"),
        ("{{ messages.nothing.more }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{% include 'other' %}", "failed"),
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ namespace(__class__=1) }}", "SecurityError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself too deeply"),
        ("{% break %}", "cannot be compiled"),
        ("{{ lipsum() }}", "failed"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "SecurityError"),
    ],
)
def test_errors_are_clear(template: str, says: str) -> None:
    with pytest.raises(TemplateError, match=says):
        render(template)


BIG = "{% set ns = namespace(x='0123456789') %}"
RUNAWAYS = {
    "nested loops without output": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops whose condition is never true": "{% for i in range(99999) %}{% for j in range(99999) if j < 0 %}{% endfor %}{% endfor %}",
    "one long range": "{{ range(10 ** 9) | list }}",
    "output without end": "{% for i in range(9999) %}{% for m in range(99) %}{{ messages[0].content }}{% endfor %}{% endfor %}",
    "output inside a macro": "{% macro m() %}{% for i in range(40000) %}0123456789{% endfor %}{% endmacro %}{{ m() }}",
    "output inside a set block": "{% set x %}{% for i in range(40000) %}{{ 'abcdefghij' }}{% endfor %}{% endset %}",
    "output of a recursive loop": "{% for i in [[1] * 300] * 300 recursive %}0123456789{{ loop(i) if i != 1 }}{% endfor %}",
    "macros calling macros": "{% macro a() %}{% endmacro %}{% macro b() %}{% for i in range(400) %}{{ a() }}{% endfor %}{% endmacro %}"
    "{% macro c() %}{% for i in range(400) %}{{ b() }}{% endfor %}{% endmacro %}{{ c() }}",
    "blocks calling blocks": "{% block a %}{% for i in range(300) %}{{ self.b() }}{% endfor %}{% endblock %}"
    "{% block b %}{% for i in range(300) %}{{ 'x' }}{% endfor %}{% endblock %}",
    "doubling by +": BIG + "{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by ~": BIG + "{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling by join": BIG + "{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] | join %}{% endfor %}",
    "doubling by join method": BIG + "{% for i in range(99) %}{% set ns.x = ns.x.join([ns.x, ns.x]) %}{% endfor %}",
    "doubling by replace": BIG + "{% for i in range(99) %}{% set ns.x = ns.x | replace('0', ns.x) %}{% endfor %}",
    "doubling by replace method": BIG + "{% for i in range(99) %}{% set ns.x = ns.x.replace('0', ns.x) %}{% endfor %}",
    "doubling by macro": BIG + "{% macro d() %}{{ ns.x }}{{ ns.x }}{% endmacro %}"
    "{% for i in range(99) %}{% set ns.x = d() %}{% endfor %}",
    "multiplied text": "{{ 'x' * 10 ** 9 }}",
    "multiplied list": "{{ [1] * 10 ** 9 }}",
    "a list of one long text": "{{ ['x' * 100000] * 1000 }}",
    "a list of one long text as json": "{{ (['x' * 100000] * 1000) | tojson }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "wide %": "{{ '%999999999d' % 1 }}",
    "wide % from outside": "{{ '%*d' % (999999999, 1) }}",
    "wide format": "{{ '{:999999999}'.format(1) }}",
    "wide format from outside": "{{ '{:{w}}'.format(1, w=999999999) }}",
    "wide format filter": "{{ '%999999999d' | format(1) }}",
    "wide centre": "{{ 'x' | center(999999999) }}",
    "wide centre method": "{{ 'x'.center(999999999) }}",
    "wide zfill": "{{ 'x'.zfill(999999999) }}",
    "wide indent": "{{ 'x\ny' | indent(999999999) }}",
    "wide json": "{{ [1] | tojson(indent=999999999) }}",
    "wide batch": "{{ [1] | batch(999999999, 0) | list }}",
    "many slices": "{{ [1] | slice(999999999) | list }}",
    "wide strftime": "{{ strftime_now('%999999999d') }}",
}


@pytest.mark.parametrize("name", RUNAWAYS)
def test_runaways_are_stopped(name: str) -> None:
    with pytest.raises(TemplateError, match=r"was stopped|OverflowError: Range too big") as caught:
        render(RUNAWAYS[name])
    assert caught.value.field == "chat_template"


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99) %}{{ messages[0].content * 50 }}{% endfor %}",
        "{% macro m() %}{{ messages[0].content * 50 }}{% endmacro %}{% for i in range(99) %}{% set x = m() %}{% endfor %}",
    ],
    ids=["streamed", "collected"],
)
def test_output_is_counted_wherever_it_goes(template: str) -> None:
    templates = ChatTemplates(TemplateLimits(max_chars=20_000, max_ticks=10**9, max_seconds=60))
    with pytest.raises(TemplateError, match="wrote more than 20000 characters"):
        templates.render(template, ChatRequest([USER]), SPECIAL)


def test_the_budget_is_out_of_reach_and_new_for_every_rendering() -> None:
    templates = ChatTemplates(TemplateLimits(max_chars=1000, max_ticks=100))
    chat = ChatRequest([USER])
    for _ in range(5):
        assert len(templates.render("{% for i in range(90) %}x{% endfor %}", chat, SPECIAL)) == 90
    tampered = "{% set tick = 1 %}{% set charge = 1 %}{% set environment = 1 %}{% set context = 1 %}"
    with pytest.raises(TemplateError, match="more than 100 loop"):
        templates.render(tampered + "{% for i in range(101) %}{% endfor %}", chat, SPECIAL)


def test_the_clock_stops_what_the_counters_do_not() -> None:
    templates = ChatTemplates(TemplateLimits(max_ticks=10**9, max_seconds=0.3))
    with pytest.raises(TemplateError, match=r"longer than 0\.3 seconds"):
        templates.render(RUNAWAYS["nested loops without output"], ChatRequest([USER]), SPECIAL)


def test_ordinary_use_is_far_from_the_limits() -> None:
    """A long conversation with long messages renders under the default limits."""
    messages = [{"role": "user", "content": "word " * 2000}, {"role": "assistant", "content": "word " * 2000}] * 500
    text = ChatTemplates().render(TEMPLATES["chatml"], ChatRequest(messages), SPECIAL)
    assert len(text) > 10_000_000
    assert "**3**" in render(
        "{{ '**%s**' % 3 }}{{ '**{}**'.format(3) }}{{ 1234567 | string }}{{ x | default(200000) }}"
    )


def test_the_date() -> None:
    assert render("{{ strftime_now('%d %b %Y') }}") == "31 Jan 2026"


def test_special_tokens_are_named() -> None:
    assert render("{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}") == "<s>|</s>|False"
    assert render("{{ bos_token }}", kwargs={"bos_token": "other"}) == "other"


def test_a_control_token_in_a_message_is_encoded_as_such(pair: tuple[Tokenizer, Any]) -> None:
    """As transformers does by default; the documentation says so."""
    ours, theirs = pair
    messages = [{"role": "user", "content": f"x{tiny_tokenizers.CONTROL}y"}]
    template = "{{ messages[0].content }}"
    ids = ours.apply_chat_template(messages, chat_template=template)
    assert ids == theirs.apply_chat_template(messages, chat_template=template, return_dict=False)
    assert ours.convert_tokens_to_ids(tiny_tokenizers.CONTROL) in ids


def test_compiled_templates_are_kept_and_bounded() -> None:
    templates = ChatTemplates()
    chat = ChatRequest([USER])
    first = templates._compile("a")
    assert templates._compile("a") is first
    for number in range(100):
        templates.render(f"{number}", chat, SPECIAL)
    assert len(templates._compiled) <= 32


def test_json_is_not_escaped_for_html() -> None:
    value = {"a": "<b> & 'é'"}
    assert render("{{ v | tojson }}", kwargs={"v": value}) == json.dumps(value, ensure_ascii=False)


def test_formats_are_looked_at_once() -> None:
    """A pattern that looks again from every colon would not come to an end here."""
    check_format("{:" + ":" * 3_000_000)
    with pytest.raises(LimitError, match="too wide"):
        check_format(":" * 3_000_000 + "999999")
