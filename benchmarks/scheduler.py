"""The host's share of a step: schedule() and update() with many requests decoding.

    python -m benchmarks.scheduler [--rows 256] [--depth 1] [--steps 400] [--windows 0,1024] [--burst 1] [--part 0]

A step is a burst of --burst forwards, whose tokens come in parts of --part (0: all at once). Prints one JSON object;
times are microseconds of CPU time per step, so that a busy machine does not blur them.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import deque

import numpy as np

from cadence.config.engine_config import CacheConfig, SchedulerConfig
from cadence.core.contract.request import EngineRequest, StopRule
from cadence.core.contract.step import StepPlan, StepResult
from cadence.core.model.kv_spec import LayerKV, plan_layout
from cadence.core.sampling_params import SamplingParams
from cadence.scheduler.features.grammar.feature import GrammarOutputs
from cadence.scheduler.scheduler import Scheduler

PROMPT_LEN = 128


def build(rows: int, depth: int, steps: int, windows: list[int], burst: int) -> Scheduler:
    """`rows` requests that decode for longer than the measurement takes."""
    max_tokens = 2 * steps * burst
    max_model_len = PROMPT_LEN + max_tokens
    layout = plan_layout([LayerKV(8, 128, window) for window in windows], 16, "bfloat16")
    num_blocks = 1 + rows * len(layout.groups) * (max_model_len // layout.block_size + 2)
    config = SchedulerConfig(rows, rows * PROMPT_LEN, "fcfs", True, 0, depth, burst)
    scheduler = Scheduler(
        config, CacheConfig(16, True, 0.9, 0, 0), layout, num_blocks, max_model_len, [GrammarOutputs()]
    )
    stop = StopRule(frozenset({2}), frozenset(), 0, max_tokens)
    rng = np.random.default_rng(0)
    for index in range(rows):
        prompt_len = PROMPT_LEN - int(rng.integers(16))  # block boundaries are spread over the steps
        prompt = rng.integers(3, 32000, size=prompt_len).tolist()
        sampling = SamplingParams(max_tokens=max_tokens)
        scheduler.add(EngineRequest(f"request-{index}", prompt, sampling, stop, seed=index, arrival_time=0.0))
    return scheduler


def parts_of(plan: StepPlan, token: int, size: int) -> list[StepResult]:
    """Results of `size` forwards each."""
    shape = (plan.num_forwards, int((plan.num_samples_np > 0).sum()), plan.width)
    tokens_np = np.full(shape, token, dtype=np.int32)
    starts = range(0, plan.num_forwards, size or plan.num_forwards)
    parts_np = [tokens_np[start : start + (size or plan.num_forwards)] for start in starts]
    return [StepResult(plan.step_id, part_np, np.zeros(part_np.shape[:2], dtype=np.int32)) for part_np in parts_np]


def measure(scheduler: Scheduler, depth: int, steps: int, part: int) -> tuple[list[float], list[float]]:
    """Seconds of each schedule() and of all update()s of a plan."""
    in_flight: deque[StepPlan] = deque()
    schedules, updates = [], []
    for step in range(steps):
        start = time.thread_time()
        plan = scheduler.schedule()
        schedules.append(time.thread_time() - start)
        in_flight.append(plan)
        if len(in_flight) < depth:
            continue
        oldest = in_flight.popleft()
        results = parts_of(oldest, 3 + step, part)
        start = time.thread_time()
        for result in results:
            scheduler.update(result)
        updates.append(time.thread_time() - start)
    return schedules, updates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--depth", type=int, default=1)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--windows", default="0", help="one KV group per number, 0 = full attention")
    parser.add_argument("--burst", type=int, default=1, help="forwards of a plan")
    parser.add_argument("--part", type=int, default=0, help="forwards of a part of its result, 0 = all")
    args = parser.parse_args()
    windows = [int(window) for window in args.windows.split(",")]
    scheduler = build(args.rows, args.depth, args.steps, windows, args.burst)
    measure(scheduler, args.depth, args.depth + 4, args.part)  # admission and warm-up
    schedules, updates = measure(scheduler, args.depth, args.steps, args.part)
    skip = args.depth
    both_np = 1e6 * (np.array(schedules[-len(updates) :]) + np.array(updates))[skip:]
    report = {
        "benchmark": "scheduler",
        "machine": platform.machine(),
        "python": platform.python_version(),
        "rows": args.rows,
        "depth": args.depth,
        "windows": args.windows,
        "burst": args.burst,
        "part": args.part or args.burst,
        "schedule_us_mean": round(1e6 * float(np.mean(schedules)), 1),
        "update_us_mean": round(1e6 * float(np.mean(updates)), 1),
        "step_us_mean": round(float(both_np.mean()), 1),
        "forward_us_mean": round(float(both_np.mean()) / args.burst, 1),
        "step_us_p50": round(float(np.percentile(both_np, 50)), 1),
        "step_us_p99": round(float(np.percentile(both_np, 99)), 1),
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
