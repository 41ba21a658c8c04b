"""The tokenizer among a model's files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cadence import gguf
from cadence.core.errors import TokenizerError
from cadence.core.shown import cut
from cadence.text.hf_directory import MISTRAL, load_tokenizer
from cadence.text.special_tokens import SpecialTokens
from cadence.text.tokenizer import NO_MAX_LENGTH, Tokenizer, TokenizerOptions

if TYPE_CHECKING:
    from cadence.config.reference import ModelFiles


def tokenizer_for(files: ModelFiles, mode: str = "auto") -> Tokenizer:
    """From the GGUF file where the model is one, else from the directory. mode: mistral = from Mistral's own files"""
    if files.gguf is not None and mode != MISTRAL:
        return load_gguf_tokenizer(files.gguf)
    return load_tokenizer(files.directory, mode)


def load_gguf_tokenizer(path: Path) -> Tokenizer:
    try:
        found = gguf.read_tokenizer(path)
        length = NO_MAX_LENGTH if found.max_length is None else found.max_length
        templates = dict(found.templates)
        default, special = templates.pop("default", ""), SpecialTokens(**found.special)
        return Tokenizer(found.backend, special, default, length, TokenizerOptions(named_templates=templates))
    except (TypeError, ValueError, AttributeError, OverflowError) as error:  # values of another type than their keys'
        raise TokenizerError(f"{path}: tokenizer.ggml.* is malformed: {cut(str(error))}") from None
