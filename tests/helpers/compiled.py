"""Kernels compiled for a GPU that need not be here: what Triton or ptxas refuses shows without one.

    python -m tests.helpers.compiled FORM...

A process of its own compiles all forms that are asked for, since the one of the tests may have chosen Triton's
interpreter. It prints a line of JSON for each: its name, and what is wrong with it or nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

POINTERS = {
    "bfloat16": "*bf16",
    "float32": "*fp32",
    "int8": "*i8",
    "float8_e4m3fn": "*fp8e4nv",
    "float8_e5m2": "*fp8e5",
}
_UNALIGNED = ("constexpr", "fp32")


class Compiler:
    """One process compiles all forms, in their order, while tests wait for theirs."""

    def __init__(self, forms: Sequence[str]) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
        command = [sys.executable, "-m", "tests.helpers.compiled", *forms]
        self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        self._faults: dict[str, str] = {}

    def fault_of(self, form: str) -> str:
        """What is wrong with it; nothing where it compiles and is as it should be."""
        assert self._process.stdout is not None
        while form not in self._faults:
            line = self._process.stdout.readline()
            if not line:
                return f"ended with {self._process.wait()}"
            if line.startswith("["):
                name, fault = json.loads(line)
                self._faults[name] = fault
        return self._faults[form]

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def compile_for_gpu(kernel: Any, types: dict[str, str], constants: dict[str, Any], options: dict[str, Any]) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = kernel.kernel if hasattr(kernel, "kernel") else kernel
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in kernel.arg_names}
    whole = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind not in _UNALIGNED}
    source = ASTSource(kernel, signature, constants, whole)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def forms() -> dict[str, Callable[[], None]]:
    """Every form by its name, and what compiles and checks it."""
    from tests.helpers import compiled_caches, compiled_spans, compiled_states, compiled_tables

    return {**compiled_caches.FORMS, **compiled_spans.FORMS, **compiled_states.FORMS, **compiled_tables.FORMS}


def _main(names: list[str]) -> None:
    known = forms()
    for name in names:
        try:
            known[name]()
            fault = ""
        except Exception:
            fault = traceback.format_exc()[-4000:]
        print(json.dumps([name, fault]), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1:])
