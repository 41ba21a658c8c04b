"""Paths that clients know from other servers and this version lacks, each with a sentence that says why."""

from __future__ import annotations

from cadence.engine.missing import MISSING_METHODS

_EMBED = "embeddings are given by /v1/embeddings"
_CLASSIFY = "models that classify texts are served by /classify, and by /pooling"
_AUDIO = "recordings become text at /v1/audio/transcriptions and /v1/audio/translations; answers are text"
_IMAGES = "models that draw are not in this version; prompts and answers are text"
_STORED = "this server keeps no files or jobs; `cadence run-batch` answers a file of requests"
_DEVELOP = "who is in charge of a server has it with --server-dev-mode, or VLLM_SERVER_DEV_MODE=1"
_ASSISTANTS = "this server keeps no assistants or threads; /v1/responses keeps conversations"

MISSING_PATHS = {
    "/embeddings": _EMBED,
    **dict.fromkeys(("/reward", "/v1/moderations"), _CLASSIFY),
    "/v1/audio/speech": _AUDIO,
    **dict.fromkeys(("/v1/images", "/v1/videos"), _IMAGES),
    **dict.fromkeys(("/v1/files", "/v1/uploads", "/v1/batches", "/v1/fine_tuning"), _STORED),
    **dict.fromkeys(("/v1/assistants", "/v1/threads", "/v1/vector_stores"), _ASSISTANTS),
    **dict.fromkeys(("/sleep", "/wake_up", "/is_sleeping", "/collective_rpc", "/update_weights"), _DEVELOP),
    **dict.fromkeys(("/pause", "/resume", "/is_paused"), MISSING_METHODS["is_paused"]),
}


def why_missing(path: str) -> str:
    """For one of these paths, or one below it; "" for any other."""
    found = next((name for name in MISSING_PATHS if path == name or path.startswith(name + "/")), "")
    return f"There is no {found} here: {MISSING_PATHS[found]}." if found else ""
