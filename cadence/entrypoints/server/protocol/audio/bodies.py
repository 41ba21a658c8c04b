"""The form of /v1/audio/transcriptions and /v1/audio/translations: OpenAI's fields and vLLM's."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadence.audio.activity import ActivityOptions
from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.http.uploads import FILE, Upload
from cadence.entrypoints.server.protocol.audio.chunking import Chunking, joined_fields
from cadence.entrypoints.server.protocol.body import RequestBody, validate_body, whole_schema
from cadence.entrypoints.server.protocol.unsupported import HintField, RefusedField, Unsupported

MAX_PROMPT = 8192  # characters; models read the last 223 tokens
FORMATS = Literal["json", "text", "srt", "vtt", "verbose_json"]
Granularities = Annotated[list[Literal["word", "segment"]], Field(max_length=2)]

_LISTS = ("timestamp_granularities", "include", "known_speaker_names", "known_speaker_references")
_ONE_TEXT = "a recording has one transcript"


class SpeechForm(RequestBody):
    """None means: the model's own default. Every value comes as text."""

    model: str | None = Field(default=None, max_length=1024)
    prompt: str | None = Field(default=None, max_length=MAX_PROMPT)  # text before the recording, or names in it
    response_format: FORMATS = "json"
    stream: bool = False
    stream_partial_text: bool | None = None  # also tells the text of the current window, which may still change
    stream_include_usage: bool | None = None
    stream_continuous_usage_stats: bool | None = None
    language: str | None = Field(default=None, max_length=32)  # of the speech; none = it is found out

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    max_completion_tokens: int | None = Field(default=None, ge=1)  # of each window

    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    timestamp_granularities: Granularities | None = None
    include: Annotated[list[Literal["logprobs"]], Field(max_length=1)] | None = None
    chunking_strategy: Chunking | None = None  # "auto", or JSON: long silences are not heard

    unsupported: ClassVar[dict[str, Unsupported]] = {
        "n": RefusedField(("1",), _ONE_TEXT),
        "use_beam_search": RefusedField(("false", "False", "0"), "give a temperature, or none for the best guess"),
        "to_language": RefusedField(("en",), "speech is translated to English"),
        "vllm_xargs": HintField((), "there are no such arguments here"),
        "hotwords": HintField((), "name them in prompt"),
    }

    def check(self) -> None:
        if self.stream and self.response_format in ("srt", "vtt"):
            message = f"stream=true goes with json, text and verbose_json, not {self.response_format}"
            raise InvalidRequestError(message, "response_format")
        if self.timestamp_granularities and self.response_format != "verbose_json":
            message = "timestamp_granularities needs response_format=verbose_json"
            raise InvalidRequestError(message, "timestamp_granularities")
        if self.include and self.response_format != "json":
            raise InvalidRequestError("include=logprobs needs response_format=json", "include")

    @property
    def granularities(self) -> Collection[str]:
        """What gets times."""
        return self.timestamp_granularities or ("segment",)

    def activity(self) -> ActivityOptions | None:
        """What is silence, where silence is not to be heard; None = all is heard."""
        return None if self.chunking_strategy is None else self.chunking_strategy.activity()

    def sampling(self) -> dict[str, Any]:
        """Fields with the names of `SamplingParams`; those that were given."""
        names = ("top_p", "top_k", "min_p", "frequency_penalty", "presence_penalty", "repetition_penalty")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


def parse_form(upload: Upload, ignored: Ignored) -> SpeechForm:
    """Lists are fields that come several times, with or without []; of others each comes once."""
    if upload.file is None:
        raise InvalidRequestError("file: this field is required, and must be a file with a name.", FILE)
    content: dict[str, Any] = {}
    for name, value in joined_fields(upload.fields):
        key = name.removesuffix("[]")
        if key in _LISTS:
            content.setdefault(key, []).append(value)
        elif name in content:
            raise InvalidRequestError(f"{name[:80]} was given twice.", name[:80])
        elif value:
            content[name] = value
    body = validate_body(SpeechForm, content, ignored)
    body.check()
    return body


def form_schema() -> dict[str, Any]:
    schema = whole_schema(SpeechForm)
    schema["properties"] = {FILE: {"type": "string", "format": "binary"}, **schema["properties"]}
    schema["required"] = [FILE]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": schema}}}}
