"""Every op of the CPU that takes tokens, as a function of the places of those that it computes: what
tests/kernels/test_subset_of_tokens.py holds to its word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import torch

from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.cpu.packed.weights import PackedRows
from cadence.kernels.interface.expert_ops import PackedExperts, Routing
from cadence.kernels.interface.lora_ops import ENTRY_WORDS, NO_PART, LoraMap, LoraPart
from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.interface.ops import Activation, DrawParams, Rotation
from cadence.kernels.interface.speech_lines import SpeechLines, WrittenTokens
from cadence.kernels.reference.kv_rows import QUANTISED
from tests.helpers.kernel_checks_fused import one_token_each
from tests.helpers.packed_kinds import EVERY, make

Tensors = Sequence[torch.Tensor]
Op = Callable[[CpuOps, torch.dtype, torch.Tensor], Tensors]
FLOATS = [torch.float32, torch.bfloat16, torch.float16]
TOKENS, WIDTH, VOCABULARY, DIM = 70, 83, 40, 24  # parts of vectors, more rows than any tile has
SHUFFLED = torch.randperm(TOKENS, generator=torch.Generator().manual_seed(0))
IDS = (SHUFFLED * 7) % VOCABULARY
SLOTS = (SHUFFLED % 3 - 1).int()  # of adapters; -1: none


@cache
def drawn(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tokens(dtype: torch.dtype, at: torch.Tensor, seed: int = 0, width: int = WIDTH) -> torch.Tensor:
    return drawn(seed, TOKENS, width)[at].to(dtype)


def weights(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return drawn(9, *shape).to(dtype)


def affine(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, float]:
    return weights(dtype, WIDTH), drawn(8, WIDTH).to(dtype), 1e-5


def gate(name: str) -> Op:
    return lambda ops, dtype, at: [getattr(ops, name)(tokens(dtype, at, width=2 * WIDTH))]


def activate(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    return [ops.activate(tokens(dtype, at) * 4, kind) for kind in Activation]


def rms_norm(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    heads = tokens(dtype, at, width=3 * DIM).view(-1, 3, DIM)
    return [ops.rms_norm(tokens(dtype, at), affine(dtype)[0], 1e-5), ops.rms_norm(heads, weights(dtype, DIM), 1e-5)]


def heads_of(dtype: torch.dtype, at: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """q, k, v: new tensors."""
    return tokens(dtype, at, width=7 * DIM).view(-1, 7, DIM).split([3, 2, 2], dim=1)


def rope(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    q, k, _ = heads_of(dtype, at)
    ops.rope(q, k, at, drawn(4, TOKENS, DIM))
    return q, k


def empty_cache(dtype: torch.dtype) -> torch.Tensor:
    width = {torch.uint8: 20, torch.int8: DIM + 4}.get(dtype, DIM + 4 if dtype in QUANTISED else DIM)
    return torch.zeros((TOKENS, 2, 1, width), dtype=dtype)  # blocks of one token


def write_kv(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    written = []
    for cache_dtype in (*FLOATS, *QUANTISED):
        caches = empty_cache(cache_dtype), empty_cache(cache_dtype)
        ops.write_kv(heads_of(dtype, at)[1:], caches, at)
        written += [each.view(torch.uint8)[at] for each in caches]
    return written


def rope_write_kv(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    rotation = Rotation(drawn(4, TOKENS, DIM), (weights(dtype, DIM), weights(dtype, DIM)), 1e-6)
    k, v = empty_cache(dtype), empty_cache(dtype)
    q = ops.rope_write_kv(heads_of(dtype, at), at, rotation, (k, v), one_token_each(at, at), 0)  # type: ignore[arg-type]
    return q, k[at], v[at]


def masked(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    logits, masks = tokens(dtype, at), torch.arange(TOKENS * 3, dtype=torch.int32).view(-1, 3) * 77_777
    ops.apply_token_mask(logits, masks, at.int())
    return [logits]


def ruled(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    logits, table = tokens(torch.float32, at, width=3001), torch.tensor([7, 2990, 8, 2995, 2995], dtype=torch.int32)
    lengths = 2 + at % 4
    times = torch.tensor([2980, 2979, 2970, 2985]).repeat(len(at), 1)
    pairs = torch.stack([torch.arange(len(at)), at], 1)
    written = WrittenTokens(table[None], torch.zeros_like(at), lengths, torch.full_like(at, 2))
    ops.apply_speech_rules(logits, SpeechLines(pairs, pairs + torch.tensor([0, 1]), times, 5), written)
    return [logits]


def draw(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    params = DrawParams(drawn(3, TOKENS).abs() + 0.1, SHUFFLED, (SHUFFLED % 4 > 0).int())
    logits, ids = tokens(dtype, at, width=3001), torch.arange(3001, dtype=torch.int32).flip(0)
    return [*ops.draw(logits, at, at, params), *ops.draw(logits, at, at, params, ids)]


@cache
def tables(dtype: torch.dtype) -> list[PackedRows]:
    """Of every kind."""
    return [PackedRows([make(name, VOCABULARY, 256)], dtype) for name in EVERY]


def lookup(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    return [ops.packed.lookup(IDS[at], table, 1.7) for table in tables(dtype)]


def adapters(ops: CpuOps, parts: list[LoraPart], columns: int, embedding: bool = False) -> LoraMap:
    """One per slot."""
    slots = {slot: (ops.lora.arranged(part, embedding),) for slot, part in enumerate(parts)}
    entries = torch.tensor([[part.words()] for (part,) in slots.values()]).view(-1, 1, ENTRY_WORDS)
    starts = torch.tensor([0, columns], dtype=torch.int32)
    return LoraMap(entries, 0, starts, (columns,), 16, torch.float32, slots)


def lora_add(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    parts = [LoraPart(drawn(1, rank, WIDTH), drawn(2, rank, 37), 0.7, drawn(3, 37), drawn(4, 37)) for rank in (5, 16)]
    y = tokens(dtype, at, 1, 37)
    ops.lora.add(y, tokens(dtype, at), adapters(ops, parts, 37), SLOTS[at])
    return [y]


def lora_embedding(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    parts = [LoraPart(drawn(1, VOCABULARY, rank), drawn(2, rank, WIDTH)) for rank in (5, 16)]
    y = tokens(dtype, at)
    ops.lora.add_embedding(y, IDS[at].int(), adapters(ops, parts, WIDTH, True), SLOTS[at], 1.7)
    return [y]


def saved(name: str) -> Op:
    """Of an adapter that brings a matrix of its own."""

    def op(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
        lora = adapters(ops, [replace(NO_PART, saved=drawn(seed, VOCABULARY, WIDTH)) for seed in (1, 2)], WIDTH, True)
        y = tokens(dtype, at, 1, WIDTH if name == "rows" else VOCABULARY)
        if name == "rows":
            ops.lora.saved_rows(y, IDS[at].int(), lora, SLOTS[at], 1.7)
        else:
            ops.lora.saved_logits(y, tokens(dtype, at), lora, SLOTS[at])
        return [y]

    return op


def route(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    routings = Routing(3, True, False), Routing(1, False, True, sigmoid=True)
    x, weight = tokens(dtype, at), weights(dtype, 9, WIDTH)
    return [found for routing in routings for found in ops.experts.route(x, weight, routing)]


def weigh_inputs(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    x, routing = tokens(dtype, at), Routing(1, False, True, sigmoid=True)
    weighed, routes = ops.experts.weigh_inputs(x, ops.experts.route(x, weights(dtype, 9, WIDTH), routing))
    return [weighed, *routes]


@cache
def matrices(ops: CpuOps, dtype: torch.dtype, method: str) -> PackedExperts:
    packer = ops.packer(method, dtype, torch.device("cpu"))

    def matrix(seed: int, parts: int) -> PackedMatrix:
        return packer.stack([packer.pack_values(drawn(seed + part, 32, 32).to(dtype), True) for part in range(parts)])

    return ops.experts.packed([(matrix(seed, 2), matrix(seed + 5, 1)) for seed in (0, 10, 20, 30)], 0, dtype)


def experts(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    routes = ops.experts.route(tokens(dtype, at, 2), weights(dtype, 4, WIDTH), Routing(2, True, False))
    ways = (("none", False), ("int8", True), ("int4", False))
    return [matrices(ops, dtype, method).product(tokens(dtype, at, 1, 32), routes, gelu) for method, gelu in ways]


def gated_norm(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    x, gate, weight = tokens(dtype, at, width=84), tokens(dtype, at, 1, 84), drawn(8, 84)
    norms = ((group, first) for group in (84, 21) for first in (False, True))
    return [ops.states.gated_norm(x, gate, weight, 1e-5, group=group, norm_first=first) for group, first in norms]


def state_gate(ops: CpuOps, dtype: torch.dtype, at: torch.Tensor) -> Tensors:
    return [ops.states.gate(tokens(dtype, at), tokens(dtype, at, 1), silu=silu) for silu in (False, True)]


EVERY_OP: dict[str, Op] = {
    "embed": lambda ops, dtype, at: [ops.embed(IDS[at], weights(dtype, VOCABULARY, WIDTH), 1.7)],
    "rms_norm": rms_norm,
    "add_rms_norm": lambda ops, dtype, at: ops.add_rms_norm(
        tokens(dtype, at), tokens(dtype, at, 1), affine(dtype)[0], 1e-5
    ),
    "layer_norm": lambda ops, dtype, at: [ops.layer_norm(tokens(dtype, at), *affine(dtype))],
    "head_layer_norm": lambda ops, dtype, at: [
        ops.head_layer_norm(heads_of(dtype, at)[1], weights(dtype, 2, DIM), 1e-5)
    ],
    "add_layer_norm": lambda ops, dtype, at: ops.add_layer_norm(
        (tokens(dtype, at), tokens(dtype, at, 1)), *affine(dtype)
    ),
    "add": lambda ops, dtype, at: [ops.add(tokens(dtype, at), tokens(dtype, at, 1))],
    "add_bias": lambda ops, dtype, at: [ops.add_bias(tokens(dtype, at), drawn(9, WIDTH))],
    "add_rows": lambda ops, dtype, at: [
        ops.add_rows(tokens(dtype, at), weights(dtype, VOCABULARY + 2, WIDTH), IDS[at], 2)
    ],
    "pick": lambda ops, dtype, at: [ops.pick(tokens(dtype, SHUFFLED), at)],
    "activate": activate,
    "clip": lambda ops, dtype, at: [ops.clip(tokens(dtype, at), 0.6)],
    "softcap": lambda ops, dtype, at: [ops.softcap(tokens(dtype, at) * 40, 30.0)],
    "silu_mul": gate("silu_mul"),
    "gelu_tanh_mul": gate("gelu_tanh_mul"),
    "rope": rope,
    "write_kv": write_kv,
    "rope_write_kv": rope_write_kv,
    "apply_token_mask": masked,
    "apply_speech_rules": ruled,
    "gumbel_noise": lambda ops, dtype, at: [ops.gumbel_noise(SHUFFLED[at], at, 1000)],
    "draw": draw,
    "token_sums": lambda ops, dtype, at: [ops.token_sums(tokens(dtype, at), torch.arange(len(at)), len(at))],
    "packed.lookup": lookup,
    "packed.converted": lambda ops, dtype, at: [ops.packed.converted(tokens(dtype, at), other) for other in FLOATS],
    "lora.add": lora_add,
    "lora.add_embedding": lora_embedding,
    "lora.saved_rows": saved("rows"),
    "lora.saved_logits": saved("logits"),
    "experts.route": route,
    "experts.weigh_inputs": weigh_inputs,
    "experts.packed": experts,
    "states.gated_norm": gated_norm,
    "states.gate": state_gate,
    "states.sigmoid_gate": lambda ops, dtype, at: [
        ops.states.sigmoid_gate(tokens(dtype, at), gate) for gate in (tokens(dtype, at, 1), tokens(dtype, at, 1)[:, :1])
    ],
    "scale_rows": lambda ops, dtype, at: [ops.scale_rows(tokens(dtype, at), drawn(4, VOCABULARY), IDS[at])],
    "scale": lambda ops, dtype, at: [ops.scale(tokens(dtype, at), 0.6)],
}
