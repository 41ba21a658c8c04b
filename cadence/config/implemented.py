"""Whose code computes the model that a config.json describes: settled before a device is looked for."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from cadence.config.files.implementation import AUTO, OURS, TRANSFORMERS, Implementation
from cadence.config.files.transformers_source import TransformersFamily, find_family, is_installed
from cadence.config.hf import HFConfig
from cadence.config.quantized import read_quantized
from cadence.core.errors import ModelFileError
from cadence.core.model.architectures import unsupported
from cadence.core.model.model_heads import ModelHead
from cadence.core.model.model_registry import class_path, is_known

logger = logging.getLogger("cadence.config")

_INSTALL = "pip install transformers"
_REMOTE = "AutoModelForCausalLM"


def implemented(hf: HFConfig, asked: str, trust_remote_code: bool) -> HFConfig:
    """asked: one of MODEL_IMPLS. With whose code computes it; ModelFileError where nobody's does."""
    read_quantized(hf)  # refuses what is not read
    if asked != TRANSFORMERS and is_known(hf.architecture):
        path = class_path(hf.family)
        return replace(hf, implementation=replace(OURS, class_path=path)) if path else hf
    if asked not in (AUTO, TRANSFORMERS) or hf.source.suffix == ".gguf":
        raise _refused(hf, unsupported(hf.architecture))
    family = find_family(hf.architecture, str(hf.get("model_type") or ""))
    if family is not None and not family.why_not:
        return _with_defaults(hf, family)
    if _has_code(hf):
        if not trust_remote_code:
            message = "comes with code of its own, which runs with trust_remote_code alone: it can do all that you can"
            raise _refused(hf, f"architecture {hf.architecture!r} {message}")
        if not is_installed():
            raise _refused(hf, f"code that comes with a model runs through transformers: {_INSTALL}")
        return replace(hf, implementation=Implementation(True, "", True), head=ModelHead.LOGITS)
    raise _refused(hf, _why_not(hf, family))


def _why_not(hf: HFConfig, family: TransformersFamily | None) -> str:
    if family is not None:
        return f"architecture {hf.architecture!r} cannot run through transformers: its {family.why_not}"
    said = unsupported(hf.architecture)
    return said if is_installed() else f"{said}; families that transformers knows run through it: {_INSTALL}"


def _refused(hf: HFConfig, message: str) -> ModelFileError:
    return ModelFileError(f"{hf.source}: {message}", "architectures")


def _has_code(hf: HFConfig) -> bool:
    named: Any = hf.get("auto_map")
    return isinstance(named, dict) and _REMOTE in named


def _with_defaults(hf: HFConfig, family: TransformersFamily) -> HFConfig:
    """With what a configuration leaves out, and under the usual names what it has under the family's."""
    own = {usual: hf.raw[name] for usual, name in family.names.items() if name in hf.raw}
    raw = {**family.defaults, **own, **hf.raw}
    implementation = replace(OURS, through_transformers=True, model_type=family.model_type)
    return replace(hf, raw=raw, implementation=implementation, head=ModelHead.LOGITS)


def check_generates(draft: HFConfig) -> None:
    """Of a model that drafts for another."""
    if draft.head is not ModelHead.LOGITS:
        message = f"speculative_config.model: {draft.architecture} generates no text"
        raise ModelFileError(message, "speculative_config.model")
