"""The body of /v1/completions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.protocol.common import (
    INT64,
    GenerationBody,
    LogprobIds,
    ShownDrafts,
    at_most,
    check_beam,
)
from cadence.entrypoints.server.protocol.texts_or_ids import TEXTS_OR_IDS, texts_or_ids
from cadence.media.vectors import PromptVectors, read_vectors

MAX_PROMPTS = 1024
PromptFiles = Annotated[list[str], Field(max_length=MAX_PROMPTS, fail_fast=True), at_most(MAX_PROMPTS)]


class CompletionBody(GenerationBody):
    prompt: Any = Field(default=None, json_schema_extra=TEXTS_OR_IDS)
    prompt_embeds: str | PromptFiles | None = None  # matrices in its place, or before it: files in base64
    suffix: str | None = None  # text after what the model is to write
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=-1)] | bool | None = None  # -1 = all there are; true = 1
    truncate_prompt_tokens: int | None = Field(default=None, ge=-1, lt=INT64)  # keep this many; -1 = what fits
    truncation_side: str | None = Field(default=None, pattern="^(left|right)$")  # where tokens are cut off: left
    add_special_tokens: bool | None = None
    logprob_token_ids: LogprobIds | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    speculative: ShownDrafts | None = None

    def check(self) -> None:
        """What types alone do not say."""
        self.check_stream_options()
        check_beam(self)
        if self.has_vectors:
            for name in ("echo", "suffix", "prompt_logprobs", "truncate_prompt_tokens"):
                if getattr(self, name) not in (None, False):
                    message = f"{name} cannot be used with prompt_embeds: vectors are no tokens"
                    raise InvalidRequestError(message, name)
        if self.suffix and self.echo:
            raise InvalidRequestError("echo cannot stand beside suffix: the prompt is not what comes before", "echo")
        if self.suffix and not all(isinstance(prompt, str) for prompt in self.prompts()):
            raise InvalidRequestError("suffix needs prompts that are texts, not token ids", "suffix")
        if self.suffix and self.truncate_prompt_tokens is not None:
            message = "truncate_prompt_tokens cannot stand beside suffix: it would cut off what tells the two apart"
            raise InvalidRequestError(message, "truncate_prompt_tokens")
        if self.logprob_token_ids and self.num_logprobs() is None:
            raise InvalidRequestError("logprob_token_ids needs logprobs to be set", "logprob_token_ids")
        if self.logprob_token_ids and self.max_tokens == 0:
            raise InvalidRequestError("logprob_token_ids needs a token to be generated", "logprob_token_ids")

    def num_logprobs(self) -> int | None:
        """true is how chats ask for logprobs."""
        if isinstance(self.logprobs, bool):
            return 1 if self.logprobs else None
        return self.logprobs

    @property
    def has_vectors(self) -> bool:
        return self.prompt_embeds is not None and self.prompt_embeds != []

    @property
    def ids_given(self) -> bool:
        return isinstance(self.prompt, list) and not (self.prompt and isinstance(self.prompt[0], str))

    def prompts(self) -> list[str | list[int] | PromptVectors]:
        """One prompt or many: matrices, and then a text, token ids, a list of texts, a list of lists of ids."""
        given = [] if self.prompt_embeds is None else self.prompt_embeds
        if isinstance(given, str):
            found = [read_vectors(given, "prompt_embeds")]
        else:
            found = [read_vectors(each, f"prompt_embeds[{number}]") for number, each in enumerate(given)]
        if found and not self.prompt:  # clients that must send one send an empty one
            return [*found]
        return [*found, *texts_or_ids(self.prompt, "prompt", MAX_PROMPTS)]
