"""Matrices as quantised checkpoints store them: tensors by what follows a module's name, and what they stand for."""

from __future__ import annotations

import json
from typing import Any

import torch

Written = tuple[dict[str, torch.Tensor], torch.Tensor]
_AWQ_ROWS = (0, 2, 4, 6, 1, 3, 5, 7)  # of a word, from its lowest bits on
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
_FP4 = (0.0, 0.0052083333, 0.6666667, 1.0, 0.3333333, 0.5, 0.1666667, 0.25)  # then the same below zero


# ---- compressed-tensors ----


def compressed_config(args: dict[str, Any], all_of_it: bool, inputs: dict[str, Any] | None) -> dict[str, Any]:
    weights = {key: value for key, value in args.items() if key != "format"}
    targets = ["Linear", "Embedding"] if all_of_it else ["Linear"]
    group = {"targets": targets, "weights": weights, "input_activations": inputs, "output_activations": None}
    return {
        "quant_method": "compressed-tensors",
        "format": _format(args),
        "config_groups": {"group_0": group},
        "ignore": [] if all_of_it else ["re:.*lm_head"],
        "quantization_status": "compressed",
    }


def _format(args: dict[str, Any]) -> str:
    if args["type"] == "float" and args["num_bits"] == 4:
        return "mxfp4-pack-quantized" if args["group_size"] == 32 else "nvfp4-pack-quantized"
    if args["type"] == "float":
        return "float-quantized"
    return args.get("format") or "pack-quantized"


def compressed(weight: torch.Tensor, args: dict[str, Any], dtype: torch.dtype) -> Written:
    """Written and read back by the library. dtype: of the scales"""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    library = QuantizationArgs(**{key: value for key, value in args.items() if key != "format"})
    scheme = QuantizationScheme(targets=["Linear"], weights=library)
    state = {"weight": weight.to(torch.bfloat16), **_parameters(weight, args, dtype)}
    compressor = BaseCompressor.get_value_from_registry(_format(args))
    stored = compressor.compress(state, scheme)
    values = compressor.decompress(dict(stored), scheme)["weight"]
    return {name: tensor for name, tensor in stored.items() if tensor is not None}, values


