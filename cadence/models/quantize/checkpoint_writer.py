"""A checkpoint's folder, which is there whole or not at all.

Files are written into a folder beside it, whose name begins with a dot and which has no config.json until the last
moment; one rename makes it the checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from safetensors.torch import save_file

from cadence.config.files.output_folder import check_output

PART_BYTES = 2 << 30  # of one file, about; so much of the checkpoint is in memory at once
_INDEX = "model.safetensors.index.json"


class CheckpointWriter:
    """A context manager: what is not finished is removed."""

    def __init__(self, output: Path, part_bytes: int = PART_BYTES) -> None:
        check_output(output)
        self._output = output
        self.folder = output.parent / f".{output.name}.{os.getpid()}.unfinished"
        self._part_bytes = part_bytes
        self._part: dict[str, torch.Tensor] = {}
        self._parts: list[list[str]] = []  # names of the tensors of each file
        self.total_bytes = 0

    def __enter__(self) -> Self:
        self._output.parent.mkdir(parents=True, exist_ok=True)
        self.folder.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # finished, it has another name

    def add(self, tensors: dict[str, torch.Tensor]) -> None:
        """By their whole names. They are the writer's own, and views of nothing."""
        for name, tensor in tensors.items():
            if self._part and sum(each.nbytes for each in self._part.values()) + tensor.nbytes > self._part_bytes:
                self._write_part()
            self._part[name] = tensor.contiguous()
            self.total_bytes += tensor.nbytes

    def finish(self, config: dict[str, Any]) -> None:
        """config: of config.json"""
        self._write_part()
        count = len(self._parts)
        files = [
            "model.safetensors" if count == 1 else f"model-{index + 1:05d}-of-{count:05d}.safetensors"
            for index in range(count)
        ]
        for index, file in enumerate(files):
            os.rename(self._path(index), self.folder / file)
        if count > 1:
            where = {name: file for names, file in zip(self._parts, files, strict=True) for name in names}
            index = {"metadata": {"total_size": self.total_bytes}, "weight_map": where}
            (self.folder / _INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")
        (self.folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        check_output(self._output)
        os.rename(self.folder, self._output)

    def _write_part(self) -> None:
        path = self._path(len(self._parts))
        path.touch()
        mode = path.stat().st_mode  # as other files here have it; the library's own are for the user alone
        save_file(self._part, path, {"format": "pt"})
        path.chmod(mode)
        _flush(path)
        self._parts.append(list(self._part))
        self._part = {}

    def _path(self, index: int) -> Path:
        return self.folder / f"{index:05d}.part"


def _flush(path: Path) -> None:
    """To the disk, before the rename that makes it count."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
