"""A tiny Llama in a GGUF file whose matrices are random blocks of one type, and a tokenizer that encodes any text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import pre_tokenizers

from cadence.gguf import block_size
from tests.helpers.gguf_files import add_metadata
from tests.helpers.random_blocks import tame_blocks

HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, VOCAB = 256, 256, 2, 4, 2, 320
SPREAD = 0.1  # of weights, about


def make_tiny_gguf(path: Path, kind: str, other: str = "", experts: int = 0, pooling: int = 0) -> Path:
    """The same file every time. other: the kind of values and of what comes down, as files of several kinds have it.
    experts: of each layer, two of which a token takes; 0 = none. pooling: of a model made for embeddings; 0 = none."""
    rng = np.random.default_rng(17)
    writer = GGUFWriter(path, "llama")
    metadata = {"llama.expert_count": experts, "llama.expert_used_count": 2} if experts else {}
    metadata |= {"llama.pooling_type": pooling} if pooling else {}
    for key, value in (_metadata() | metadata).items():
        add_metadata(writer, key, value)
    matrices: dict[str, tuple[int, ...]] = {"token_embd": (VOCAB, HIDDEN), "output": (VOCAB, HIDDEN)}
    norms = ["output_norm"]
    for layer in range(LAYERS):
        heads = {"attn_q": HIDDEN, "attn_k": HIDDEN // HEADS * KV_HEADS, "attn_v": HIDDEN // HEADS * KV_HEADS}
        inner = {"ffn_gate": INNER, "ffn_up": INNER, "ffn_down": HIDDEN}
        rows = heads | {"attn_output": HIDDEN} | ({} if experts else inner)
        matrices |= {f"blk.{layer}.{name}": (count, HIDDEN) for name, count in rows.items()}
        if experts:
            matrices |= {f"blk.{layer}.{name}_exps": (experts, count, HIDDEN) for name, count in inner.items()}
            router_np = rng.standard_normal((experts, HIDDEN)).astype(np.float32) / 8
            writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router_np)
        norms += [f"blk.{layer}.attn_norm", f"blk.{layer}.ffn_norm"]
    for name, shape in matrices.items():
        own = other if other and name.endswith(("attn_v", "ffn_down", "ffn_down_exps")) else kind
        count = math.prod(shape) // block_size(own)[0]
        blocks_np = BLOCKS[own](rng, count) if own in BLOCKS else tame_blocks(own, count, SPREAD, rng)
        writer.add_tensor(f"{name}.weight", blocks_np.reshape(*shape[:-1], -1), raw_dtype=GGMLQuantizationType[own])
    for name in norms:
        writer.add_tensor(f"{name}.weight", 1 + rng.standard_normal(HIDDEN).astype(np.float32) / 8)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _metadata() -> dict[str, Any]:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    return {
        "llama.block_count": LAYERS,
        "llama.context_length": 512,
        "llama.embedding_length": HIDDEN,
        "llama.feed_forward_length": INNER,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.dimension_count": HIDDEN // HEADS,
        "llama.vocab_size": VOCAB,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [*letters, "ab", *[f"<{i}>" for i in range(VOCAB - len(letters) - 1)]],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": VOCAB - 2,
        "tokenizer.ggml.eos_token_id": VOCAB - 1,
    }


def _half(value: float, count: int) -> np.ndarray:
    return np.full((count, 1), value, np.float16).view(np.uint8)


def _random(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def _q8_0(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.concatenate([_half(SPREAD / 74, count), _random(rng, count, 32)], axis=1)


def _q4_1(rng: np.random.Generator, count: int) -> np.ndarray:
    scale = SPREAD / 4.6
    return np.concatenate([_half(scale, count), _half(-7.5 * scale, count), _random(rng, count, 16)], axis=1)


def _q4_k(rng: np.random.Generator, count: int) -> np.ndarray:
    """Every run's minimum has its scale's number, so that values lie around zero."""
    scale, first, third = SPREAD / (36 * 4.6), _random(rng, count, 4), _random(rng, count, 4) & 15
    runs = np.concatenate([first, first, third * 17], axis=1)
    return np.concatenate([_half(scale, count), _half(7.5 * scale, count), runs, _random(rng, count, 128)], axis=1)


def _q6_k(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.concatenate([_random(rng, count, 128 + 64 + 16), _half(SPREAD / (18.5 * 74), count)], axis=1)


BLOCKS = {"Q8_0": _q8_0, "Q4_1": _q4_1, "Q4_K": _q4_k, "Q6_K": _q6_k}
