"""Where a GGUF file keeps each tensor of a Hugging Face checkpoint, and how its layout differs there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto


class Layout(Enum):
    """How a stored tensor differs from the one HF has under the translated name."""

    SAME = auto()
    QUERY_PAIRS = auto()  # rows of each head are interleaved: (x0, y0, x1, y1, ...) for (x0, x1, ..., y0, y1, ...)
    KEY_PAIRS = auto()  # the same, over the key heads
    PLUS_ONE = auto()  # holds 1 + w
    TRANSPOSED = auto()  # HF keeps [in, out]


@dataclass(frozen=True, slots=True)
class TensorName:
    """`gguf` and `hf` are names up to `.weight` or `.bias`; `{}` is the number of the layer. `*` in `hf` is that of an
    expert: one tensor of the file holds all of them, [experts, rows, cols]."""

    gguf: str
    hf: str
    layout: Layout = Layout.SAME


_TOP = (
    TensorName("token_embd", "model.embed_tokens"),
    TensorName("output_norm", "model.norm"),
    TensorName("output", "lm_head"),
)
_MLP = (
    TensorName("blk.{}.ffn_gate", "model.layers.{}.mlp.gate_proj"),
    TensorName("blk.{}.ffn_up", "model.layers.{}.mlp.up_proj"),
    TensorName("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"),
)
_QWEN_EXPERTS = (
    TensorName("blk.{}.ffn_gate_inp", "model.layers.{}.mlp.gate"),
    TensorName("blk.{}.ffn_gate_exps", "model.layers.{}.mlp.experts.*.gate_proj"),
    TensorName("blk.{}.ffn_up_exps", "model.layers.{}.mlp.experts.*.up_proj"),
    TensorName("blk.{}.ffn_down_exps", "model.layers.{}.mlp.experts.*.down_proj"),
)
_MIXTRAL_EXPERTS = (
    TensorName("blk.{}.ffn_gate_inp", "model.layers.{}.block_sparse_moe.gate"),
    TensorName("blk.{}.ffn_gate_exps", "model.layers.{}.block_sparse_moe.experts.*.w1"),
    TensorName("blk.{}.ffn_up_exps", "model.layers.{}.block_sparse_moe.experts.*.w3"),
    TensorName("blk.{}.ffn_down_exps", "model.layers.{}.block_sparse_moe.experts.*.w2"),
)
_NORMS = (
    TensorName("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    TensorName("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
)
_VALUE_AND_OUTPUT = (
    TensorName("blk.{}.attn_v", "model.layers.{}.self_attn.v_proj"),
    TensorName("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
)
_QUERY_KEY = (
    TensorName("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj"),
    TensorName("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj"),
)
_LLAMA_QUERY_KEY = (
    TensorName("blk.{}.attn_q", "model.layers.{}.self_attn.q_proj", Layout.QUERY_PAIRS),
    TensorName("blk.{}.attn_k", "model.layers.{}.self_attn.k_proj", Layout.KEY_PAIRS),
)
_QK_NORMS = (
    TensorName("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm"),
    TensorName("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm"),
)
_GEMMA = (
    TensorName("token_embd", "model.embed_tokens"),
    TensorName("output", "lm_head"),
    TensorName("output_norm", "model.norm", Layout.PLUS_ONE),
    TensorName("blk.{}.attn_norm", "model.layers.{}.input_layernorm", Layout.PLUS_ONE),
    TensorName("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm", Layout.PLUS_ONE),
    TensorName("blk.{}.ffn_norm", "model.layers.{}.pre_feedforward_layernorm", Layout.PLUS_ONE),
    TensorName("blk.{}.post_ffw_norm", "model.layers.{}.post_feedforward_layernorm", Layout.PLUS_ONE),
    TensorName("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm", Layout.PLUS_ONE),
    TensorName("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm", Layout.PLUS_ONE),
    *_QUERY_KEY,
    *_VALUE_AND_OUTPUT,
    *_MLP,
)
_PHI3 = (
    *_TOP,
    *_NORMS,
    TensorName("blk.{}.attn_qkv", "model.layers.{}.self_attn.qkv_proj"),
    TensorName("blk.{}.attn_output", "model.layers.{}.self_attn.o_proj"),
    TensorName("blk.{}.ffn_up", "model.layers.{}.mlp.gate_up_proj"),
    TensorName("blk.{}.ffn_down", "model.layers.{}.mlp.down_proj"),
)
_GPT2 = (
    TensorName("token_embd", "transformer.wte"),
    TensorName("position_embd", "transformer.wpe"),
    TensorName("output_norm", "transformer.ln_f"),
    TensorName("output", "lm_head"),
    TensorName("blk.{}.attn_norm", "transformer.h.{}.ln_1"),
    TensorName("blk.{}.ffn_norm", "transformer.h.{}.ln_2"),
    TensorName("blk.{}.attn_qkv", "transformer.h.{}.attn.c_attn", Layout.TRANSPOSED),
    TensorName("blk.{}.attn_output", "transformer.h.{}.attn.c_proj", Layout.TRANSPOSED),
    TensorName("blk.{}.ffn_up", "transformer.h.{}.mlp.c_fc", Layout.TRANSPOSED),
    TensorName("blk.{}.ffn_down", "transformer.h.{}.mlp.c_proj", Layout.TRANSPOSED),
)

_ENCODER = (
    TensorName("token_embd", "embeddings.word_embeddings"),
    TensorName("token_types", "embeddings.token_type_embeddings"),
)
_BERT = (
    *_ENCODER,
    TensorName("position_embd", "embeddings.position_embeddings"),
    TensorName("token_embd_norm", "embeddings.LayerNorm"),
    TensorName("blk.{}.attn_q", "encoder.layer.{}.attention.self.query"),
    TensorName("blk.{}.attn_k", "encoder.layer.{}.attention.self.key"),
    TensorName("blk.{}.attn_v", "encoder.layer.{}.attention.self.value"),
    TensorName("blk.{}.attn_output", "encoder.layer.{}.attention.output.dense"),
    TensorName("blk.{}.attn_output_norm", "encoder.layer.{}.attention.output.LayerNorm"),
    TensorName("blk.{}.ffn_up", "encoder.layer.{}.intermediate.dense"),
    TensorName("blk.{}.ffn_down", "encoder.layer.{}.output.dense"),
    TensorName("blk.{}.layer_output_norm", "encoder.layer.{}.output.LayerNorm"),
    TensorName("cls", "classifier.dense"),
    TensorName("cls.output", "classifier.out_proj"),
)
_NOMIC = (
    *_ENCODER,
    TensorName("token_embd_norm", "emb_ln"),
    TensorName("blk.{}.attn_qkv", "encoder.layers.{}.attn.Wqkv"),
    TensorName("blk.{}.attn_output", "encoder.layers.{}.attn.out_proj"),
    TensorName("blk.{}.attn_output_norm", "encoder.layers.{}.norm1"),
    TensorName("blk.{}.ffn_gate", "encoder.layers.{}.mlp.fc12"),
    TensorName("blk.{}.ffn_up", "encoder.layers.{}.mlp.fc11"),
    TensorName("blk.{}.ffn_down", "encoder.layers.{}.mlp.fc2"),
    TensorName("blk.{}.layer_output_norm", "encoder.layers.{}.norm2"),
)

_LLAMA = (*_TOP, *_NORMS, *_LLAMA_QUERY_KEY, *_VALUE_AND_OUTPUT, *_MLP)

_QWEN2 = (*_TOP, *_NORMS, *_QUERY_KEY, *_VALUE_AND_OUTPUT, *_MLP)

PLACES: dict[str, tuple[TensorName, ...]] = {
    "llama": (*_LLAMA, *_MIXTRAL_EXPERTS),
    "qwen2": _QWEN2,
    "qwen2vl": _QWEN2,
    "qwen3": (*_TOP, *_NORMS, *_QUERY_KEY, *_QK_NORMS, *_VALUE_AND_OUTPUT, *_MLP),
    "qwen3moe": (*_TOP, *_NORMS, *_QUERY_KEY, *_QK_NORMS, *_VALUE_AND_OUTPUT, *_QWEN_EXPERTS),
    "smollm3": _LLAMA,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "phi3": _PHI3,
    "gpt2": _GPT2,
    "bert": _BERT,
    "nomic-bert": _NOMIC,
}

# Rotary tables: told in the config (`rope_scaling`) rather than loaded.
_NOT_WEIGHTS = re.compile(r"rope_freqs|rope_factors_(long|short)|blk\.\d+\.attn_rot_embd")


def translate(architecture: str, name: str) -> tuple[str, Layout] | None:
    """HF name and layout of the GGUF tensor `name`; None where it holds no weights.

    A name nothing is known of comes back unchanged: the model's loader reports it as left over.
    """
    stem, _, kind = name.rpartition(".")
    if _NOT_WEIGHTS.fullmatch(stem):
        return None
    numbers = re.match(r"blk\.(\d+)\.", stem)
    layer = numbers.group(1) if numbers else ""
    generic = re.sub(r"^blk\.\d+\.", "blk.{}.", stem)
    for place in PLACES[architecture]:
        if place.gguf == generic:
            return f"{place.hf.format(layer)}.{kind}", place.layout
    return name, Layout.SAME
