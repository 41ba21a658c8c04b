"""Kernels compile for a GPU of compute capability 9.0, which need not be here, in the forms that matter there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.helpers.compiled import Compiler, forms
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.device, pytest.mark.slow]

ALWAYS = [  # one of each kernel
    "split attention, int8, bfloat16, 128",
    "prefill attention, int8, bfloat16, 64",
    "prefill attention both ways, bfloat16",
    "split attention in chunks, int8",
    "prefill attention in chunks, bfloat16",
    "write_kv, int8, bfloat16, 64",
    "rope_write_kv, int8, bfloat16, 64",
    "one row, Q8_0, 512, bfloat16",
    "codes of one row",
    "codes of several rows, bf16",
    "walk of heads, one token",
    "heads in chunks, bfloat16",
]


@pytest.fixture(scope="module")
def compiler(request: pytest.FixtureRequest) -> Iterator[Compiler]:
    """Of all forms that are chosen."""
    here = [item for item in request.session.items if item.path == request.path]
    with closing(Compiler([item.callspec.params["form"] for item in here if hasattr(item, "callspec")])) as found:
        yield found


@pytest.mark.parametrize("form", mostly_wide(forms(), ALWAYS))
def test_a_kernel_compiles(form: str, compiler: Compiler) -> None:
    assert not compiler.fault_of(form)


def test_forms_that_are_always_compiled_exist() -> None:
    assert set(ALWAYS) <= forms().keys()
