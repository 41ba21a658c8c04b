"""What a model would become, by its configuration and the headers of its files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from cadence.config.context_length import model_context_length, window_of
from cadence.config.hf import HFConfig, load_hf_config
from cadence.config.implemented import implemented
from cadence.config.quantized import read_quantized
from cadence.config.reference import ModelFiles
from cadence.core.errors import CadenceError, ModelFileError
from cadence.core.model.architectures import ARCHITECTURES, ENCODER_DECODERS, ENCODERS
from cadence.entrypoints.cli.models.stored import StoredSizes, stored_in

_ATTENDING = ("attention", "full_attention", "sliding_attention", "chunked_attention", "hybrid")  # kinds of layers
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Outlook:
    architecture: str
    why_not: str = ""  # "" = it can be run
    code: str = ""  # whose: cadence | transformers | registered | remote
    where: str = ""  # the class, or transformers' name of the family
    dtype: str = ""  # of the checkpoint
    quantization: str = ""  # "" = none
    stored: StoredSizes = field(default_factory=lambda: StoredSizes(0, 0, 0))
    max_model_len: int = 0
    kv_layers: int = 0  # that keep keys and values
    kv_bytes_per_token: int = 0  # of all of them, in the checkpoint's type; 0 = it has no cache of its own
    window: int = 0  # tokens that layers with one, or with chunks, keep; 0 = none has
    state_layers: int = 0  # that keep a state of one size instead

    @property
    def kv_bytes(self) -> int:
        """Of one request as long as the model was made for, where no layer has a window."""
        return self.kv_bytes_per_token * self.max_model_len

    @property
    def memory_bytes(self) -> int:
        return self.stored.num_bytes + self.kv_bytes


def outlook(files: ModelFiles, model_impl: str, trust_remote_code: bool) -> Outlook:
    hf = load_hf_config(files)
    try:
        hf = implemented(hf, model_impl, trust_remote_code)
    except ModelFileError as error:
        return Outlook(hf.architecture, why_not=str(error).removeprefix(f"{hf.source}: "))
    method, bits = _quantization(files, hf)
    heads, kv = _kv_layers(hf)
    dtype = str(hf.get("dtype") or hf.get("torch_dtype") or "float32").removeprefix("torch.")
    layers = _num_layers(hf)
    return Outlook(
        architecture=hf.architecture,
        code=_code(hf),
        where=_where(hf),
        dtype="" if files.gguf is not None else dtype,
        quantization=method,
        stored=stored_in(files, bits),
        max_model_len=_length(hf),
        kv_layers=heads,
        kv_bytes_per_token=heads * kv * _BYTES.get(dtype, 2),
        window=window_of(hf),
        state_layers=layers - heads if hf.family not in (*ENCODERS, *ENCODER_DECODERS) else 0,
    )


def machine_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _code(hf: HFConfig) -> str:
    if hf.implementation.runs_remote_code:
        return "remote"
    if hf.implementation.through_transformers:
        return "transformers"
    return "registered" if hf.implementation.class_path else "cadence"


def _where(hf: HFConfig) -> str:
    own = hf.implementation
    if own.through_transformers:
        return own.model_type or str(hf.get("auto_map", {}).get("AutoModelForCausalLM", ""))
    file, _, name = ARCHITECTURES.get(hf.family, "").partition(":")
    return own.class_path or f"cadence.models.{file}:{name or hf.family}"


def _quantization(files: ModelFiles, hf: HFConfig) -> tuple[str, int]:
    """-> (the method, bits of packed numbers)"""
    if files.gguf is not None:
        return "gguf", 0
    found = read_quantized(hf)
    if found is None:
        return "", 0
    bits = next((scheme.stored.bits for scheme in found.schemes), 0)
    return found.method, bits


def _length(hf: HFConfig) -> int:
    try:
        return model_context_length(hf)
    except CadenceError:
        return 0


def _num_layers(hf: HFConfig) -> int:
    return int(hf.get("num_hidden_layers") or hf.get("n_layer") or hf.get("n_layers") or 0)


def _kv_layers(hf: HFConfig) -> tuple[int, int]:
    """-> (layers with keys and values, entries of both that each keeps of a token)"""
    heads = int(hf.get("num_attention_heads") or hf.get("n_head") or hf.get("n_heads") or 0)
    if not heads or hf.family in (*ENCODERS, *ENCODER_DECODERS):
        return 0, 0
    hidden = int(hf.get("hidden_size") or hf.get("n_embd") or hf.get("d_model") or hf.get("dim") or 0)
    if hf.get("qk_nope_head_dim") and hf.get("kv_lora_rank"):  # keys that are made of a shorter vector
        return _attending(hf), 2 * heads * (int(hf["qk_nope_head_dim"]) + int(hf.get("qk_rope_head_dim") or 0))
    shared = hf.get("multi_query") and not hf.get("new_decoder_architecture")  # one for all, in Falcon 7B
    kv_heads = 1 if shared else int(hf.get("num_key_value_heads") or hf.get("num_kv_heads") or heads)
    return _attending(hf), 2 * kv_heads * int(hf.get("head_dim") or hidden // heads)


def _attending(hf: HFConfig) -> int:
    """Layers that attend, of those that may keep a state instead."""
    layers = _num_layers(hf)
    for name in ("attn_layer_indices", "full_attn_idxs"):
        if isinstance(named := hf.get(name), list):
            return len(named)
    for name in ("layers_block_type", "layer_types"):
        if isinstance(kinds := hf.get(name), list):
            return sum(kind in _ATTENDING for kind in kinds)
    if period := int(hf.get("attn_layer_period") or 0):
        return len(range(int(hf.get("attn_layer_offset") or 0), layers, period))
    return layers
