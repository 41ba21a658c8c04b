"""Everything of Triton that is not documented and is used here, read off the version below; a test holds it to that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import triton

HOLDS_FOR = "3.6"


@dataclass(frozen=True, slots=True)
class LoadedKernel:
    """A compiled kernel on the current device. A launch is
    `run(grid x, y, z, stream_of(current_device()), *fixed, *arguments, *constants)`."""

    run: Callable[..., None]
    fixed: tuple[object, ...]  # the function, how it is launched, and no hooks
    stream_of: Callable[[int], int]
    current_device: Callable[[], int]


def load(compiled: Any) -> LoadedKernel:
    """compiled: what a launch of a kernel returned."""
    driver = triton.runtime.driver.active
    run = compiled.run  # loads it; there is no function before
    fixed = (compiled.function, compiled.packed_metadata, None, None, None)
    return LoadedKernel(run, fixed, driver.get_current_stream, driver.get_current_device)


def argument_names(kernel: Any) -> list[str]:
    return kernel.arg_names


def unspecialized(kernel: Any) -> frozenset[int]:
    """Places of arguments that have no compiled forms of their own but by type."""
    return frozenset(place for place, parameter in enumerate(kernel.params) if parameter.do_not_specialize)


def is_interpreted() -> bool:
    return triton.knobs.runtime.interpret


def target() -> tuple[str, int]:
    """(cuda | hip, compute capability as in 90) of the current device."""
    found = triton.runtime.driver.active.get_current_target()
    return found.backend, found.arch


def architecture() -> int:
    """Of the current GPU: 90 for Hopper."""
    return triton.runtime.driver.active.get_current_target().arch


def num_processors(device_index: int) -> int:
    return _properties(device_index)["multiprocessor_count"]


def shared_memory() -> int:
    """Bytes one program may have on the current device."""
    return _properties(triton.runtime.driver.active.get_current_device())["max_shared_mem"]


def _properties(device_index: int) -> dict[str, int]:
    return triton.runtime.driver.active.utils.get_device_properties(device_index)


def cache_folder() -> Path:
    return Path(triton.knobs.cache.dir)


def set_cache_folder(folder: Path) -> None:
    triton.knobs.cache.dir = str(folder)
