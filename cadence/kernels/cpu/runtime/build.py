"""Compiles the C kernels with the system's compiler on first use, into the cache; later starts only load the file."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cadence.config.env import cache_root, compiler, has_compiler
from cadence.core.errors import CadenceError
from cadence.device.cpus import usable_cpus

_SOURCES = Path(__file__).parents[1]  # what #include lines begin at
_WRITABLE_BY_OTHERS = 0o022
# A compiler that may turn a * b + c into one instruction, which rounds once, decides so anew in every copy of a loop: a
# token's bits would depend on the tokens beside it. A product and a sum are one where the source says so (madd), and
# nowhere else.
_ROUNDING = ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"]
_FLAGS = ["-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", *_ROUNDING, "-w"]


class BuildError(CadenceError):
    """The C kernels could not be compiled or loaded."""


class NoCompilerError(BuildError):
    """There is nothing to compile them with."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to compile and link; the first that works is taken."""

    compile_flags: tuple[str, ...]
    link_flags: tuple[str, ...]


def load_library() -> ctypes.CDLL:
    command = compiler()
    if not command:
        raise NoCompilerError("there is no C compiler (looked for $CC, cc, gcc, clang)")
    if not has_compiler():
        raise NoCompilerError(f"the C compiler that CC names, {command[0]}, is not there")
    version = _run([*command, "--version"], Path.cwd())
    problem = "no way to compile was tried"
    with _folder() as folder:
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
            list(at_once.map(lambda one: _run(one, Path(work)), commands))
            _run([*command, "-shared", *objects, "-o", "kernels.so", *recipe.link_flags], Path(work))
            os.replace(Path(work) / "kernels.so", target)
    return target


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Where compiled kernels are kept; a temporary folder, said so, where they cannot be."""
    kept = cache_root() / "kernels"
    if problem := _make_private(kept):
        print(
            f"{kept} {problem}: compiled kernels cannot be kept, and every start compiles them anew "
            "(CADENCE_CACHE names another folder)",
            file=sys.stderr,
            flush=True,
        )
        with tempfile.TemporaryDirectory(prefix="cadence-kernels-") as work:  # a library that is open outlives its file
            yield Path(work)
    else:
        yield kept


def _make_private(folder: Path) -> str:
    """Makes the folder, for this user alone: what lies in it will be run. Returns what is wrong, or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & _WRITABLE_BY_OTHERS:
            return "may be written by others"
        if not os.access(folder, os.W_OK):
            return "cannot be written"
        folder.chmod(0o700)
    except OSError as error:
        return f"cannot be written ({error.strerror})"
    return ""


def _cpu_identity() -> str:
    """What code tuned for this CPU must not be shared beyond."""
    keys = ("model name", "flags", "Features", "CPU implementer", "CPU part")
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return "\n".join(sorted({line for line in lines if line.split("\t")[0].strip() in keys}))


def _run(command: list[str], work: Path) -> str:
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command[:2])} … failed: {done.stderr.strip()[-500:]}")
    return done.stdout
