"""A model's `config.json` as scripts for vLLM read it: `engine.vllm_config.model_config.hf_config.id2label`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RawConfig:
    """Keys are attributes, and sections such objects themselves. Labels are numbered by integers."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = dict(raw)
        if isinstance(labels := self._raw.get("id2label"), dict):
            self._raw["id2label"] = {int(number): label for number, label in labels.items()}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._raw:
            raise AttributeError(f"the model's configuration has no {name!r}")
        value = self._raw[name]
        return RawConfig(value) if isinstance(value, dict) and name.endswith("_config") else value

    def to_dict(self) -> dict[str, Any]:
        return dict(self._raw)
