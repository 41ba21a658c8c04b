"""Our modules in the places of transformers'."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.core.model.kv_spec import LayerKV
from cadence.models.interface.build import BuildContext
from cadence.models.layers.positions.rotary import NoRotary
from cadence.models.layers.rank_share import all_of
from cadence.models.through_transformers.activation import CalledActivation
from cadence.models.through_transformers.blocks import (
    CalledAttention,
    CalledMLP,
    NoTurning,
    TabledRotary,
    attention_block,
    mlp_block,
)
from cadence.models.through_transformers.current import CurrentForward
from cadence.models.through_transformers.embedding import CalledEmbedding, embedding_scale
from cadence.models.through_transformers.experts import CalledExperts, experts_in_place_of
from cadence.models.through_transformers.linear import CalledHead, CalledLinear, CalledMatrix
from cadence.models.through_transformers.norm import CalledRMSNorm, norm_in_place_of
from cadence.models.through_transformers.recognise import FoundAttention, Recognised
from cadence.models.through_transformers.trial import Observed

Source = tuple[str, str, dict[str, Any]]  # transformers' name, the part, what a rule says besides


@dataclass(slots=True)
class Replaced:
    embedding: str  # path of the module
    vocab_size: int
    sources: dict[str, Source] = field(default_factory=dict)  # by our names of parameters, in transformers' modules
    stacks: set[str] = field(default_factory=set)  # transformers' names of stacked experts
    ours: dict[nn.Module, nn.Module] = field(default_factory=dict)  # by transformers' modules that they replace
    attention: dict[nn.Module, LayerKV] = field(default_factory=dict)  # those that attend -> what ours keep


class Replacing:
    def __init__(
        self, model: Any, build: BuildContext, now: CurrentForward, observed: Observed, recognised: Recognised
    ) -> None:
        """model: transformers', in shapes alone"""
        self._model = model
        self._build = build
        self._now = now
        self._layers = {each.module: index for index, each in enumerate(observed.layers)}
        self._shapes = [each.shape(build) for each in observed.layers]
        self._recognised = recognised
        self._rotaries: dict[tuple[int, bool], TabledRotary] = {}
        self._kept = {id(module) for module in observed.looked_into}
        self._wide = re.compile("|".join(map(re.escape, _in_float32(model))) or "$.")
        self._ties: dict[str, str] = dict(getattr(model, "all_tied_weights_keys", None) or {})
        self._done: dict[str, nn.Module] = {}  # by path
        self._sources: dict[str, Source] = {}
        self._stacks: set[str] = set()
        self._ours: dict[nn.Module, nn.Module] = {}
        self._kept_of: dict[nn.Module, LayerKV] = {}

    def run(self) -> Replaced:
        """Whatever is not replaced gets memory."""
        paths = {id(module): path for path, module in self._model.named_modules()}
        self._paths = {module: path for path, module in self._model.named_modules()}
        embedding = self._embedding(paths)
        head = self._head(paths, embedding)
        self._blocks(paths)
        for path, module in list(self._model.named_modules()):
            if path and not path.startswith(tuple(f"{done}." for done in self._done)) and path not in self._done:
                self._inner(path, module)
        self._ours.update({each: each for each in self._model.modules() if isinstance(each, CalledActivation)})
        self._rest()
        rows = self._model.config.get_text_config().vocab_size if head is None else head.vocab_size
        return Replaced(
            embedding=embedding,
            vocab_size=rows,
            sources=self._sources,
            stacks=self._stacks,
            ours=self._ours,
            attention=self._kept_of,
        )

    def _blocks(self, paths: dict[int, str]) -> None:
        """What a rehearsal has shown to be blocks of ours."""
        for module, attention in self._recognised.attention.items():
            index, path = self._layers[module], paths[id(module)]
            block = attention_block(self._build, index, attention, self._shapes[index], self._rotary(attention))
            self._put(path, CalledAttention(block, attention, self._now))
            self._kept_of[module] = block.kv
            self._name_block(f"{path}.block", (("qkv", attention.projections, "qkv"), ("out", (attention.out,), "")))
            for ours, (norm, found) in zip(("q_norm", "k_norm"), attention.norms, strict=False):
                self._sources[f"{path}.block.{ours}.weight"] = (f"{self._paths[norm]}.weight", "", _added(found.added))
        for module, mlp in self._recognised.mlps.items():
            path = paths[id(module)]
            self._put(path, CalledMLP(mlp_block(self._build, mlp), mlp, self._now))
            self._name_block(f"{path}.block", (("gate_up", mlp.projections, ("gate", "up")), ("down", (mlp.down,), "")))
        for turning in self._recognised.turnings:
            if (path := paths[id(turning.module)]) not in self._done:
                self._put(path, NoTurning())

    def _rotary(self, found: FoundAttention) -> TabledRotary | NoRotary:
        """One for all layers that turn alike."""
        if found.turning is None:
            return NoRotary()
        key = id(found.turning), found.neighbours
        if key not in self._rotaries:
            self._rotaries[key] = TabledRotary(self._build, found.turning, neighbours=found.neighbours)
        return self._rotaries[key]

    def _name_block(self, path: str, maps: tuple[tuple[str, tuple[nn.Linear, ...], Sequence[str]], ...]) -> None:
        """maps: (ours, transformers', parts of ours that several of those become)"""
        for ours, theirs, parts in maps:
            for linear, part in zip(theirs, parts if len(theirs) > 1 else [""], strict=True):
                for name, _ in linear.named_parameters():
                    key = f"{path}.{ours}.{name}#{part}"
                    self._sources[key] = (f"{self._paths[linear]}.{name}", part, {})

    def _embedding(self, paths: dict[int, str]) -> str:
        module = self._model.get_input_embeddings()
        scale = None if id(module) in self._kept else embedding_scale(module)
        if scale is None:
            raise ConfigError("its embedding of tokens is of a kind of its own", "architectures")
        rows, size = module.weight.shape
        path = paths[id(module)]
        self._put(path, CalledEmbedding(self._build, rows, size, scale, self._now))
        self._name(f"{path}.weight")
        return path

    def _head(self, paths: dict[int, str], embedding: str) -> CalledHead | None:
        module = self._model.get_output_embeddings()
        if type(module) is not nn.Linear or id(module) in self._kept:
            return None
        path, tokens = paths[id(module)], self._done[embedding]
        tied = self._ties.get(f"{path}.weight") == f"{embedding}.weight"
        rows, size = module.weight.shape
        if not tied:
            tokens = CalledEmbedding(self._build, rows, size, 1.0, self._now)
        head = CalledHead(self._build, tokens, tied=True, bias=module.bias is not None, now=self._now)
        self._put(path, head)
        for name, _ in module.named_parameters():
            self._name(f"{path}.{name}")
        return head

    def _inner(self, path: str, module: nn.Module) -> None:
        if id(module) in self._kept or self._wide.search(path):
            return
        if type(module) is nn.Linear or type(module).__name__ == "Conv1D":
            self._linear(path, module)
        elif (experts := experts_in_place_of(module, self._build, self._now)) is not None:
            self._experts(path, module, experts)
        elif (norm := norm_in_place_of(module, self._build, self._now)) is not None:
            self._put(path, norm)
            for name, _ in module.named_parameters():
                self._name(f"{path}.{name}", add=1.0 if isinstance(norm, CalledRMSNorm) and norm.wide else 0.0)

    def _linear(self, path: str, module: Any) -> None:
        transposed = type(module) is not nn.Linear
        rows, cols = module.weight.shape[::-1] if transposed else module.weight.shape
        bias = module.bias is not None
        self._put(path, CalledLinear.in_place_of(self._build, all_of(rows, cols), bias=bias, now=self._now))
        self._name(f"{path}.weight", transpose=transposed)
        if bias:
            self._name(f"{path}.bias")

    def _experts(self, path: str, module: Any, experts: CalledExperts) -> None:
        for index in range(module.down_proj.shape[0]):
            ours = f"{path}.experts.{index}"
            for part in ("gate", "up"):
                self._sources[f"{ours}.gate_up.weight#{part}"] = (f"{path}.{index}.{part}_proj.weight", part, {})
            self._sources[f"{ours}.down.weight"] = (f"{path}.{index}.down_proj.weight", "", {})
        self._stacks |= {f"{path}.gate_up_proj", f"{path}.down_proj"}
        self._put(path, experts)

    def _rest(self) -> None:
        """Parameters and tables of checkpoints, in modules that stay transformers'."""
        made: dict[str, nn.Parameter] = {}
        ours = {id(part) for module in self._done.values() for part in module.modules()}
        for path, module in self._model.named_modules():
            if id(module) in ours:
                continue
            for name, tensor in [*_stored(module)]:
                full = f"{path}.{name}" if path else name
                first = self._ties.get(full, full)
                if first not in made:
                    made[first] = self._with_memory(first, tensor)
                module._buffers.pop(name, None)
                module._parameters[name] = made[first]
                self._name(full)

    def _with_memory(self, name: str, tensor: torch.Tensor) -> nn.Parameter:
        dtype = torch.float32 if self._wide.search(name) else tensor.dtype
        values = torch.empty(tensor.shape, dtype=dtype, device=self._build.device)
        return (
            CalledMatrix.of(values, self._now, {}) if values.dim() == 2 else nn.Parameter(values, requires_grad=False)
        )

    def _put(self, path: str, module: nn.Module) -> None:
        parent, _, name = path.rpartition(".")
        self._ours[self._model.get_submodule(path)] = module
        setattr(self._model.get_submodule(parent), name, module)
        self._done[path] = module

    def _name(self, name: str, **settings: Any) -> None:
        self._sources[name] = (name, "", {key: value for key, value in settings.items() if value})


def _added(number: float) -> dict[str, Any]:
    return {"add": number} if number else {}


def _in_float32(model: Any) -> list[str]:
    """What transformers keeps so, as parts of names."""
    named = [getattr(model, f"_keep_in_fp32_modules{end}", None) or () for end in ("", "_strict")]
    return sorted({name for names in named for name in names})


def _stored(module: Any) -> Iterator[tuple[str, torch.Tensor]]:
    yield from module.named_parameters(recurse=False)
    for name, table in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:
            yield name, table
