"""Sizes of tiny random models."""

from __future__ import annotations

from typing import Any

MAX_LEN = 512  # tokens
VOCAB = 320
WINDOW = 32
CHUNK = 24  # no multiple of the usual blocks, nor they of it
BOS, EOS, PAD = 0, 1, 2


def decoder_sizes(**changes: Any) -> dict[str, Any]:
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": MAX_LEN,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "tie_word_embeddings": False,
    }
    return sizes | changes
