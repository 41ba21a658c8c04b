"""Where GGUF files keep the tensors of models with states."""

from __future__ import annotations

from cadence.gguf.places import Layout, TensorName


def _mamba(stem: str) -> tuple[TensorName, ...]:
    """stem: of a mixer in checkpoints"""
    return (
        *_mixer(stem),
        TensorName("blk.{}.ssm_x", f"{stem}.x_proj"),
        TensorName("blk.{}.ssm_dt", f"{stem}.dt_proj"),
        TensorName("blk.{}.ssm_a", f"{stem}.A_log", Layout.DECAY, whole=True),
        TensorName("blk.{}.ssm_d", f"{stem}.D", whole=True),
        TensorName("blk.{}.ssm_dt_norm", f"{stem}.dt_layernorm"),
        TensorName("blk.{}.ssm_b_norm", f"{stem}.b_layernorm"),
        TensorName("blk.{}.ssm_c_norm", f"{stem}.c_layernorm"),
    )


def _mamba2(stem: str) -> tuple[TensorName, ...]:
    return (
        *_mixer(stem),
        TensorName("blk.{}.ssm_dt.bias", f"{stem}.dt_bias", whole=True),
        TensorName("blk.{}.ssm_a", f"{stem}.A_log", Layout.FLAT_DECAY, whole=True),
        TensorName("blk.{}.ssm_d", f"{stem}.D", Layout.FLAT, whole=True),
        TensorName("blk.{}.ssm_norm", f"{stem}.norm", Layout.FLAT),
    )


def _mixer(stem: str) -> tuple[TensorName, ...]:
    return (
        TensorName("blk.{}.ssm_in", f"{stem}.in_proj"),
        TensorName("blk.{}.ssm_conv1d", f"{stem}.conv1d", Layout.TAPS),
        TensorName("blk.{}.ssm_out", f"{stem}.out_proj"),
    )


def _attention(query: Layout, key: Layout) -> tuple[TensorName, ...]:
    stem = "model.layers.{}.self_attn"
    return (
        TensorName("blk.{}.attn_q", f"{stem}.q_proj", query),
        TensorName("blk.{}.attn_k", f"{stem}.k_proj", key),
        TensorName("blk.{}.attn_v", f"{stem}.v_proj"),
        TensorName("blk.{}.attn_output", f"{stem}.o_proj"),
    )


