"""Sampling values a model recommends: what `LLM.generate` uses when no SamplingParams are given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cadence.config.args import EngineArgs
from cadence.config.hf import HFConfig, read_generation
from cadence.core.errors import ConfigError

# name in generation_config.json -> name in SamplingParams
NAMES = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}


def default_sampling(args: EngineArgs, hf: HFConfig) -> dict[str, Any]:
    """Keywords for SamplingParams."""
    found = {**_source(args.generation_config, hf), **args.override_generation_config}
    unknown = [key for key in args.override_generation_config if key not in NAMES and key not in NAMES.values()]
    if unknown:
        raise ConfigError(
            f"override_generation_config: {', '.join(unknown)} is not one of {', '.join(NAMES)}",
            "override_generation_config",
        )
    renamed = {NAMES.get(key, key): value for key, value in found.items() if key in NAMES or key in NAMES.values()}
    return {key: value for key, value in renamed.items() if value is not None}


def _source(choice: str, hf: HFConfig) -> dict[str, Any]:
    if choice == "auto":
        return hf.generation
    if choice == "vllm":
        return {}
    directory = Path(choice).expanduser()
    if not (directory / "generation_config.json").exists():
        raise ConfigError(f"generation_config={choice}: there is no generation_config.json", "generation_config")
    return read_generation(directory)
