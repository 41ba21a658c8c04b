"""What adapters cost on a CPU: recorded forwards of one token per row, with and without them, side by side; and the ops
alone.

    python -m benchmarks.lora [--model smollm2] [--rows 32] [--adapters 8] [--rank 16] [--context 128] [--rounds 20]
        [--threads N]

Adapters are random, of 16 bits, on every linear map. One JSON line each: `forward` with the milliseconds of a forward
without adapters, with a wrapped model and no adapter in the batch, and with one per row in turn; `ops` with what the
adapters' ops take of it, and the bytes of adapters they read in a second.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.machine import describe_machine
from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import find_model
from cadence.core.model.kv_spec import plan_layout
from cadence.device.cpu import CpuDevice
from cadence.device.cpus import usable_cpus
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.select import select_ops
from cadence.lora.adapter import WEIGHTS_FILE, open_adapter
from cadence.lora.config import CONFIG_FILE
from cadence.lora.limits import LoraLimits
from cadence.lora.model import LoraModel
from cadence.lora.targets import TargetKind, find_targets
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.interface.lora_batch import NO_LORA, LoraBatch
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.loader import load_model
from cadence.runner.caches.storage import allocate_kv_cache

BLOCK = 16


@dataclass
class Bench:
    """A model on the CPU, and a batch of one token per row after `context` others."""

    asked: argparse.Namespace

    def __post_init__(self) -> None:
        self.device = CpuDevice(self.asked.threads)
        self.ops = select_ops(self.device)
        files = find_model(self.asked.model)
        config = ModelConfig(files, load_hf_config(files), "float32", 2048, 0, 20, "raw_logprobs")
        build = BuildContext(torch.float32, torch.device("cpu"), self.ops, 2048)
        quantization = "none" if files.gguf is None else "gguf"
        self.model: DecoderLM = load_model(config, LoadConfig("auto", use_tqdm=False, quantization=quantization), build)
        self.adapted: list[tuple[int, int]] = []  # (inputs, outputs) of every linear map, after `adapt`
        self._batch = self._new_batch()

    def adapt(self) -> None:
        """Puts random adapters into slots."""
        linears = [target for target in find_targets(self.model) if target.kind is TargetKind.LINEAR]
        self.adapted = [(target.cols, part.rows) for target in linears for part in target.parts]
        names = [(part.names[0], target.cols, part.rows) for target in linears for part in target.parts]
        limits = LoraLimits(self.asked.adapters, self.asked.rank)
        lora = LoraModel(self.model, limits, self.device, self.ops.lora, torch.float32)
        for slot in range(self.asked.adapters):
            with tempfile.TemporaryDirectory() as folder:
                write_adapter(Path(folder), names, self.asked.rank, slot)
                lora.put(slot, lora.prepare(open_adapter(Path(folder), limits)))

    def context(self, with_adapters: bool) -> ForwardContext:
        batch, caches = self._batch
        slots = torch.arange(self.asked.rows, dtype=torch.int32) % max(self.asked.adapters, 1)
        return ForwardContext(
            self.ops, batch, caches, lora=LoraBatch(slots, slots, slots) if with_adapters else NO_LORA
        )

    def forward(self, with_adapters: bool) -> Callable[[], object]:
        """A recorded forward, up to logits."""
        ctx = self.context(with_adapters)
        ids = torch.arange(self.asked.rows, dtype=torch.int32)
        inputs = ModelInputs(ids, torch.full((self.asked.rows,), self.asked.context))

        def work() -> torch.Tensor:
            return self.model.logits(self.model(inputs, ctx), ctx)

        with torch.inference_mode():
            graph, _ = self.device.record(work)
        return lambda: graph.replay(work)

    def _new_batch(self) -> tuple[AttentionBatch, list[Any]]:
        rows, length = self.asked.rows, self.asked.context + 1
        layout = plan_layout(self.model.kv_layers(), BLOCK, "float32")
        per_row, groups = -(-length // BLOCK), len(layout.groups)
        tables = torch.arange(groups * rows * per_row, dtype=torch.int32).view(groups, rows, per_row)
        slots = tuple(table[:, (length - 1) // BLOCK].long() * BLOCK + (length - 1) % BLOCK for table in tables)
        each = torch.arange(rows + 1, dtype=torch.int32)
        lengths = torch.full((rows,), length, dtype=torch.int32)
        batch = AttentionBatch(each[:rows], each, lengths, tuple(tables), slots, rows, 1)
        return batch, list(allocate_kv_cache(layout, groups * rows * per_row + 1, self.device))


def write_adapter(to: Path, modules: list[tuple[str, int, int]], rank: int, seed: int) -> None:
    """As PEFT does. modules: (name, inputs, outputs)"""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, inputs, outputs in modules:
        a, b = (torch.randn(shape, generator=generator) * 0.02 for shape in ((rank, inputs), (outputs, rank)))
        tensors[f"base_model.model.{name}.lora_A.weight"] = a.bfloat16()
        tensors[f"base_model.model.{name}.lora_B.weight"] = b.bfloat16()
    save_file(tensors, to / WEIGHTS_FILE)
    (to / CONFIG_FILE).write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": rank}))


def best(work: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    """Milliseconds of each, taking turns."""
    found = dict.fromkeys(work, float("inf"))
    for _ in range(rounds):
        for name, run in work.items():
            start = time.perf_counter()
            run()
            found[name] = min(found[name], 1000 * (time.perf_counter() - start))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    numbers = {"rows": 32, "adapters": 8, "rank": 16, "context": 128, "rounds": 20, "threads": usable_cpus()}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    plain, adapted = Bench(asked), Bench(asked)
    adapted.adapt()
    forwards = {
        "plain": plain.forward(with_adapters=False),
        "none": adapted.forward(with_adapters=False),
        "adapters": adapted.forward(with_adapters=True),
    }
    times = best(forwards, asked.rounds)
    shares = {f"{name}_share": round(times["plain"] / times[name], 3) for name in ("none", "adapters")}
    about = {"model": asked.model, "rows": asked.rows, "adapters": asked.adapters, "rank": asked.rank}
    print(json.dumps({"case": "forward", **about, **{f"{n}_ms": round(t, 3) for n, t in times.items()}, **shares}))
    extra = times["adapters"] - times["none"]
    numbers = asked.rank * sum(inputs + outputs for inputs, outputs in adapted.adapted)
    read = 2 * numbers * min(asked.adapters, asked.rows) / extra / 1e6
    products = numbers * asked.rows / extra / 1e6
    rates = {"gb_per_s": round(read, 2), "giga_products_per_s": round(products, 2)}
    print(json.dumps({"case": "ops", "extra_ms": round(extra, 3), **rates, "machine": describe_machine()}))


if __name__ == "__main__":
    main()
