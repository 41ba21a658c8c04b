"""Where GGUF files of the families in `cadence/models/decoders` keep each tensor."""

from __future__ import annotations

from collections.abc import Mapping

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

_LAYER = "model.layers.{}"
_QKV = (
    *QUERY_KEY,
    *VALUE_AND_OUTPUT,
    TensorName("blk.{}.attn_qkv", f"{_LAYER}.self_attn.@_proj", Layout.FUSED),
)
_AFTER = (
    TensorName("blk.{}.post_attention_norm", f"{_LAYER}.post_attention_layernorm"),
    TensorName("blk.{}.post_ffw_norm", f"{_LAYER}.post_feedforward_layernorm"),
)
_GLM_MLP = (
    TensorName("blk.{}.ffn_up", f"{_LAYER}.mlp.gate_up_proj"),
    TensorName("blk.{}.ffn_down", f"{_LAYER}.mlp.down_proj"),
)
_GLM4_NORMS = (
    TensorName("blk.{}.post_attention_norm", f"{_LAYER}.post_self_attn_layernorm"),
    TensorName("blk.{}.post_ffw_norm", f"{_LAYER}.post_mlp_layernorm"),
)
_GRANITE_EXPERTS = (
    TensorName("blk.{}.ffn_gate_inp", f"{_LAYER}.block_sparse_moe.router.layer"),
    TensorName("blk.{}.ffn_gate_exps", f"{_LAYER}.block_sparse_moe.input_linear.*"),
    TensorName("blk.{}.ffn_up_exps", f"{_LAYER}.block_sparse_moe.input_linear.*"),
    TensorName("blk.{}.ffn_down_exps", f"{_LAYER}.block_sparse_moe.output_linear.*"),
)
_LLAMA4_MLP = f"{_LAYER}.feed_forward"
_LLAMA4 = (
    *TOP,
    *NORMS,
    *QUERY_KEY,
    *VALUE_AND_OUTPUT,
    *(
        TensorName(f"blk.{{}}.ffn_{part}{end}", f"{_LLAMA4_MLP}{inside}.{part}_proj")
        for end, inside in (("", ""), ("_shexp", ".shared_expert"), ("_exps", ".experts.*"))
        for part in ("gate", "up", "down")
    ),
    TensorName("blk.{}.ffn_gate_inp", f"{_LLAMA4_MLP}.router"),
)
_GRANITE = (*TOP, *NORMS, *LLAMA_QUERY_KEY, *VALUE_AND_OUTPUT)
_OLMO2 = (*TOP, *_AFTER, *_QKV, *QK_NORMS, *MLP)
_GEMMA = (
    TensorName("token_embd", "model.embed_tokens"),
    TensorName("output_norm", "model.norm", Layout.PLUS_ONE),
    TensorName("blk.{}.attn_norm", f"{_LAYER}.input_layernorm", Layout.PLUS_ONE),
    TensorName("blk.{}.ffn_norm", f"{_LAYER}.post_attention_layernorm", Layout.PLUS_ONE),
    *_QKV,
    *MLP,
)
_STARCODER2 = (
    *TOP,
    *NORMS,
    *_QKV,
    TensorName("blk.{}.ffn_up", f"{_LAYER}.mlp.c_fc"),
    TensorName("blk.{}.ffn_down", f"{_LAYER}.mlp.c_proj"),
)
_STABLELM = (
    *TOP,
    *NORMS,
    *_QKV,
    *MLP,
    TensorName("blk.{}.attn_q_norm", f"{_LAYER}.self_attn.q_layernorm.norms.*", Layout.EACH_HEAD),
    TensorName("blk.{}.attn_k_norm", f"{_LAYER}.self_attn.k_layernorm.norms.*", Layout.EACH_HEAD),
)
_PHI2 = (
    TensorName("token_embd", "model.embed_tokens"),
    TensorName("output_norm", "model.final_layernorm"),
    TensorName("output", "lm_head"),
    TensorName("blk.{}.attn_norm", f"{_LAYER}.input_layernorm"),
    *QUERY_KEY,
    TensorName("blk.{}.attn_v", f"{_LAYER}.self_attn.v_proj"),
    TensorName("blk.{}.attn_qkv", f"{_LAYER}.self_attn.@_proj", Layout.FUSED),
    TensorName("blk.{}.attn_output", f"{_LAYER}.self_attn.dense"),
    TensorName("blk.{}.ffn_up", f"{_LAYER}.mlp.fc1"),
    TensorName("blk.{}.ffn_down", f"{_LAYER}.mlp.fc2"),
)


