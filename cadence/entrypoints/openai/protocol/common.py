"""What completion and chat requests have in common, and how a body becomes one: JSON, known names, types, sizes."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.openai.protocol.json_text import decode_json
from cadence.entrypoints.openai.protocol.refused import REFUSED

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_TOKEN_LIST = 262_144  # entries: a whole vocabulary
MAX_LOGIT_BIAS = 1024  # entries
MAX_BAD_WORDS = 256
MAX_N = 128
MAX_PARTS = 4096  # of one message
MAX_VARIABLES = 1024  # names in an object that is handed on as it is
MAX_NAME_TO_GUESS = 64  # characters of an unknown field for which similar names are looked for
INT64 = 2**63  # integers are below it: they travel as 64 bits
NAME_PATTERN = r"^[A-Za-z0-9_.:-]{1,128}$"  # of ids that clients choose


def at_most(limit: int) -> BeforeValidator:
    """Before a single entry is looked at."""

    def check(value: object) -> object:
        if isinstance(value, list | dict) and len(value) > limit:
            text = "should have at most {limit} entries, not {count}"
            raise PydanticCustomError("too_long", text, {"limit": limit, "count": len(value)})
        return value

    return BeforeValidator(check)


StopString = Annotated[str, Field(max_length=MAX_STOP_LENGTH)]
# Lists end at their first wrong entry: an error with a line for each of many would take seconds to write.
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True), at_most(MAX_STOPS)]
BadWords = Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS, fail_fast=True), at_most(MAX_BAD_WORDS)]
StopIds = Annotated[list[int], Field(max_length=MAX_STOP_LENGTH, fail_fast=True), at_most(MAX_STOP_LENGTH)]
TokenIds = Annotated[list[int], Field(max_length=MAX_TOKEN_LIST, fail_fast=True), at_most(MAX_TOKEN_LIST)]
LogitBias = Annotated[dict[str, float], Field(max_length=MAX_LOGIT_BIAS), at_most(MAX_LOGIT_BIAS)]
Variables = Annotated[dict[str, Any], Field(max_length=MAX_VARIABLES), at_most(MAX_VARIABLES)]


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis; none is ever added


class GenerationBody(BaseModel):
    """None means: the model's own default. Ranges are checked where `SamplingParams` are made."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    model: str | None = Field(default=None, max_length=1024)
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_N)
    best_of: int | None = None
    seed: int | None = None
    stop: StopString | StopStrings | None = None
    stop_token_ids: StopIds | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    max_tokens: int | None = Field(default=None, ge=0)
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    logit_bias: LogitBias | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: BadWords | None = None
    prompt_logprobs: int | None = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: int | None = Field(default=None, ge=1)

    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(default=None, max_length=1024)
    request_id: str | None = Field(default=None, pattern=NAME_PATTERN)
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    # Accepted, and without effect here: they speak of accounts, storage and billing.
    user: str | None = Field(default=None, max_length=4096)
    session_id: str | None = Field(default=None, max_length=4096)
    safety_identifier: str | None = Field(default=None, max_length=4096)
    prompt_cache_key: str | None = Field(default=None, max_length=4096)
    prompt_cache_retention: str | None = Field(default=None, max_length=64)
    service_tier: str | None = Field(default=None, max_length=64)
    store: bool | None = None
    metadata: Variables | None = None


Body = TypeVar("Body", bound=BaseModel)


def parse_body(kind: type[Body], raw: bytes) -> Body:
    """A request out of a body, or an error that names the field."""
    return validate_body(kind, decode_json(raw))


def validate_body(kind: type[Body], content: object) -> Body:
    if not isinstance(content, dict):
        raise InvalidRequestError("the body must be a JSON object")
    try:
        return kind.model_validate(_known(kind, content))
    except ValidationError as error:
        raise _invalid(error) from None


def check_count(value: object, limit: int, where: str) -> None:
    """For lists inside of objects that are handed on as they are."""
    if isinstance(value, list | dict) and len(value) > limit:
        raise InvalidRequestError(f"{where} should have at most {limit} entries, not {len(value)}", where)


def body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI entry of a route that reads its body with `parse_body`."""
    schema = kind.model_json_schema()
    inlined = _inline(schema, schema.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": inlined}}}}


def _known(kind: type[BaseModel], content: Mapping[str, Any]) -> dict[str, Any]:
    """Without the refused names that ask for nothing; unknown ones raise."""
    kept: dict[str, Any] = {}
    for name, value in content.items():
        if name in kind.model_fields:
            kept[name] = value
        elif name in REFUSED:
            REFUSED[name].check(name, value)
        else:
            raise InvalidRequestError(f"unknown field {name[:80]!r}.{_hint(kind, name)}", name[:80])
    return kept


def _hint(kind: type[BaseModel], name: str) -> str:
    if len(name) > MAX_NAME_TO_GUESS:
        return ""
    near = difflib.get_close_matches(name, [*kind.model_fields, *REFUSED], n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _invalid(error: ValidationError) -> InvalidRequestError:
    """One sentence: for a union, what each of its members expected."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    field = _path(details[0]["loc"])
    reasons = dict.fromkeys(_lower(d["msg"]) for d in details if d["loc"][:1] == details[0]["loc"][:1])
    return InvalidRequestError(f"{field}: {' or '.join(list(reasons)[:4])}.", field)


def _path(location: tuple[int | str, ...]) -> str:
    """`stop[3]`, `stream_options.include_usage`: without the names of union members that pydantic puts between."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("str", "int", "float", "bool") and not any(mark in part for mark in "[(-"):
            path += f".{part[:80]}" if path else part[:80]
    return path


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _inline(node: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema without references; the bodies nest no model in itself."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {key: _inline(value, definitions) for key, value in node.items()}
    return [_inline(item, definitions) for item in node] if isinstance(node, list) else node
