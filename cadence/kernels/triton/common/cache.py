"""Where Triton keeps the kernels it has compiled. It fails on a folder that it cannot write to: here that is said, and
they are kept in a temporary one."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from cadence.kernels.triton.common.private import cache_folder, set_cache_folder


def prepare_cache() -> None:
    """To be called before the first kernel is launched."""
    folder = cache_folder()
    if problem := _unwritable(folder):
        temporary = Path(tempfile.mkdtemp(prefix="cadence-triton-"))
        set_cache_folder(temporary)
        atexit.register(shutil.rmtree, temporary, ignore_errors=True)
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
