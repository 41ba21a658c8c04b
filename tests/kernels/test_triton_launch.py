"""Kernels launched again go straight to the compiled form that Triton would have chosen."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from cadence.kernels.triton.common import private
from cadence.kernels.triton.common.launch import QuickKernel

pytestmark = pytest.mark.device


class Compiled:
    function, packed_metadata = "function", "metadata"

    def __init__(self, seen: list[tuple[Any, ...]]) -> None:
        self._seen = seen

    def run(self, *words: Any) -> None:
        self._seen.append(words)


class Kernel:
    """Stands for Triton: counts what it is asked to find a form for."""

    arg_names = ("out_ptr", "x_ptr", "rows", "eps", "WIDTH", "GATE")
    params = ()

    def __init__(self) -> None:
        self.asked = 0
        self.launched: list[tuple[Any, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def run(*args: Any, **named: Any) -> Compiled:
            self.asked += 1
            return Compiled(self.launched)

        return run


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Kernel:
    class Driver:
        class active:  # noqa: N801 - triton's name
            get_current_device = staticmethod(lambda: 3)
            get_current_stream = staticmethod(lambda device: 100 + device)

    monkeypatch.setattr(private.triton.runtime, "driver", Driver)
    return Kernel()


def test_a_known_form_is_called_with_addresses_and_constants_in_order(kernel: Kernel) -> None:
    quick, out, x = QuickKernel(kernel), torch.zeros(4), torch.zeros(4)
    for _ in range(3):
        quick[(5, 2)](out, x, 7, 0.5, GATE="silu", WIDTH=4, num_warps=4)
    assert kernel.asked == 1
    words = (5, 2, 1, 103, "function", "metadata", None, None, None, out.data_ptr(), x.data_ptr(), 7, 0.5, 4, "silu")
    assert kernel.launched == [words, words]


def test_what_triton_tells_apart_is_told_apart(kernel: Kernel) -> None:
    quick, x, half = QuickKernel(kernel), torch.zeros(64), torch.zeros(64, dtype=torch.float16)
    forms: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((x, x, 7, 0.5), {"WIDTH": 4, "GATE": "silu", "num_warps": 4}),
        ((x, x, 7, 0.5), {"WIDTH": 5, "GATE": "silu", "num_warps": 4}),
        ((x, x, 7, 0.5), {"WIDTH": 4, "GATE": "", "num_warps": 4}),
        ((x, x, 7, 0.5), {"WIDTH": 4, "GATE": "silu", "num_warps": 8}),
        ((x, x, 7, 0.5), {"WIDTH": 4, "GATE": "silu", "num_warps": 4, "launch_pdl": True}),
        ((x, half, 7, 0.5), {"WIDTH": 4, "GATE": "silu", "num_warps": 4}),
        ((x, x[1:], 7, 0.5), {"WIDTH": 4, "GATE": "silu", "num_warps": 4}),
        ((x[1:], x, 7, 0.5), {"WIDTH": 4, "GATE": "silu", "num_warps": 4}),
        ((x, x, 1, 0.5), {"WIDTH": 4, "GATE": "silu", "num_warps": 4}),
        ((x, x, 16, 0.5), {"WIDTH": 4, "GATE": "silu", "num_warps": 4}),
        ((x, x, 2**31 + 1, 0.5), {"WIDTH": 4, "GATE": "silu", "num_warps": 4}),
        ((x, x, 2**32, 0.5), {"WIDTH": 4, "GATE": "silu", "num_warps": 4}),
    ]
    for args, named in forms * 2:
        quick[(1,)](*args, **named)
    assert kernel.asked == len(forms)
    for args, named in [((x, x, 9, 0.25), forms[0][1]), ((half, half, 7, 0.5), forms[0][1])]:
        quick[(2,)](*args, **named)
    assert kernel.asked == len(forms) + 1, "a number like another one needs no form of its own; other types do"
