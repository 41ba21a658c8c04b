"""Cadence runs large language models: from Python, from the shell, and behind a server.

Names are imported when first used, so that `import cadence` costs milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from cadence.config.env import keep_freed_memory
from cadence.config.version import __version__

if TYPE_CHECKING:
    from cadence.core.lora_request import LoRARequest
    from cadence.core.model.model_registry import ModelRegistry
    from cadence.core.outputs import CompletionOutput, Logprob, RequestOutput
    from cadence.core.pooled.pooled_outputs import PoolingRequestOutput
    from cadence.core.pooled.pooling_params import PoolingParams
    from cadence.core.sampling_params import BeamSearchParams, RequestOutputKind, SamplingParams
    from cadence.engine.llm_engine import LLMEngine
    from cadence.engine.text.live_request import StreamingInput
    from cadence.engine.text.prompts import PromptType, TextPrompt, TokensPrompt
    from cadence.entrypoints.async_engine import AsyncLLMEngine
    from cadence.entrypoints.async_llm import AsyncLLM
    from cadence.entrypoints.engine_args import AsyncEngineArgs, EngineArgs
    from cadence.entrypoints.llm import LLM

keep_freed_memory()

_HOMES = {
    "LLM": "cadence.entrypoints.llm",
    "AsyncLLM": "cadence.entrypoints.async_llm",
    "LLMEngine": "cadence.engine.llm_engine",
    "AsyncLLMEngine": "cadence.entrypoints.async_engine",
    "EngineArgs": "cadence.entrypoints.engine_args",
    "AsyncEngineArgs": "cadence.entrypoints.engine_args",
    "SamplingParams": "cadence.core.sampling_params",
    "BeamSearchParams": "cadence.core.sampling_params",
    "RequestOutputKind": "cadence.core.sampling_params",
    "PoolingParams": "cadence.core.pooled.pooling_params",
    "PoolingRequestOutput": "cadence.core.pooled.pooled_outputs",
    "LoRARequest": "cadence.core.lora_request",
    "ModelRegistry": "cadence.core.model.model_registry",
    "RequestOutput": "cadence.core.outputs",
    "CompletionOutput": "cadence.core.outputs",
    "Logprob": "cadence.core.outputs",
    "StreamingInput": "cadence.engine.text.live_request",
    "TextPrompt": "cadence.engine.text.prompts",
    "TokensPrompt": "cadence.engine.text.prompts",
    "PromptType": "cadence.engine.text.prompts",
}

__all__ = [
    "LLM",
    "AsyncEngineArgs",
    "AsyncLLM",
    "AsyncLLMEngine",
    "BeamSearchParams",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "ModelRegistry",
    "PoolingParams",
    "PoolingRequestOutput",
    "PromptType",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StreamingInput",
    "TextPrompt",
    "TokensPrompt",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cadence' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
