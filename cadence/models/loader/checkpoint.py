"""The tensors of a model's files, whole."""

from __future__ import annotations

from cadence import gguf
from cadence.config.hf import HFConfig
from cadence.config.reference import ModelFiles
from cadence.models.loader.safetensors_weights import SafetensorsWeights
from cadence.models.loader.source import WeightsSource


def open_checkpoint(files: ModelFiles, hf: HFConfig) -> tuple[WeightsSource, str]:
    """(all tensors, where they are)"""
    if files.gguf is None:
        return SafetensorsWeights(files.directory), str(files.directory)
    return gguf.open_weights(files.gguf, hf.raw), str(files.gguf)
