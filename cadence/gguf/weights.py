"""The weights of a GGUF file as a Hugging Face checkpoint would hold them: its names, its layout, float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from cadence.core.errors import WeightsError
from cadence.gguf.dequant import dequantize
from cadence.gguf.file import GGUFFile, GGUFTensor
from cadence.gguf.names import PLACES, Layout, translate


class GGUFWeights:
    """Tensors are dequantised one by one, when asked for."""

    def __init__(self, file: GGUFFile, config: Mapping[str, Any]) -> None:
        """config: of the model, in the words of `config.json`."""
        self._file = file
        self._heads = {
            Layout.QUERY_PAIRS: int(config.get("num_attention_heads", 1)),
            Layout.KEY_PAIRS: int(config.get("num_key_value_heads", 1)),
        }
        self._num_experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
        self._places: dict[str, tuple[GGUFTensor, Layout]] = {}
        architecture = self._file.require("general.architecture")
        if architecture not in PLACES:
            known = ", ".join(PLACES)
            raise WeightsError(f"{file.path}: GGUF architecture {architecture!r} is not supported: {known} are")
        for tensor in self._file.tensors.values():
            found = translate(architecture, tensor.name)
            if found is not None:
                self._places.update(self._parts(tensor, *found))

    def names(self) -> list[str]:
        return list(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        tensor, layout = self._place(name)
        return tensor.shape[::-1] if layout is Layout.TRANSPOSED else tensor.shape

    def load(self, name: str) -> torch.Tensor:
        """A new float32 CPU tensor of `shape(name)`."""
        tensor, layout = self._place(name)
        raw = torch.from_numpy(self._file.data(tensor))
        values = dequantize(raw, tensor.type, tensor.shape, tensor.name)
        if layout in self._heads:
            return self._unpair(values, self._heads[layout], tensor.name)
        if layout is Layout.PLUS_ONE:
            return values.sub_(1.0)
        if layout is Layout.TRANSPOSED and values.dim() == 2:
            return values.t().contiguous()
        return values

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        """Rows in a checkpoint's order; None where the layouts differ in more than that."""
        tensor, layout = self._place(name)
        if layout is Layout.PLUS_ONE or transposed is not (layout is Layout.TRANSPOSED):
            return None
        raw = torch.from_numpy(self._file.data(tensor)).view(torch.uint8).reshape(-1)
        if layout in self._heads:
            rows = tensor.shape[0]
            raw = self._unpair(raw.view(rows, -1), self._heads[layout], tensor.name)
        return tensor.type.name, raw.reshape(-1)

    def numbers(self, name: str) -> None:
        return None

    def order(self, name: str) -> torch.Tensor | None:
        return None

    def kv_scales(self) -> dict[str, tuple[float, float]]:
        return {}

    def release(self, name: str) -> None:
        self._file.release(self._place(name)[0])

    def _parts(self, tensor: GGUFTensor, name: str, layout: Layout) -> dict[str, tuple[GGUFTensor, Layout]]:
        """name: of a checkpoint; with a `*` the tensor holds that of every expert, each in whole blocks."""
        if "*" not in name:
            return {name: (tensor, layout)}
        if len(tensor.shape) != 3 or tensor.shape[0] != self._num_experts:
            found = f"has shape {list(tensor.shape)}, where [{self._num_experts}, rows, columns] of experts is expected"
            raise WeightsError(f"{self._file.path}: tensor {tensor.name!r} {found}")
        size = tensor.nbytes // self._num_experts
        parts = [
            replace(tensor, shape=tensor.shape[1:], offset=tensor.offset + index * size, nbytes=size)
            for index in range(self._num_experts)
        ]
        return {name.replace("*", str(index)): (part, layout) for index, part in enumerate(parts)}

    def _place(self, name: str) -> tuple[GGUFTensor, Layout]:
        if name not in self._places:
            raise WeightsError(f"{self._file.path}: tensor {name!r} is missing")
        return self._places[name]

    def _unpair(self, values: torch.Tensor, heads: int, name: str) -> torch.Tensor:
        """[heads * D, ...] with rows of a head interleaved -> first halves, then second halves."""
        rows = values.shape[0]
        if rows % (2 * heads):
            raise WeightsError(f"{self._file.path}: tensor {name!r} has {rows} rows, which {heads} heads do not share")
        pairs = values.view(heads, rows // heads // 2, 2, *values.shape[1:])
        return pairs.transpose(1, 2).reshape(values.shape)
