"""What a machine says of its arrangement, read off the files and tables in which it says so."""

from __future__ import annotations

from pathlib import Path

from cadence.engine.topology import gpu_fact, link_facts, numa_facts, topology_facts

MATRIX = """
\x1b[4m\tGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m
GPU0\t X \tNV18\tSYS\tPIX\tPXB\t0-31\t0
GPU1\tNV18\t X \tSYS\tPIX\tPXB\t0-31\t0
GPU2\tSYS\tSYS\t X \tNV18\tSYS\t32-63\t1
GPU3\tPIX\tPIX\tNV18\t X \tSYS\t32-63\t1
NIC0\tPXB\tPXB\tSYS\tSYS\t X
"""


def test_nodes_of_memory(tmp_path: Path) -> None:
    for number, cpus in enumerate(("0-31,64-95", "32-63")):
        node = tmp_path / f"sys/devices/system/node/node{number}"
        node.mkdir(parents=True)
        (node / "cpulist").write_text(f"{cpus}\n")
        (node / "meminfo").write_text(f"Node {number} MemTotal:       {(number + 1) * 2**20} kB\n")
        (node / "distance").write_text("10 21\n" if not number else "21 10\n")
    assert numa_facts(tmp_path) == [
        ("numa node0", "CPUs 0-31,64-95, 1.0 GiB, distances 10 21"),
        ("numa node1", "CPUs 32-63, 2.0 GiB, distances 21 10"),
    ]
    assert numa_facts(tmp_path / "elsewhere") == []


def test_links_of_gpus_are_told_once() -> None:
    assert link_facts(MATRIX) == ["NVLink x18: 0-1 2-3", "another NUMA node: 0-2 1-2", "one PCIe bridge: 0-3 1-3"]
    assert link_facts("") == [] == link_facts("GPU0\t X \t0-3\t0\n")


def test_a_gpu() -> None:
    assert gpu_fact("0, NVIDIA H200, 143771") == "0: NVIDIA H200, 140.4 GiB"


def test_this_machine_has_something_to_say() -> None:
    assert dict(topology_facts())["ray"]