_MIXERS_ALONE = (
    TensorName("token_embd", "backbone.embeddings"),
    TensorName("output_norm", "backbone.norm_f"),
    TensorName("output", "lm_head"),
    TensorName("blk.{}.attn_norm", "backbone.layers.{}.norm"),
)
_ENDS = (TensorName("token_embd", "model.embed_tokens"), TensorName("output", "lm_head"))
_BESIDE = (  # Jamba and what has its names
    *_ENDS,
    TensorName("output_norm", "model.final_layernorm"),
    TensorName("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    TensorName("blk.{}.ffn_norm", "model.layers.{}.pre_ff_layernorm"),
    TensorName("blk.{}.ffn_norm", "model.layers.{}.pre_ff_layernorm.weight", whole=True),  # of a Falcon-H1
    TensorName("blk.{}.ffn_gate", "model.layers.{}.feed_forward.gate_proj"),
    TensorName("blk.{}.ffn_up", "model.layers.{}.feed_forward.up_proj"),
    TensorName("blk.{}.ffn_down", "model.layers.{}.feed_forward.down_proj"),
    *_attention(Layout.SAME, Layout.SAME),
)
_JAMBA = (
    *_BESIDE,
    *_mamba("model.layers.{}.mamba"),
    TensorName("blk.{}.ffn_gate_inp", "model.layers.{}.feed_forward.router"),
    TensorName("blk.{}.ffn_gate_exps", "model.layers.{}.feed_forward.experts.*.gate_proj"),
    TensorName("blk.{}.ffn_up_exps", "model.layers.{}.feed_forward.experts.*.up_proj"),
    TensorName("blk.{}.ffn_down_exps", "model.layers.{}.feed_forward.experts.*.down_proj"),
)
_SHARED, _ROUTED = "model.layers.{}.shared_mlp", "model.layers.{}.block_sparse_moe"
_GRANITE = (
    *_ENDS,
    TensorName("output_norm", "model.norm"),
    TensorName("blk.{}.attn_norm", "model.layers.{}.input_layernorm"),
    TensorName("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm"),
    TensorName("blk.{}.ffn_norm", "model.layers.{}.post_attention_layernorm.weight", whole=True),  # of a Bamba
    *_attention(Layout.QUERY_PAIRS, Layout.KEY_PAIRS),
    *_mamba2("model.layers.{}.mamba"),
    *(
        TensorName(f"blk.{{}}.ffn_{part}{kind}", f"{_SHARED}.{name}")
        for kind in ("", "_shexp")
        for part, name in (("gate", "input_linear"), ("up", "input_linear"), ("down", "output_linear"))
    ),
    TensorName("blk.{}.ffn_gate_inp", f"{_ROUTED}.router.layer"),
    TensorName("blk.{}.ffn_gate_exps", f"{_ROUTED}.input_linear.*"),
    TensorName("blk.{}.ffn_up_exps", f"{_ROUTED}.input_linear.*"),
    TensorName("blk.{}.ffn_down_exps", f"{_ROUTED}.output_linear.*"),
)
_LFM2 = (
    *_ENDS,
    TensorName("token_embd_norm", "model.embedding_norm"),
    TensorName("blk.{}.attn_norm", "model.layers.{}.operator_norm"),
    TensorName("blk.{}.ffn_norm", "model.layers.{}.ffn_norm"),
    TensorName("blk.{}.ffn_gate", "model.layers.{}.feed_forward.w1"),
    TensorName("blk.{}.ffn_up", "model.layers.{}.feed_forward.w3"),
    TensorName("blk.{}.ffn_down", "model.layers.{}.feed_forward.w2"),
    TensorName("blk.{}.attn_output", "model.layers.{}.self_attn.out_proj"),
    TensorName("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_layernorm"),
    TensorName("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_layernorm"),
    *_attention(Layout.SAME, Layout.SAME),
    TensorName("blk.{}.shortconv.conv", "model.layers.{}.conv.conv", Layout.TAPS),
    TensorName("blk.{}.shortconv.in_proj", "model.layers.{}.conv.in_proj"),
    TensorName("blk.{}.shortconv.out_proj", "model.layers.{}.conv.out_proj"),
)
_DELTA, _MLP = "model.layers.{}.linear_attn", "model.layers.{}.mlp"
_QWEN3_NEXT = (
    *_ENDS,
    TensorName("output_norm", "model.norm", Layout.PLUS_ONE),
    TensorName("blk.{}.attn_norm", "model.layers.{}.input_layernorm", Layout.PLUS_ONE),
    TensorName("blk.{}.post_attention_norm", "model.layers.{}.post_attention_layernorm", Layout.PLUS_ONE),
    TensorName("blk.{}.attn_q_norm", "model.layers.{}.self_attn.q_norm", Layout.PLUS_ONE),
    TensorName("blk.{}.attn_k_norm", "model.layers.{}.self_attn.k_norm", Layout.PLUS_ONE),
    *_attention(Layout.SAME, Layout.SAME),
    TensorName("blk.{}.attn_qkv", f"{_DELTA}.in_proj_qkv"),
    TensorName("blk.{}.attn_gate", f"{_DELTA}.in_proj_z"),
    TensorName("blk.{}.ssm_in", f"{_DELTA}.in_proj_qkvz"),  # of older files
    TensorName("blk.{}.ssm_ba", f"{_DELTA}.in_proj_ba"),
    TensorName("blk.{}.ssm_conv1d", f"{_DELTA}.conv1d", Layout.TAPS),
    TensorName("blk.{}.ssm_dt.bias", f"{_DELTA}.dt_bias", whole=True),
    TensorName("blk.{}.ssm_a", f"{_DELTA}.A_log", Layout.DECAY, whole=True),
    TensorName("blk.{}.ssm_norm", f"{_DELTA}.norm"),
    TensorName("blk.{}.ssm_out", f"{_DELTA}.out_proj"),
    TensorName("blk.{}.ffn_gate_inp", f"{_MLP}.gate"),
    TensorName("blk.{}.ffn_gate_inp_shexp", f"{_MLP}.shared_expert_gate", Layout.ROW),
    *(
        TensorName(f"blk.{{}}.ffn_{part}{kind}", f"{_MLP}.{name}{part}_proj")
        for kind, name in (("", ""), ("_exps", "experts.*."), ("_shexp", "shared_expert."))
        for part in ("gate", "up", "down")
    ),
)

STATE_PLACES: dict[str, tuple[TensorName, ...]] = {
    "mamba": (*_MIXERS_ALONE, *_mamba("backbone.layers.{}.mixer")),
    "mamba2": (*_MIXERS_ALONE, *_mamba2("backbone.layers.{}.mixer")),
    "jamba": _JAMBA,
    "granitehybrid": _GRANITE,
    "falcon-h1": (*_BESIDE, *_mamba2("model.layers.{}.mamba")),
    "lfm2": _LFM2,
    "qwen3next": _QWEN3_NEXT,
}
