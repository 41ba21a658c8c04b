"""The kernel for one row of planes of words, compiled for a GPU that need not be here.

Triton 3.6 sums up numbers more than once along a dimension whose threads hold them more than once, with others that do
not between them: no sum may be taken over such a layout.
"""

from __future__ import annotations

import re
from functools import partial

from tests.helpers.compiled import POINTERS, compile_for_gpu

_PLANES = {"torch.uint8": "*u8", "torch.int8": "*i8", "torch.float16": "*fp16", "torch.int32": "*i32"}
_REPEATED = re.compile(r"(#linear\d*) = #ttg\.linear<.*lane = \[(?:\[[^\]]*\], )*\[0(?:, 0)*\]")


def _check(kind: str, width: int, dtype: str) -> None:
    from cadence.kernels.triton.lowbit.block_planes import FORMS
    from cadence.kernels.triton.lowbit.span_gemv import span_gemv
    from cadence.kernels.triton.lowbit.span_launch import KINDS

    form, how = FORMS[kind], KINDS[kind]
    planes = [_PLANES[str(field[2])] for field in form.fields]
    types = {name: planes[place] for name, place in zip("abcd", how.planes, strict=True)}
    types |= dict.fromkeys(("out_ptr", "total_ptr", "x_ptr", "residual_ptr", "norm_ptr"), POINTERS[dtype])
    types |= {"bias_ptr": "*fp32", "eps": "fp32"}
    constants = {
        "WIDTH": width, "PARTS": 4, "ROWS": 4, "SPANS": width // 64, "GROUP": form.group, "GROUPS": 256 // form.group,
        "ZERO": how.zero, "SIGNED": how.made.signed, "SHIFTS": form.shifts, "LOAD": how.made.load,
        "VALUES": how.made.values, "SCALES": how.scales, "NORM": False, "GATE": "", "BIAS": True, "QUICK": True,
        "PDL": False,
    }  # fmt: skip
    text = compile_for_gpu(span_gemv, types, constants, {"num_warps": max(width // 2048, 1)}).asm["ttgir"]
    sums = re.findall(r'"tt\.reduce".*?\}\) : \((.*?)\) ->', text, re.DOTALL)
    assert len(sums) > 8, "four parts, each with sums over words, groups and blocks"
    for layout in _REPEATED.findall(text):
        assert not [found for found in sums if re.search(layout + r"\b", found)], layout


# Which were taken more than once on an H200, with the numbers of the first rows of every program.
FORMS = {
    f"one row, {kind}, {width}, {dtype}": partial(_check, kind, width, dtype)
    for kind, width, dtype in (("Q8_0", 512, "bfloat16"), ("Q4_K", 4096, "float32"))
}
