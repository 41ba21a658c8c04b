"""One timed request to a server, as scripts for vLLM send it: by the client of `cadence bench serve`."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from cadence.config import env
from cadence.core.errors import CadenceError, InvalidRequestError
from cadence.entrypoints.cli.bench_serve.flags import BACKENDS
from cadence.entrypoints.cli.bench_serve.load import Sample, Stopwatch
from cadence.entrypoints.cli.bench_serve.work import BenchRequest, request_body
from cadence.entrypoints.cli.remote.client import Remote
from cadence.vllm.missing import MissingFeatureError


@dataclass
class RequestFuncInput:
    prompt: Any  # a text, token ids, or the messages of a chat
    api_url: str
    prompt_len: int
    output_len: int
    model: str
    model_name: str | None = None  # wins over `model`
    logprobs: int | None = None
    extra_headers: dict[str, str] | None = None
    extra_body: dict[str, Any] | None = None
    multi_modal_content: Any = None
    ignore_eos: bool = False
    language: str | None = None
    request_id: str | None = None
    chat_messages: list[dict[str, Any]] | None = None  # in the place of `prompt`


@dataclass
class RequestFuncOutput:
    """Times in seconds."""

    generated_text: str = ""
    success: bool = False
    latency: float = 0.0
    output_tokens: int = 0
    ttft: float = 0.0
    itl: list[float] = field(default_factory=list)
    tpot: float = 0.0
    prompt_len: int = 0
    error: str = ""
    start_time: float = 0.0  # by time.perf_counter


RequestFunc = Callable[..., Awaitable[RequestFuncOutput]]


async def async_request_openai_completions(
    request_func_input: RequestFuncInput, session: object = None, pbar: Any = None
) -> RequestFuncOutput:
    """session: not used, a request has a connection of its own. pbar: its `update` hears of the end"""
    return await _timed(request_func_input, False, pbar)


async def async_request_openai_chat_completions(
    request_func_input: RequestFuncInput, session: object = None, pbar: Any = None
) -> RequestFuncOutput:
    """As `async_request_openai_completions`, of a chat; a prompt that is a text is its only message."""
    return await _timed(request_func_input, True, pbar)


ASYNC_REQUEST_FUNCS: dict[str, RequestFunc] = {
    name: async_request_openai_chat_completions
    if path.endswith("/chat/completions")
    else async_request_openai_completions
    for name, path in BACKENDS.items()
}
OPENAI_COMPATIBLE_BACKENDS = list(ASYNC_REQUEST_FUNCS)


async def _timed(given: RequestFuncInput, chat: bool, pbar: Any) -> RequestFuncOutput:
    if given.multi_modal_content:
        raise MissingFeatureError("multi_modal_content cannot be sent: this version takes text only")
    url, path = _split(given.api_url, "/chat/completions" if chat else "/completions")
    body = request_body(
        BenchRequest(_prompt(given, chat), given.output_len), given.model_name or given.model, chat, _extra(given, chat)
    )
    sent = time.perf_counter()
    sample, said = Sample(prompt_tokens=given.prompt_len), []
    watch = Stopwatch(sample, sent)

    def on_event(event: dict[str, Any], now: float) -> None:
        said.extend(_text(choice) for choice in event.get("choices") or ())
        watch(event, now)

    try:
        async with Remote.at(url, env.api_key(), _headers(given)) as remote:
            await remote.stream(path, body, on_event)
    except CadenceError as error:
        sample.error = str(error)
    watch.stop(time.perf_counter())
    if pbar is not None:
        pbar.update(1)
    return _output(sample, "".join(said), sent)


def _output(sample: Sample, text: str, sent: float) -> RequestFuncOutput:
    return RequestFuncOutput(
        generated_text=text,
        success=not sample.error,
        latency=sample.latency,
        output_tokens=sample.output_tokens,
        ttft=sample.ttft,
        itl=sample.itls,
        tpot=sample.tpot,
        prompt_len=sample.prompt_tokens,
        error=sample.error,
        start_time=sent,
    )


def _split(api_url: str, ending: str) -> tuple[str, str]:
    """-> (the address, the path)"""
    parts = urlsplit(api_url)
    is_chat = parts.path.endswith("/chat/completions")
    if not parts.path.endswith(ending) or is_chat != (ending == "/chat/completions"):
        raise InvalidRequestError(f"api_url must end with {ending}; got {api_url!r}", "api_url")
    return f"{parts.scheme}://{parts.netloc}", parts.path


def _prompt(given: RequestFuncInput, chat: bool) -> Any:
    if not chat:
        return given.prompt
    if given.chat_messages is not None:
        return given.chat_messages
    return [{"role": "user", "content": given.prompt}] if isinstance(given.prompt, str) else given.prompt


def _extra(given: RequestFuncInput, chat: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {"ignore_eos": True} if given.ignore_eos else {}
    if given.logprobs is not None:
        fields |= {"logprobs": True, "top_logprobs": given.logprobs} if chat else {"logprobs": given.logprobs}
    return {**fields, **(given.extra_body or {})}


def _headers(given: RequestFuncInput) -> dict[str, str]:
    own = {"x-request-id": given.request_id} if given.request_id else {}
    return {**(given.extra_headers or {}), **own}


def _text(choice: Mapping[str, Any]) -> str:
    return choice.get("text") or (choice.get("delta") or {}).get("content") or ""
