"""From the tensors of a module to its matrix."""

from __future__ import annotations

from collections.abc import Callable

from cadence.config.files.stored_as import StoredAs, StoredLayout
from cadence.models.quant.awq import AWQMatrix
from cadence.models.quant.bitsandbytes import RowScaledMatrix, TableMatrix
from cadence.models.quant.fp4 import MXFP4Matrix, NVFP4Matrix
from cadence.models.quant.gptq import GPTQMatrix
from cadence.models.quant.matrix import StoredMatrix
from cadence.models.quant.packed import PackedIntegers
from cadence.models.quant.plain import ScaledBytes
from cadence.models.quant.tensors import ModuleTensors

_READERS: dict[StoredLayout, Callable[[ModuleTensors, StoredAs], StoredMatrix]] = {
    StoredLayout.PACKED: PackedIntegers,
    StoredLayout.PLAIN: ScaledBytes,
    StoredLayout.NVFP4: NVFP4Matrix,
    StoredLayout.MXFP4: MXFP4Matrix,
    StoredLayout.GPTQ: GPTQMatrix,
    StoredLayout.AWQ: AWQMatrix,
    StoredLayout.BNB4: TableMatrix,
    StoredLayout.BNB8: RowScaledMatrix,
}


def read_matrix(tensors: ModuleTensors, stored: StoredAs) -> StoredMatrix:
    return _READERS[stored.layout](tensors, stored)
