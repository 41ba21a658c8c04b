"""Fields that clients of OpenAI or vLLM may send and that this server does not honour.

One that would change what the user gets is refused with a reason; a hint, or one that speaks of accounts and billing,
is accepted and named in the answer. Both may be there with a value that asks for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.ignored import Ignored


@dataclass(frozen=True, slots=True)
class Unsupported:
    """What becomes of a field: a `RefusedField` or a `HintField`."""

    neutral: tuple[Any, ...]  # beside null and empty values
    why: str

    def asks_for_nothing(self, value: object) -> bool:
        empty = value is None or (isinstance(value, str | list | dict) and not value)
        return empty or any(type(value) is type(neutral) and value == neutral for neutral in self.neutral)

    def check(self, name: str, value: object, ignored: Ignored) -> None:
        raise NotImplementedError


class RefusedField(Unsupported):
    """Of a field that would change what the user gets."""

    def check(self, name: str, value: object, ignored: Ignored) -> None:
        if not self.asks_for_nothing(value):
            raise InvalidRequestError(f"{name} is not supported: {self.why}.", name)


class HintField(Unsupported):
    """Without it the answer is as good."""

    def check(self, name: str, value: object, ignored: Ignored) -> None:
        if not self.asks_for_nothing(value):
            ignored.add(name, self.why)


def _refused(why: str, **neutral: Any) -> dict[str, Unsupported]:
    """One sentence for several names. A tuple lists several neutral values."""
    return {name: RefusedField(value if isinstance(value, tuple) else (value,), why) for name, value in neutral.items()}


def _hints(why: str, **neutral: Any) -> dict[str, Unsupported]:
    return {name: HintField(value if isinstance(value, tuple) else (value,), why) for name, value in neutral.items()}


UNSUPPORTED: dict[str, Unsupported] = {
    **_refused(
        "this endpoint knows other words for what the output must be",
        structured_outputs=None, guided_json=None, guided_regex=None, guided_choice=None, guided_grammar=None,
        guided_whitespace_pattern=None, structural_tag=None, response_format=({"type": "text"},),
    ),
    **_hints("this endpoint knows other words for what the output must be", guided_decoding_backend=None),
    **_refused(
        "beam search is given by /v1/completions and /v1/chat/completions",
        use_beam_search=False, length_penalty=(1, 1.0),
    ),
    **_hints("every beam is followed to its end", early_stopping=False),
    **_refused("this endpoint reads texts; vectors go to /v1/completions", prompt_embeds=None),
    **_refused("this endpoint reads texts; recordings go to /v1/audio/transcriptions", audio=None),
    **_hints("recordings are prepared as the model's files say", media_io_kwargs=None, mm_processor_kwargs=None),
    **_refused("this version writes text only", modalities=(["text"],)),
    **_refused(
        "the KV cache is not handed to other engines",
        kv_transfer_params=None, ec_transfer_params=None,
    ),
    **_hints("this server runs no custom logits processors", vllm_xargs=None),
    **_refused("logprobs are given by /v1/completions and /v1/chat/completions", logprob_token_ids=None),
    **_refused("this engine does not return routed experts", routed_experts_prompt_start=0),
    **_refused("the prompt is given by /v1/chat/completions", return_prompt_text=False),
    **_hints(
        "generation endpoints do not return it, here as in vLLM",
        return_token_offsets=False, return_assistant_tokens_mask=False,
    ),
    **_refused("text is inserted before a suffix by /v1/completions", suffix=None),
    **_refused("use tools and tool_choice", functions=None, function_call="none"),
    **_refused("this server does not search the web", web_search_options=None),
    **_hints("predicted output does not speed up this engine; the tokens are the same", prediction=None),
    **_hints("models here have no setting for it; say it in the prompt", verbosity="medium"),
    **_hints(
        "prefixes are always cached, on the server's own terms",
        prompt_cache_options=None, prompt_cache_key=None, prompt_cache_retention=None,
    ),
    **_hints("this server keeps no accounts", user=None, session_id=None, safety_identifier=None, metadata=None),
    **_hints("there is one service tier", service_tier=("auto", "default", "standard_only")),
    **_hints("only /v1/responses keeps its answers", store=False),
    **_refused("messages are never shortened silently", truncate_prompt_tokens=None, truncation_side=None),
    **_refused("chat templates write the special tokens themselves", add_special_tokens=False),
    **_refused("the name of an adapter goes where that of the model does", lora_request=None),
}  # fmt: skip
