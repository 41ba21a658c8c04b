"""Process start to first token of `cadence generate`, with warm file caches.

python -m benchmarks.startup [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

from benchmarks.machine import describe_machine

COMMAND = [sys.executable, "-m", "cadence.entrypoints.cli.main", "generate", "Hello", "--max-tokens", "8"]


def first_byte_seconds() -> float:
    start = time.perf_counter()
    with subprocess.Popen(COMMAND, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.read(1)
        elapsed = time.perf_counter() - start
        process.communicate()
    assert process.returncode == 0
    return elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    first_byte_seconds()
    times = [round(first_byte_seconds(), 3) for _ in range(args.repeats)]
    result = {"median_seconds": statistics.median(times), "all": times}
    print(json.dumps({"machine": describe_machine(), "import_to_first_token": result}, indent=2))


if __name__ == "__main__":
    main()
