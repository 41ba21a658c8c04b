"""How a checkpoint's matrices are quantised: `quantization_config` of config.json, read once and checked.

| `quant_method` | what is read of it |
|---|---|
| compressed-tensors | `config_groups` with their targets, `format`, `ignore`; `kv_cache_scheme` |
| gptq | `bits`, `group_size`, `checkpoint_format`, `dynamic` |
| awq | `bits`, `group_size`, `version`, `modules_to_not_convert` |
| fp8 | `weight_block_size`, `modules_to_not_convert`, `ignored_layers` |
| bitsandbytes | `load_in_4bit`, `load_in_8bit`, `llm_int8_skip_modules` |

What activations were to be rounded to is not looked at: weights alone are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cadence.config.files.field_types import Boolean, FieldType, Integer, ListOf, Nullable, String
from cadence.config.files.fields import wrong
from cadence.config.files.module_names import ModuleNames
from cadence.config.files.quantization_names import METHODS
from cadence.config.files.stored_as import QuantizedFormat, SchemeOf, StoredAs, StoredLayout
from cadence.config.hf import HFConfig
from cadence.core.errors import ModelFileError
from cadence.core.shown import shown

FIELD = "quantization_config"
TRANSPOSED = ("GPT2LMHeadModel",)  # matrices lie [in, out], and whether quantised ones do depends on the writer

_SIZE = Integer(1, 1 << 20)
_GROUP = Nullable(Integer(-1, 1 << 20))
_CT_LAYOUTS = {
    "pack-quantized": StoredLayout.PACKED,
    "int-quantized": StoredLayout.PLAIN,
    "float-quantized": StoredLayout.PLAIN,
    "naive-quantized": StoredLayout.PLAIN,
    "nvfp4-pack-quantized": StoredLayout.NVFP4,
    "mxfp4-pack-quantized": StoredLayout.MXFP4,
}
_SHAPES = ("tensor", "channel", "group", "tensor_group", "block")


def read_quantized(hf: HFConfig) -> QuantizedFormat | None:
    """None = the checkpoint holds plain values. What is not read is refused, in a sentence."""
    raw = hf.get(FIELD) or hf.get("compression_config")  # the older name
    if not isinstance(raw, dict) or not raw:
        return None
    section = _Section(raw, hf.source)
    method = raw.get("quant_method") or ("compressed-tensors" if "config_groups" in raw else None)
    if method not in METHODS:
        raise ModelFileError(
            f"{hf.source}: its weights are quantised by {shown(method)}, which is not read here (read are "
            f"{', '.join(METHODS)}); take it unquantised (quantization=int8 or int4 quantises it while loading), or a "
            "GGUF file",
            FIELD,
        )
    if hf.family in TRANSPOSED:
        raise ModelFileError(f"{hf.source}: quantised checkpoints of {hf.architecture} are not read", FIELD)
    return _READERS[method](section)


def kv_cache_of(hf: HFConfig) -> str:
    """The type of the KV cache that a quantised checkpoint was made for: fp8_e4m3, or "" where it says nothing of one,
    or of another than that."""
    raw = hf.get(FIELD) or hf.get("compression_config")
    if not isinstance(raw, dict) or raw.get("kv_cache_scheme") is None:
        return ""
    scheme = _Section(raw, hf.source).inner("kv_cache_scheme")
    is_float = scheme.one_of("type", ("int", "float"), "int") == "float"
    return "fp8_e4m3" if is_float and scheme.get("num_bits", Integer(2, 16), 8) == 8 else ""


class _Section:
    """An object of the file. Messages name its fields by their whole path."""

    def __init__(self, raw: Mapping[str, Any], source: Path, path: str = FIELD) -> None:
        self.raw = raw
        self.source = source
        self._path = path

    def get(self, name: str, kind: FieldType, default: Any) -> Any:
        value = self.raw.get(name, default)
        try:
            return kind.read(value)
        except (ValueError, OverflowError):
            raise self.wrong(name, kind.expected, value) from None

    def one_of(self, name: str, known: tuple[str, ...], default: str | None = None) -> str:
        value = self.raw.get(name, default)
        if not isinstance(value, str) or value not in known:
            raise self.wrong(name, f"one of {', '.join(known)}", value)
        return value

    def inner(self, name: str) -> _Section:
        value = self.raw.get(name)
        if not isinstance(value, dict):
            raise self.wrong(name, "an object", value)
        return _Section(value, self.source, f"{self._path}.{name}")

    def names(self, name: str) -> tuple[str, ...]:
        return tuple(self.get(name, Nullable(ListOf(String())), None) or ())

    def wrong(self, name: str, expected: str, value: object) -> ModelFileError:
        return wrong(self.source, f"{self._path}.{name}", expected, value)

    def patterns(self, names: tuple[str, ...], exact: bool) -> ModuleNames:
        try:
            return ModuleNames.of(names, exact)
        except ValueError as error:
            raise ModelFileError(f"{self.source}: {self._path}: {error}", FIELD) from None


def _compressed_tensors(section: _Section) -> QuantizedFormat:
    groups = section.inner("config_groups")
    every = str(section.raw.get("format", ""))[:64]
    schemes = []
    for name in list(groups.raw)[:256]:
        group = groups.inner(name)
        if group.raw.get("weights") is None:
            continue
        stored = _compressed_weights(group.inner("weights"), group, every)
        schemes.append(SchemeOf(group.patterns(group.names("targets"), exact=True), stored))
    return QuantizedFormat("compressed-tensors", tuple(schemes), section.patterns(section.names("ignore"), exact=True))


def _compressed_weights(weights: _Section, group: _Section, every: str) -> StoredAs:
    kind = weights.one_of("type", ("int", "float"), "int")
    bits = weights.get("num_bits", Integer(2, 8), 8)
    scales = weights.one_of("strategy", _SHAPES, "tensor")
    named = str(group.raw.get("format") or every)[:64]
    if named in ("mixed-precision", "", "dense"):
        named = _usual_format(kind, bits, weights)
    if named not in _CT_LAYOUTS:
        raise group.wrong("format", f"one of {', '.join(_CT_LAYOUTS)}", named)
    layout = _CT_LAYOUTS[named]
    if bits not in {StoredLayout.PACKED: (2, 4, 8), StoredLayout.PLAIN: (8,)}.get(layout, (4,)):
        raise weights.wrong("num_bits", f"a number of bits that {named} is read with", bits)
    grouped = scales in ("group", "tensor_group")
    size = weights.get("group_size", _GROUP, None)
    if grouped and (size is None or size < 1):
        raise weights.wrong("group_size", "the columns of a group", size)
    block = weights.get("block_structure", Nullable(ListOf(_SIZE)), None) if scales == "block" else (0, 0)
    if block is None or len(block) != 2:
        raise weights.wrong("block_structure", "the rows and columns of a block", block)
    symmetric = weights.get("symmetric", Boolean(), True)
    return StoredAs(
        layout, bits, size if grouped else 0, (block[0], block[1]), symmetric, per_tensor=scales == "tensor"
    )


def _usual_format(kind: str, bits: int, weights: _Section) -> str:
    """Of groups that name none."""
    if kind == "float" and bits == 4:
        return "mxfp4-pack-quantized" if weights.raw.get("group_size") == 32 else "nvfp4-pack-quantized"
    return "float-quantized" if kind == "float" else "int-quantized" if bits == 8 else "pack-quantized"


def _gptq(section: _Section) -> QuantizedFormat:
    usual = _gptq_scheme(section, section)
    schemes, left_out = [], []
    dynamic = section.inner("dynamic") if section.raw.get("dynamic") else _Section({}, section.source)
    for name in list(dynamic.raw)[:256]:
        if name.startswith("-:"):
            left_out.append("re:" + name[2:])
        else:
            own = dynamic.patterns(("re:" + name.removeprefix("+:"),), exact=True)
            schemes.append(SchemeOf(own, _gptq_scheme(dynamic.inner(name), section)))
    every = SchemeOf(ModuleNames.of(("Linear", "Embedding"), exact=True), usual)
    return QuantizedFormat("gptq", (*schemes, every), dynamic.patterns(tuple(left_out), exact=True))


def _gptq_scheme(own: _Section, every: _Section) -> StoredAs:
    """What a part of the model says for itself, else what is said for all."""
    merged = _Section({**every.raw, **own.raw}, every.source)
    bits = merged.get("bits", Integer(2, 8), None)
    if bits not in (2, 4, 8):
        raise merged.wrong("bits", "2, 4 or 8", bits)
    written = merged.one_of("checkpoint_format", ("gptq", "gptq_v2"), "gptq")
    return StoredAs(StoredLayout.GPTQ, bits, _group(merged), zero_offset=1 if written == "gptq" else 0)


def _awq(section: _Section) -> QuantizedFormat:
    bits = section.raw.get("bits", section.raw.get("w_bit"))
    if bits != 4:
        raise section.wrong("bits", "4", bits)
    version = str(section.raw.get("version", "gemm"))[:64].lower()
    if version != "gemm":
        raise section.wrong("version", "gemm, the one layout of AWQ that is read", version)
    stored = StoredAs(StoredLayout.AWQ, 4, _group(section), symmetric=not section.get("zero_point", Boolean(), True))
    return _one_scheme("awq", stored, section, "modules_to_not_convert")


def _fp8(section: _Section) -> QuantizedFormat:
    section.one_of("fmt", ("e4m3", "float8_e4m3fn"), "e4m3")
    block = section.get("weight_block_size", Nullable(ListOf(_SIZE)), None)
    if block is not None and len(block) != 2:
        raise section.wrong("weight_block_size", "the rows and columns of a block", block)
    sizes = (block[0], block[1]) if block else (0, 0)
    stored = StoredAs(StoredLayout.PLAIN, 8, block=sizes, per_tensor=block is None)
    return _one_scheme("fp8", stored, section, "modules_to_not_convert", "ignored_layers")


def _bitsandbytes(section: _Section) -> QuantizedFormat:
    four = section.get("load_in_4bit", Boolean(), section.raw.get("_load_in_4bit", False))
    eight = section.get("load_in_8bit", Boolean(), section.raw.get("_load_in_8bit", False))
    if four == eight:
        raise section.wrong("load_in_4bit", "true, or else load_in_8bit", four)
    stored = StoredAs(StoredLayout.BNB4, 4) if four else StoredAs(StoredLayout.BNB8, 8)
    return _one_scheme("bitsandbytes", stored, section, "llm_int8_skip_modules")


def _group(section: _Section) -> int:
    """Columns of a group; 0 = all."""
    size = section.get("group_size", _GROUP, section.raw.get("q_group_size", -1))
    if size == 0:
        raise section.wrong("group_size", "the columns of a group, or -1", size)
    return 0 if size is None or size < 0 else size


def _one_scheme(method: str, stored: StoredAs, section: _Section, *left_out: str) -> QuantizedFormat:
    every = ModuleNames.of(("Linear", "Embedding"), exact=True)
    names = tuple(name for field in left_out for name in section.names(field))
    return QuantizedFormat(method, (SchemeOf(every, stored),), section.patterns(names, exact=False))


_READERS: dict[str, Callable[[_Section], QuantizedFormat]] = {
    "compressed-tensors": _compressed_tensors,
    "gptq": _gptq,
    "awq": _awq,
    "fp8": _fp8,
    "bitsandbytes": _bitsandbytes,
}
