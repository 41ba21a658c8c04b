"""Heads that come with the package: for which models there is one, and where it lies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.config.hf import HFConfig
from cadence.config.reference import ModelFiles
from cadence.config.speculative_options import OPTION, model_missing
from cadence.core.errors import ConfigError

FOLDER = Path(__file__).parents[2] / "models" / "heads" / "data"


@dataclass(frozen=True, slots=True)
class BuiltinHead:
    method: str
    target: str  # its name, in messages
    folder: str  # below FOLDER
    facts: Mapping[str, Any]  # what the target's configuration says, and that of no other family of this size


HEADS = (
    BuiltinHead(
        method="eagle3",
        target="SmolLM2-135M-Instruct",
        folder="smollm2_eagle3",
        facts={
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "vocab_size": 49_152,
            "max_position_embeddings": 8192,  # SmolLM, the first of that name, has 2048
        },
    ),
)


def builtin_head(method: str, target: HFConfig) -> ModelFiles:
    """For a target like this one, whatever it is called. ConfigError where there is none."""
    for head in HEADS:
        if head.method == method and all(target.get(key) == value for key, value in head.facts.items()):
            return _files(head, FOLDER / head.folder)
    known = [head.target for head in HEADS if head.method == method]
    raise model_missing(method, f"; for {', '.join(known)} one is built in, not for {target.name}" if known else "")


def _files(head: BuiltinHead, directory: Path) -> ModelFiles:
    for name in ("config.json", "model.safetensors"):
        if not (directory / name).is_file():
            raise ConfigError(
                f"{OPTION}.model: the {head.method} head for {head.target} is not in this installation: "
                f"{directory / name} is missing; name another one",
                f"{OPTION}.model",
            )
    return ModelFiles(f"the {head.method} head for {head.target}", directory, None)
