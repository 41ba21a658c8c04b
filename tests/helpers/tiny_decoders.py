"""Tiny random models of the families in `cadence/models/decoders`, as transformers makes them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.helpers.tiny_sizes import BOS, CHUNK, EOS, MAX_LEN, PAD, VOCAB, WINDOW, decoder_sizes

_GRANITE: dict[str, Any] = {
    "embedding_multiplier": 6.0,
    "residual_multiplier": 0.4,
    "attention_multiplier": 0.2,
    "logits_scaling": 0.7,
}
_HALF = {"rope_type": "default", "rope_theta": 10_000.0, "partial_rotary_factor": 0.5}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": MAX_LEN // 4}
_BOTH_ROPES = {"full_attention": _YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0}}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": MAX_LEN // 4,
}
_LLAMA4 = {
    "head_dim": 24,
    "attention_chunk_size": CHUNK,
    "floor_scale": 20,
    "attn_scale": 0.5,
    "intermediate_size_mlp": 80,
    "num_local_experts": 6,
    "num_hidden_layers": 5,
}
_TOKENS = {"vocab_size": VOCAB, "bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
_FALCON = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "max_position_embeddings": MAX_LEN}


def _made(name: str, sizes: dict[str, Any]) -> Any:
    import transformers

    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**sizes))


def _llama4(**changes: Any) -> Any:
    import transformers

    sizes = decoder_sizes(**_LLAMA4 | changes)
    return transformers.Llama4ForCausalLM(transformers.Llama4TextConfig(**sizes))


def _of(name: str, **changes: Any) -> Callable[[], Any]:
    return partial(_made, name, decoder_sizes(**changes))


def _with_names_of_its_own(name: str, **sizes: Any) -> Callable[[], Any]:
    return partial(_made, name, {**_TOKENS, **sizes})


DECODER_MODELS: dict[str, Callable[[], Any]] = {
    "bloom": _with_names_of_its_own("Bloom", hidden_size=48, n_layer=4, n_head=3),
    "codegen": _with_names_of_its_own("CodeGen", n_embd=128, n_layer=4, n_head=8, n_positions=MAX_LEN, rotary_dim=8),
    "cohere": _of("Cohere", tie_word_embeddings=True, logit_scale=0.6),
    "cohere_norms": _of("Cohere", use_qk_norm=True),
    "cohere2": _of("Cohere2", sliding_window=WINDOW),
    "exaone4": _of("Exaone4", sliding_window=WINDOW),
    "falcon": _with_names_of_its_own("Falcon", **_FALCON),
    "falcon_grouped": _with_names_of_its_own("Falcon", **_FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "falcon_in_turn": _with_names_of_its_own("Falcon", **_FALCON, multi_query=False, parallel_attn=False, bias=True),
    "gemma1": _of("Gemma", head_dim=24, tie_word_embeddings=True),
    "glm": _of("Glm", head_dim=16),
    "glm4": _of("Glm4", head_dim=16),
    "gptj": _with_names_of_its_own("GPTJ", n_embd=64, n_layer=4, n_head=4, n_positions=MAX_LEN, rotary_dim=8),
    "gpt_neox": _of("GPTNeoX", num_key_value_heads=4, rope_parameters=_HALF),
    "gpt_neox_in_turn": _of("GPTNeoX", num_key_value_heads=4, rope_parameters=_HALF, use_parallel_residual=False),
    "granite": _of("Granite", **_GRANITE),
    "granite_moe": _of("GraniteMoe", **_GRANITE, num_local_experts=6, num_experts_per_tok=3),
    "llama4": partial(_llama4, rope_parameters=_LLAMA3),
    "llama4_in_turn": partial(
        _llama4,
        interleave_moe_layer_step=2,
        use_qk_norm=False,
        no_rope_layers=[1, 0, 0, 1],
        num_hidden_layers=4,
        tie_word_embeddings=True,
    ),
    "mpt": _with_names_of_its_own(
        "Mpt", d_model=48, n_layers=4, n_heads=3, max_seq_len=MAX_LEN, attn_config={"clip_qkv": 1.5}
    ),
    "olmo2": _of("Olmo2"),
    "olmo3": _of("Olmo3", sliding_window=WINDOW, rope_parameters=_BOTH_ROPES),
    "phi": _of("Phi", rope_parameters=_HALF),
    "stablelm": _of("StableLm", use_qkv_bias=True),
    "stablelm_norms": _of("StableLm", qk_layernorm=True, use_parallel_residual=True),
    "starcoder2": _of("Starcoder2", sliding_window=WINDOW),
}
UNLIKE_OTHERS = ("bloom", "cohere_norms", "gpt_neox", "granite_moe", "llama4", "olmo2")  # in more than numbers

# As GGUF files have them: no head apart from the embedding; rows that blocks of 256 divide.
DECODERS_IN_GGUF: dict[str, Callable[[], Any]] = {
    "cohere_norms_tied": _of("Cohere", use_qk_norm=True, tie_word_embeddings=True),
    "cohere2_tied": _of("Cohere2", sliding_window=WINDOW, tie_word_embeddings=True),
    "llama4_chunks_of_all": partial(
        _llama4, interleave_moe_layer_step=2, attention_chunk_size=8192, floor_scale=8192, attn_scale=0.1
    ),
    "starcoder2_wide": _of("Starcoder2", hidden_size=256, intermediate_size=256, num_hidden_layers=2),
}
