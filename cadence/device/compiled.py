"""The system's C compiler, and the folder in the cache for what it makes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cadence.config.env import cache_root, compiler, has_compiler
from cadence.core.errors import CadenceError

_WRITABLE_BY_OTHERS = 0o022
_FLAGS = ["-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-w", "-shared", "-pthread"]


class BuildError(CadenceError):
    """C code could not be compiled or loaded."""


class NoCompilerError(BuildError):
    """There is nothing to compile it with."""


def found_compiler() -> tuple[list[str], str]:
    """(its command, what it says of itself)"""
    command = compiler()
    if not command:
        raise NoCompilerError("there is no C compiler (looked for $CC, cc, gcc, clang)")
    if not has_compiler():
        raise NoCompilerError(f"the C compiler that CC names, {command[0]}, is not there")
    return command, run([*command, "--version"], Path.cwd())


@contextlib.contextmanager
def compiled(source: Path) -> Iterator[Path]:
    """One file of C as a library: from the cache, or made now. It is there as long as this is entered; once open, it
    stays open."""
    command, version = found_compiler()
    digest = hashlib.sha256(repr((command, version, _FLAGS, platform.machine())).encode() + source.read_bytes())
    with kept_folder() as folder:
        target = folder / f"{source.stem}-{digest.hexdigest()[:32]}.so"
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=folder) as work:
                made = Path(work) / target.name
                run([*command, *_FLAGS, str(source), "-o", str(made), "-ldl"], Path(work))
                os.replace(made, target)
        yield target


@contextlib.contextmanager
def kept_folder() -> Iterator[Path]:
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


def run(command: list[str], work: Path) -> str:
    try:
        done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False, timeout=300)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BuildError(f"{command[0]}: {error}") from error
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command[:2])} … failed: {done.stderr.strip()[-500:]}")
    return done.stdout
