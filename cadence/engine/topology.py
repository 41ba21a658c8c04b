"""How the parts of this machine are arranged: cores and memory by NUMA node, GPUs and how they are linked, Ray."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
from pathlib import Path

_ROOT = Path("/")
_ASK_S = 20  # for nvidia-smi
_LINKS = {  # as nvidia-smi calls them, the nearest first
    "PIX": "one PCIe bridge",
    "PXB": "several PCIe bridges",
    "PHB": "the CPU's PCIe root",
    "NODE": "one NUMA node",
    "SYS": "another NUMA node",
}


def topology_facts(root: Path = _ROOT) -> list[tuple[str, str]]:
    """root: of the file systems that tell"""
    gpus = _asked("--query-gpu=index,name,memory.total", "--format=csv,noheader,nounits").splitlines()
    facts = numa_facts(root)
    facts += [("gpu", gpu_fact(line)) for line in gpus if line.count(",") == 2]
    facts += [("gpu links", text) for text in link_facts(_asked("topo", "-m"))]
    return [*facts, ("ray", _ray())]


def numa_facts(root: Path) -> list[tuple[str, str]]:
    found = []
    for node in sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        cpus, sizes = _text(node / "cpulist").strip(), re.findall(r"MemTotal:\s*(\d+) kB", _text(node / "meminfo"))
        distances = _text(node / "distance").split()
        memory = f", {int(sizes[0]) / 2**20:.1f} GiB" if sizes else ""
        apart = f", distances {' '.join(distances)}" if len(distances) > 1 else ""
        found.append((f"numa {node.name}", f"CPUs {cpus or 'none'}{memory}{apart}"))
    return found


def gpu_fact(line: str) -> str:
    """line: of nvidia-smi: index, name, MiB"""
    index, name, size = (word.strip() for word in line.split(","))
    memory = f", {int(size) / 1024:.1f} GiB" if size.isdigit() else ""
    return f"{index}: {name}{memory}"


def link_facts(matrix: str) -> list[str]:
    """matrix: as `nvidia-smi topo -m` prints it -> one line for each kind of link between two GPUs"""
    lines = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", matrix).splitlines() if line.startswith("GPU")]
    pairs: dict[str, list[str]] = {}
    for row, words in enumerate(lines):
        for column, link in enumerate(words[1 : 1 + len(lines)]):
            if column > row:
                pairs.setdefault(_link_name(link), []).append(f"{row}-{column}")
    return [f"{name}: {' '.join(found)}" for name, found in pairs.items()]


def _link_name(link: str) -> str:
    if link.startswith("NV") and link[2:].isdigit():
        return f"NVLink x{link[2:]}"
    return _LINKS.get(link, link)


def _ray() -> str:
    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _asked(*words: str) -> str:
    if shutil.which("nvidia-smi") is None:
        return ""
    try:
        done = subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, timeout=_ASK_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
