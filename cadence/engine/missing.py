"""Methods that vLLM users know and this version lacks, each with a sentence that says why or what to do instead."""

from __future__ import annotations

_POOLING = "an engine takes PoolingParams with add_request or encode; LLM has this method"
_WEIGHTS = "weights are read once; make a new engine for others"
_SLEEP = "an engine does not sleep; shutdown() gives all its memory back"
_PAUSE = "an engine that is stepped by its caller pauses when it is not; AsyncLLMEngine can be paused"
_WORKERS = "what ranks carry out is fixed: none of them runs functions of the caller's"
_PROFILE = "profiles are taken of an LLM object, in its own process: LLM(..., profiler_config=...)"

MISSING_METHODS = {
    **dict.fromkeys(("embed", "classify", "score", "reward"), _POOLING),
    **dict.fromkeys(("sleep", "wake_up", "is_sleeping"), _SLEEP),
    **dict.fromkeys(("pause_generation", "resume_generation", "is_paused"), _PAUSE),
    **dict.fromkeys(("collective_rpc", "apply_model"), _WORKERS),
    **dict.fromkeys(("start_profile", "stop_profile"), _PROFILE),
    **dict.fromkeys(
        ("init_weight_transfer_engine", "start_weight_update", "update_weights", "finish_weight_update"), _WEIGHTS
    ),
}


def missing_attribute(owner: str, name: str) -> AttributeError:
    """For a class's `__getattr__`: `hasattr` says no, and a call says why."""
    why = MISSING_METHODS.get(name)
    return AttributeError(f"{owner} has no {name}: {why}" if why else f"{owner!r} object has no attribute {name!r}")
