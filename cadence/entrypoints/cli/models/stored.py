"""What a model's files hold, by their headers: how many numbers, and how many bytes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from cadence import gguf
from cadence.config.files.json_file import read_object
from cadence.config.reference import ModelFiles
from cadence.core.errors import WeightsError

# How names end of tensors that unpack others, and are no parameters.
_SCALES = (
    "scales", "qzeros", "g_idx", "weight_scale", "weight_scale_inv", "weight_zero_point", "weight_shape",
    "weight_g_idx", "weight_global_scale", "input_scale", "input_global_scale", "k_scale", "v_scale", "absmax",
    "quant_map", "nested_absmax", "nested_quant_map", "SCB", "weight_format", "bitsandbytes__nf4", "bitsandbytes__fp4",
)  # fmt: skip
_MOST_INDEX = 16 << 20  # bytes
_PACKED, _WORDS = ("qweight", "weight_packed", ".weight"), ("I32", "U32", "U8", "I8")
_BYTES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2}


@dataclass(frozen=True, slots=True)
class StoredSizes:
    num_files: int
    num_bytes: int  # of the files
    num_parameters: int  # 0 = not known
    kinds: tuple[str, ...] = ()  # of the numbers, those that most parameters have first


def stored_in(files: ModelFiles, bits: int) -> StoredSizes:
    """bits: of numbers that are packed in whole words; 0 = there are none"""
    if files.gguf is not None:
        return _summed([files.gguf], gguf.read_sizes(files.gguf))
    paths = sorted(path for path in files.directory.glob("*.safetensors") if not path.name.startswith("consolidated"))
    if paths:
        return _summed(paths, [each for path in paths for each in _numbers(path, bits)])
    if (index := files.directory / "model.safetensors.index.json").is_file():
        return _by_index(index)
    saved = sorted(files.directory.glob("pytorch_model*.bin"))
    return StoredSizes(len(saved), sum(path.stat().st_size for path in saved), 0)


def stored_on_hub(counted: Mapping[str, int]) -> StoredSizes:
    """counted: numbers of each type, as the hub has them"""
    num_bytes = sum(count * _BYTES.get(kind, 1) for kind, count in counted.items())
    kinds = sorted(counted, key=lambda kind: -counted[kind])
    return StoredSizes(0, num_bytes, sum(counted.values()), tuple(kind.lower() for kind in kinds))


def _by_index(path: Path) -> StoredSizes:
    """Of weights that are elsewhere, as far as the list of them says."""
    index = read_object(path, _MOST_INDEX, lambda message: WeightsError(message))
    said, shards = index.get("metadata"), index.get("weight_map")
    sizes = [said.get(name) if isinstance(said, dict) else None for name in ("total_size", "total_parameters")]
    num_bytes, count = (int(size) if isinstance(size, int | float) and size > 0 else 0 for size in sizes)
    return StoredSizes(len(set(shards.values())) if isinstance(shards, dict) else 0, num_bytes, count)


def _summed(paths: list[Path], counted: list[tuple[str, int]]) -> StoredSizes:
    by_kind: dict[str, int] = {}
    for kind, count in counted:
        by_kind[kind] = by_kind.get(kind, 0) + count
    kinds = sorted((kind for kind, count in by_kind.items() if count), key=lambda kind: -by_kind[kind])
    return StoredSizes(len(paths), sum(path.stat().st_size for path in paths), sum(by_kind.values()), tuple(kinds))


def _numbers(path: Path, bits: int) -> Iterator[tuple[str, int]]:
    """(type, how many) of each tensor in a file"""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        for name in file.keys():  # noqa: SIM118 (it is no dict)
            tensor = file.get_slice(name)
            kind = str(tensor.get_dtype())
            count = 0 if name.endswith(_SCALES) else math.prod(tensor.get_shape())
            if bits and kind in _WORDS and name.endswith(_PACKED):
                yield f"{bits} bits", count * _BYTES.get(kind, 1) * 8 // bits
            else:
                yield kind.lower(), count
