"""Which formats a server reads its model's answers by, and what comes of them at the routes."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import ConfigError
from cadence.entrypoints.server.chat.format_detection import (
    REASONING,
    TOOL_MODELS,
    TOOLS,
    detect_reasoning,
    detect_tools,
)
from cadence.entrypoints.server.chat.format_tables import FormatTables, load_formats
from cadence.entrypoints.server.chat.formats import AnswerFormats, choose_formats
from cadence.entrypoints.server.chat.reasoning import FORMATS as REASONING_FORMATS
from cadence.entrypoints.server.chat.tools.base import Piece
from cadence.entrypoints.server.chat.tools.formats.registry import FORMATS as TOOL_FORMATS
from cadence.entrypoints.server.chat.tools.machine import Machine
from tests.helpers.tiny_tokenizers import byte_level, save
from tests.server.fake_llm import TEMPLATE
from tests.server.fakes_chat import WEATHER, openai_client
from tests.server.helpers import FakeLLM, save_fake_model
from tests.server.test_chat import chat
from tests.server.test_chat_tools import CALL, HERMES, both, gathered, whole
from tests.server.test_completions import Serve

# What chat templates write, in short: (of which model, a piece of its template, tools, reasoning)
TEMPLATES = [
    ("gpt-oss", "<|start|>assistant<|channel|>analysis<|message|> … <|channel|>commentary", "openai", "openai_gptoss"),
    ("Qwen 2.5", "return <tool_call>\n{\"name\": …}\n</tool_call>", "hermes", None),
    ("Qwen 3", "<tool_call> … '<think>\\n\\n</think>\\n\\n'", "hermes", "qwen3"),
    ("Qwen 3 Coder", "<tool_call>\n<function=example>\n<parameter=a>", "qwen3_coder", None),
    ("Qwen 3.5", "<tool_call>\n<function=example>\n<parameter=a> … <think>\\n", "qwen3_coder", "qwen3"),
    ("DeepSeek R1", "<｜Assistant｜><｜tool▁calls▁begin｜><｜tool▁call▁begin｜>\n```json … split('</think>')",
     "deepseek_v3", "deepseek_r1"),
    ("DeepSeek V3.1", "<｜Assistant｜><｜tool▁call▁begin｜> … if thinking … '</think>'", "deepseek_v31", "deepseek_v3"),
    ("DeepSeek V3.2", "set dsml = '｜DSML｜' … '<' + dsml + 'function_calls>' … <｜Assistant｜></think> thinking",
     "deepseek_v32", "deepseek_v3"),
    ("DeepSeek V4", "set dsml = '｜DSML｜' … '<' + dsml + 'tool_calls>' … </think>", "deepseek_v4", "deepseek_v4"),
    ("GLM 4.6", "<tool_call>{name}<arg_key>k</arg_key> … <think></think>", "glm45", "glm45"),
    ("Kimi K2", "<|tool_calls_section_begin|>", "kimi_k2", None),
    ("Kimi K2 Thinking", "<|tool_calls_section_begin|> … <think></think>", "kimi_k2", "kimi_k2"),
    ("Llama 3.1", "<|python_tag|>", "llama3_json", None),
    ("Llama 3.2", '"parameters": dictionary of argument name and its value', "llama3_json", None),
    ("Mistral", "[AVAILABLE_TOOLS] … [TOOL_CALLS]", "mistral", None),
    ("Magistral", "[TOOL_CALLS] … [THINK]", "mistral", "mistral"),
    ("MiniMax M2", "<minimax:tool_call> … <think> … <response>", "minimax_m2", "minimax_m2"),
    ("Granite 3.3", "<|start_of_role|> … <|tool_call|> … <think></think><response>", "granite", "granite"),
    ("Granite 4", "<|start_of_role|> … <tool_call>", "granite4", None),
    ("Seed OSS", "<seed:tool_call>\n<function= … <parameter= … <seed:think>", "seed_oss", "seed_oss"),
    ("Command A", "<|START_ACTION|> … <|START_THINKING|>", "cohere_command3", "cohere_command3"),
    ("Gemma 4", "<|tool_call>call: … <|channel>thought", "gemma4", "gemma4"),
    ("Hunyuan 3", "'<think{}>'.format(x) '<tool_sep{}>' '<arg_key{}>'", "hy_v3", "hy_v3"),
    ("no tools", "{{ messages }}", None, None),
]  # fmt: skip


@pytest.mark.parametrize(("model", "template", "tools", "reasoning"), TEMPLATES)
def test_auto_reads_the_template(model: str, template: str, tools: str | None, reasoning: str | None) -> None:
    found_tools, found_reasoning = detect_tools(template), detect_reasoning(template)
    assert (found_tools[0] if found_tools else None) == tools, model
    assert (found_reasoning[0] if found_reasoning else None) == reasoning, model


@pytest.mark.parametrize(("markers", "name"), TOOLS)
def test_no_marker_is_hidden_by_one_before_it(markers: tuple[str, ...], name: str) -> None:
    assert detect_tools(" ".join(markers)) == (name, f"the chat template has {markers[0]}")


# Reference of a model, what its template has, the format
NAMED_MODELS = [
    ("Salesforce/Llama-xLAM-2-8b-fc-r", "{% if tools %} <|python_tag|>", "xlam"),
    ("/models/ToolACE-2-8B", "{% if tools %}", "pythonic"),
    ("ERNIE-4.5-21B-A3B.gguf", "{% if tools %} <tool_call>", "ernie45"),
    ("/home/ernie/Qwen3-8B", "{% if tools %} <tool_call>", "hermes"),
    ("Salesforce/xLAM-1", "{{ messages }}", None),  # it is never told of tools
]


@pytest.mark.parametrize(("model", "template", "tools"), NAMED_MODELS)
def test_the_name_of_a_model_tells_its_format(model: str, template: str, tools: str | None) -> None:
    found = detect_tools(template, model)
    assert (found[0] if found else None) == tools


def test_auto_names_formats_that_exist() -> None:
    assert {name for _, name in (*TOOLS, *TOOL_MODELS)} <= set(TOOL_FORMATS)
    assert {name for _, name in REASONING} <= set(REASONING_FORMATS)


def chosen(template: str, special: tuple[str, ...] = (), **options: Any) -> AnswerFormats:
    return choose_formats(ServeOptions(**options), FormatTables(), "fake", [template], special)


def names_of(formats: AnswerFormats) -> tuple[str | None, str | None]:
    return formats.tools and formats.tools.names[0], formats.reasoning and formats.reasoning.names[0]


def test_the_log_says_what_auto_chose(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cadence.server"):
        found = chosen("<tool_call> <think>", enable_auto_tool_choice=True, reasoning_parser="auto")
        assert names_of(found) == ("hermes", "qwen3")
    assert caplog.messages == [
        "tool_call_parser=auto: hermes, because the chat template has <tool_call>",
        "reasoning_parser=auto: qwen3, because the chat template has <think>",
    ]
    caplog.clear()
    assert names_of(chosen("", tool_call_parser="auto", reasoning_parser="auto")) == ("hermes", None)
    assert "hermes is assumed" in caplog.messages[0] and "there is none" in caplog.messages[1]


def test_what_is_named_is_taken() -> None:
    assert names_of(chosen("<tool_call> <think>", tool_call_parser="mistral")) == ("mistral", None)
    assert names_of(chosen("<tool_call> <think>")) == ("hermes", None)
    assert chosen("{{ messages }}") == AnswerFormats()
    assert names_of(chosen("", tool_call_parser="openai"))[1] == "openai_gptoss"  # channels are not for the reader
    assert names_of(chosen("<|start|> <|channel|> analysis"))[1] == "openai_gptoss"


def test_special_tokens_are_kept_where_a_format_needs_them() -> None:
    formats = chosen("", ("<s>", "[TOOL_CALLS]"), tool_call_parser="mistral", reasoning_parser="qwen3")
    assert formats.needs_special_tokens(tools=True) and not formats.needs_special_tokens(tools=False)
    assert not chosen("", ("<s>",), tool_call_parser="mistral").needs_special_tokens(tools=True)
    assert chosen("", ("<think>",), reasoning_parser="qwen3").needs_special_tokens(tools=False)


@pytest.fixture
def model_with(tmp_path: Path) -> Callable[..., Path]:
    """A fake model whose vocabulary has these special tokens."""

    def make(*special: str, template: str = TEMPLATE) -> Path:
        directory = save_fake_model(tmp_path / "model", template)
        tokenizer = byte_level()
        tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
        save(tokenizer, directory, chat_template=template)
        return directory

    return make


HARMONY = (
    "<|channel|>analysis<|message|>Which city?<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
    "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    '{"city": "Paris"}<|call|>'
)
HARMONY_TOKENS = ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>")


def test_tools_need_no_flag(serve: Serve, model_with: Callable[..., Path]) -> None:
    llm = FakeLLM(model_with(template=TEMPLATE + "{#- <tool_call> -#}"), script="Let me see. " + CALL)
    assert both(openai_client(serve(llm)), tools=[WEATHER])[3] == "tool_calls"


def test_a_format_that_is_named_needs_no_other_flag(serve: Serve) -> None:
    client = openai_client(serve({"script": CALL}, tool_call_parser="hermes"))
    assert both(client, tools=[WEATHER])[3] == "tool_calls"


def test_gpt_oss(serve: Serve, model_with: Callable[..., Path]) -> None:
    template = TEMPLATE + "{#- <|start|>assistant<|channel|>analysis commentary -#}"
    llm = FakeLLM(model_with(*HARMONY_TOKENS, template=template), script=HARMONY)
    client = openai_client(serve(llm, enable_auto_tool_choice=True))
    text, reasoning, calls, reason = both(client, tools=[WEATHER])
    assert (text, reasoning, reason) == ("I look.", "Which city?", "tool_calls")
    assert calls == [{"name": "get_weather", "arguments": '{"city": "Paris"}'}]
    llm.script = "<|channel|>analysis<|message|>Easy.<|end|><|start|>assistant<|channel|>final<|message|>Four."
    assert both(client) == ("Four.", "Easy.", [], "stop")


def test_markers_that_are_special_tokens_reach_the_parser(serve: Serve, model_with: Callable[..., Path]) -> None:
    directory = model_with("[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]")
    llm = FakeLLM(directory, script='[THINK]Hm.[/THINK][TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}')
    client = openai_client(serve(llm, **{**HERMES, "tool_call_parser": "mistral"}, reasoning_parser="mistral"))
    assert both(client, tools=[WEATHER])[1:3] == ("Hm.", [{"name": "get_weather", "arguments": '{"city": "Paris"}'}])
    call = chat(client, tools=[WEATHER]).choices[0].message.tool_calls[0]
    assert len(call.id) == 9 and call.id.isalnum()  # as Mistral's templates want them


def test_other_special_tokens_stay_hidden(serve: Serve, model_with: Callable[..., Path]) -> None:
    client = openai_client(serve(FakeLLM(model_with("[TOOL_CALLS]"), script="<|turn|>Plain."), **HERMES))
    assert chat(client, tools=[WEATHER]).choices[0].message.content == "Plain."


def test_ids_of_the_model_are_kept(serve: Serve) -> None:
    script = (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>'
    )
    client = openai_client(serve({"script": script}, **{**HERMES, "tool_call_parser": "kimi_k2"}))
    assert chat(client, tools=[WEATHER]).choices[0].message.tool_calls[0].id == "functions.get_weather:0"


def test_a_broken_call(serve: Serve) -> None:
    """A whole answer has it as text; a stream has shown its beginning, which does not parse."""
    script = '<tool_call>{"name": "get_weather", "arguments": {"city": Paris}}</tool_call>'
    client = openai_client(serve({"script": script}, **HERMES))
    assert whole(chat(client, tools=[WEATHER])) == (script, "", [], "stop")
    text, _, calls, _ = gathered(chat(client, tools=[WEATHER], stream=True))
    assert text == "Paris}}</tool_call>" and [call["name"] for call in calls] == ["get_weather"]
    with pytest.raises(ValueError):
        json.loads(calls[0]["arguments"])


def test_a_call_ends_thoughts(serve: Serve) -> None:
    client = openai_client(serve({"script": "<think>Which city? " + CALL}, reasoning_parser="qwen3", **HERMES))
    text, reasoning, calls, reason = both(client, tools=[WEATHER])
    assert (text, reasoning, reason, len(calls)) == ("", "Which city?", "tool_calls", 1)


PLUGIN = """
from cadence.entrypoints.server.chat.reasoning_formats import ThinkFormat
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.syntax import ObjectSyntax


