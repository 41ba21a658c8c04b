"""How many threads are worth having here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_ROOT = Path("/")
_QUOTA_V1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")


def usable_cpus(root: Path = _ROOT) -> int:
    """Cores that this process may run on, and no more than its control groups give it time for. `root`: of the file
    systems that tell."""
    limits = [_cores(_allowed(), root), *(round(quota) for quota in _quotas(root))]
    return max(1, min(limits))


def allowed_cpus() -> int:
    """CPUs that this process may run on."""
    return len(_allowed())


def cpu_shares(num_ranks: int, num_threads: int = 0) -> list[tuple[int, tuple[int, ...]]]:
    """For each rank: its threads, of so many (0 = as are worth having) that are shared out, and the CPUs it may run on:
    cores of its own, unless there are too few; () = any."""
    if num_ranks == 1:
        return [(num_threads, ())]
    threads = max(1, (num_threads or usable_cpus()) // num_ranks)
    cores = _cpus_by_core(_allowed(), _ROOT)
    if threads * num_ranks > len(cores):
        return [(threads, ())] * num_ranks
    own = [cores[rank * threads : (rank + 1) * threads] for rank in range(num_ranks)]
    return [(threads, tuple(cpu for core in some for cpu in core)) for some in own]


def _allowed() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cores(cpus: set[int], root: Path) -> int:
    """CPUs of one core are counted once, where the system says which they are."""
    return len(_cpus_by_core(cpus, root))


def _cpus_by_core(cpus: set[int], root: Path) -> list[list[int]]:
    by_core: dict[str, list[int]] = {}
    for cpu in sorted(cpus):
        core = _siblings(root / f"sys/devices/system/cpu/cpu{cpu}/topology") or str(cpu)
        by_core.setdefault(core, []).append(cpu)
    return list(by_core.values())


def _siblings(topology: Path) -> str:
    return _text(topology / "core_cpus_list") or _text(topology / "thread_siblings_list")


def _quotas(root: Path) -> Iterator[float]:
    """In CPUs, of every control group this process is in, directly or through another."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            for group in _upwards(root / "sys/fs/cgroup", path):
                quota, _, period = _text(group / "cpu.max").partition(" ")
                yield from _ratio(quota, period)
        elif "cpu" in controllers.split(","):
            for group in _upwards(root / "sys/fs/cgroup" / controllers, path):
                yield from _ratio(*(_text(group / name) for name in _QUOTA_V1))


def _upwards(mount: Path, path: str) -> list[Path]:
    """A group and those around it. A container may see its own as the uppermost, under a path from outside."""
    inside = PurePosixPath(path).relative_to("/")
    return [mount / group for group in (inside, *inside.parents)]


def _ratio(quota: str, period: str) -> Iterator[float]:
    """Nothing where there is no limit ("max", "-1") or no file."""
    if quota.isdigit() and period.isdigit() and int(quota) > 0 and int(period) > 0:
        yield int(quota) / int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
