"""A fresh server's first minute on a GPU: when it is ready, and how long its first users wait. JSON lines.

    python -m benchmarks.first_minute [--shape llama-3.1-8b] [--tokenizer FOLDER] [--load trickle|streams] [--flags ...]

`trickle` is 20 requests a second, 512 in and 128 out; `streams` is 64 at once, 128 in and 256 out, sent by four
processes. Each is run twice. Dummy weights, no prefix cache. An empty TRITON_CACHE_DIR makes it a first start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.shapes import SHAPES, write_shape

PORT = 8011
URL = f"http://127.0.0.1:{PORT}"
READY_S = 300.0
LOAD_S = 180.0
CADENCE = (sys.executable, "-m", "cadence.entrypoints.cli.main")
LOADS = {  # (client processes, flags of each)
    "trickle": (1, "--request-rate 20 --num-prompts 200 --random-input-len 512 --output-len 128"),
    "streams": (4, "--num-prompts 16 --random-input-len 128 --output-len 256"),
}
SHOWN = ("mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "output_throughput", "completed")


@contextlib.contextmanager
def server(model: Path, flags: list[str]) -> Iterator[float]:
    """Yields the seconds from its start to /readyz."""
    began = time.perf_counter()
    usual = ["--load-format", "dummy", "--max-model-len", "4096", "--no-enable-prefix-caching", "--port", str(PORT)]
    process = subprocess.Popen([*CADENCE, "serve", str(model), *usual, *flags], stdout=sys.stderr)
    try:
        while not _is_ready():
            if process.poll() is not None or time.perf_counter() - began > READY_S:
                raise SystemExit(f"the server did not get ready (status {process.poll()})")
            time.sleep(0.05)
        yield time.perf_counter() - began
    finally:
        process.terminate()
        process.wait(60)


def _is_ready() -> bool:
    try:
        with urllib.request.urlopen(f"{URL}/readyz", timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def run_load(name: str) -> list[dict[str, Any]]:
    """What each client process saw."""
    processes, flags = LOADS[name]
    common = ["--base-url", URL, "--ignore-eos", "--disable-tqdm", "--num-warmups", "0", "--output-json", "-"]
    clients = [
        subprocess.Popen([*CADENCE, "bench", "serve", *common, *flags.split()], stdout=subprocess.PIPE, text=True)
        for _ in range(processes)
    ]
    results = [json.loads(client.communicate(timeout=LOAD_S)[0]) for client in clients]
    return [{name: round(result[name], 1) for name in SHOWN} for result in results]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="llama-3.1-8b")
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder with a tokenizer.json")
    parser.add_argument("--load", choices=LOADS, default="trickle")
    parser.add_argument("--flags", nargs=argparse.REMAINDER, default=[], help="more flags of the server")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = write_shape(args.shape, Path(folder) / args.shape)
        for file in args.tokenizer.iterdir():
            shutil.copy(file, model / file.name)
        about = {"shape": args.shape, "load": args.load, "flags": args.flags}
        with server(model, args.flags) as ready:
            print(json.dumps({"machine": describe_machine(), **about, "ready_s": round(ready, 1)}), flush=True)
            for run in ("first", "second"):
                for seen in run_load(args.load):
                    print(json.dumps({**about, "run": run, **seen}), flush=True)


if __name__ == "__main__":
    main()
