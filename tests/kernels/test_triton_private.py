"""What `private.py` takes from Triton is there, in the version that it names; no other file takes any."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("triton")

from tests.helpers.triton_mode import DEVICE  # isort: skip - before anything that imports triton

import triton
from triton.backends.driver import GPUDriver
from triton.backends.nvidia.driver import CudaLauncher, CudaUtils
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from cadence.kernels.triton.common import private

pytestmark = pytest.mark.device

FOLDER = Path(private.__file__).parents[1]  # all kernels of the GPU


def plain(function: object) -> str:
    return " ".join(inspect.getsource(function).split())  # type: ignore[arg-type]


def test_the_version_it_holds_for() -> None:
    """With another version: read `private.py` against it, then change HOLDS_FOR."""
    assert triton.__version__.startswith(private.HOLDS_FOR + ".")


def test_a_launch_is_made_as_triton_makes_it() -> None:
    assert list(inspect.signature(CudaLauncher.__call__).parameters) == [
        "self", "gridX", "gridY", "gridZ", "stream", "function", "args",
    ]  # fmt: skip
    call = "kernel.run(grid_0, grid_1, grid_2, stream, kernel.function, kernel.packed_metadata, launch_metadata, "
    assert call + "knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook, *bound_args.values())" in plain(
        JITFunction.run
    )
    assert isinstance(inspect.getattr_static(CompiledKernel, "run"), property)
    made = plain(CompiledKernel.__init__)
    assert "self.function = None" in made and "self.packed_metadata = " in made
    assert "stream = driver.get_current_stream" in plain(JITFunction.run).replace("active.", "")


def test_arguments_by_name_and_those_that_are_not_specialized() -> None:
    def kernel(first, second, third):  # type: ignore[no-untyped-def]
        pass

    function = JITFunction(kernel, do_not_specialize=["second"])
    assert list(private.argument_names(function)) == ["first", "second", "third"]
    assert private.unspecialized(function) == {1}


def test_devices_and_settings() -> None:
    driver = plain(GPUDriver.__init__)
    assert "self.get_current_stream = " in driver and "self.get_current_device = " in driver
    assert "self.get_device_properties = " in plain(CudaUtils.__init__)
    assert private.is_interpreted() == (DEVICE == "cpu")
    assert private.cache_folder() == Path(triton.knobs.cache.dir)
    if DEVICE != "cpu":
        backend, capability = private.target()
        assert backend == "cuda" and capability >= 70
        assert private.num_processors(0) > 0 and private.shared_memory() > 0


def test_no_other_file_reaches_into_triton() -> None:
    inside = re.compile(r"triton\.(runtime|knobs|compiler|backends)|from triton import|\.arg_names|packed_metadata")
    found = {path.name for path in FOLDER.rglob("*.py") if inside.search(path.read_text())}
    assert found == {"private.py"}
