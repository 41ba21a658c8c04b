"""The weights of a GGUF file as a Hugging Face checkpoint would hold them: its names, its layout, float32."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from cadence.core.errors import WeightsError
from cadence.gguf.dequant import dequantize
from cadence.gguf.file import GGUFFile, GGUFTensor
from cadence.gguf.names import places_of, translate
from cadence.gguf.places import Layout, shape_there

_PAIRS = (Layout.QUERY_PAIRS, Layout.KEY_PAIRS)
_DECAYS = (Layout.DECAY, Layout.FLAT_DECAY)
_CHANGED = (Layout.PLUS_ONE, *_DECAYS)  # holds other numbers


@dataclass(frozen=True, slots=True)
class StoredRows:
    """Rows of a tensor of a checkpoint."""

    tensor: GGUFTensor
    layout: Layout
    number: int = 0  # its order among those of one tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_there(self.tensor.shape, self.layout)


class GGUFWeights:
    """Tensors are dequantised one by one, when asked for."""

    def __init__(self, file: GGUFFile, config: Mapping[str, Any]) -> None:
        """config: of the model, in the words of `config.json`."""
        self._file = file
        self._heads = int(config.get("num_attention_heads", 1))
        self._kv_heads = int(config.get("num_key_value_heads") or self._heads)
        self._num_experts = int(config.get("num_experts") or config.get("num_local_experts") or 0)
        self._pieces: dict[str, list[StoredRows]] = {}
        places = places_of(file)
        for tensor in self._file.tensors.values():
            found = translate(places, tensor.name)
            for name, piece in self._named(tensor, *found) if found is not None else ():
                self._pieces.setdefault(name, []).append(piece)
        for pieces in self._pieces.values():
            pieces.sort(key=lambda piece: piece.number)

    def names(self) -> list[str]:
        return list(self._pieces)

    def shape(self, name: str) -> tuple[int, ...]:
        shapes = [piece.shape for piece in self._of(name)]
        return sum(shape[0] for shape in shapes), *shapes[0][1:]

    def load(self, name: str) -> torch.Tensor:
        """A new float32 CPU tensor of `shape(name)`."""
        values = [self._values(piece) for piece in self._of(name)]
        return values[0] if len(values) == 1 else torch.cat(values)

    def _values(self, piece: StoredRows) -> torch.Tensor:
        tensor, layout = piece.tensor, piece.layout
        values = dequantize(torch.from_numpy(self._file.data(tensor)), tensor.type, tensor.shape, tensor.name)
        if layout is Layout.PLUS_ONE:
            return values.sub_(1.0)
        if layout is Layout.TRANSPOSED and values.dim() == 2:
            return values.t().contiguous()
        if layout in _DECAYS:
            if not bool((values < 0).all()):
                raise WeightsError(f"{self._file.path}: tensor {tensor.name!r} has numbers that are not below 0")
            values = values.neg_().log_()
        return self._ordered(values, piece).reshape(piece.shape)

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        """Rows in a checkpoint's order; None where the layouts differ in more than that."""
        pieces = self._of(name)
        types = {piece.tensor.type.name for piece in pieces}
        plain = all(piece.layout not in _CHANGED for piece in pieces)
        alike = all(transposed is (piece.layout is Layout.TRANSPOSED) for piece in pieces)
        if len(types) > 1 or not (plain and alike):
            return None
        raw = [self._raw(piece) for piece in pieces]
        return types.pop(), raw[0] if len(raw) == 1 else torch.cat(raw)

    def _raw(self, piece: StoredRows) -> torch.Tensor:
        raw = torch.from_numpy(self._file.data(piece.tensor)).view(torch.uint8).reshape(-1)
        return self._ordered(raw.view(piece.tensor.shape[0], -1), piece).reshape(-1)

    def numbers(self, name: str) -> None:
        return None

    def order(self, name: str) -> torch.Tensor | None:
        return None

    def kv_scales(self) -> dict[str, tuple[float, float]]:
        return {}

    def release(self, name: str) -> None:
        for piece in self._of(name):
            self._file.release(piece.tensor)

    def _of(self, name: str) -> list[StoredRows]:
        if name not in self._pieces:
            raise WeightsError(f"{self._file.path}: tensor {name!r} is missing")
        return self._pieces[name]

    def _named(self, tensor: GGUFTensor, name: str, layout: Layout, number: int) -> list[tuple[str, StoredRows]]:
        """name: of a checkpoint; with a `*` the tensor holds that of every expert, or of every head, each in whole
        blocks, with an `@` queries, keys and values."""
        if layout is Layout.FUSED:
            self._check_heads(tensor, self._heads + 2 * self._kv_heads)
            size = tensor.shape[0] // (self._heads + 2 * self._kv_heads)
            counts = {"q": size * self._heads, "k": size * self._kv_heads, "v": size * self._kv_heads}
            starts = {"q": 0, "k": counts["q"], "v": counts["q"] + counts["k"]}
            return [
                (name.replace("@", part), StoredRows(_rows(tensor, starts[part], count), Layout.SAME))
                for part, count in counts.items()
            ]
        if "*" not in name:
            return [(name, StoredRows(tensor, layout, number))]
        dims, count = (2, tensor.shape[0]) if layout is Layout.EACH_HEAD else (3, self._num_experts)
        if len(tensor.shape) != dims or tensor.shape[0] != count:
            found = f"has shape {list(tensor.shape)}, where [{count}, rows, columns] of experts is expected"
            raise WeightsError(f"{self._file.path}: tensor {tensor.name!r} {found}")
        parts = [replace(row, shape=row.shape[1:]) for row in (_rows(tensor, at, 1) for at in range(count))]
        return [(name.replace("*", str(at)), StoredRows(part, Layout.SAME, number)) for at, part in enumerate(parts)]

    def _ordered(self, values: torch.Tensor, piece: StoredRows) -> torch.Tensor:
        """Rows as a checkpoint has them."""
        if piece.layout in _PAIRS:
            heads = self._heads if piece.layout is Layout.QUERY_PAIRS else self._kv_heads
            self._check_heads(piece.tensor, 2 * heads)
            pairs = values.view(heads, len(values) // heads // 2, 2, *values.shape[1:])
            return pairs.transpose(1, 2).reshape(values.shape)
        if piece.layout is not Layout.HEADS_APART:
            return values
        self._check_heads(piece.tensor, self._heads + 2 * self._kv_heads)
        by_head = values.view(self._heads + 2 * self._kv_heads, -1)
        queries, keys, shared = by_head.split([self._heads, self._kv_heads, self._kv_heads])
        groups = queries.view(self._kv_heads, -1, by_head.shape[1])
        return torch.cat([groups, keys[:, None], shared[:, None]], dim=1).reshape(values.shape)

    def _check_heads(self, tensor: GGUFTensor, heads: int) -> None:
        rows = tensor.shape[0]
        if rows % heads or self._heads % self._kv_heads:
            what = f"has {rows} rows, which {self._heads} heads with {self._kv_heads} of keys do not share"
            raise WeightsError(f"{self._file.path}: tensor {tensor.name!r} {what}")


def _rows(tensor: GGUFTensor, first: int, count: int) -> GGUFTensor:
    size = tensor.nbytes // tensor.shape[0]
    return replace(tensor, shape=(count, *tensor.shape[1:]), offset=tensor.offset + first * size, nbytes=count * size)
