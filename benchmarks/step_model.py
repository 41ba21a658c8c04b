"""How long a step takes, as a sum of what it does, fitted to measured runs of `benchmarks.gpu`.

    python -m benchmarks.step_model [--shape llama-3.1-8b] [--results benchmarks/results/gpu_h200.jsonl]

Each case is planned by the real scheduler; its measured seconds are then a linear equation in the cost of a step, of a
token, and of a token of context that a decoding row reads.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.scheduler import parts_of
from cadence.config.engine_config import CacheConfig, SchedulerConfig
from cadence.core.contract.request import EngineRequest, StopRule
from cadence.core.contract.step import StepPlan
from cadence.core.model.kv_spec import LayerKV, plan_layout
from cadence.core.sampling_params import SamplingParams
from cadence.scheduler.scheduler import Scheduler

BLOCK = 16
CASES: dict[str, list[tuple[int, int]]] = {  # (prompt, output) of each request: those of benchmarks.gpu with one length
    "a": [(128, 256)],
    "b": [(512, 256)] * 256,
    "d": [(2048, 1)] * 16,
    "f": [(128, 256)] * 64,
}
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class StepModel:
    """Seconds."""

    step: float
    token: float
    context: float  # of a token that a decoding row attends to

    def seconds(self, plan: StepPlan) -> float:
        """Forwards after the first have the rows that sample, which decode; what they read is that of the first."""
        first = float(np.dot(features(plan), (self.step, self.token, self.context)))
        sampling_np = plan.num_samples_np > 0
        keys = float((plan.num_computed_np[sampling_np] + plan.num_tokens_np[sampling_np]).sum())
        later = self.step + self.token * float(sampling_np.sum()) + self.context * keys
        return first + (plan.num_forwards - 1) * later


def features(plan: StepPlan) -> tuple[float, float, float]:
    decodes_np = plan.num_tokens_np == 1
    return 1.0, float(plan.num_tokens_np.sum()), float(plan.num_computed_np[decodes_np].sum())


def new_scheduler(
    rows: int, num_blocks: int, caching: bool = True, max_model_len: int = 4096, burst: int = 1
) -> Scheduler:
    layout = plan_layout([LayerKV(8, 128, 0)], BLOCK, "bfloat16")
    config = SchedulerConfig(rows, 8192, "fcfs", True, 0, 1, burst)
    return Scheduler(config, CacheConfig(BLOCK, caching, 0.9, 0, 0), layout, num_blocks, max_model_len)


def new_request(name: str, prompt: list[int], max_tokens: int) -> EngineRequest:
    stop = StopRule(frozenset({2}), frozenset(), 0, max_tokens)
    return EngineRequest(name, prompt, SamplingParams(max_tokens=max_tokens), stop, seed=0, arrival_time=0.0)


def work_of(requests: list[tuple[int, int]]) -> np.ndarray:
    """Features of all steps that a case takes -> [3]"""
    scheduler = new_scheduler(len(requests), 300 + sum((sum(one) // BLOCK + 2) for one in requests), caching=False)
    for number, (prompt, output) in enumerate(requests):
        scheduler.add(new_request(f"{number}", [3 + number % 1000] * prompt, output))
    total_np = np.zeros(3)
    while scheduler.has_unfinished():
        plan = scheduler.schedule()
        total_np += features(plan)
        for result in parts_of(plan, 5, 0):
            scheduler.update(result)
    return total_np


def measured(path: Path, shape: str) -> dict[str, float]:
    """Seconds of each case, by the newest line that has it."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("{"):
            continue
        fields = json.loads(line)
        if fields.get("shape") == shape and fields.get("case") in CASES and "tokens_per_second" in fields:
            requests = CASES[fields["case"]]
            counted = sum(prompt if output == 1 else output for prompt, output in requests)
            found[fields["case"]] = counted / fields["tokens_per_second"]
    return found


def fitted(seconds: dict[str, float]) -> tuple[StepModel, dict[str, float]]:
    """-> the model, and by case what it says over what was measured. Costs are at least 0."""
    lines_np = np.array([work_of(CASES[case]) / seconds[case] for case in seconds])
    kept = [0, 1, 2]
    while True:
        costs_np = np.linalg.lstsq(lines_np[:, kept], np.ones(len(lines_np)), rcond=None)[0]
        if costs_np.min() >= 0:
            break
        kept.pop(int(costs_np.argmin()))
    whole_np = np.zeros(3)
    whole_np[kept] = costs_np
    return StepModel(*map(float, whole_np)), dict(zip(seconds, (lines_np @ whole_np).round(3).tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="llama-3.1-8b")
    parser.add_argument("--results", type=Path, default=RESULTS / "gpu_h200.jsonl")
    asked = parser.parse_args()
    model, said = fitted(measured(asked.results, asked.shape))
    print(json.dumps({"shape": asked.shape, "model": asdict(model), "said / measured": said}, indent=1))


if __name__ == "__main__":
    main()
