"""How much memory a model takes: estimated from its files before it is loaded, measured once it is."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from cadence.config import env
from cadence.config.args import EngineArgs
from cadence.config.files.json_file import read_object
from cadence.config.reference import ModelFiles, find_local
from cadence.config.resolve.resolve import usual_cpu_kv_bytes
from cadence.config.server.models_file import ModelPlan
from cadence.config.server.serve_options import ServeOptions
from cadence.config.speculative_options import SpeculativeOptions
from cadence.core.errors import CadenceError, ConfigError, WeightsError

PROCESS_BYTES = 384 * 2**20  # an engine process that has imported torch, and what it works with
GPU_SHARE = 0.95  # of a GPU's memory, for all models together
HOST_SHARE = 0.8  # of this machine's memory
_ASK_S = 10.0
_MOST_INDEX = 16 << 20  # bytes
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")


def host_memory() -> int:
    """Bytes of this machine, or of the container's share."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return total


@cache
def gpu_memory() -> int:
    """Bytes of the smallest GPU; 0 where there is none."""
    if shutil.which("nvidia-smi") is None:
        return 0
    line = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
        found = subprocess.run(line, capture_output=True, text=True, timeout=_ASK_S, check=True).stdout.split()
        return min((int(size) for size in found), default=0) * 2**20
    return 0


def is_on_gpu(args: EngineArgs) -> bool:
    return args.device != "cpu" and gpu_memory() > 0


def usual_budget(on_gpu: bool) -> int:
    return int(gpu_memory() * GPU_SHARE) if on_gpu else int(host_memory() * HOST_SHARE)


def budget_of(plans: Sequence[ModelPlan], options: ServeOptions) -> int:
    """Bytes for all models. Raises where one that lies here would not fit, or the pinned ones would not together."""
    budget = options.models_memory or usual_budget(any(is_on_gpu(plan.args) for plan in plans))
    pinned = 0
    for plan in plans:
        files = find_local(plan.args.model)
        need = needed_bytes(plan.args, files) if files is not None else 0
        pinned += need if plan.entry.pinned else 0
        if need > budget:
            raise ConfigError(f"--models: model {plan.entry.name} needs {_gib(need, budget)}", "models_memory")
    if pinned > budget:
        raise ConfigError(f"--models: those that are pinned need {_gib(pinned, budget)}", "models_memory")
    return budget


def _gib(need: int, budget: int) -> str:
    return (
        f"about {need / 2**30:.2f} GiB, and --models-memory is {budget / 2**30:.2f} GiB; "
        "kv_cache_memory_bytes makes it smaller"
    )


def cache_bytes(args: EngineArgs) -> int:
    """Of keys and values, as the engine will set them aside."""
    each = args.kv_cache_memory_bytes or env.cpu_kv_cache_bytes() or usual_cpu_kv_bytes(host_memory())
    return each * args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size


def needed_bytes(args: EngineArgs, files: ModelFiles) -> int:
    """What the engine of a model takes. On a GPU the share that it was given, which its weights are part of; without
    a share of its own, and on the CPU, its weights and its cache."""
    if is_on_gpu(args) and not args.kv_cache_memory_bytes:
        return int(gpu_memory() * args.gpu_memory_utilization)
    weights = (stored_bytes(files) + _draft_bytes(args)) * args.data_parallel_size
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    return weights + cache_bytes(args) + PROCESS_BYTES * ranks


def stored_bytes(files: ModelFiles) -> int:
    """Of weights."""
    if files.gguf is not None:
        return sum(path.stat().st_size for path in (files.gguf, files.tower) if path is not None)
    if (index := files.directory / "model.safetensors.index.json").is_file():
        said = read_object(index, _MOST_INDEX, WeightsError).get("metadata")
        size = said.get("total_size") if isinstance(said, dict) else None
        if isinstance(size, int | float) and size > 0:
            return int(size)
    return next((size for pattern in _WEIGHTS if (size := _size(files.directory.glob(pattern)))), 0)


def resident_bytes(pids: Iterable[int]) -> int:
    """Of these processes and those that they have started, memory that they share counted once; 0 = not known."""
    return sum(_resident(pid) for root in pids for pid in _family(root))


def _size(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def _draft_bytes(args: EngineArgs) -> int:
    """Of a model that drafts and lies here."""
    named = SpeculativeOptions.read(args.speculative_config).model
    with contextlib.suppress(CadenceError):
        files = find_local(named) if named else None
        return stored_bytes(files) if files is not None else 0
    return 0


def _family(pid: int) -> list[int]:
    found = [pid]
    for each in found:  # grows meanwhile
        with contextlib.suppress(OSError, ValueError):
            for task in Path(f"/proc/{each}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def _resident(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0
