"""What travels between an engine and its ranks in a step, and between ranks for a token.

    python -m benchmarks.rank_bytes [--model smollm2] [--ranks 2 4 8 16]

Plans and results are those of the real scheduler, as bytes of the real codec. What ranks of a stage compute together is
counted in a forward of the model, one rank of two; that of other shapes follows from their sizes by the same count.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.scheduler import parts_of
from benchmarks.shapes import SHAPES
from benchmarks.step_model import BLOCK, new_request, new_scheduler
from cadence.config.args import EngineArgs
from cadence.core.contract.codec import encode_plan, encode_result
from cadence.core.sampling_params import SamplingParams
from cadence.device.cpu import CpuDevice
from cadence.engine.build import resolved_config
from cadence.executor.worker import wire
from cadence.executor.worker.worker import Worker
from cadence.executor.worker.worker_config import WorkerConfig

ROWS = (1, 32, 256)
PROMPT = 512


@dataclass
class Counting:
    """Collectives of one rank, which nobody answers."""

    rank: int
    size: int
    counts: dict[str, list[int]] = field(default_factory=dict)  # by operation: calls, and bytes of what this rank has

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._count("sums", x)

    def all_gather(self, x: torch.Tensor, width: int = 0) -> torch.Tensor:
        own = self._count("gathers", x)
        return own.repeat_interleave(self.size, -1)[..., : width or None]

    def own_ids(self, ids: torch.Tensor, own: range) -> torch.Tensor:
        return torch.where((ids >= own.start) & (ids < own.stop), ids - own.start, 0)

    def all_pick(self, x: torch.Tensor, ids: torch.Tensor, each: int) -> torch.Tensor:
        return self._count("picks", x)

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        return self._count("broadcasts", x)

    def check(self) -> None:
        """Nobody can be gone."""

    def _count(self, operation: str, x: torch.Tensor) -> torch.Tensor:
        count = self.counts.setdefault(operation, [0, 0])
        count[0] += 1
        count[1] += x.numel() * x.element_size()
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


def counted(model: str) -> dict[str, Any]:
    """What the ranks of a stage compute together, for one token: (calls, bytes of one rank's part) by operation."""
    config = resolved_config(EngineArgs(model=model, max_model_len=256, num_gpu_blocks_override=40))
    ranks = Counting(0, 2)
    worker = Worker(CpuDevice(1), WorkerConfig.of(config), ranks=ranks)  # type: ignore[arg-type]
    ranks.counts.clear()
    worker.run_dummy([1], SamplingParams(temperature=0))
    worker.stop()
    return {"model": model, "dtype": config.model.dtype, "ranks": ranks.size, **ranks.counts}


def sent_of_shape(name: str, ranks: int) -> dict[str, Any]:
    """Bytes that a rank sends for one token between machines, where its part goes to each other rank: two sums a layer,
    the embedding, and its share of the logits. A ring of sums would send 2 (n - 1) / n of the vectors."""
    shape = SHAPES[name]
    vector, calls = shape["hidden_size"] * 2, 2 * shape["num_hidden_layers"]  # bytes, in bfloat16
    logits = -(-shape["vocab_size"] // ranks) * 2
    sent = {"sums": calls * vector * (ranks - 1), "embedding": vector * (ranks - 1), "logits": logits * (ranks - 1)}
    ring = round(calls * vector * 2 * (ranks - 1) / ranks)
    return {"shape": name, "ranks": ranks, "calls": calls + 2, **sent, "sums in a ring": ring}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    asked = parser.parse_args()
    for rows in ROWS:
        print(json.dumps(message_bytes(rows)))
    print(json.dumps(counted(asked.model)))
    for name in ("smollm2-135m", "llama-3.1-8b"):
        for ranks in asked.ranks:
            print(json.dumps(sent_of_shape(name, ranks)))


if __name__ == "__main__":
    main()
