"""Faults the server once had, each a request and what it must be answered with."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from tests.hostile.case import Case
from tests.hostile.large import LIMIT
from tests.hostile.wire import Request

_MB = 10**6
_ANY = (200, 400, 413)
_REFUSED = (400, 413)
_COMPLETIONS, _CHAT = "/v1/completions", "/v1/chat/completions"
_MESSAGE = b'{"messages":[{"role":"user","content":"'
_PART = b'{"type":"text","text":"a"}'
_PARTS = b'{"max_tokens":2,"messages":[{"role":"user","content":['


def _poison(**fields: Any) -> dict[str, Any]:
    return {"prompt": "hi", "max_tokens": 4, **fields}


def _chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, **fields}


@dataclass(frozen=True)
class Repeat:
    """The text of a body that is made when it is sent: one of these takes as much memory as the limit allows."""

    before: bytes
    unit: bytes
    count: int
    after: bytes

    def text(self) -> bytes:
        return self.before + self.unit * self.count + self.after


# name, path, body, statuses, the field an error blames ("" = not looked at)
_Fault = tuple[str, str, dict[str, Any] | Repeat, tuple[int, ...], str]

# The engine's decoder refused what the front let through, and died of it.
POISON: tuple[_Fault, ...] = (
    ("a bad word of white space", _COMPLETIONS, _poison(bad_words=[" "]), _ANY, "bad_words"),
    ("an empty bad word", _COMPLETIONS, _poison(bad_words=[""]), _ANY, "bad_words"),
    ("a bad word of control characters", _COMPLETIONS, _poison(bad_words=["\x00\x1f"]), _ANY, "bad_words"),
    ("a bad word among good ones", _CHAT, _chat(bad_words=["a", " ", "b"]), _ANY, "bad_words"),
    ("a seed of 2**64", _COMPLETIONS, _poison(seed=2**64), (400,), "seed"),
    ("a seed of -2**63-1", _CHAT, _chat(seed=-(2**63) - 1), (400,), "seed"),
    ("a stop token of 2**64", _COMPLETIONS, _poison(stop_token_ids=[2**64]), (400,), "stop_token_ids"),
    ("top_k of 2**64", _COMPLETIONS, _poison(top_k=2**64), (400,), "top_k"),
    ("min_tokens of 2**64", _COMPLETIONS, _poison(min_tokens=2**64), (400,), "min_tokens"),
    ("max_tokens of 2**64", _COMPLETIONS, _poison(max_tokens=2**64), _ANY, "max_tokens"),
    ("a stream_interval of 2**64", _COMPLETIONS, _poison(stream_interval=2**64, stream=True), _ANY, "stream_interval"),
    ("a token id of 2**64", _COMPLETIONS, _poison(prompt=[2**64]), (400,), "prompt"),
)

# Bodies under the size limit that held the event loop, the interpreter or memory.
FREEZING: tuple[_Fault, ...] = (
    ("15 MB of one character", _COMPLETIONS, Repeat(b'{"prompt":"', b"a", 15 * _MB, b'"}'), _REFUSED, "prompt"),
    ("a message of 15 MB", _CHAT, Repeat(_MESSAGE, b"a", 15 * _MB, b'"}]}'), _REFUSED, ""),
    ("a message of many words", _CHAT, Repeat(_MESSAGE, b"word ", 3 * _MB, b'"}]}'), _REFUSED, ""),
    ("words to count", "/v1/messages/count_tokens", Repeat(_MESSAGE, b"word ", 60_000, b'"}]}'), _ANY, ""),
    ("many words to count", "/v1/messages/count_tokens", Repeat(_MESSAGE, b"word ", 3 * _MB, b'"}]}'), _ANY, ""),
    ("many words to tokenise", "/tokenize", Repeat(b'{"prompt":"', b"word ", 3 * _MB, b'"}'), _ANY, ""),
    ("many ids to detokenise", "/detokenize", Repeat(b'{"tokens":[', b"7,", 7 * _MB, b"7]}"), _REFUSED, ""),
    ("many tiny prompts", _COMPLETIONS, Repeat(b'{"prompt":[', b'"a",', 3 * _MB, b'"a"]}'), _REFUSED, ""),
    ("many prompts of one id", _COMPLETIONS, Repeat(b'{"prompt":[', b"[7],", 3 * _MB, b"[7]]}"), _REFUSED, ""),
    ("many ids", _COMPLETIONS, Repeat(b'{"prompt":[', b"7,", 7 * _MB, b"7]}"), _REFUSED, ""),
    ("deep lists", _CHAT, Repeat(b'{"messages":', b"[", 14 * _MB, b"}"), _REFUSED, ""),
    ("deep objects", _COMPLETIONS, Repeat(b'{"prompt":', b'{"a":', 3 * _MB, b"1}"), _REFUSED, ""),
    ("wide metadata", _CHAT, Repeat(b'{"messages":[],"metadata":{', b'"a":1,', 2 * _MB, b'"b":1}}'), _REFUSED, ""),
    ("a long unknown key", _COMPLETIONS, Repeat(b'{"', b"k", 10 * _MB, b'":1}'), _REFUSED, ""),
    ("a long key to tokenise", "/tokenize", Repeat(b'{"', b"k", 10 * _MB, b'":1}'), _REFUSED, ""),
    ("a long number", _COMPLETIONS, Repeat(b'{"prompt":"a","seed":', b"9", 10 * _MB, b"}"), _REFUSED, ""),
    ("many escapes", _COMPLETIONS, Repeat(b'{"prompt":"', b"\\u0041", LIMIT // 6 - 10, b'"}'), _REFUSED, ""),
    ("many messages", _CHAT, Repeat(b'{"messages":[', b"{},", 5 * _MB, b"{}]}"), _REFUSED, ""),
    ("a list as long as it may be, for each of many choices", _COMPLETIONS,
     Repeat(b'{"prompt":"a","max_tokens":2,"n":128,"allowed_token_ids":[', b"7,", 262_143, b"7]}"), _ANY, ""),
    ("bad words as many and long as they may be, for each of many prompts", _COMPLETIONS,
     _poison(prompt=["hi"] * 1000, max_tokens=1, bad_words=["é" * 1000] * 256, stop=["a" * 1000] * 16), _ANY, ""),
    ("many text parts", "/v1/messages", Repeat(_PARTS, _PART + b",", 500_000, _PART + b"]}]}"), _REFUSED, ""),
)  # fmt: skip

# Wrong codes: a 500, a field that was not sent, or internal words.
WRONG_CODES: tuple[_Fault, ...] = (
    ("max_tokens of 10**23", _CHAT, _chat(max_tokens=10**23), _ANY, "max_tokens"),
    ("a seed of 10**400", _COMPLETIONS, _poison(seed=10**400), (400,), "seed"),
    ("a bias key of 5000 digits", _COMPLETIONS, _poison(logit_bias={"9" * 5000: 1}), (400,), "logit_bias"),
    ("a bias key of -1", _COMPLETIONS, _poison(logit_bias={"-1": 1}), (400,), "logit_bias"),
    ("a bias beyond the vocabulary", _COMPLETIONS, _poison(logit_bias={"99999": 1}), (400,), "logit_bias"),
    ("a bias of 1e308", _COMPLETIONS, _poison(logit_bias={"7": 1e308}), _ANY, "logit_bias"),
    ("a temperature of 1e308", _COMPLETIONS, _poison(temperature=1e308), _ANY, "temperature"),
    ("a temperature of 1e-320", _COMPLETIONS, _poison(temperature=1e-320), _ANY, "temperature"),
    ("no token is allowed", _COMPLETIONS, _poison(allowed_token_ids=[]), (400,), "allowed_token_ids"),
    ("no token is left", _COMPLETIONS, _poison(allowed_token_ids=[70], bad_words=["a", "b"], logit_bias={"70": -100}),
     _ANY, ""),
    ("the only token is the end, and it is too early", _COMPLETIONS, _poison(allowed_token_ids=[1], min_tokens=4),
     _ANY, ""),
    ("top_logprobs beyond the limit", _CHAT, _chat(logprobs=True, top_logprobs=10**6), (400,), "top_logprobs"),
    ("logprobs beyond the limit", _COMPLETIONS, _poison(logprobs=10**6), (400,), "logprobs"),
    ("max_completion_tokens beyond the context", _CHAT, {**_chat(), "max_completion_tokens": 10**6}, _ANY,
     "max_completion_tokens"),
    ("ids beyond the vocabulary", "/detokenize", {"tokens": [4294967295]}, (400,), "tokens"),
    ("an id one beyond the vocabulary", "/detokenize", {"tokens": [100_000]}, (400,), "tokens"),
    ("a message without a role", _CHAT, {"messages": [{}]}, (400,), "messages"),
    ("a part whose type is an object", _CHAT, {"messages": [{"role": "user", "content": [{"type": {}}]}]}, (400,),
     "messages"),
    ("an id beyond the vocabulary", _COMPLETIONS, _poison(prompt=[2**32 - 1]), (400,), "prompt"),
    ("a role that is a number", _CHAT, {"messages": [{"role": 7, "content": "a"}]}, (400,), "messages"),
)  # fmt: skip


def _tool(parameter: Any, **schema: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": {"a": parameter}, **schema}
    return {"type": "function", "function": {"name": "f", "parameters": schema}}


def _call(parameter: Any, **schema: Any) -> dict[str, Any]:
    return _chat(tools=[_tool(parameter, **schema)], tool_choice="required")


_ITSELF = {"anyOf": [{"$ref": "#/properties/a"}] * 40}
_RENDER = b'{"prompt":['
_BATCH = b'{"max_tokens":1,"messages":['
_SAID = b'[{"role":"user","content":"' + b"word " * 380 + b'"}]'

# Little that made much: schemas that name themselves, many short texts, numbers and paths beyond their limits.
AMPLIFYING: tuple[_Fault, ...] = (
    ("a parameter of forty times itself", _CHAT, _call(_ITSELF), _ANY, ""),
    ("definitions of themselves", _CHAT, _call({"$ref": "#/$defs/b"}, **{"$defs": {"b": {"$ref": "#/$defs/b"}}}), _ANY,
     ""),
    ("required names that are lists", _CHAT, _call({"type": "string"}, required=[[1]]), _ANY, ""),
    ("many parameters of one another", _CHAT, _call({"anyOf": [{"allOf": [{"$ref": "#/properties/a"}] * 9}] * 9}), _ANY,
     ""),
    ("a pattern of sets that never close", _CHAT, _call({"type": "string", "pattern": "^" + "[" * 30_000 + "$"}), _ANY,
     ""),
    ("a long type of many references", _CHAT, _call({"anyOf": [{"$ref": "#/$defs/b"}] * 500},
     **{"$defs": {"b": {"type": "b" * 100_000}}}), _ANY, ""),
    ("2 MB of prompts to render", "/v1/completions/render",
     Repeat(_RENDER, b'"' + b"word " * 400 + b'",', 1_023, b'"a"]}'), _ANY, ""),
    ("2 MB of chats at once", "/v1/chat/completions/batch", Repeat(_BATCH, _SAID + b",", 1_023, _SAID + b"]}"), _ANY,
     ""),
    ("a length_penalty of 1e40", _COMPLETIONS, _poison(use_beam_search=True, n=2, length_penalty=1e40), _ANY, ""),
    ("an adapter's path with NUL", "/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/tmp/\0"}, (400, 404), ""),
    ("an adapter's path of one long name", "/v1/load_lora_adapter",
     {"lora_name": "a", "lora_path": "/tmp/" + "a" * 5000}, (400, 404), ""),
    ("a schema that takes long to compile", _CHAT,
     _chat(response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array", "items": {
         "type": "string", "pattern": "^(a|b){1,900}(c|d){1,900}$"}, "maxItems": 300}}}), _ANY, ""),
)  # fmt: skip

# Tokenised for long, half a minute and four seconds: `make wide` sends them.
HEAVY = frozenset({"many words to count", "2 MB of prompts to render"})
ALL = (*POISON, *FREEZING, *WRONG_CODES, *AMPLIFYING)


def known_case(number: int) -> Case:
    """Number N of the list; numbers are negative where they stand beside generated ones."""
    name, path, body, statuses, blamed = ALL[number]
    text = body.text() if isinstance(body, Repeat) else json.dumps(body).encode()
    return Case(number, name, Request("POST", path, body=text), expected=frozenset(statuses), blamed=blamed)
