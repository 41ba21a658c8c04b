"""Tiny random models whose layers, all or some, keep a state in place of keys, made with transformers' own classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.helpers.tiny_sizes import BOS, EOS, PAD, VOCAB, decoder_sizes


def _alone(**changes: Any) -> dict[str, Any]:
    """Sizes of a model without attention."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "tie_word_embeddings": False,
    }
    return sizes | changes


def _mamba2(**changes: Any) -> Any:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    heads = {"num_heads": 8, "head_dim": 16, "state_size": 24, "n_groups": 2, "chunk_size": 32}
    return Mamba2ForCausalLM(Mamba2Config(**_alone(**heads | changes)))


def _mamba(**changes: Any) -> Any:
    from transformers import MambaConfig, MambaForCausalLM

    return MambaForCausalLM(MambaConfig(**_alone(**{"state_size": 8} | changes)))


def _falcon_mamba(**changes: Any) -> Any:
    from transformers import FalconMambaConfig, FalconMambaForCausalLM

    return FalconMambaForCausalLM(FalconMambaConfig(**_alone(**{"state_size": 8} | changes)))


def _jamba(**changes: Any) -> Any:
    from transformers import JambaConfig, JambaForCausalLM

    periods = {"attn_layer_period": 3, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1}
    sizes = {"num_hidden_layers": 5, "num_experts": 4, "mamba_d_state": 8}
    return JambaForCausalLM(JambaConfig(**decoder_sizes(**periods | sizes | changes)))


def _bamba(**changes: Any) -> Any:
    from transformers import BambaConfig, BambaForCausalLM

    sizes = {"attn_layer_indices": [1, 3], **_MAMBA2}
    return BambaForCausalLM(BambaConfig(**decoder_sizes(**sizes | changes)))


def _granite(**changes: Any) -> Any:
    from transformers import GraniteMoeHybridConfig, GraniteMoeHybridForCausalLM

    kinds = ["linear_attention", "full_attention", "linear_attention", "linear_attention"]
    factors = {"embedding_multiplier": 3.0, "logits_scaling": 2.5, "residual_multiplier": 0.4}
    sizes = {"layer_types": kinds, "num_local_experts": 4, "shared_intermediate_size": 48, "intermediate_size": 32}
    scale = {"attention_multiplier": 0.2, "tie_word_embeddings": True}
    config = GraniteMoeHybridConfig(**decoder_sizes(**factors | sizes | scale | _MAMBA2 | changes))
    return GraniteMoeHybridForCausalLM(config)


def _lfm2(**changes: Any) -> Any:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    sizes = {"full_attn_idxs": [1], "block_multiple_of": 32, "norm_eps": 1e-5}
    return Lfm2ForCausalLM(Lfm2Config(**decoder_sizes(**sizes | changes)))


def _falcon_h1(**changes: Any) -> Any:
    from transformers import FalconH1Config, FalconH1ForCausalLM

    factors = {
        "embedding_multiplier": 1.5,
        "lm_head_multiplier": 0.8,
        "key_multiplier": 0.6,
        "attention_in_multiplier": 1.2,
        "attention_out_multiplier": 0.9,
        "ssm_in_multiplier": 1.3,
        "ssm_out_multiplier": 0.7,
        "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 1.3],
        "mlp_multipliers": [1.4, 0.7],
    }
    sizes = {"mamba_d_ssm": 96, "mamba_n_heads": 6, "mamba_rms_norm": True}
    return FalconH1ForCausalLM(FalconH1Config(**decoder_sizes(**_MAMBA2 | factors | sizes | changes)))


def _qwen3_next(**changes: Any) -> Any:
    from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

    experts = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32}
    experts |= {"shared_expert_intermediate_size": 48, "mlp_only_layers": [2]}
    delta = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24}
    sizes = {"linear_value_head_dim": 16, "head_dim": 32, "full_attention_interval": 2}
    return Qwen3NextForCausalLM(Qwen3NextConfig(**decoder_sizes(**experts | delta | sizes | changes)))


_WIDE = {"hidden_size": 256, "intermediate_size": 256}
_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_state": 24, "mamba_n_groups": 2, "mamba_chunk_size": 32}

STATE_MODELS: dict[str, Callable[[], Any]] = {
    "mamba": _mamba,
    "mamba_bias": lambda: _mamba(use_bias=True, use_conv_bias=False, time_step_rank=6, tie_word_embeddings=True),
    "falcon_mamba": _falcon_mamba,
    "jamba": _jamba,
    "bamba": _bamba,
    "granite_hybrid": _granite,
    "granite_hybrid_dense": lambda: _granite(num_local_experts=0, position_embedding_type="rope"),
    "falcon_h1": _falcon_h1,
    "falcon_h1_bias": lambda: _falcon_h1(
        attention_bias=True, mlp_bias=True, mamba_proj_bias=True, projectors_bias=True, mamba_rms_norm=False
    ),
    "falcon_h1_norm_last": lambda: _falcon_h1(
        mamba_norm_before_gate=False, mamba_n_groups=1, mamba_d_ssm=None, mamba_n_heads=8
    ),
    "lfm2": _lfm2,
    "lfm2_bias": lambda: _lfm2(
        layer_types=["conv", "full_attention", "conv", "full_attention"],
        full_attn_idxs=None,
        conv_bias=True,
        conv_L_cache=4,
        block_auto_adjust_ff_dim=False,
        tie_word_embeddings=True,
    ),
    "qwen3_next": _qwen3_next,
    "mamba2": _mamba2,
    "mamba2_bias": lambda: _mamba2(use_bias=True, use_conv_bias=False, n_groups=1, time_step_limit=(0.01, 0.5)),
}
STATE_FAMILIES = tuple(STATE_MODELS)

# What a GGUF file can say: no norm over several groups of a Mamba-2, no layer of Qwen3-Next without experts. The wide
# ones have rows that blocks of 256 divide.
STATES_IN_GGUF: dict[str, Callable[[], Any]] = {
    "mamba2_one_group": lambda: _mamba2(n_groups=1),
    "bamba_one_group": lambda: _bamba(mamba_n_groups=1),
    "granite_hybrid_one_group": lambda: _granite(mamba_n_groups=1),
    "granite_hybrid_dense_one_group": lambda: _granite(mamba_n_groups=1, num_local_experts=0),
    "falcon_h1_gate_first": lambda: _falcon_h1(mamba_norm_before_gate=False),
    "falcon_h1_without_norm": lambda: _falcon_h1(mamba_rms_norm=False),
    "mamba2_wide": lambda: _mamba2(n_groups=1, hidden_size=256, num_heads=32, num_hidden_layers=2),
    "bamba_wide": lambda: _bamba(
        **_WIDE, mamba_n_groups=1, mamba_n_heads=32, num_hidden_layers=2, attn_layer_indices=[1]
    ),
    "qwen3_next_routed": lambda: _qwen3_next(mlp_only_layers=[]),
}
