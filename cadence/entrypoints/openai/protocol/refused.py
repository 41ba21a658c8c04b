"""Fields that clients of OpenAI or vLLM may send and that mean nothing here: refused with a reason, unless neutral."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cadence.core.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Refusal:
    neutral: tuple[Any, ...]  # beside null and empty values
    why: str

    def check(self, name: str, value: object) -> None:
        empty = value is None or (isinstance(value, str | list | dict) and not value)
        if empty or any(type(value) is type(neutral) and value == neutral for neutral in self.neutral):
            return
        raise InvalidRequestError(f"{name} is not supported: {self.why}.", name)


def _group(why: str, **neutral: Any) -> dict[str, Refusal]:
    """One sentence for several names. A tuple lists several neutral values."""
    return {name: Refusal(value if isinstance(value, tuple) else (value,), why) for name, value in neutral.items()}


REFUSED: dict[str, Refusal] = {
    **_group(
        "output constrained by a grammar is not in this version",
        structured_outputs=None, guided_json=None, guided_regex=None, guided_choice=None, guided_grammar=None,
        guided_whitespace_pattern=None, guided_decoding_backend=None, structural_tag=None,
    ),
    **_group(
        "beam search is offline only: LLM.beam_search",
        use_beam_search=False, length_penalty=(1, 1.0), early_stopping=False,
    ),
    **_group(
        "this version reads text only",
        media_io_kwargs=None, mm_processor_kwargs=None, prompt_embeds=None, audio=None,
    ),
    **_group("this version writes text only", modalities=(["text"],)),
    **_group(
        "the KV cache is not handed to other engines",
        kv_transfer_params=None, ec_transfer_params=None,
    ),
    **_group("this server runs no custom logits processors", vllm_xargs=None),
    **_group("logprobs are given for the most likely tokens; use logprobs or top_logprobs", logprob_token_ids=None),
    **_group("this engine does not stop on repeated patterns; use the penalties or stop", repetition_detection=None),
    **_group("this engine does not bound reasoning; use max_completion_tokens", thinking_token_budget=None),
    **_group("this engine does not return routed experts", routed_experts_prompt_start=0),
    **_group(
        "ask /tokenize for it",
        return_token_offsets=False, return_prompt_text=False, return_assistant_tokens_mask=False,
    ),
    **_group("text cannot be inserted before a suffix: models here only continue", suffix=None),
    **_group("use tools and tool_choice", functions=None, function_call="none"),
    **_group("this server does not search the web", web_search_options=None),
    **_group("predicted output does not speed up this engine; leave it out, the tokens are the same", prediction=None),
    **_group("models here have no setting for it; say it in the prompt", verbosity="medium"),
    **_group("messages are never shortened silently", truncate_prompt_tokens=None, truncation_side=None),
    **_group("chat templates write the special tokens themselves", add_special_tokens=False),
    **_group("adapters are not in this version", lora_request=None),
}  # fmt: skip
