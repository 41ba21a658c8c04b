"""In how many bits a model's matrices are held, resolved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cadence.config.files.quantization_names import CHECKPOINT_METHODS
from cadence.config.files.stored_as import QuantizedFormat
from cadence.config.hf import HFConfig
from cadence.config.quantized import read_quantized
from cadence.config.reference import ModelFiles
from cadence.core.errors import ConfigError

if TYPE_CHECKING:
    from cadence.config.args import EngineArgs


def resolve_quantization(args: EngineArgs, files: ModelFiles, hf: HFConfig) -> str:
    """Not asked: blocks of a GGUF file or a quantised checkpoint are multiplied as they are where kernels of ours run,
    else widened."""
    stored = None if files.gguf is not None else read_quantized(hf)
    own = "gguf" if files.gguf is not None else "checkpoint" if stored is not None else "none"
    own = "none" if args.load_format == "dummy" else own
    packs = args.kernels != "reference"
    asked = _check_method(args, files, stored)
    if asked == "gguf" and own != "gguf":
        raise ConfigError(f"quantization=gguf: {files.name} is not a .gguf file; use int8 or int4", "quantization")
    if asked in (None, "gguf"):
        return own if packs else "none"
    if asked != "none" and not packs:
        raise ConfigError(f"quantization={asked}: plain torch multiplies tensors", "quantization")
    return asked


def _check_method(args: EngineArgs, files: ModelFiles, stored: QuantizedFormat | None) -> str | None:
    """What was asked, None where that is how the checkpoint is quantised anyway."""
    asked = args.quantization
    method = CHECKPOINT_METHODS.get(asked or "")
    if method is None or (asked == "fp8" and stored is None):
        return asked
    if stored is None or stored.method != method:
        found = "not quantised" if stored is None else f"quantised by {stored.method}"
        raise ConfigError(
            f"quantization={asked}: the weights of {files.name} are {found}; leave it out, or use int8 or int4",
            "quantization",
        )
    return None
