"""Files of a model whose weights were cut for ranks: their names, and what the index of each rank says of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from cadence.config.files.json_file import MOST_TABLE_BYTES, read_object
from cadence.core.errors import ConfigError, WeightsError

SHARDED = "sharded_state"  # the load_format
FIELD = "tensor_parallel_size"


def index_name(rank: int) -> str:
    return f"model-rank-{rank}.index.json"


def part_name(rank: int, part: int) -> str:
    return f"model-rank-{rank}-part-{part}.safetensors"


@dataclass(frozen=True, slots=True)
class StoredBlocks:
    """A quantised matrix, whose bytes lie in the file."""

    kind: str  # GGUF type
    shape: tuple[int, ...]  # as the checkpoint names it
    transposed: bool  # rows of blocks are its columns


@dataclass(frozen=True, slots=True)
class StoredNumbers:
    """A quantised matrix as its checkpoint has it: numbers in the file, and scales in another tensor."""

    bits: int
    is_fp4: bool
    zero: int | None  # for all of it; None = a tensor has them
    is_packed: bool  # two of the numbers are a byte
    has_order: bool  # of columns
    kind: str  # GGUF type of blocks that lie beside it, or ""
    dtype: str  # of its values
    has_table: bool = False  # the numbers are codes


@dataclass(frozen=True, slots=True)
class ShardIndex:
    path: Path
    num_ranks: int
    files: dict[str, int]  # bytes of each, by name
    blocks: dict[str, StoredBlocks]  # by tensor
    numbers: dict[str, StoredNumbers]  # by tensor
    kv_scales: dict[str, tuple[float, float]]  # by layer: of its keys, of its values


def read_shard_index(directory: Path, rank: int) -> ShardIndex:
    path = directory / index_name(rank)
    if not path.is_file():
        raise WeightsError(f"{path}: no such file; `cadence save-sharded` writes one for every rank")
    raw = read_object(path, MOST_TABLE_BYTES, WeightsError)
    num_ranks, files, blocks = raw.get(FIELD), raw.get("files"), raw.get("blocks")
    if not isinstance(num_ranks, int) or not isinstance(files, dict) or not isinstance(blocks, dict):
        raise WeightsError(f"{path}: it must have {FIELD!r}, 'files' and 'blocks'")
    if not files or not all(Path(name).name == name and isinstance(size, int) for name, size in files.items()):
        raise WeightsError(f"{path}: 'files' must map names of files to their bytes")
    numbers, scales = raw.get("numbers", {}), raw.get("kv_scales", {})
    if not isinstance(numbers, dict) or not isinstance(scales, dict):
        raise WeightsError(f"{path}: 'numbers' and 'kv_scales' must be objects")
    return ShardIndex(
        path,
        num_ranks,
        files,
        {name: _blocks(path, name, entry) for name, entry in blocks.items()},
        {name: _numbers(path, name, entry) for name, entry in numbers.items()},
        {name: _kv_scales(path, name, entry) for name, entry in scales.items()},
    )


def _blocks(path: Path, name: str, entry: object) -> StoredBlocks:
    match entry:
        case {"kind": str(kind), "shape": [int(rows), int(cols)], "transposed": bool(transposed)}:
            return StoredBlocks(kind, (rows, cols), transposed)
    raise WeightsError(f"{path}: 'blocks' has no kind, shape and order of {name!r}")


def _numbers(path: Path, name: str, entry: object) -> StoredNumbers:
    match entry:
        case {
            "bits": int(bits), "is_fp4": bool(is_fp4), "zero": int() | None as zero, "is_packed": bool(is_packed),
            "has_order": bool(has_order), "kind": str(kind), "dtype": str(dtype), **rest,
        } if bits in (2, 4, 8) and isinstance(has_table := rest.get("has_table", False), bool):  # fmt: skip
            return StoredNumbers(bits, is_fp4, zero, is_packed, has_order, kind, dtype, has_table)
    raise WeightsError(f"{path}: 'numbers' does not say how {name!r} is stored")


def _kv_scales(path: Path, name: str, entry: object) -> tuple[float, float]:
    match entry:
        case [float(k), float(v)] if 0.0 < k < math.inf and 0.0 < v < math.inf:
            return k, v
    raise WeightsError(f"{path}: 'kv_scales' of {name!r} must be two positive numbers")


def check_ranks(directory: Path, num_ranks: int) -> None:
    """Raises where the files in a directory are not those of so many ranks."""
    if not (directory / index_name(0)).is_file():
        message = f"load_format=sharded_state, but {directory} has no {index_name(0)}: `cadence save-sharded` makes it"
        raise ConfigError(message, "load_format")
    found = read_shard_index(directory, 0).num_ranks
    if found != num_ranks:
        message = f"{FIELD}={num_ranks}, but {directory} holds the sharded state of {found}: start as many ranks"
        raise ConfigError(message, FIELD)
