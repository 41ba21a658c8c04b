"""Tiny random models whose layers, all or some, keep a state in place of keys, made with transformers' own classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.helpers.tiny_sizes import BOS, EOS, PAD, VOCAB


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


STATE_MODELS: dict[str, Callable[[], Any]] = {
    "mamba": _mamba,
    "mamba_bias": lambda: _mamba(use_bias=True, use_conv_bias=False, time_step_rank=6, tie_word_embeddings=True),
    "falcon_mamba": _falcon_mamba,
    "mamba2": _mamba2,
    "mamba2_bias": lambda: _mamba2(use_bias=True, use_conv_bias=False, n_groups=1, time_step_limit=(0.01, 0.5)),
}
STATE_FAMILIES = tuple(STATE_MODELS)
