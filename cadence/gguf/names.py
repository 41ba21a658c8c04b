"""Where a GGUF file keeps each tensor of a Hugging Face checkpoint, and how its layout differs there."""

from __future__ import annotations

import re

from cadence.core.errors import WeightsError
from cadence.gguf.decoder_names import DECODER_PLACES, SECOND_NORM, TWO_NORMS
from cadence.gguf.file import GGUFFile
from cadence.gguf.places import (
    LLAMA_QUERY_KEY,
    MLP,
    NORMS,
    QK_NORMS,
    QUERY_KEY,
    TOP,
    VALUE_AND_OUTPUT,
    Layout,
    TensorName,
)
from cadence.gguf.state_names import STATE_PLACES

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
    *QUERY_KEY,
    *VALUE_AND_OUTPUT,
    *MLP,
)
_PHI3 = (
    *TOP,
    *NORMS,
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

_LLAMA = (*TOP, *NORMS, *LLAMA_QUERY_KEY, *VALUE_AND_OUTPUT, *MLP)

_QWEN2 = (*TOP, *NORMS, *QUERY_KEY, *VALUE_AND_OUTPUT, *MLP)

PLACES: dict[str, tuple[TensorName, ...]] = {
    "llama": (*_LLAMA, *_MIXTRAL_EXPERTS),
    "qwen2": _QWEN2,
    "qwen2vl": _QWEN2,
    "qwen3": (*TOP, *NORMS, *QUERY_KEY, *QK_NORMS, *VALUE_AND_OUTPUT, *MLP),
    "qwen3moe": (*TOP, *NORMS, *QUERY_KEY, *QK_NORMS, *VALUE_AND_OUTPUT, *_QWEN_EXPERTS),
    "smollm3": _LLAMA,
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "phi3": _PHI3,
    "gpt2": _GPT2,
    "bert": _BERT,
    "nomic-bert": _NOMIC,
    **DECODER_PLACES,
    **STATE_PLACES,
}

# Rotary tables: told in the config (`rope_scaling`) rather than loaded.
_NOT_WEIGHTS = re.compile(r"rope_freqs|rope_factors_(long|short)|blk\.\d+\.attn_rot_embd")


def places_of(file: GGUFFile) -> tuple[TensorName, ...]:
    architecture = file.require("general.architecture")
    if architecture not in PLACES:
        known = ", ".join(PLACES)
        raise WeightsError(f"{file.path}: GGUF architecture {architecture!r} is not supported: {known} are")
    return PLACES[TWO_NORMS if architecture == "falcon" and SECOND_NORM in file.tensors else architecture]


def translate(places: tuple[TensorName, ...], name: str) -> tuple[str, Layout, int] | None:
    """HF name and layout of the GGUF tensor `name`, and its number among the places; None where it holds no weights.

    A name nothing is known of comes back unchanged: the model's loader reports it as left over.
    """
    if _NOT_WEIGHTS.fullmatch(name.rpartition(".")[0]):
        return None
    numbers = re.match(r"blk\.(\d+)\.", name)
    layer = numbers.group(1) if numbers else ""
    generic = re.sub(r"^blk\.\d+\.", "blk.{}.", name)
    stem, _, kind = generic.rpartition(".")
    for number, place in enumerate(places):
        if place.gguf == (generic if place.whole else stem):
            end = "" if place.whole else f".{kind}"
            return place.hf.format(layer) + end, place.layout, number
    return name, Layout.SAME, len(places)
