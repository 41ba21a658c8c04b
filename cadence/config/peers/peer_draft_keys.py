"""Keys of vLLM's `speculative_config` that have no option here: one line each, as `peer_flags` has the flags."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from cadence.config.peers.peer_flag import PeerFlag, no_effect, refused
from cadence.config.peers.peer_flags import (
    ADAPTED,
    EVERY_LENGTH,
    EXACT_TOKENS,
    KERNELS,
    OWN_CODE,
    RANKS,
    SHARED_WITH_TARGET,
)

AS_TARGET = "a draft model runs with the options of its target"


def _key(make: Any, name: str, neutral: Any, why: str, **more: Any) -> PeerFlag:
    flag: PeerFlag = make(f"speculative_config.{name}", neutral, why, **more)
    return flag


_KEYS = (
    _key(no_effect, "enforce_eager", False, AS_TARGET),
    _key(refused, "draft_tensor_parallel_size", 1, SHARED_WITH_TARGET),
    _key(refused, "tensor_parallel_size", 1, SHARED_WITH_TARGET),
    _key(refused, "quantization", ("none", "gguf"), "a draft model is read as it is stored; GGUF files are quantised"),
    _key(no_effect, "moe_backend", "auto", KERNELS),
    _key(no_effect, "attention_backend", None, KERNELS),
    _key(refused, "kv_cache_dtype", "auto", "a draft model keeps keys and values in its target's type"),
    _key(no_effect, "code_revision", None, OWN_CODE),
    _key(no_effect, "draft_load_config", {}, AS_TARGET),
    _key(no_effect, "index_share_for_mtp_iteration", False, "no family with sparse attention is in this version"),
    _key(no_effect, "disable_padded_drafter_batch", False, EVERY_LENGTH),
    _key(no_effect, "disable_eagle_block_drop", False, "no block of the prefix cache is dropped"),
    _key(no_effect, "use_local_argmax_reduction", False, RANKS),
    _key(refused, "use_heterogeneous_vocab", False, "a draft model has the vocabulary of its target, or its beginning"),
    _key(no_effect, "parallel_drafting", False, "drafts are made one after the other"),
    _key(no_effect, "num_speculative_tokens_per_batch_size", [], ADAPTED),
    _key(no_effect, "enable_adaptive_verification", (False, True), ADAPTED),
    _key(no_effect, "dspark_draft_topk", None, "it is for the method dspark, which is not in this version"),
    _key(refused, "synthetic_acceptance_rates", [], EXACT_TOKENS),
    _key(refused, "synthetic_acceptance_length", None, EXACT_TOKENS),
    _key(no_effect, "disable_by_batch_size", None, ADAPTED),
    _key(no_effect, "disable_mqa_scorer", False, EVERY_LENGTH),
    _key(refused, "acceptance_method", ("rejection_sampler",), EXACT_TOKENS),
    _key(no_effect, "posterior_threshold", None, EXACT_TOKENS),
    _key(no_effect, "posterior_alpha", None, EXACT_TOKENS),
    _key(no_effect, "disable_logprobs", False, "logprobs are given to requests that ask for them"),
)

KEYS: Mapping[str, PeerFlag] = MappingProxyType({key.name.partition(".")[2]: key for key in _KEYS})