def register(formats):
    formats.add_tool_format(ToolFormat(("my_calls",), ObjectSyntax(), open=("<<call>>",), close=("<</call>>",)))
    formats.add_reasoning_format(ThinkFormat(("my_thoughts",), ("<<hm>>",), ("<</hm>>",)))
"""


def test_a_plugin_adds_formats(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "formats.py").write_text(PLUGIN)
    script = '<<hm>>Which?<</hm>><<call>>{"name": "get_weather", "arguments": {}}<</call>>'
    options = {"tool_call_parser": "my_calls", "tool_parser_plugin": str(tmp_path / "formats.py")}
    app = serve({"script": script}, enable_auto_tool_choice=True, reasoning_parser="my_thoughts", **options)
    assert both(openai_client(app), tools=[WEATHER])[1:3] == ("Which?", [{"name": "get_weather", "arguments": "{}"}])


def test_a_plugin_is_one_servers_alone(tmp_path: Path) -> None:
    (tmp_path / "formats.py").write_text(PLUGIN)
    with_plugin = {"tool_parser_plugin": str(tmp_path / "formats.py")}
    assert load_formats(ServeOptions(tool_call_parser="my_calls", **with_plugin)).tool_format("my_calls")
    with pytest.raises(ConfigError, match="tool_call_parser must be one of"):
        load_formats(ServeOptions(tool_call_parser="my_calls"))
    assert "my_calls" not in TOOL_FORMATS and "my_thoughts" not in REASONING_FORMATS


def test_a_plugin_that_fails(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tool_parser_plugin: .* cannot be read"):
        load_formats(ServeOptions(tool_parser_plugin=str(tmp_path / "none.py")))
    (tmp_path / "bad.py").write_text("import vllm_does_not_exist")
    with pytest.raises(ConfigError, match=r"reasoning_parser_plugin: .*ModuleNotFoundError"):
        load_formats(ServeOptions(reasoning_parser_plugin=str(tmp_path / "bad.py")))
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(ConfigError, match=r"tool_parser_plugin: .* defines no function register\(formats\)"):
        load_formats(ServeOptions(tool_parser_plugin=str(tmp_path / "empty.py")))


@pytest.mark.parametrize(("length", "beside"), [(100, False), (400, True)])
def test_a_long_answer_is_read_beside_the_event_loop(
    serve: Serve, fake_model: Path, monkeypatch: pytest.MonkeyPatch, length: int, beside: bool
) -> None:
    """A text of many beginnings of calls is read several times."""
    push, read, loop = Machine.push, set[int](), list[int]()

    def noted(self: Machine, text: str) -> list[Piece]:
        read.add(threading.get_ident())
        return push(self, text)

    monkeypatch.setattr(Machine, "push", noted)
    monkeypatch.setattr("cadence.entrypoints.server.chat.engine.LONG_TEXT", 200)
    app = serve(FakeLLM(fake_model, script="{" * length), tool_call_parser="llama3_json", enable_auto_tool_choice=True)
    app.do(lambda: loop.append(threading.get_ident()))
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}], "tools": [WEATHER], "max_tokens": 500}
    with app.client() as client:
        answer = client.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == "{" * length
    assert read and read.isdisjoint(loop) == beside
