"""Kernels of codes into a table, compiled for a GPU that need not be here: the interpreter does not see what they do
there in instructions of its own."""

from __future__ import annotations

import re
from functools import partial

import torch

from tests.helpers.compiled import compile_for_gpu

_STORED = {"scale_ptr": "*fp32", "zero_ptr": "*fp32", "bias_ptr": "*fp32", "table_ptr": "*i32", "eps": "fp32"}
_COMMON = {"WIDTH": 1024, "GROUP": 64, "ZEROS": False, "BIAS": False, "QUICK": True, "PDL": True}


_MODEL = ("out_ptr", "total_ptr", "x_ptr", "residual_ptr", "norm_ptr")


def _one_row() -> None:
    from cadence.kernels.triton.lowbit.few_bits_gemv import gemv4

    one = {"PARTS": 1, "ROWS": 4, "WORDS": 128, "NORM": True, "GATE": "silu", "TABLE": True}
    types = dict.fromkeys(_MODEL, "*bf16") | _STORED | {"weight_ptr": "*i32"}
    text = compile_for_gpu(gemv4, types, _COMMON | one, {"num_warps": 1, "launch_pdl": True}).asm["ptx"]
    assert text.count("dp4a.s32.s32") == 6 * 4 * 4, "six for every eight codes of four words of four rows"


def _several_rows(half: str) -> None:
    from cadence.kernels.triton.lowbit.few_bits_table import code_table
    from cadence.kernels.triton.lowbit.few_bits_wide import wide

    several = {"ROWS": 16, "OUTPUTS": 64, "COLUMNS": 64, "FOUR": True, "EVEN": True, "TERMS": 1, "PRECISION": "tf32"}
    table = code_table(torch.linspace(-1, 1, 16))
    lookup = table.in_bfloat16 if half == "bf16" else table.in_float16
    types = dict.fromkeys(_MODEL, f"*{half}") | _STORED | {"weight_ptr": "*i16"}
    options = {"num_warps": 4, "num_stages": 2, "launch_pdl": True}
    found = compile_for_gpu(wide, types, _COMMON | several | {"LOOKUP": lookup}, options)
    assert "wgmma" in found.asm["ptx"], half
    assert not re.search("convert_layout.*->.*dot_op", found.asm["ttgir"]), f"{half} goes by way of shared memory"


FORMS = {
    "codes of one row": _one_row,
    "codes of several rows, bf16": partial(_several_rows, "bf16"),
    "codes of several rows, fp16": partial(_several_rows, "fp16"),
}