def _parameters(weight: torch.Tensor, args: dict[str, Any], dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Scales, zero points and global scales that fit the matrix."""
    rows, cols = weight.shape
    most = {("int", 4): 7.0, ("int", 8): 127.0, ("float", 8): 448.0, ("float", 4): 6.0}[args["type"], args["num_bits"]]
    if args["strategy"] == "block":
        cells = _cells(weight).transpose(1, 2).flatten(2)
    else:
        width = {"tensor": rows * cols, "channel": cols}.get(args["strategy"]) or args["group_size"]
        cells = weight.reshape(-1, max(1, cols // width), width) if width <= cols else weight.reshape(1, -1)
    top = cells.abs().amax(-1)
    if _format(args).startswith("mxfp4"):
        return {"weight_scale": torch.exp2(torch.floor(torch.log2(top)) - 2)}
    if _format(args).startswith("nvfp4"):
        whole = (448.0 * 6.0 / weight.abs().max()).view(1)
        return {"weight_scale": (whole * top / most).to(torch.float8_e4m3fn).float(), "weight_global_scale": whole}
    if args["symmetric"]:
        return {"weight_scale": (top / most).to(dtype)}
    low, high = cells.amin(-1).clamp(max=0), cells.amax(-1).clamp(min=0)
    scale = ((high - low) / (2 * most + 1)).to(dtype)
    zero = torch.round(-low / scale.float() - most - 1).clamp(-most - 1, most)
    return {"weight_scale": scale, "weight_zero_point": zero.to(torch.int8)}


# ---- GPTQ, AWQ ----


def gptq(
    weight: torch.Tensor, bits: int, group: int, *, symmetric: bool = False, offset: int = 1, shuffled: bool = False
) -> Written:
    """offset: what zero points are stored less; shuffled: columns belong to groups as they happen to"""
    cols = weight.shape[1]
    group_of = torch.arange(cols) // group
    if shuffled:
        group_of = group_of[torch.randperm(cols, generator=torch.Generator().manual_seed(cols))]
    quants, zeros, scales = _integers(weight, bits, group_of, symmetric)
    values = scales[:, group_of] * (quants - zeros[:, group_of]).to(torch.float16)
    tensors = {
        "qweight": _words(quants.t(), bits, dim=0),
        "qzeros": _words((zeros.t() - offset) % (1 << bits), bits, dim=1),
        "scales": scales.t(),
        "g_idx": group_of.to(torch.int32),
        "bias": torch.zeros(weight.shape[0], dtype=torch.float16),  # as its writers add to every module
    }
    return tensors, values


def awq(weight: torch.Tensor, group: int) -> Written:
    group_of = torch.arange(weight.shape[1]) // group
    quants, zeros, scales = _integers(weight, 4, group_of, symmetric=False)
    values = (quants - zeros[:, group_of]).to(torch.float16) * scales[:, group_of]
    tensors = {"qweight": _awq_words(quants.t()), "qzeros": _awq_words(zeros.t()), "scales": scales.t()}
    return tensors, values


def _integers(
    weight: torch.Tensor, bits: int, group_of: torch.Tensor, symmetric: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-> quants [rows, cols], zeros [rows, groups], scales [rows, groups]"""
    top, zeros, scales = (1 << bits) - 1, [], []
    for index in range(int(group_of.max()) + 1):
        own = weight[:, group_of == index]
        if symmetric:
            scales.append(own.abs().amax(1) / ((top + 1) // 2 - 1))
            zeros.append(torch.full((weight.shape[0],), (top + 1) // 2))
        else:
            low, high = own.amin(1).clamp(max=0), own.amax(1).clamp(min=0)
            scales.append((high - low) / top)
            zeros.append(torch.round(-low / scales[-1]).to(torch.int64).clamp(0, top))
    scale, zero = torch.stack(scales, 1).to(torch.float16), torch.stack(zeros, 1)
    quants = torch.round(weight / scale.float()[:, group_of]).to(torch.int64) + zero[:, group_of]
    return quants.clamp(0, top), zero, scale


def _words(numbers: torch.Tensor, bits: int, dim: int) -> torch.Tensor:
    """Those along `dim` side by side in words, the first in the lowest bits."""
    runs = numbers.unflatten(dim, (-1, 32 // bits))
    places = (torch.arange(32 // bits) * bits).view([-1 if i == dim + 1 else 1 for i in range(runs.dim())])
    return _as_int32((runs << places).sum(dim + 1))


def _awq_words(numbers: torch.Tensor) -> torch.Tensor:
    words = torch.zeros(numbers.shape[0], numbers.shape[1] // 8, dtype=torch.int64)
    for place, row in enumerate(_AWQ_ROWS):
        words |= numbers[:, row::8] << (4 * place)
    return _as_int32(words)


def _as_int32(words: torch.Tensor) -> torch.Tensor:
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


# ---- fp8, bitsandbytes ----


def fp8_blocks(weight: torch.Tensor) -> Written:
    """Read back by transformers."""
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    rows, cols = weight.shape
    cells = _cells(weight)
    scales = cells.abs().amax((1, 3)) / 448.0
    numbers = (cells / scales[:, None, :, None]).flatten(2).flatten(0, 1)[:rows, :cols].to(torch.float8_e4m3fn)
    values = Fp8Dequantize(None)._dequantize_one(numbers, scales, torch.bfloat16)
    return {"weight": numbers, "weight_scale_inv": scales}, values


def _cells(weight: torch.Tensor) -> torch.Tensor:
    """-> [blocks of rows, 128, blocks of columns, 128], with zeros where the matrix ends"""
    rows, cols = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -cols % 128, 0, -rows % 128))
    return padded.view(-(-rows // 128), 128, -(-cols // 128), 128)


def bnb_table(kind: str) -> torch.Tensor:
    """[16]"""
    return torch.tensor(_NF4 if kind == "nf4" else (*_FP4, *(-number for number in _FP4)))


def bnb4(weight: torch.Tensor, kind: str, nested: bool) -> Written:
    table = bnb_table(kind)
    flat = weight.reshape(-1, 64)
    largest = flat.abs().amax(1)
    tensors, state = {}, {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": list(weight.shape)}
    if nested:
        offset = float(largest.mean())
        steps = torch.linspace(-1.0, 1.0, 256)
        top = (largest - offset).abs().amax().view(1)
        index = ((largest - offset)[:, None] / top - steps).abs().argmin(1)
        largest = steps[index] * top + offset
        tensors |= {
            "weight.nested_absmax": top,
            "weight.nested_quant_map": steps,
            "weight.absmax": index.to(torch.uint8),
        }
        state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": offset}
        assert largest.numel() <= 256 * 2  # of one nested block, or two
        tensors["weight.nested_absmax"] = top.expand(-(-largest.numel() // 256)).clone()
    else:
        tensors["weight.absmax"] = largest
    codes = ((flat / largest[:, None])[..., None] - table).abs().argmin(-1).view(-1, 2)
    values = (table[codes.view(-1, 64)] * largest[:, None]).view(weight.shape).to(torch.bfloat16)
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    tensors |= {"weight.quant_map": table, f"weight.quant_state.bitsandbytes__{kind}": text}
    return tensors | {"weight": (codes[:, 0] * 16 + codes[:, 1]).to(torch.uint8)[:, None]}, values


def bnb8(weight: torch.Tensor) -> Written:
    largest = weight.abs().amax(1)
    numbers = torch.round(weight * (127.0 / largest[:, None])).to(torch.int8)
    values = numbers.float() * largest[:, None] * 7.874015718698502e-3
    marks = {"SCB": largest, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return {"weight": numbers, **marks}, values.to(torch.bfloat16)
