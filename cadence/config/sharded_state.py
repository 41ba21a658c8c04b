"""Files of a model whose weights were cut for ranks: their names, and what the index of each rank says of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cadence.config.json_file import MOST_TABLE_BYTES, read_object
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
class ShardIndex:
    path: Path
    num_ranks: int
    files: dict[str, int]  # bytes of each, by name
    blocks: dict[str, StoredBlocks]  # by tensor


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
    return ShardIndex(path, num_ranks, files, {name: _blocks(path, name, entry) for name, entry in blocks.items()})


def _blocks(path: Path, name: str, entry: object) -> StoredBlocks:
    match entry:
        case {"kind": str(kind), "shape": [int(rows), int(cols)], "transposed": bool(transposed)}:
            return StoredBlocks(kind, (rows, cols), transposed)
    raise WeightsError(f"{path}: 'blocks' has no kind, shape and order of {name!r}")


def check_ranks(directory: Path, num_ranks: int) -> None:
    """Raises where the files in a directory are not those of so many ranks."""
    if not (directory / index_name(0)).is_file():
        message = f"load_format=sharded_state, but {directory} has no {index_name(0)}: `cadence save-sharded` makes it"
        raise ConfigError(message, "load_format")
    found = read_shard_index(directory, 0).num_ranks
    if found != num_ranks:
        message = f"{FIELD}={num_ranks}, but {directory} holds the sharded state of {found}: start as many ranks"
        raise ConfigError(message, FIELD)