def _head_by_head(top: tuple[TensorName, ...], layer: str, attention: str) -> tuple[TensorName, ...]:
    return (
        *top,
        TensorName("output", "embed_out" if layer.startswith("gpt_neox") else "lm_head"),
        TensorName("blk.{}.attn_norm", f"{layer}.input_layernorm"),
        TensorName("blk.{}.ffn_norm", f"{layer}.post_attention_layernorm"),
        TensorName("blk.{}.attn_qkv", f"{layer}.{attention}.query_key_value", Layout.HEADS_APART),
        TensorName("blk.{}.attn_output", f"{layer}.{attention}.dense"),
        TensorName("blk.{}.ffn_up", f"{layer}.mlp.dense_h_to_4h"),
        TensorName("blk.{}.ffn_down", f"{layer}.mlp.dense_4h_to_h"),
    )


_WORDS = (
    TensorName("token_embd", "transformer.word_embeddings"),
    TensorName("output_norm", "transformer.ln_f"),
)
_FALCON = _head_by_head(_WORDS, "transformer.h.{}", "self_attention")
_FALCON_NORMS = (  # of the second norm, the file's first is that of the feed-forward block
    TensorName("blk.{}.attn_norm_2", "transformer.h.{}.ln_attn"),
    TensorName("blk.{}.attn_norm", "transformer.h.{}.ln_mlp"),
)
_BLOOM = (TensorName("token_embd_norm", "transformer.word_embeddings_layernorm"), *_FALCON)
_GPT_NEOX = _head_by_head(
    (TensorName("token_embd", "gpt_neox.embed_in"), TensorName("output_norm", "gpt_neox.final_layer_norm")),
    "gpt_neox.layers.{}",
    "attention",
)
_MPT = (
    TensorName("token_embd", "transformer.wte"),
    TensorName("output_norm", "transformer.norm_f"),
    TensorName("output", "lm_head"),
    TensorName("blk.{}.attn_norm", "transformer.blocks.{}.norm_1"),
    TensorName("blk.{}.ffn_norm", "transformer.blocks.{}.norm_2"),
    TensorName("blk.{}.attn_qkv", "transformer.blocks.{}.attn.Wqkv"),
    TensorName("blk.{}.attn_output", "transformer.blocks.{}.attn.out_proj"),
    TensorName("blk.{}.ffn_up", "transformer.blocks.{}.ffn.up_proj"),
    TensorName("blk.{}.ffn_down", "transformer.blocks.{}.ffn.down_proj"),
)
_GPTJ = (
    TensorName("token_embd", "transformer.wte"),
    TensorName("output_norm", "transformer.ln_f"),
    TensorName("output", "lm_head"),
    TensorName("blk.{}.attn_norm", "transformer.h.{}.ln_1"),
    TensorName("blk.{}.attn_q", "transformer.h.{}.attn.q_proj"),
    TensorName("blk.{}.attn_k", "transformer.h.{}.attn.k_proj"),
    TensorName("blk.{}.attn_v", "transformer.h.{}.attn.v_proj"),
    TensorName("blk.{}.attn_output", "transformer.h.{}.attn.out_proj"),
    TensorName("blk.{}.ffn_up", "transformer.h.{}.mlp.fc_in"),
    TensorName("blk.{}.ffn_down", "transformer.h.{}.mlp.fc_out"),
)

TWO_NORMS = "falcon, two norms"  # a place's architecture where a file has this tensor:
SECOND_NORM = "blk.0.attn_norm_2.weight"

DECODER_PLACES: Mapping[str, tuple[TensorName, ...]] = {
    "bloom": _BLOOM,
    "chatglm": (*TOP, *NORMS, *_QKV, *_GLM_MLP),
    "cohere2": (*TOP, *NORMS, *_QKV, *MLP),
    "command-r": (*TOP, *NORMS, *_QKV, *QK_NORMS, *MLP),
    "exaone4": _OLMO2,
    "falcon": _FALCON,
    TWO_NORMS: (*_FALCON_NORMS, *_FALCON),
    "gemma": _GEMMA,
    "glm4": (*TOP, *NORMS, *_GLM4_NORMS, *_QKV, *_GLM_MLP),
    "gptj": _GPTJ,
    "gptneox": _GPT_NEOX,
    "granite": (*_GRANITE, *MLP),
    "granitemoe": (*_GRANITE, *_GRANITE_EXPERTS),
    "llama4": _LLAMA4,
    "mpt": _MPT,
    "olmo2": _OLMO2,
    "phi2": _PHI2,
    "stablelm": _STABLELM,
    "starcoder2": _STARCODER2,
}
