"""From a checkpoint to a quantised one, a tensor or, where it is calibrated, a layer at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from cadence.config.files.output_folder import check_output
from cadence.config.hf import HFConfig, load_hf_config
from cadence.config.reference import ModelFiles
from cadence.models.layers.experts import ExpertLinear
from cadence.models.layers.weight import WeightHolder
from cadence.models.loader.assign import Copy
from cadence.models.loader.checkpoint import open_checkpoint, stored_dtype
from cadence.models.loader.source import WeightsSource
from cadence.models.quantize.beside import base_config, copy_beside
from cadence.models.quantize.checkpoint_writer import CheckpointWriter
from cadence.models.quantize.formats import WeightFormat
from cadence.models.quantize.layer_pass import LayerPass
from cadence.models.quantize.matrix import QuantizedMatrix, quantized
from cadence.models.quantize.selection import HEAD, Selection, select

Written = dict[str, torch.Tensor]  # by whole names
Report = Callable[[str, int, int], None]  # (what is done, how many of it, of how many)


@dataclass(frozen=True, slots=True)
class QuantizeOptions:
    form: WeightFormat
    ignore: tuple[str, ...] = (HEAD,)
    dtype: str = "auto"  # of what is not quantised, and of scales
    windows: torch.Tensor | None = None  # [n, length] int32: token ids to calibrate with; None = not calibrated


@dataclass(frozen=True, slots=True)
class QuantizedCheckpoint:
    form: WeightFormat
    num_matrices: int
    left_out: tuple[str, ...]  # Linear modules that keep their values
    nbytes: int  # of its tensors
    num_unseen: int = 0  # experts that no token of the calibration text took: they are rounded without it


def quantize_checkpoint(
    files: ModelFiles, output: Path, options: QuantizeOptions, report: Report = lambda what, done, total: None
) -> QuantizedCheckpoint:
    """Writes a folder that is not there yet, or is empty."""
    check_output(output)
    hf = load_hf_config(files)
    source, where = open_checkpoint(files, hf)
    selection = select(hf, source, where, options.form, options.ignore)
    dtype = _dtype(options.dtype, files, hf)
    with CheckpointWriter(output) as writer:
        made = _Matrices(source, selection, dtype)
        layers: Iterator[Written] = iter(())
        if options.windows is not None:
            layers = made.calibrated(LayerPass(hf, source, where, options.windows), report)
        for tensors in chain(layers, made.rest(report)):
            writer.add(tensors)
        copy_beside(files, writer.folder)
        section = selection.form.section(list(selection.left_out))
        writer.finish(_config(base_config(files), dtype, section))
    num_matrices = sum(map(len, selection.quantized))
    return QuantizedCheckpoint(
        form=selection.form,
        num_matrices=num_matrices,
        left_out=selection.left_out,
        nbytes=writer.total_bytes,
        num_unseen=len(made.unseen),
    )


class _Matrices:
    """What is written for the tensors of a checkpoint, each once."""

    def __init__(self, source: WeightsSource, selection: Selection, dtype: torch.dtype) -> None:
        self._source = source
        self._groups = {group[0]: group for group in selection.quantized}  # by the first of each
        self._grouped = {name for group in selection.quantized for name in group}
        self._form = selection.form
        self._dtype = dtype
        self._done: set[str] = set()
        self.unseen: set[str] = set()  # experts of layers that were calibrated without them

    def calibrated(self, run: LayerPass, report: Report) -> Iterator[Written]:
        """Matrices of the layers. A layer meets what quantised layers before it make of the text."""
        for index in range(run.num_layers):
            report("layers", index, run.num_layers)
            layer = run.open(index)
            hessians = run.observe(layer)
            copies = {copy.name: copy for copy in layer.copies}
            for group in [self._groups[name] for name in copies if name in self._groups]:
                slot = copies[group[0]].slot
                hessian = hessians.get(id(slot.module))
                if hessian is None:  # outside of the layers, or an expert that no token took
                    if isinstance(slot.module, ExpertLinear):
                        self.unseen.add(slot.names[0].rsplit(".", 2)[0])
                    continue
                stored = [_as_stored(copies[name]) for name in group]
                made = quantized([values for _, values in stored], self._form, self._dtype, hessian)
                for name, (order, _), matrix in zip(group, stored, made, strict=True):
                    copies[name].target.copy_(matrix.values[order])
                    yield self._named(name, matrix)
            run.advance(layer)
        report("layers", run.num_layers, run.num_layers)

    def rest(self, report: Report) -> Iterator[Written]:
        names = [name for name in self._source.names() if name not in self._done]
        for name in names:
            report("tensors", len(self._done), len(self._source.names()))
            if name in self._groups:
                group = self._groups[name]
                made = quantized([self._source.load(part) for part in group], self._form, self._dtype)
                for part, matrix in zip(group, made, strict=True):
                    yield self._named(part, matrix)
                    self._source.release(part)
            elif name not in self._grouped:
                yield {name: self._value(self._source.load(name))}
                self._done.add(name)
                self._source.release(name)
        report("tensors", len(self._done), len(self._done))

    def _value(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(self._dtype, copy=True) if values.is_floating_point() else values.clone()

    def _named(self, name: str, matrix: QuantizedMatrix) -> Written:
        self._done.add(name)
        module = name.removesuffix(".weight")
        return {f"{module}.{part}": tensor for part, tensor in matrix.tensors.items()}


def _as_stored(copy: Copy) -> tuple[torch.Tensor | slice, torch.Tensor]:
    """(the rows of the checkpoint in our order, values in the checkpoint's)"""
    assert isinstance(copy.slot.module, WeightHolder)
    held = copy.slot.module.held
    if held.is_all:
        return slice(None), copy.target
    _, runs = held.stored_rows(copy.rule.part)
    order = torch.tensor([row for run in runs for row in run])
    values = torch.empty_like(copy.target)
    values[order] = copy.target
    return order, values


def _dtype(asked: str, files: ModelFiles, hf: HFConfig) -> torch.dtype:
    """Not asked: that of the checkpoint, and bfloat16 for the blocks of a GGUF file and for float32."""
    if asked != "auto":
        return {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}[asked]
    stored = stored_dtype(hf) if files.gguf is None else torch.bfloat16
    return torch.bfloat16 if stored is torch.float32 else stored


def _config(base: dict[str, Any], dtype: torch.dtype, section: dict[str, Any]) -> dict[str, Any]:
    named = {name: value for name, value in base.items() if name != "torch_dtype"}
    return {**named, "dtype": str(dtype).removeprefix("torch."), "quantization_config": section}
