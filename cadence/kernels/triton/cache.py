"""Where Triton keeps the kernels it has compiled. It fails on a folder that it cannot write to: here that is said, and
they are kept in a temporary one."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from triton import knobs


def prepare_cache() -> None:
    """To be called before the first kernel is launched."""
    folder = Path(knobs.cache.dir)
    if problem := _unwritable(folder):
        knobs.cache.dir = tempfile.mkdtemp(prefix="cadence-triton-")
        atexit.register(shutil.rmtree, knobs.cache.dir, ignore_errors=True)
        _say(
            f"{folder} cannot be written ({problem}): compiled kernels cannot be kept, and every start compiles them "
            "anew (TRITON_CACHE_DIR names another folder)"
        )
    elif not any(folder.iterdir()):
        _say("the kernels for this GPU are compiled as they are first met, which takes some 30 s in all")


def _unwritable(folder: Path) -> str:
    """What is wrong with it, or ""."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error.strerror or str(error)
    return "" if os.access(folder, os.W_OK) else "Permission denied"


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
