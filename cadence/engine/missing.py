"""Methods that vLLM users know and this version lacks, each with a sentence that says why or what to do instead."""

from __future__ import annotations

_POOLING = "an engine takes PoolingParams with add_request or encode; LLM has this method"
_WEIGHTS = "update_weights takes a folder or named tensors, at once; nothing has to be set up or ended"
_PAUSE = "an engine that is stepped by its caller pauses when it is not; AsyncLLMEngine can be paused"
_WORKERS = "functions are called with a worker by an LLM object, in its own process"
_PROFILE = "profiles are taken of an LLM object, in its own process: LLM(..., profiler_config=...)"

MISSING_METHODS = {
    **dict.fromkeys(("embed", "classify", "score", "reward"), _POOLING),
    **dict.fromkeys(("pause_generation", "resume_generation", "is_paused"), _PAUSE),
    "apply_model": _WORKERS,
    **dict.fromkeys(("start_profile", "stop_profile"), _PROFILE),
    **dict.fromkeys(("init_weight_transfer_engine", "start_weight_update", "finish_weight_update"), _WEIGHTS),
}


def missing_attribute(owner: str, name: str) -> AttributeError:
    """For a class's `__getattr__`: `hasattr` says no, and a call says why."""
    why = MISSING_METHODS.get(name)
    return AttributeError(f"{owner} has no {name}: {why}" if why else f"{owner!r} object has no attribute {name!r}")
