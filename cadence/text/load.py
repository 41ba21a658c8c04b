"""The tokenizer that lies with a model's files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cadence.text.hf_directory import load_tokenizer
from cadence.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from cadence.config.reference import ModelFiles


def tokenizer_for(files: ModelFiles) -> Tokenizer:
    """From the GGUF file where the model is one, else from the directory."""
    if files.gguf is None:
        return load_tokenizer(files.directory)
    from cadence.text.gguf_tokenizer import load_gguf_tokenizer  # reads GGUF metadata; not needed otherwise

    return load_gguf_tokenizer(files.gguf)
