"""What this machine is and has: versions, CPU, memory, compiler, device. No environment variables, no user names."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
from pathlib import Path

from cadence.config import env
from cadence.config.version import __version__
from cadence.core.shown import counted
from cadence.engine.topology import topology_facts
from cadence.executor.worker.cpu_share import usable_cpus

PACKAGES = ("torch", "numpy", "safetensors", "tokenizers", "jinja2", "triton", "huggingface_hub", "transformers")
CPU_FLAGS = (
    "avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16", "amx_int8", "f16c",
    "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2",
)  # fmt: skip


def machine_facts() -> list[tuple[str, str]]:
    return [
        ("cadence", __version__),
        ("python", platform.python_version()),
        *((name, _version(name)) for name in PACKAGES),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        *_cpu(Path("/proc/cpuinfo")),
        ("cores", f"{usable_cpus()} usable: the most engines and ranks that do not share one"),
        ("memory", _memory(Path("/proc/meminfo"))),
        ("compiler", _compiler()),
        ("device", _device()),
        *topology_facts(),
    ]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu(cpuinfo: Path) -> list[tuple[str, str]]:
    pairs = [line.partition(":") for line in _lines(cpuinfo)]
    found = {key.strip().lower(): value.strip() for key, _, value in pairs}
    threads = sum(key.strip().lower() == "processor" for key, _, _ in pairs)
    name = found.get("model name") or platform.processor() or platform.machine()
    have = set((found.get("flags") or found.get("features") or "").split())
    return [
        ("cpu", f"{name}, {counted(threads, 'thread') if threads else 'threads unknown'}"),
        ("cpu flags", " ".join(flag for flag in CPU_FLAGS if flag in have) or "none of note"),
    ]


def _memory(meminfo: Path) -> str:
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in _lines(meminfo) if line.endswith("kB")}
    if "MemTotal" not in sizes:
        return "unknown"
    return f"{sizes['MemTotal'] / 2**20:.1f} GiB, {sizes.get('MemAvailable', 0) / 2**20:.1f} GiB available"


def _compiler() -> str:
    if not env.has_compiler():
        return "none found: CPU kernels fall back to plain torch"
    command = env.compiler()
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=20, check=False)
    return done.stdout.splitlines()[0] if done.stdout else command[0]


def _device() -> str:
    try:
        from cadence.executor.factory import device_caps

        caps = device_caps("auto")
    except Exception as error:  # a broken torch is just what a report should show
        return f"{type(error).__name__}: {error}".splitlines()[0]
    types = [name for name, native in (("bfloat16", caps.native_bf16), ("float16", caps.native_fp16)) if native]
    return f"{caps.name} ({caps.kind}), {caps.total_memory / 2**30:.1f} GiB, native {' '.join(types) or 'float32 only'}"


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
