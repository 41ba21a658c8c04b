"""Compiles the C kernels with the system's compiler on first use, into the cache; later starts only load the file."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cadence.device.compiled import BuildError, NoCompilerError, found_compiler, kept_folder, run
from cadence.device.cpus import usable_cpus

_SOURCES = Path(__file__).parents[1]  # what #include lines begin at
# A compiler that may turn a * b + c into one instruction, which rounds once, decides so anew in every copy of a loop: a
# token's bits would depend on the tokens beside it. A product and a sum are one where the source says so (madd), and
# nowhere else.
_ROUNDING = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
_FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", *_ROUNDING, "-w"]


__all__ = ["BuildError", "NoCompilerError", "load_library"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to compile and link; the first that works is taken."""

    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]


def load_library() -> ctypes.CDLL:
    command, version = found_compiler()
    problem = "no way to compile was tried"
    with kept_folder() as folder:
        for recipe in _recipes():
            try:
                return ctypes.CDLL(str(_built(command, version, recipe, folder)))
            except (BuildError, OSError) as error:
                problem = str(error)
    raise BuildError(problem)


def _recipes() -> Iterator[Recipe]:
    """Best first: tuned for this CPU, then plain C."""
    tuned = "-march=native" if platform.machine() in ("x86_64", "AMD64") else "-mcpu=native"
    for arch in ((tuned,), ()):
        yield Recipe((*arch, "-pthread"), ("-pthread", "-lm"))


def _built(command: list[str], version: str, recipe: Recipe, folder: Path) -> Path:
    """The shared library for a recipe, from the cache or made now. Two processes may do this at once: each builds in a
    folder of its own and moves the file into place in one step."""
    sources = sorted(_SOURCES.rglob("*.[ch]"))
    digest = hashlib.sha256(repr((command, version, recipe, _FLAGS, _cpu_identity())).encode())
    for source in sources:
        digest.update(str(source.relative_to(_SOURCES)).encode() + source.read_bytes())
    target = folder / f"cpu-{digest.hexdigest()[:32]}.so"
    if not target.exists():
        units = [source for source in sources if source.suffix == ".c"]
        print(f"compiling the kernels for this CPU with {command[0]} ...", file=sys.stderr, flush=True)
        compile_one = [*command, *_FLAGS, *recipe.compile_flags, f"-I{_SOURCES}", "-c"]
        with tempfile.TemporaryDirectory(dir=folder) as work, ThreadPoolExecutor(usable_cpus()) as at_once:
            objects = ["-".join(unit.relative_to(_SOURCES).with_suffix(".o").parts) for unit in units]
            commands = [[*compile_one, str(unit), "-o", made] for unit, made in zip(units, objects, strict=True)]
            list(at_once.map(lambda one: run(one, Path(work)), commands))
            run([*command, "-shared", *objects, "-o", "kernels.so", *recipe.link_flags], Path(work))
            os.replace(Path(work) / "kernels.so", target)
    return target


def _cpu_identity() -> str:
    """What code tuned for this CPU must not be shared beyond."""
    keys = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in keys}))
