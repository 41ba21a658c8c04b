"""A model's weights, cut for each of several ranks: every rank has files of its own, and reads no others.

What is stored is what a rank would have read of the checkpoint: its slices, quantised blocks and numbers as they are,
the scales of its KV cache. So they fit every machine, and every option that goes with the checkpoint goes with them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from safetensors.torch import save_file

from cadence import gguf
from cadence.config.files.output_folder import check_output
from cadence.config.files.sharded_state import (
    FIELD,
    StoredBlocks,
    StoredNumbers,
    index_name,
    part_name,
    read_shard_index,
)
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles, is_tower
from cadence.core.errors import ConfigError, WeightsError
from cadence.kernels.interface.collectives import RankPlace
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.heads.mtp import mtp_prefixes
from cadence.models.interface.build import BuildContext
from cadence.models.loader.assign import copies_of
from cadence.models.loader.checkpoint import open_checkpoint
from cadence.models.loader.head_weights import with_head_weights
from cadence.models.loader.model_weights import without_needless
from cadence.models.loader.plausible import check_source, without_memory
from cadence.models.loader.safetensors_file import SafetensorsFile
from cadence.models.loader.selected_weights import SelectedWeights
from cadence.models.loader.shard_numbers import ShardNumbers, numbers_of
from cadence.models.loader.sliced_weights import SlicedWeights, sliced
from cadence.models.loader.source import KVScales
from cadence.models.quant.block_kinds import num_block_bytes, values_of_blocks

PART_BYTES = 4 << 30  # of one file, about
_COPIED = ("*.json", "*.txt", "*.model", "*.jinja")  # what lies beside weights
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}  # GGUF types without blocks


class ShardWeights:
    """A `WeightsSource` of one rank's files."""

    def __init__(self, directory: Path, rank: int, num_ranks: int) -> None:
        index = read_shard_index(directory, rank)
        if index.num_ranks != num_ranks:
            message = f"{index.path}: weights of one of {index.num_ranks} ranks, but there are {num_ranks}"
            raise WeightsError(message, FIELD)
        self._blocks = index.blocks
        self._scales = index.kv_scales
        self._where: dict[str, SafetensorsFile] = {}  # by tensor
        for name, size in index.files.items():
            path = directory / name
            if path.is_file() and path.stat().st_size != size:
                raise WeightsError(f"{path}: {path.stat().st_size} bytes, but {index.path.name} says {size}")
            file = SafetensorsFile(path)
            self._where.update(dict.fromkeys(file.names(), file))
        for name, blocks in self._blocks.items():
            wanted = num_block_bytes(blocks.kind, blocks.shape)
            if name not in self._where or self._where[name].num_bytes(name) != wanted:
                raise WeightsError(f"{index.path}: {name!r} is not {wanted} bytes of {blocks.kind} in its files")
        stored = _Stored(self._where)
        self._numbers = {name: ShardNumbers(name, form, stored) for name, form in index.numbers.items()}
        beside = {part for numbers in self._numbers.values() for part in numbers.parts()} - self._numbers.keys()
        self._names = [name for name in self._where if name not in beside]

    def names(self) -> Sequence[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        if name in self._numbers:
            return self._numbers[name].shape
        return self._blocks[name].shape if name in self._blocks else self._where[name].shape(name)

    def load(self, name: str) -> torch.Tensor:
        if name in self._numbers:
            return self._numbers[name].values()
        if name not in self._blocks:
            return self._where[name].load(name)
        found, raw = self._blocks[name], self._where[name].raw(name)
        if not found.transposed:
            return values_of_blocks(found.kind, raw, found.shape)
        return values_of_blocks(found.kind, raw, found.shape[::-1]).t().contiguous()

    def blocks(self, name: str, transposed: bool) -> tuple[str, torch.Tensor] | None:
        if name in self._numbers:
            return None if transposed else self._numbers[name].blocks()
        found = self._blocks.get(name)
        if found is None or found.transposed is not transposed:
            return None
        return found.kind, self._where[name].raw(name)

    def numbers(self, name: str) -> ScaledNumbers | None:
        return self._numbers[name].numbers() if name in self._numbers else None

    def order(self, name: str) -> torch.Tensor | None:
        return self._numbers[name].order() if name in self._numbers else None

    def release(self, name: str) -> None:
        for part in self._numbers[name].parts() if name in self._numbers else [name]:
            self._where[part].release(part)

    def kv_scales(self) -> KVScales:
        return self._scales


class _Stored:
    """The tensors of several files."""

    def __init__(self, where: dict[str, SafetensorsFile]) -> None:
        self._where = where

    def __contains__(self, name: object) -> bool:
        return name in self._where

    def __getitem__(self, name: str) -> torch.Tensor:
        return self._where[name].stored(name)


def save_sharded(files: ModelFiles, num_ranks: int, output: Path, part_bytes: int = PART_BYTES) -> list[Path]:
    """Writes the weights of a model for so many ranks into a new folder, with what lies beside them -> what it wrote"""
    if num_ranks < 1:
        raise ConfigError(f"{FIELD}={num_ranks}: at least 1", FIELD)
    check_output(output)
    hf = load_hf_config(files)
    written = []
    for rank in range(num_ranks):
        meta = torch.device("meta")
        build = BuildContext(torch.float32, meta, ReferenceOps(), 1, ranks=RankPlace(rank, num_ranks))
        whole, where = open_checkpoint(files, hf)
        model = without_memory(hf, build)
        source = sliced(with_head_weights(without_needless(whole, hf, build), files, hf), model)
        check_source(hf, build, SelectedWeights(source, without=mtp_prefixes(hf)), where)
        output.mkdir(parents=True, exist_ok=True)
        orders = {copy.name: copy.rule.transpose for copy in copies_of(model, source)}
        written += _write_rank(_Shard(source, orders), output, (rank, num_ranks), part_bytes)
    return written + _copy_rest(files, output)


class _Shard:
    """What is written of a rank's tensors."""

    def __init__(self, source: SlicedWeights, orders: dict[str, bool]) -> None:
        """orders: of tensors that fill something, whether it is their transpose"""
        self._source = source
        self._orders = orders
        self.kv_scales = source.kv_scales()
        self.blocks: dict[str, StoredBlocks] = {}  # of those that were asked for
        self.numbers: dict[str, StoredNumbers] = {}  # likewise

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name in self._source.names():
            transposed = self._orders.get(name, False)
            found = None if transposed else numbers_of(self._source, name)
            if found is None:
                yield name, self._stored(name, transposed).contiguous()
            else:
                self.numbers[name], tensors = found
                yield from ((part, tensor.contiguous()) for part, tensor in tensors.items())
            self._source.release(name)

    def _stored(self, name: str, transposed: bool) -> torch.Tensor:
        whole = len(self._source.shape(name)) == 2 and self._source.order(name) is None
        found = self._source.blocks(name, transposed) if whole else None
        if found is None:
            return self._source.load(name)
        kind, data = found
        if kind in _FLOATS:
            return self._source.load(name).to(_FLOATS[kind])
        self.blocks[name] = StoredBlocks(kind, tuple(self._source.shape(name)), transposed)
        return data.clone()


def _write_rank(shard: _Shard, output: Path, place: tuple[int, int], part_bytes: int) -> list[Path]:
    """place = (rank, ranks)"""
    rank, num_ranks = place
    paths: list[Path] = []
    part: dict[str, torch.Tensor] = {}
    for name, tensor in shard.tensors():
        if part and sum(each.nbytes for each in part.values()) + tensor.nbytes > part_bytes:
            paths.append(_write_part(part, output / part_name(rank, len(paths))))
            part = {}
        part[name] = tensor.clone()  # it may be a view of what is released
    paths.append(_write_part(part, output / part_name(rank, len(paths))))
    index = {
        FIELD: num_ranks,
        "rank": rank,
        "files": {path.name: path.stat().st_size for path in paths},
        "blocks": {name: asdict(found) for name, found in shard.blocks.items()},
        "numbers": {name: asdict(found) for name, found in shard.numbers.items()},
        "kv_scales": shard.kv_scales,
    }
    path = output / index_name(rank)
    path.write_text(json.dumps(index, indent=1))
    return [*paths, path]


def _write_part(tensors: dict[str, torch.Tensor], path: Path) -> Path:
    save_file(tensors, path)
    return path


def _copy_rest(files: ModelFiles, output: Path) -> list[Path]:
    if files.gguf is not None:
        copies = {files.gguf: output / files.gguf.name}
        if files.tower is not None:
            name = files.tower.name
            copies[files.tower] = output / (name if is_tower(files.tower) else f"mmproj-{name}")
        for path, to in copies.items():
            gguf.write_without_tensors(path, to)
        return [*copies.values()]
    found = [path for pattern in _COPIED for path in sorted(files.directory.glob(pattern))]
    for path in files.directory.glob("[0-9]_*/config.json"):  # modules of sentence-transformers
        (output / path.parent.name).mkdir()
        shutil.copy(path, output / path.parent.name)
    return [Path(shutil.copy(path, output)) for path in found if not path.name.endswith(".index.json")]
