"""Architecture names of Hugging Face configurations -> model classes, imported when asked for."""

from __future__ import annotations

import difflib
import importlib

from cadence.core.errors import ConfigError
from cadence.models.decoder import DecoderLM

_MODULES = {
    "GPT2LMHeadModel": "gpt2",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
    "Gemma3ForConditionalGeneration": "gemma3",
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "OPTForCausalLM": "opt",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


def architectures() -> list[str]:
    return sorted(_MODULES)


def model_class(architecture: str) -> type[DecoderLM]:
    """The class, whose constructor takes (hf, build)."""
    if architecture not in _MODULES:
        nearest = difflib.get_close_matches(architecture, _MODULES, n=1, cutoff=0.0)[0]
        known = ", ".join(architectures())
        message = f"architecture {architecture!r} is not supported (nearest: {nearest}; all: {known})"
        raise ConfigError(message, field="architectures")
    module = importlib.import_module(f"cadence.models.{_MODULES[architecture]}")
    return getattr(module, architecture)
