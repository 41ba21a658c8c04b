"""Well-known model shapes with dummy weights: speed without the files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SHAPES: dict[str, dict[str, Any]] = {
    "bert-base": {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "vocab_size": 30522,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
        "dtype": "bfloat16",
    },
    "llama-3.1-8b": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
        "eos_token_id": 128001,
    },
    "mamba2-2.7b": {
        "architectures": ["Mamba2ForCausalLM"],
        "model_type": "mamba2",
        "hidden_size": 2560,
        "num_hidden_layers": 64,
        "num_heads": 80,
        "head_dim": 64,
        "expand": 2,
        "n_groups": 1,
        "state_size": 128,
        "conv_kernel": 4,
        "vocab_size": 50288,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    },
    "qwen2.5-0.5b": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "eos_token_id": 151643,
    },
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "eos_token_id": 151645,
    },
    "smollm2-135m": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "vocab_size": 49152,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
        "eos_token_id": 2,
    },
}


def write_shape(name: str, directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(SHAPES[name]))
    return directory


def weight_bytes_per_token(name: str, element_bytes: int = 2) -> int:
    """Bytes of weights one decode step reads (the input embedding is looked up, not read)."""
    shape = SHAPES[name]
    if shape["model_type"] == "mamba2":
        return element_bytes * _mamba2_weights(shape)
    hidden, inner, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    heads, kv_heads = shape["num_attention_heads"], shape["num_key_value_heads"]
    layer = hidden * dim * (2 * heads + 2 * kv_heads) + 3 * hidden * inner
    return element_bytes * (shape["num_hidden_layers"] * layer + hidden * shape["vocab_size"])


def _mamba2_weights(shape: dict[str, Any]) -> int:
    hidden, width = shape["hidden_size"], shape["num_heads"] * shape["head_dim"]
    entering = 2 * width + 2 * shape["n_groups"] * shape["state_size"] + shape["num_heads"]
    return shape["num_hidden_layers"] * hidden * (entering + width) + hidden * shape["vocab_size"]
