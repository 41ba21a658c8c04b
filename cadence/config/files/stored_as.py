"""How the matrix of a module lies in a quantised checkpoint, and which modules lie so."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from cadence.config.files.module_names import ModuleNames


class StoredLayout(Enum):
    """Which tensors make a matrix W [rows, cols], and what they hold."""

    PACKED = "weight_packed, int32 words of integers along columns"
    PLAIN = "weight, int8 or float8"
    NVFP4 = "weight_packed, two E2M1 numbers a byte, a float8 scale for 16"
    MXFP4 = "weight_packed, two E2M1 numbers a byte, a power of two for 32"
    GPTQ = "qweight, int32 words of integers along columns, transposed"
    AWQ = "qweight, int32 words of eight rows in an order of their own, transposed"
    BNB4 = "weight, two indices into a table a byte"
    BNB8 = "weight, int8, and SCB, the largest of each row"


@dataclass(frozen=True, slots=True)
class StoredAs:
    layout: StoredLayout
    bits: int
    group: int = 0  # columns of a row that share a scale; 0 = all of them
    block: tuple[int, int] = (0, 0)  # rows and columns that share a scale; (0, 0) = no such blocks
    symmetric: bool = True  # no zero points are stored
    zero_offset: int = 0  # added to zero points as they are stored
    per_tensor: bool = False  # one scale for all of it; what has one for each row instead is read as well


@dataclass(frozen=True, slots=True)
class SchemeOf:
    targets: ModuleNames
    stored: StoredAs


@dataclass(frozen=True, slots=True)
class QuantizedFormat:
    method: str
    schemes: tuple[SchemeOf, ...]
    left_out: ModuleNames

    def stored_as(self, module: str) -> StoredAs | None:
        """None = the module is not quantised. Names and patterns count before classes, then the first that fits."""
        if self.left_out.names(module) or self.left_out.has_class_of(module):
            return None
        found = next((scheme for scheme in self.schemes if scheme.targets.names(module)), None)
        found = found or next((scheme for scheme in self.schemes if scheme.targets.has_class_of(module)), None)
        return None if found is None else found.stored
