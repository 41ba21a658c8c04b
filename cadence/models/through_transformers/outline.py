"""transformers' own model of a configuration, in shapes alone, and what it needs beside its parameters."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from cadence.config.hf import HFConfig
from cadence.core.errors import CadenceError, ConfigError
from cadence.models.through_transformers.registered import AT_WORK, IN_OUTLINE, register

ON_DEVICE = {"cuda": "grouped_mm"}
_MOST_SAID = 300  # characters
_STRETCHED = ("dynamic", "longrope")  # kinds of rotation whose frequencies follow the longest text of a forward


def outlined(hf: HFConfig, dtype: torch.dtype) -> Any:
    """The model with its head, its parameters on the meta device."""
    _import_transformers()
    register()
    with said_by_transformers():
        config = _config(hf)
        for part in parts_of(config):
            part._attn_implementation = AT_WORK
        model = _class_of(hf, config)
        from transformers.initialization import no_init_weights

        with torch.device("meta"), no_init_weights():
            built = model._from_config(
                config, dtype=dtype, attn_implementation=AT_WORK, experts_implementation=IN_OUTLINE
            )
    return built.eval().requires_grad_(False)


def _import_transformers() -> None:
    try:
        import transformers
    except ImportError:
        message = "this family runs through transformers, which is not installed: pip install transformers"
        raise ConfigError(message, "model_impl") from None
    transformers.logging.set_verbosity_error()


@contextmanager
def said_by_transformers() -> Iterator[None]:
    """What its code raises, as one sentence of ours."""
    try:
        yield
    except CadenceError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:_MOST_SAID]
        raise ConfigError(f"transformers says {said or type(error).__name__}", "model") from error


def _config(hf: HFConfig) -> Any:
    from transformers import AutoConfig
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    written = {key: value for key, value in hf.as_written.items() if key != "quantization_config"}
    if hf.implementation.runs_remote_code:
        folder = str(hf.source.parent)
        return AutoConfig.from_pretrained(folder, trust_remote_code=True, **written)
    return CONFIG_MAPPING[hf.implementation.model_type].from_dict(written)


def _class_of(hf: HFConfig, config: Any) -> Any:
    import transformers

    if hf.implementation.runs_remote_code:
        from transformers.dynamic_module_utils import get_class_from_dynamic_module

        return get_class_from_dynamic_module(config.auto_map["AutoModelForCausalLM"], str(hf.source.parent))
    return getattr(transformers, hf.architecture)


def parts_of(config: Any) -> list[Any]:
    """A configuration and those of its parts."""
    return [config, *(part for name in config.sub_configs if (part := getattr(config, name, None)) is not None)]


def choose_experts(config: Any, device: torch.device) -> None:
    """How those experts compute that stay transformers' own: on a GPU in calls of fixed shapes, which can be recorded;
    on a CPU one after another."""
    for part in parts_of(config):
        part._experts_implementation = IN_OUTLINE if device.type == "meta" else ON_DEVICE.get(device.type, "eager")


def base_of(model: nn.Module) -> nn.Module:
    """Without its head."""
    base = getattr(model, model.base_model_prefix, None)
    if base is None or base is model:
        raise ConfigError(f"{type(model).__name__} has no part that gives hidden states alone", "architectures")
    return base


def fill_buffers(model: Any, max_len: int) -> None:
    """Tables that are not in checkpoints, on the host, as transformers fills them itself. Those that it would fit to
    the longest text of each forward are fitted to the longest there can be: a text's tokens do not depend on its
    company."""
    for module in model.modules():
        own = module._buffers
        tables = [name for name in module._non_persistent_buffers_set if own.get(name) is not None]
        for name in tables:
            own[name] = torch.empty_like(own[name], device="cpu")
        if tables:
            model._init_weights(module)
        for layers, kind in _kinds(module).items():
            if kind in _STRETCHED:
                _stretch(module, layers, kind, max_len)
    _settle(model)


def move_buffers(model: nn.Module, device: torch.device) -> None:
    for module in model.modules():
        for name, table in module._buffers.items():
            module._buffers[name] = None if table is None else table.to(device)


@contextmanager
def settled(model: nn.Module) -> Iterator[None]:
    """No table follows what a forward holds, which has shapes alone."""
    before = [(module, module.rope_type) for module in model.modules() if hasattr(module, "rope_type")]
    _settle(model)
    try:
        yield
    finally:
        for module, kinds in before:
            module.rope_type = kinds


def _kinds(module: Any) -> dict[str, str]:
    """Of rotation, by kind of layers ("" = all)."""
    kinds = getattr(module, "rope_type", {})
    return kinds if isinstance(kinds, dict) else {"": kinds}


def _settle(model: nn.Module) -> None:
    for module in model.modules():
        if kinds := _kinds(module):
            fixed = {layers: "default" if kind in _STRETCHED else kind for layers, kind in kinds.items()}
            module.rope_type = fixed if isinstance(module.rope_type, dict) else fixed[""]


def _stretch(module: Any, layers: str, kind: str, max_len: int) -> None:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    prefix, named = (f"{layers}_", {"layer_type": layers}) if layers else ("", {})
    table = module._buffers[f"{prefix}inv_freq"]
    fitted, factor = ROPE_INIT_FUNCTIONS[kind](module.config, table.device, seq_len=max_len, **named)
    table.copy_(fitted)
    setattr(module, f"{prefix}attention_scaling", factor)
