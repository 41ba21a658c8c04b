"""The tensors of a model's files, whole."""

from __future__ import annotations

import torch

from cadence import gguf
from cadence.config.hf import HFConfig
from cadence.config.quantized import read_quantized
from cadence.config.reference import ModelFiles
from cadence.core.errors import WeightsError
from cadence.models.loader.quantized_weights import QuantizedWeights
from cadence.models.loader.safetensors_weights import SafetensorsWeights
from cadence.models.loader.source import WeightsSource
from cadence.models.loader.torch_weights import TorchWeights, saved_files


def open_checkpoint(files: ModelFiles, hf: HFConfig) -> tuple[WeightsSource, str]:
    """(all tensors, where they are)"""
    if files.gguf is not None:
        return gguf.open_weights(files.gguf, hf.raw, files.tower), str(files.gguf)
    where, quantized = str(files.directory), read_quantized(hf)
    if saved := saved_files(files.directory):
        if quantized is not None:
            raise WeightsError(f"{where}: quantised weights are read from safetensors files, not from {saved[0].name}")
        return TorchWeights(saved), where
    stored = SafetensorsWeights(files.directory)
    if quantized is None:
        return stored, where
    return QuantizedWeights(stored, quantized, stored_dtype(hf), where), where


def stored_dtype(hf: HFConfig) -> torch.dtype:
    """Of the values that a checkpoint was made of."""
    named = str(hf.get("dtype") or hf.get("torch_dtype")).removeprefix("torch.")
    return {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(named, torch.float32)
