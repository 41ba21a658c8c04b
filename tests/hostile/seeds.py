"""Small valid bodies per endpoint: what the schema cannot say (which prompt, which shape of a message). Everything
hostile is put into one of these. An endpoint without one here gets a body made from its schema."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.media.bad_vectors import base64_of, numpy_file

Body = dict[str, Any]

_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "the weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'}}

_CHAT: Body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
_TALK: Body = {
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "the weather?"}], "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ],
    "tools": [_TOOL],
    "tool_choice": "none",
    "max_tokens": 4,
}
_FORCED: Body = {
    **_CHAT,
    "tools": [
        {
            "type": "function",
            "function": {
                "name": "book",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "day": {"$ref": "#/$defs/day"},
                        "who": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                        "room": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
                    },
                    "required": ["day"],
                    "$defs": {"day": {"enum": ["mon", "tue"]}},
                },
            },
        }
    ],
    "tool_choice": "required",
}
_BEAM: Body = {"use_beam_search": True, "n": 2, "length_penalty": 1.5, "max_tokens": 2}
_ITEMS: Body = {
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "function_call", "call_id": "call_1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    ],
    "tools": [{"type": "function", "name": "get_weather", "parameters": {"type": "object"}}],
    "tool_choice": {"type": "function", "name": "get_weather"},
    "text": {"format": {"type": "text"}},
    "reasoning": {"effort": "low"},
    "metadata": {"a": "b"},
    "max_output_tokens": 4,
}
_AGENT: Body = {
    "input": [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "custom_tool_call", "call_id": "call_1", "name": "patch", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "done"},
        {"type": "local_shell_call", "call_id": "call_2", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "call_2", "output": "a"},
    ],
    "tools": [
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]},
        {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: x"}},
        {"type": "web_search"},
    ],
    "tool_choice": "none",
    "include": ["reasoning.encrypted_content", "message.output_text.logprobs"],
    "truncation": "auto",
    "background": True,
    "max_output_tokens": 4,
}
_MESSAGES: Body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
_BLOCKS: Body = {
    "system": [{"type": "text", "text": "be brief"}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "the weather?"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}]},
    ],
    "tools": [{"name": "get_weather", "description": "the weather", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "tool", "name": "get_weather"},
    "thinking": {"type": "disabled"},
    "max_tokens": 4,
}

_PAIR: Body = {"text_1": "hello", "text_2": ["one", {"text": "two"}], "truncate_prompt_tokens": 8}
_RANK: Body = {"query": "hello", "documents": ["one", {"text": "two"}], "top_n": 1, "return_documents": False}
_EMBED: tuple[Body, ...] = (
    {"input": "hello", "encoding_format": "base64"},
    {"input": [[5, 6], [7]], "truncate_prompt_tokens": 1, "truncation_side": "left", "normalize": False},
    {"messages": [{"role": "user", "content": "hello"}]},
)

_VECTORS = base64_of(numpy_file(np.ones((3, 64), np.float32)))  # of as many entries as the model's

SEEDS: dict[str, tuple[Body, ...]] = {
    "/v1/completions": (
        {"prompt": "hello", "max_tokens": 4},
        {"prompt": [5, 6, 7], "max_tokens": 4, "temperature": 0, "logprobs": 2},
        {"prompt": ["one", "two"], "max_tokens": 3, "n": 2, "seed": 7},
        {"prompt": "hello", **_BEAM},
        {"prompt": "", "prompt_embeds": [_VECTORS, _VECTORS], "max_tokens": 4},
    ),
    "/v1/chat/completions": (_CHAT, {**_CHAT, "logprobs": True, "top_logprobs": 3}, _TALK, _FORCED, {**_CHAT, **_BEAM}),
    "/v1/chat/completions/batch": ({"messages": [_CHAT["messages"]] * 2, "max_tokens": 4},),
    "/v1/chat/completions/render": ({**_CHAT, "return_token_offsets": True}, _TALK),
    "/v1/completions/render": ({"prompt": ["one", "two"], "max_tokens": 3, "n": 2}, {"prompt": [5, 6, 7]}),
    "/invocations": (_CHAT, {"prompt": "hello", "max_tokens": 4}),
    "/inference/v1/generate": ({"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 4, "logprobs": 1}},),
    "/v1/responses": ({"input": "hello", "max_output_tokens": 4}, _ITEMS, _AGENT),
    "/v1/messages": (_MESSAGES, _BLOCKS),
    "/v1/messages/count_tokens": tuple(
        {key: value for key, value in body.items() if key != "max_tokens"} for body in (_MESSAGES, _BLOCKS)
    ),
    "/tokenize": ({"prompt": "hello"}, {"messages": [{"role": "user", "content": "hello"}], "tools": [_TOOL]}),
    "/detokenize": ({"tokens": [5, 6, 7]},),
    "/v1/embeddings": _EMBED,
    "/pooling": ({"input": ["one", "two"], "task": "token_embed"}, *_EMBED[1:]),
    "/score": (_PAIR, {"queries": ["one"], "documents": ["two"]}),
    "/v1/score": ({"queries": "one", "items": ["two"]}, {"data_1": "one", "data_2": "two"}),
    "/rerank": (_RANK,),
    "/v1/rerank": (_RANK,),
    "/v2/rerank": (_RANK,),
    "/v1/embed": ({"texts": ["one", "two"]},),
    "/v2/embed": ({"texts": ["one"], "embedding_types": ["int8", "ubinary"], "truncate": "START", "max_tokens": 2},),
    "/generative_scoring": ({"query": "hello", "items": ["one", "two"], "label_token_ids": [5, 6]},),
}

# Of routes that a server has on demand alone. There is no such adapter: they are answered with 404. And of a task that
# a model that writes text does not have: 400.
ON_DEMAND: dict[str, tuple[Body, ...]] = {
    "/classify": ({"input": ["one", "two"]},),
    "/v1/load_lora_adapter": ({"lora_name": "a", "lora_path": "/none", "load_inplace": False},),
    "/v1/unload_lora_adapter": ({"lora_name": "a", "lora_int_id": 1},),
}

# Streams that take a while, to be left half-way.
LONG: dict[str, Body] = {
    "/v1/completions": {"prompt": [5, 6, 7], "max_tokens": 150, "ignore_eos": True, "stream": True},
    "/v1/chat/completions": {**_CHAT, "max_tokens": 150, "ignore_eos": True, "stream": True},
    "/v1/responses": {"input": "hello", "max_output_tokens": 150, "ignore_eos": True, "stream": True},
    "/v1/messages": {**_MESSAGES, "max_tokens": 150, "stream": True},
}

# Read by the server from the query or the head, and in no schema.
QUERY_NAMES = ("after", "limit", "order", "stream", "include", "starting_after", "unknown")
HEADER_NAMES = (
    "x-request-id", "x-vllm-priority", "x-data-parallel-rank", "endpoint-load-metrics-format", "authorization",
    "x-api-key", "accept", "expect", "cookie", "host",
)  # fmt: skip
