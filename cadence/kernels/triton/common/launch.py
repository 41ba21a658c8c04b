"""Launching a kernel without asking Triton each time which of its compiled forms is meant.

Triton works that out from every argument, by name, and reads its settings besides: with two dozen arguments that takes
longer than most kernels run, and a step that is not captured has hundreds of launches. Here a form that was launched
before is found by what it depends on, and called at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from cadence.kernels.triton.common.private import LoadedKernel, argument_names, is_interpreted, load, unspecialized

Word = int | float  # an argument as it goes down: of a tensor, its address


@dataclass(frozen=True, slots=True)
class _Form:
    kernel: LoadedKernel
    constants: tuple[object, ...]  # of the parameters after the arguments, in their order; the launch skips over them


class QuickKernel:
    """Used as the kernel itself is: kernel[grid](tensors and numbers in order, CONSTANT=..., num_warps=...).

    Kernels are launched on the current device, and every process has one.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel  # triton's JITFunction
        self._forms: dict[tuple[object, ...], _Form] = {}
        self._plain = unspecialized(kernel)

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return partial(self._launch, grid)

    def _launch(self, grid: tuple[int, ...], *args: Any, **named: object) -> None:
        words, key = _words(args, named, self._plain)
        form = self._forms.get(key)
        if form is None:
            compiled = self.kernel[grid](*args, **named)
            constants = tuple(named[name] for name in argument_names(self.kernel)[len(args) :])
            self._forms[key] = _Form(load(compiled), constants)
            return
        kernel = form.kernel
        stream = kernel.stream_of(kernel.current_device())
        kernel.run(*grid, *(1, 1, 1)[len(grid) :], stream, *kernel.fixed, *words, *form.constants)


def _words(
    args: tuple[Any, ...], named: dict[str, object], plain: frozenset[int]
) -> tuple[list[Word], tuple[object, ...]]:
    """-> (the arguments as they go down, what a compiled form depends on).

    Triton has a form of its own for numbers that are 1, for those and for addresses that are multiples of 16, and for
    numbers that need 64 bits; of arguments at `plain` places only for the last.
    """
    words: list[Word] = []
    key: list[object] = [*named.items()]
    for place, arg in enumerate(args):
        kind = type(arg)
        if kind is int:
            words.append(arg)
            key.append(
                arg.bit_length() > 31 if place in plain else 1 if arg == 1 else (arg % 16 == 0, arg.bit_length() > 31)
            )
        elif kind is float:
            words.append(arg)
        else:
            address = arg.data_ptr()
            words.append(address)
            key.append((arg.dtype, place in plain or address % 16 == 0))
    return words, tuple(key)


def quick(kernel: Any) -> Any:
    """The interpreter has no compiled forms."""
    return kernel if is_interpreted() else QuickKernel(kernel)
