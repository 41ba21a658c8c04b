"""Small GGUF files for tests, written by the `gguf` package: what our reader must understand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

Tensors = Mapping[str, np.ndarray]
NO_TENSORS: Tensors = {}


def write_gguf(path: Path, arch: str, metadata: Mapping[str, Any], tensors: Tensors = NO_TENSORS) -> Path:
    """Keys that begin with "." get the architecture in front. Tensors are stored as F32."""
    writer = GGUFWriter(path, arch)
    for key, value in metadata.items():
        add_metadata(writer, arch + key if key.startswith(".") else key, value)
    for name, array_np in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(array_np, np.float32), raw_dtype=GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_metadata(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def decoder_metadata(config: Any) -> dict[str, Any]:
    """What llama.cpp's converter writes for a decoder with rotary positions, given its transformers config."""
    heads = config.num_attention_heads
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    return {
        ".block_count": config.num_hidden_layers,
        ".context_length": config.max_position_embeddings,
        ".embedding_length": config.hidden_size,
        ".feed_forward_length": config.intermediate_size,
        ".attention.head_count": heads,
        ".attention.head_count_kv": config.num_key_value_heads,
        ".attention.key_length": head_dim,
        ".attention.value_length": head_dim,
        ".attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        ".rope.freq_base": float(rope["rope_theta"]),
        ".rope.dimension_count": head_dim,
        ".vocab_size": config.vocab_size,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [f"t{i}" for i in range(config.vocab_size)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
    }
