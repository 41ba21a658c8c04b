"""What all requests for values have in common."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.protocol.body import RequestBody
from cadence.entrypoints.server.protocol.chat import Messages, check_message
from cadence.entrypoints.server.protocol.common import INT64, NAME_PATTERN, Variables
from cadence.entrypoints.server.protocol.texts_or_ids import TEXTS_OR_IDS, texts_or_ids
from cadence.entrypoints.server.protocol.unsupported import HintField, Unsupported

MAX_INPUTS = 2048  # texts of one request: OpenAI's limit
MAX_TOKENS = 2**20  # of all texts of one request

ModelName = Annotated[str, Field(max_length=1024)]
KeptTokens = Annotated[
    int, Field(ge=-1, lt=INT64)
]  # of a longer text so many are kept; -1 = as many as the model takes
Side = Annotated[str, Field(pattern="^(left|right)$")]  # where tokens are cut off: right, where nothing is said
Priority = Annotated[int, Field(ge=-(2**31), lt=2**31)]
PromptName = Annotated[str, Field(max_length=256)]  # of a text in the model's files that goes before the others
Salt = Annotated[str, Field(min_length=1, max_length=1024)]
ChosenId = Annotated[str, Field(pattern=NAME_PATTERN)]

HINTS: dict[str, Unsupported] = {"padding": HintField(("do_not_pad",), "no model here computes padding")}


class PooledFields(Protocol):
    """What is read of any of these bodies."""

    model: str | None
    truncate_prompt_tokens: int | None
    truncation_side: str | None
    priority: int | None
    request_id: str | None
    cache_salt: str | None


class PooledBody(RequestBody):
    """Texts, or one conversation, of which values are asked for."""

    model: ModelName | None = None
    input: Any = Field(default=None, json_schema_extra=TEXTS_OR_IDS)
    messages: Messages | None = None
    add_special_tokens: bool | None = None  # True for texts; False for messages, whose template writes them
    add_generation_prompt: bool = False
    continue_final_message: bool = False
    chat_template: str | None = Field(default=None, max_length=262_144)
    chat_template_kwargs: Variables | None = None
    prompt_name: PromptName | None = None
    truncate_prompt_tokens: KeptTokens | None = None
    truncation_side: Side | None = None
    use_activation: bool | None = None
    priority: Priority | None = None
    request_id: ChosenId | None = None
    cache_salt: Salt | None = None

    def check(self) -> None:
        """What types alone do not say."""
        if (self.input is None) == (self.messages is None):
            sent = self.model_fields_set & {"input", "messages"}
            raise InvalidRequestError("give either input or messages", "messages" if sent == {"messages"} else "input")
        for number, message in enumerate(self.messages or ()):
            check_message(message, f"messages[{number}]")
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt contradict each other"
            raise InvalidRequestError(message, "add_generation_prompt")
        for number, one in enumerate(self.inputs()):
            if not one:
                where = self.where(number)
                raise InvalidRequestError(f"{where} is empty: an input has at least one character", where)

    def inputs(self) -> list[str | list[int]]:
        """[] where there are messages."""
        return [] if self.messages is not None else texts_or_ids(self.input, "input", MAX_INPUTS)

    def where(self, number: int) -> str:
        """The name of one of the inputs."""
        if self.messages is not None:
            return "messages"
        is_one = isinstance(self.input, str) or type(self.input[0]) is int
        return "input" if is_one else f"input[{number}]"
