"""A `tokenizers` backend of a `tekken.json`: Mistral's byte-level BPE, whose files say the bytes of each token."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from cadence.config.files.json_file import read_bytes
from cadence.core.errors import TokenizerError
from cadence.core.merges import merges_by_score
from cadence.text.pieces import byte_level_alphabet

_MOST_BYTES = 64 << 20  # the largest have 20 MB
# Of files that do not name them, which were written before 2025. The ids after them have no meaning.
_FIRST = (
    "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
)  # fmt: skip


def tekken_backend(path: Path) -> Backend:
    """Special tokens have the first ids, and the others follow by rank."""
    said = json.loads(read_bytes(path, _MOST_BYTES, TokenizerError))  # 150 000 objects, more than others may have
    config = said["config"]
    count, size = int(config["default_num_special_tokens"]), int(config["default_vocab_size"])
    special = _special(said.get("special_tokens"), count)
    letters = {byte: letter for letter, byte in byte_level_alphabet().items()}
    words = said["vocab"][: size - count]
    if [word["rank"] for word in words] != list(range(len(words))):
        raise TokenizerError(f"{path}: tokens must come in the order of their ranks")
    tokens = ["".join(letters[byte] for byte in base64.b64decode(word["token_bytes"])) for word in words]
    vocab = {token: number for number, token in enumerate([*special, *tokens])}
    if len(vocab) != len(special) + len(tokens):
        raise TokenizerError(f"{path}: a token stands there twice")
    merges = merges_by_score(tokens, -np.arange(len(tokens), dtype=np.float32))
    backend = Backend(models.BPE(vocab, merges, ignore_merges=True))
    split = pre_tokenizers.Split(Regex(config["pattern"]), "isolated")
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, to_bytes])
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return backend


def _special(named: list[Mapping[str, Any]] | None, count: int) -> list[str]:
    """By id."""
    known = dict(enumerate(_FIRST))
    if named is not None:
        known = {int(token["rank"]): str(token["token_str"]) for token in named}
    return [known.get(number, f"<SPECIAL_{number}>") for number in range(count)]
