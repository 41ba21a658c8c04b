"""What completion and chat requests have in common: their fields, with types and sizes."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from cadence.core.errors import InvalidRequestError
from cadence.core.structured_outputs import MAX_CHOICES
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.body import BodyPart, RequestBody

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024  # characters
MAX_TOKEN_LIST = 262_144  # entries: a whole vocabulary
MAX_LOGIT_BIAS = 1024  # entries
MAX_BAD_WORDS = 256
MAX_N = 128
MAX_LOGPROB_IDS = 128  # tokens whose logprobs are asked for by id
MAX_PARTS = 4096  # of one message
MAX_VARIABLES = 1024  # names in an object that is handed on as it is
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


def _no_booleans(value: object) -> object:
    """In one look at the whole list: it may be long."""
    if isinstance(value, list) and bool in set(map(type, value)):
        raise PydanticCustomError("int_type", "entries should be valid integers")
    return value


StopString = Annotated[str, Field(max_length=MAX_STOP_LENGTH)]
# Lists end at their first wrong entry: an error with a line for each of many would take seconds to write.
StopStrings = Annotated[list[StopString], Field(max_length=MAX_STOPS, fail_fast=True), at_most(MAX_STOPS)]
BadWords = Annotated[list[StopString], Field(max_length=MAX_BAD_WORDS, fail_fast=True), at_most(MAX_BAD_WORDS)]
_NO_BOOLEANS = BeforeValidator(_no_booleans)
StopIds = Annotated[
    list[int], Field(max_length=MAX_STOP_LENGTH, fail_fast=True), at_most(MAX_STOP_LENGTH), _NO_BOOLEANS
]
TokenIds = Annotated[list[int], Field(max_length=MAX_TOKEN_LIST, fail_fast=True), at_most(MAX_TOKEN_LIST), _NO_BOOLEANS]
LogprobIds = Annotated[
    list[int], Field(max_length=MAX_LOGPROB_IDS, fail_fast=True), at_most(MAX_LOGPROB_IDS), _NO_BOOLEANS
]
Choices = Annotated[list[str], Field(max_length=MAX_CHOICES, fail_fast=True), at_most(MAX_CHOICES)]
LogitBias = Annotated[dict[str, float], Field(max_length=MAX_LOGIT_BIAS), at_most(MAX_LOGIT_BIAS)]
Variables = Annotated[dict[str, Any], Field(max_length=MAX_VARIABLES), at_most(MAX_VARIABLES)]


class StreamOptions(BodyPart):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis; none is ever added


def usage_wanted(wanted: StreamOptions | None, always: bool) -> tuple[bool, bool]:
    """Whether a stream ends with the usage, and whether each of its chunks says it. `always`: the server's choice."""
    usage = always or bool(wanted and wanted.include_usage)
    return usage, always or (usage and bool(wanted and wanted.continuous_usage_stats))


class RepetitionDetection(BodyPart):
    """Ends a completion whose last tokens are a pattern, of this many tokens, this many times over."""

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0


class DraftLimit(BodyPart):
    """Most drafts of a forward, below the number that the server makes; 0 = none."""

    num_tokens: int | None = Field(default=None, ge=0, lt=INT64)


class ShownDrafts(DraftLimit):
    return_drafted: bool | None = None  # tell which tokens were drafts


class GenerationBody(RequestBody):
    """None means: the model's own default. Ranges are checked where `SamplingParams` are made."""

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
    thinking_token_budget: int | None = Field(default=None, ge=-1, lt=INT64)  # -1 = as many as it likes
    repetition_detection: RepetitionDetection | None = None
    speculative: DraftLimit | None = None

    # What the output must be: one of these, of which the last ones are older names.
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    structural_tag: str | dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    guided_whitespace_pattern: str | None = None
    guided_decoding_backend: str | None = None

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: int | None = Field(default=None, ge=1)

    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    cache_salt: str | None = Field(default=None, min_length=1, max_length=1024)
    request_id: str | None = Field(default=None, pattern=NAME_PATTERN)
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    def check_stream_options(self) -> None:
        if self.stream_options is not None and self.stream_options.model_fields_set and not self.stream:
            raise InvalidRequestError("stream_options can only be given when stream is true", "stream_options")


class BeamFields(Protocol):
    use_beam_search: bool | None
    length_penalty: float | None
    logprob_token_ids: list[int] | None

    @property
    def ignored(self) -> Ignored: ...


def check_beam(body: BeamFields) -> None:
    if body.use_beam_search and body.logprob_token_ids:
        raise InvalidRequestError("logprob_token_ids has no meaning in a beam search", "logprob_token_ids")
    if not body.use_beam_search and body.length_penalty not in (None, 1.0):
        body.ignored.add("length_penalty", "it is for use_beam_search")


def check_count(value: object, limit: int, where: str) -> None:
    """For lists inside of objects that are handed on as they are."""
    if isinstance(value, list | dict) and len(value) > limit:
        raise InvalidRequestError(f"{where} should have at most {limit} entries, not {len(value)}", where)


def string_of(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"{where} must be a string", where)
    return value
