"""Adapters that PEFT makes and saves, with random numbers everywhere; and models of ours with adapters in slots."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.core.model.kv_spec import plan_layout
from cadence.device.cpu import CpuDevice
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps
from cadence.lora.adapter import open_adapter
from cadence.lora.limits import LoraLimits
from cadence.lora.model import LoraModel
from cadence.models.interface.build import BuildContext
from cadence.models.interface.lora_batch import NO_ADAPTER, NO_LORA, LoraBatch
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.interface.wanted import EVERY_TOKEN, LastTokens
from cadence.models.loader import load_model
from cadence.runner.caches.storage import allocate_kv_cache
from tests.helpers.oracle import load_oracle
from tests.helpers.seeded import same_every_time
from tests.helpers.state_rows import begun
from tests.helpers.tiny_models import MAX_LEN

BLOCK = 16
SLOTS = 8


def make_adapter(model: Path, to: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """A LoRA of `config` for the model in a directory, saved into `to` -> the same model with it, as PEFT has it."""
    return save_adapter(load_oracle(model), to, seed, dtype, task_type="CAUSAL_LM", **config)


@same_every_time
def save_adapter(model: Any, to: Path, seed: int = 0, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """The same for a model of transformers, which is changed."""
    from peft import LoraConfig, get_peft_model

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapted = get_peft_model(model, LoraConfig(**config)).eval()
        _randomise(adapted, seed, dtype)
        adapted.save_pretrained(to)
    return adapted


def _randomise(adapted: torch.nn.Module, seed: int, dtype: torch.dtype) -> None:
    """Whatever is trained is changed by as much as shows; magnitudes stay near those of the model."""
    generator = torch.Generator().manual_seed(1000 + seed)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if not parameter.requires_grad:
                continue
            noise = torch.randn(parameter.shape, generator=generator)
            if "magnitude" in name:
                parameter.mul_(1 + 0.3 * noise)
            elif "lora_" in name and parameter.dim() == 2:
                parameter.copy_((noise * 0.12).to(dtype))
            else:
                parameter.add_(noise * 0.05)


@dataclass(frozen=True)
class Run:
    """Tokens of one sequence, from its beginning, and the slot of its adapter."""

    ids: list[int]
    slot: int = NO_ADAPTER


class AdaptedModel:
    """A tiny model of ours; every forward computes its sequences from their beginnings."""

    def __init__(self, files: ModelFiles, ops: Ops | None = None, dtype: str = "float32", max_rank: int = 64) -> None:
        self.ops = ops or ReferenceOps()
        self.device = CpuDevice(1)
        config = ModelConfig(files, load_hf_config(files), dtype, MAX_LEN, 0, 20, "raw_logprobs")
        build = BuildContext(getattr(torch, dtype), torch.device("cpu"), self.ops, MAX_LEN)
        quantization = "none" if files.gguf is None else "gguf"
        self.model = load_model(config, LoadConfig("auto", use_tqdm=False, quantization=quantization), build)
        self.limits = LoraLimits(SLOTS, max_rank)
        self.lora = LoraModel(self.model, self.limits, self.device, self.ops.lora, build.dtype)
        self.dtype = build.dtype
        self.layout = plan_layout(self.model.kv_layers(), BLOCK, dtype)

    def put(self, slot: int, adapter: Path) -> bool:
        return self.lora.put(slot, self.lora.prepare(open_adapter(adapter, self.limits)))

    @torch.inference_mode()
    def logits(self, runs: Sequence[Run], *, last_only: bool = False) -> list[torch.Tensor]:
        """Of one batch: [tokens, vocab] of each run, or [1, vocab] of its last token."""
        ctx, inputs = self.context(runs, last_only)
        logits = self.model.logits(self.model(inputs, ctx), ctx).clone()
        return list(logits.split([1 if last_only else len(run.ids) for run in runs]))

    def context(self, runs: Sequence[Run], last_only: bool = False) -> tuple[ForwardContext, ModelInputs]:
        """As a runner would have it, every run in blocks of its own."""
        lengths = [len(run.ids) for run in runs]
        blocks = [-(-length // BLOCK) for length in lengths]
        groups, widest = len(self.layout.groups), max(blocks)
        tables = torch.arange(groups * len(runs) * widest, dtype=torch.int32).view(groups, len(runs), widest)
        positions = torch.cat([torch.arange(length) for length in lengths])
        row = torch.repeat_interleave(torch.arange(len(runs)), torch.tensor(lengths))
        start = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], dtype=torch.int32)
        slots = tuple(table[row, positions // BLOCK].long() * BLOCK + positions % BLOCK for table in tables)
        rows, seq_lens = torch.arange(len(runs), dtype=torch.int32), torch.tensor(lengths, dtype=torch.int32)
        singles = next((index for index, length in enumerate(lengths) if length > 1), len(runs))
        batch = AttentionBatch(rows, start, seq_lens, tuple(tables), slots, singles, max(lengths))
        counted = torch.arange(len(runs) + 1, dtype=torch.int32)
        at = start[1:].long() - 1
        wanted = LastTokens(at, rows, seq_lens, counted) if last_only else EVERY_TOKEN
        lora = NO_LORA
        if any(run.slot >= 0 for run in runs):
            tokens = torch.empty(len(row), dtype=torch.int32)
            of_rows = torch.tensor([run.slot for run in runs], dtype=torch.int32)
            self.ops.lora.token_slots(of_rows, rows, start, tokens)
            lora = LoraBatch(tokens, *[tokens[at] if last_only else tokens] * 2)
        caches = allocate_kv_cache(self.layout, groups * len(runs) * widest + 1, self.device)
        ids = torch.tensor([token for run in runs for token in run.ids], dtype=torch.int32)
        states = begun(self.model, lengths, self.dtype)
        return ForwardContext(self.ops, batch, caches, wanted, lora=lora, states=states), ModelInputs(ids, positions)


def files_of(directory: Path) -> ModelFiles:
    return ModelFiles(str(directory), directory, None)
