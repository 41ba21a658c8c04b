"""A GGUF file in another of its formats, made by llama.cpp: for comparing engines by the format each is fastest in.

Run by the peer's own Python: -m benchmarks.peers.quantize SOURCE TARGET FORMAT
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FORMATS = {kind: f"LLAMA_FTYPE_MOSTLY_{kind}" for kind in ("Q4_0", "Q4_1", "Q4_K_M", "Q5_K_M", "Q6_K", "Q8_0")}


def requantise(source: Path, kind: str) -> Path:
    """Made once, and kept beside the peers."""
    from benchmarks.peers.install import FOLDER, python_of

    target = FOLDER / f"{source.stem}-{kind}.gguf"
    if not target.exists():
        command = [str(python_of("llama.cpp")), "-m", "benchmarks.peers.quantize", str(source), str(target), kind]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return target


def _quantise(source: str, target: str, kind: str) -> None:
    import llama_cpp

    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = getattr(llama_cpp, FORMATS[kind])
    parameters.allow_requantize = True
    partial = Path(target).with_suffix(".partial")
    if status := llama_cpp.llama_model_quantize(source.encode(), str(partial).encode(), parameters):
        raise SystemExit(f"llama.cpp could not write {target}: status {status}")
    partial.rename(target)


if __name__ == "__main__":
    _quantise(*sys.argv[1:4])
