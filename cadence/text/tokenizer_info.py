"""What there is to know about a tokenizer, in the words of tokenizer_config.json."""

from __future__ import annotations

from typing import Any

from cadence.config.engine_config import TokenizerConfig
from cadence.config.files.json_file import MOST_TABLE_BYTES, read_object
from cadence.core.errors import TokenizerError
from cadence.text.tokenizer import Tokenizer

_FILES = ("vocab_file", "merges_file", "tokenizer_file", "name_or_path")  # paths on its author's machine


def describe_tokenizer(config: TokenizerConfig, tokenizer: Tokenizer, template: str) -> dict[str, Any]:
    """`template`: the one given to the server; "" = the model's own. GGUF files have no such config: what is known of
    the tokenizer itself stands in for it."""
    path = config.files.directory / "tokenizer_config.json"
    info: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    if config.files.gguf is None and path.is_file():
        info |= read_object(path, MOST_TABLE_BYTES, TokenizerError)
    info["chat_template"] = template or tokenizer.chat_template or info.get("chat_template")
    return {name: value for name, value in info.items() if name not in _FILES and value is not None}
