"""What travels between an engine and its ranks in a step, and between ranks for a token.

    python -m benchmarks.rank_bytes [--model smollm2] [--ranks 2 4 8 16]

Plans and results are those of the real scheduler, as bytes of the real codec. What ranks of a stage add up is counted
in a forward of the model, one rank of two; that of other shapes follows from their sizes by the same count.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.scheduler import parts_of
from benchmarks.shapes import SHAPES
from benchmarks.step_model import BLOCK, new_request, new_scheduler
from cadence.config.args import EngineArgs
from cadence.core.codec import encode_plan, encode_result
from cadence.core.sampling_params import SamplingParams
from cadence.device.cpu import CpuDevice
from cadence.engine.build import resolved_config
from cadence.executor import wire
from cadence.executor.worker import Worker, WorkerConfig

ROWS = (1, 32, 256)
PROMPT = 512


@dataclass
class Counting:
    """Collectives of one rank, which nobody answers."""

    rank: int
    size: int
    calls: int = 0
    num_bytes: int = 0

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._count(x)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        return self._count(x)

    def check(self) -> None:
        """Nobody can be gone."""

    def _count(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.num_bytes += x.numel() * x.element_size()
        return x


def message_bytes(rows: int) -> dict[str, Any]:
    """Of a step in which a prompt begins for each row, and of one in which all decode."""
    scheduler = new_scheduler(rows, 300 + rows * (PROMPT // BLOCK + 8))
    for number in range(rows):
        scheduler.add(new_request(f"request-{number}", [3 + number] * PROMPT, 64))
    sizes: dict[str, Any] = {"rows": rows}
    while len(sizes) < 4:
        plan = scheduler.schedule()
        decodes = int(plan.num_tokens_np.max()) == 1 and len(plan.rows_np) == rows
        down = len(wire.STEP + encode_plan(plan)) + len(wire.encode_advance(plan.step_id, 0, plan.num_forwards))
        sizes.setdefault("first step down", down)
        results = parts_of(plan, 5, 0)
        if decodes:
            sizes["decode down"] = down
            sizes["decode up"] = sum(len(wire.RESULT + encode_result(result)) for result in results)
        for result in results:
            scheduler.update(result)
    return sizes


def counted_sums(model: str) -> dict[str, Any]:
    """Sums among the ranks of a stage, for one token."""
    config = resolved_config(EngineArgs(model=model, max_model_len=256, num_gpu_blocks_override=40))
    ranks = Counting(0, 2)
    worker = Worker(CpuDevice(1), WorkerConfig.of(config), ranks=ranks)  # type: ignore[arg-type]
    before = ranks.calls, ranks.num_bytes
    worker.run_dummy([1], SamplingParams(temperature=0))
    hf = config.model.hf
    found = {"model": model, "calls": ranks.calls - before[0], "bytes": ranks.num_bytes - before[1]}
    found["layers x 2"] = 2 * hf["num_hidden_layers"]
    worker.stop()
    return found


def sums_of_shape(name: str, ranks: int) -> dict[str, Any]:
    """Bytes that a rank sends for one token: between machines its part goes to each other rank; a ring of all-reduces
    would send 2 (n - 1) / n of the vector."""
    shape = SHAPES[name]
    vector = shape["hidden_size"] * 2  # bytes, in bfloat16
    calls = 2 * shape["num_hidden_layers"]
    sent, ring = calls * vector * (ranks - 1), round(calls * vector * 2 * (ranks - 1) / ranks)
    return {"shape": name, "ranks": ranks, "calls": calls, "vector": vector, "sent": sent, "ring would send": ring}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    asked = parser.parse_args()
    for rows in ROWS:
        print(json.dumps(message_bytes(rows)))
    print(json.dumps(counted_sums(asked.model)))
    for name in ("smollm2-135m", "llama-3.1-8b"):
        for ranks in asked.ranks:
            print(json.dumps(sums_of_shape(name, ranks)))


if __name__ == "__main__":
    main()
