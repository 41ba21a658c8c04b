"""A place of a tensor in a GGUF file and in a Hugging Face checkpoint, and places that many families share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto


class Layout(Enum):
    """How a stored tensor differs from the one HF has under the translated name."""

    SAME = auto()
    QUERY_PAIRS = auto()  # rows of each head are interleaved: (x0, y0, x1, y1, ...) for (x0, x1, ..., y0, y1, ...)
    KEY_PAIRS = auto()  # the same, over the key heads
    PLUS_ONE = auto()  # holds 1 + w
    TRANSPOSED = auto()  # HF keeps [in, out]
    HEADS_APART = auto()  # queries, keys, values; HF has them head of keys by head of keys, with its queries first
    FUSED = auto()  # queries, keys, values in one; HF has a tensor of each: `@` in its name is q, k, v
    EACH_HEAD = auto()  # rows of heads; HF has a tensor of each: `*` in its name is the number
    TAPS = auto()  # matrices are [channels, taps] of a convolution, for [channels, 1, taps]
    FLAT = auto()  # of more dimensions than the one there is
    ROW = auto()  # maybe a vector, for a matrix of one row
    DECAY = auto()  # holds -exp(w)
    FLAT_DECAY = auto()  # the same, of more dimensions than the one there is


@dataclass(frozen=True, slots=True)
class TensorName:
    """`gguf` and `hf` are names up to `.weight` or `.bias`; `{}` is the number of the layer. `*` in `hf` is that of an
    expert: one tensor of the file holds all of them, [experts, rows, cols]. Several with one `hf` are its rows, in this
    order."""

    gguf: str
    hf: str
    layout: Layout = Layout.SAME
    whole: bool = False  # the names are complete


def shape_there(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    """Of a tensor in the file -> in a checkpoint."""
    if layout is Layout.TRANSPOSED:
        return shape[::-1]
    if layout is Layout.TAPS and len(shape) == 2:
        return shape[0], 1, shape[1]
    if layout is Layout.ROW and len(shape) == 1:
        return 1, *shape
    return (math.prod(shape),) if layout in (Layout.FLAT, Layout.FLAT_DECAY) else shape


TOP = (
    TensorName("token_embd", "model.embed_tokens"),
    TensorName("output_norm", "model.norm"),
    TensorName("output", "lm_head"),
)
MLP = (
    TensorName("blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"),
    TensorName("blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"),
    TensorName("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"),
)
NORMS = (
    TensorName("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    TensorName("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
)
VALUE_AND_OUTPUT = (
    TensorName("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"),
    TensorName("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
)
QUERY_KEY = (
    TensorName("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
    TensorName("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"),
)
LLAMA_QUERY_KEY = (
    TensorName("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj", Layout.QUERY_PAIRS),
    TensorName("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", Layout.KEY_PAIRS),
)
QK_NORMS = (
    TensorName("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"),
    TensorName("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"),
)
