"""A tiny Llama whose matrices the formats of quantised checkpoints fit, in plain values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.helpers.seeded import same_every_time
from tests.helpers.tiny_models import BOS, EOS, MAX_LEN, PAD, VOCAB, randomise, save_tokenizer


@same_every_time
def make_plain(directory: Path, *, dtype: torch.dtype = torch.bfloat16, **changes: Any) -> Path:
    """Its head is not tied, unless it is to be."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": VOCAB, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": MAX_LEN}
    ids = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD, "tie_word_embeddings": False}
    model = LlamaForCausalLM(LlamaConfig(**sizes | heads | ids | changes)).eval()
    randomise(model, 0.1, 0.08)
    model.to(dtype).save_pretrained(directory)
    save_tokenizer(directory)
    return directory
