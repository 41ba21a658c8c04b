"""Triton's interpreter does once what it does at every call and operation: a sixteenth of the time of small kernels.

Nothing here changes a value. Kernels are numpy either way; what is saved is the making of types and shapes, the search
for builtins, and a check for overflows whose result is dropped.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
from typing import Any


def quicken_interpreter() -> None:
    """Where the interpreter is not loaded, nothing happens."""
    interpreter: Any = sys.modules.get("triton.runtime.interpreter")
    if interpreter is None:
        return
    _find_builtins_once(interpreter)
    _patch_once(interpreter)
    _leave_out_dropped_checks(interpreter.interpreter_builder)
    _make_shapes_once(interpreter.tl.core)
    _find_numpy_types_once(interpreter)


def _find_builtins_once(interpreter: Any) -> None:
    """At every call of a kernel, and of a function inside one, the interpreter looks through the whole language for
    builtins to replace: they are always the same."""
    is_builtin = interpreter.tl.core.is_builtin

    @functools.cache
    def builtins(package: Any) -> list[tuple[str, Any]]:
        return [(name, member) for name, member in inspect.getmembers(package) if is_builtin(member)]

    def patch_builtin(package: Any, builder: Any, scope: Any) -> None:
        for name, member in builtins(package):
            if getattr(package, name) is member:  # inside of a kernel it is replaced already
                interpreter._patch_attr(package, name, member, builder, scope)

    interpreter._patch_builtin = patch_builtin


class _PatchScope:
    """What a kernel has patched, until `restore`."""

    def __init__(self, scope: Any, patched: set[Any], added: frozenset[Any]) -> None:
        self._scope, self._patched, self._added = scope, patched, added

    def restore(self) -> None:
        self._patched -= self._added
        self._scope.restore()


def _patch_once(interpreter: Any) -> None:
    """A function that a kernel calls finds the language patched by the kernel; the interpreter patches it again."""
    patch_all, nothing = interpreter._patch_lang, interpreter._LangPatchScope()
    patched: set[Any] = set()

    @functools.cache
    def languages(fn: Any) -> frozenset[Any]:
        known = (interpreter.tl, interpreter.tl.core)
        return frozenset(value for value in fn.__globals__.values() if inspect.ismodule(value) and value in known)

    def patch_lang(fn: Any) -> Any:
        added = languages(fn) - patched
        if not added:
            return nothing
        scope = patch_all(fn)
        patched.update(added)
        return _PatchScope(scope, patched, added)

    interpreter._patch_lang = patch_lang


def _leave_out_dropped_checks(builder: Any) -> None:
    """Sums and products of whole numbers are computed again in 64 bits and compared. What comes of it is dropped:
    assertions count in debugged kernels alone."""
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)


def _make_shapes_once(core: Any) -> None:
    """Shapes of tensors and of their types are made, checked and named for each: here, once for all that are alike."""

    @functools.cache
    def of_type(element: str, shape: tuple[int, ...]) -> tuple[Any, int, str]:
        made = core.tuple(shape)
        return made, core.validate_block_shape(made), f"<{made}, {element}>"

    @functools.cache
    def of_tensor(shape: tuple[int, ...]) -> tuple[Any, Any]:
        return core.tuple([core.constexpr(size) for size in shape]), core.constexpr(math.prod(shape))

    def make_type(block: Any, element_ty: Any, shape: Any) -> None:
        if not len(shape):
            raise TypeError("0d block_type is forbidden")
        sizes = tuple(getattr(size, "value", size) for size in shape)  # of constexpr, what it holds
        block.element_ty = element_ty
        block.shape, block.numel, block.name = of_type(str(element_ty), sizes)

    def make_tensor(tensor: Any, handle: Any, type: Any) -> None:
        tensor.handle, tensor.type, tensor.dtype = handle, type, type.scalar
        tensor.shape, tensor.numel = of_tensor(tuple(type.shape) if type.is_block() else ())

    core.block_type.__init__ = make_type
    core.tensor.__init__ = make_tensor


def _find_numpy_types_once(interpreter: Any) -> None:
    find = interpreter._get_np_dtype
    pointer_type, found = interpreter.tl.pointer_type, {}

    def numpy_type(dtype: Any) -> Any:
        element = dtype.scalar
        name = "pointer" if isinstance(element, pointer_type) else element.name
        if name not in found:
            found[name] = find(dtype)
        return found[name]

    interpreter._get_np_dtype = numpy_type
