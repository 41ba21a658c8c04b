"""What each format of `cadence quantize` costs a model: perplexity of its values, one JSON line per format.

    python -m benchmarks.quantize [--model smollm2] [--formats "W4A16:64;W4A16:64:none;..."] [--out FILE]

A format is its name, its group size where that is free, and `none` where it is not to be calibrated. The text is that
of the command (`cadence/models/quantize/data/held_out.txt`), in four windows of 1,024 tokens.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from cadence.config.reference import find_model
from cadence.entrypoints.cli.quantize import command
from cadence.entrypoints.cli.quantize.perplexity import perplexity
from cadence.entrypoints.cli.quantize.texts import HELD_OUT, read_windows
from cadence.text.load import tokenizer_for

FORMATS = (
    "W4A16:32;W4A16:32:none;W4A16:64;W4A16:64:none;W4A16_ASYM:32;W4A16_ASYM:32:none;NVFP4A16;NVFP4A16::none;"
    "MXFP4A16;MXFP4A16::none;W8A16:64;W8A8;FP8_DYNAMIC;FP8_BLOCK"
)
WINDOW, TOKENS = 1024, 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--formats", default=FORMATS, help="separated by semicolons")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    windows = read_windows(HELD_OUT, tokenizer_for(find_model(args.model)), WINDOW, TOKENS)
    base = perplexity(args.model, windows)
    first = {"machine": describe_machine(), "model": Path(args.model).name, "tokens": sum(map(len, windows))}
    _put({**first, "perplexity": round(base, 4)}, args.out)
    for form in args.formats.split(";"):
        _put({"format": form, **measure(args.model, form, windows, base)}, args.out)


def measure(model: str, form: str, windows: list[list[int]], base: float) -> dict[str, Any]:
    name, group, calibrate = [*form.split(":"), "", ""][:3]
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "quantised"
        flags = [*(["--group-size", group] if group else []), *(["--calibrate", calibrate] if calibrate else [])]
        start = time.perf_counter()
        command.run([model, str(output), "--format", name, "--no-perplexity", *flags])
        seconds = time.perf_counter() - start
        found = perplexity(str(output), windows)
        size = sum(path.stat().st_size for path in output.glob("*.safetensors"))
    more = {"perplexity": round(found, 4), "ratio": round(found / base, 4), "nats": round(math.log(found / base), 4)}
    return {**more, "mb": round(size / 1e6, 1), "seconds": round(seconds)}


def _put(line: dict[str, Any], out: Path | None) -> None:
    print(json.dumps(line), flush=True)
    if out is not None:
        with out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
