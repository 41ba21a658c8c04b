"""Text between a prompt and a suffix, for models that were trained to fill it in: the tokens they do that with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cadence.core.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class FillForm:
    """Control tokens of one family: before the prompt, before the suffix, and before what the model writes."""

    prefix: str
    suffix: str
    middle: str  # "" = the model writes after the prompt, which stands last

    def join(self, prompt: str, suffix: str) -> str:
        if not self.middle:
            return f"{self.suffix}{suffix}{self.prefix}{prompt}"
        return f"{self.prefix}{prompt}{self.suffix}{suffix}{self.middle}"


FORMS = (
    FillForm("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, SantaCoder, Granite
    FillForm("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    FillForm("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),
    FillForm("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    FillForm("[PREFIX]", "[SUFFIX]", ""),  # Codestral
)


def fill_middle(prompt: str, suffix: str, control_tokens: Iterable[str]) -> str:
    """The prompt for what comes between the two, in the form whose tokens the model has."""
    known = set(control_tokens)
    for form in FORMS:
        if {form.prefix, form.suffix, form.middle} - {""} <= known:
            return form.join(prompt, suffix)
    raise InvalidRequestError("this model has no tokens for text before a suffix: it can only continue", "suffix")
