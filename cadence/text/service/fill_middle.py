"""Text between a prompt and a suffix, for models that were trained to fill it in: the tokens they do that with."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.core.errors import InvalidRequestError
from cadence.text.service.text_service import Encoding, TextService
from cadence.text.tokenizer import Tokenizer

# Some tokenizers write a space before a text, where the suffix has none. This stands there instead, and is cut off.
_BEFORE = "☺"
_SPACE = "▁"


@dataclass(frozen=True, slots=True)
class FillForm:
    """Control tokens of one family: before the prompt, before the suffix, and before what the model writes."""

    prefix: str
    suffix: str
    middle: str = ""  # "" = the model writes after the prompt, which stands last
    suffix_first: bool = False
    ends: tuple[str, ...] = ()  # further ones that follow what the model writes

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(mark for mark in (self.prefix, self.suffix, self.middle) if mark)


_FILES = ("<file_sep>", "<repo_name>", "<filename>", "<reponame>", "<fim_pad>")
_BARRED = tuple(f"<|{name}|>" for name in ("fim_pad", "file_sep", "repo_name", "file_separator"))
FORMS = (
    FillForm("<fim_prefix>", "<fim_suffix>", "<fim_middle>", ends=_FILES),  # StarCoder, Granite
    FillForm("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", ends=_BARRED),  # Qwen Coder, CodeGemma
    FillForm("<|code_prefix|>", "<|code_suffix|>", "<|code_middle|>"),  # GLM-4.5
    FillForm("<fim-prefix>", "<fim-suffix>", "<fim-middle>", ends=("<fim-pad>",)),  # SantaCoder
    FillForm("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek Coder
    FillForm("▁<PRE>", "▁<SUF>", "▁<MID>", ends=("▁<EOT>",)),  # Code Llama
    FillForm("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>", suffix_first=True),  # Seed-Coder
    FillForm("[PREFIX]", "[SUFFIX]", suffix_first=True),  # Codestral
)


async def fill_prompt(prompt: str, suffix: str, texts: TextService, add_special_tokens: bool) -> list[int]:
    """The tokens after which the model writes what comes between the two, in the form whose tokens it has."""
    tokenizer = texts.tokenizer
    form = _form_of(tokenizer)
    plain = Encoding(add_special_tokens=False)
    before = (await texts.encode(prompt, plain)).ids
    after = await _continued(suffix, texts)
    first, second = _Part(form.prefix, before), _Part(form.suffix, after)
    if form.suffix_first:
        first, second = second, first
    start = tokenizer.encode(first.mark, add_special_tokens)
    middle = _ids(tokenizer, (form.middle,))
    mark = _ids(tokenizer, (first.mark,))
    return [*start[: start.index(*mark)], *mark, *first.ids, *_ids(tokenizer, (second.mark,)), *second.ids, *middle]


def fill_ends(tokenizer: Tokenizer) -> list[int]:
    """The tokens that a model ends with what it fills in, beside the end of a text."""
    form = _form_of(tokenizer)
    return _ids(tokenizer, (*form.marks, *form.ends))


@dataclass(frozen=True, slots=True)
class _Part:
    mark: str
    ids: list[int]  # that follow it


def _form_of(tokenizer: Tokenizer) -> FillForm:
    for form in FORMS:
        if len(_ids(tokenizer, form.marks)) == len(form.marks):
            return form
    raise InvalidRequestError("this model has no tokens for text before a suffix: it can only continue", "suffix")


def _ids(tokenizer: Tokenizer, tokens: tuple[str, ...]) -> list[int]:
    """Of those that it has."""
    found = (tokenizer.backend.token_to_id(token) for token in tokens if token)
    return [token_id for token_id in found if token_id is not None]


async def _continued(text: str, texts: TextService) -> list[int]:
    """A text's tokens where it goes on: without a space before it."""
    tokenizer = texts.tokenizer
    before = tokenizer.encode(_BEFORE, add_special_tokens=False)
    adds_space = bool(before) and str(tokenizer.backend.id_to_token(before[0])).startswith(_SPACE)
    given = _BEFORE + text if adds_space else text
    found = (await texts.encode(given, Encoding(add_special_tokens=False, field="suffix"))).ids
    return found[len(before) :] if adds_space else found
