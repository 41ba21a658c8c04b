"""The ops of the engine. `reference`, `triton` and `cpu` each offer them under these signatures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch

from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape
from cadence.kernels.interface.expert_ops import ExpertOps
from cadence.kernels.interface.lora_ops import LoraOps
from cadence.kernels.interface.matrix import MatrixPacker, Norm, Pair
from cadence.kernels.interface.rope_ops import RopeOps
from cadence.kernels.interface.row_ops import RowOps
from cadence.kernels.interface.speech_lines import SpeechLines, WrittenTokens
from cadence.kernels.interface.state_ops import StateOps
from cadence.kernels.interface.suffix_ops import SuffixOps

MaybeTensor = torch.Tensor | None
Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

OWN_SCALES = (0.0, 0.0)  # of keys and values: each token and kv head has its own
NO_IDS = torch.empty(0, dtype=torch.int32)  # columns of logits are token ids themselves


class Activation(IntEnum):
    """What a plain feed-forward block bends its inner values by."""

    RELU = 0
    SILU = 1
    GELU = 2  # x * Phi(x)
    GELU_TANH = 3


@dataclass(frozen=True, slots=True)
class Rotation:
    """What a layer does to its queries and keys before it stores them: a norm over each head, where it has one, then
    rotation by position, neox style, of the first rotary_dim entries of each head."""

    cos_sin: torch.Tensor  # [max_len, rotary_dim] float32: cosines, then sines; rotary_dim 0: nothing is rotated
    norms: tuple[torch.Tensor, ...] = ()  # (weight of the queries' norm [D], of the keys' norm [D]), or none
    eps: float = 0.0  # of the norms
    kv_scales: tuple[float, float] = OWN_SCALES  # as `Ops.write_kv` has them


@dataclass(frozen=True, slots=True)
class DrawParams:
    """How each row draws its tokens. The tensors may be strided columns of one table."""

    temperatures: torch.Tensor  # [num_rows] float32; 1 in greedy rows
    seeds: torch.Tensor  # [num_rows] int64
    random: torch.Tensor  # [num_rows] int32: 0 in greedy rows


SUM_SCALE = float(2**30)  # of `Ops.token_sums`
SUM_MOST = float(2**44)  # multiples; 2 ** 18 tokens of these stay within 64 bits


class Ops(Protocol):
    name: str
    rows: RowOps  # how rows move from one forward to the next
    suffix: SuffixOps  # drafts out of earlier texts
    lora: LoraOps  # adapters on top of products
    axes: RopeOps  # what turns tokens whose positions have axes
    experts: ExpertOps  # feed-forward blocks of which each token takes a few
    states: StateOps  # layers that keep a state in place of keys
    packs: bool  # matrices of a model are multiplied in a form of their own; else they are tensors

    def packer(self, method: str, dtype: torch.dtype, device: torch.device) -> MatrixPacker | None:
        """Packs a model's matrices for these ops; None: they multiply tensors, and a GGUF file's blocks are widened.

        method: none | gguf | checkpoint | fp8 | int8 | int4, of which the last three are refused without kernels;
        dtype: of activations; device: of the model.
        """
        ...

    def linear(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [T, in], weight [out, in], bias [out] or None -> [T, out]."""
        ...

    def linear_terms(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """As `linear`, or terms that add up to it, [P, T, out], where that is faster: add_rms_norm, add_norm_linear and
        add_norm_gated take them for their x."""
        ...

    def logits(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """x [S, H], weight [V, H] -> [S, V], float32 where that costs nothing, else x's dtype."""
        ...

    def embed(self, ids: torch.Tensor, weight: torch.Tensor, scale: float) -> torch.Tensor:
        """ids [T] int32, weight [rows, H] -> weight[ids] * scale, [T, H]."""
        ...

    def zeros_like(self, x: torch.Tensor) -> torch.Tensor:
        """Zeros that are never written to."""
        ...

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [..., H], weight [H] (its dtype may be wider than x's); accumulates in float32, returns x's dtype."""
        ...

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair:
        """(rms_norm(x + residual), x + residual)."""
        ...

    def layer_norm(self, x: torch.Tensor, weight: MaybeTensor, bias: MaybeTensor, eps: float) -> torch.Tensor:
        """x [T, H], weight and bias [H] or None; accumulates in float32, returns x's dtype."""
        ...

    def head_layer_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """x [T, G, D], each x[t] dense, weight [G, D] -> `layer_norm` of every head by its own weight, [T, G, D] (new,
        contiguous)."""
        ...

    def add_layer_norm(self, stream: Pair, weight: MaybeTensor, bias: MaybeTensor, eps: float) -> Pair:
        """stream = (x, residual) -> (layer_norm(x + residual), x + residual)."""
        ...

    def add(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """x + y, [T, H] each."""
        ...

    def add_bias(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """x [T, H] + bias [H] of any float type, rounded to x's dtype."""
        ...

    def scale(self, x: torch.Tensor, factor: float) -> torch.Tensor:
        """x * factor, [T, H]; in float32, rounded to x's dtype."""
        ...

    def scale_rows(self, x: torch.Tensor, factors: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """x [T, H], factors [N] float32, at [T] int64 -> x * factors[at], row by row; in float32, rounded to x's dtype.

        Rows of x may be strided (last dimension contiguous)."""
        ...

    def add_rows(self, x: torch.Tensor, table: torch.Tensor, ids: torch.Tensor, offset: int) -> torch.Tensor:
        """x [T, H], table [rows, H], ids [T] int64 -> x + table[ids + offset]."""
        ...

    def token_sums(self, x: torch.Tensor, segments: torch.Tensor, count: int) -> torch.Tensor:
        """x [T, H], segments [T] int64: of `count` sums, the one each token belongs to -> [count, H + 1] int64.

        Numbers are added as integers, multiples of 1 / SUM_SCALE, of at most SUM_MOST: such a sum is exact, whatever
        the order of tokens. The last sum counts tokens that have no finite numbers alone; these add nothing else."""
        ...

    def pick(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """x [T, ...], each x[t] dense, at [S] int64 -> x[at], [S, ...] (new, contiguous)."""
        ...

    def add_norm_linear(self, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None) -> Pair:
        """stream = (x, residual) -> (linear(rms_norm(x + residual), weight, bias), x + residual)."""
        ...

    def add_norm_gated(
        self, stream: Pair, norm: Norm, weight: torch.Tensor, bias: torch.Tensor | None, gelu: bool
    ) -> Pair:
        """As add_norm_linear with weight [2 * I, H] = (gate, up), then gelu_tanh_mul or silu_mul: ([T, I], [T, H])."""
        ...

    def activate(self, x: torch.Tensor, kind: Activation) -> torch.Tensor:
        """x [T, I] -> [T, I]; in float32, rounded to x's dtype."""
        ...

    def clip(self, x: torch.Tensor, most: float) -> torch.Tensor:
        """x [T, H] -> its entries within [-most, most]; what is no number stays so."""
        ...

    def softcap(self, logits: torch.Tensor, cap: float) -> torch.Tensor:
        """logits [S, V] -> cap * tanh(logits / cap) in float32."""
        ...

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, 2 * I] = (gate, up) -> silu(gate) * up, [T, I]."""
        ...

    def gelu_tanh_mul(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, 2 * I] = (gate, up) -> gelu_tanh(gate) * up, [T, I]."""
        ...

    def rope(self, q: torch.Tensor, k: torch.Tensor, positions: torch.Tensor, cos_sin: torch.Tensor) -> None:
        """Rotates q [T, Hq, D] and k [T, Hk, D] in place by positions [T] int64; cos_sin as in `Rotation`.

        q and k may be strided views of one projection (last dimension contiguous).
        """
        ...

    def write_kv(self, new: Pair, kv: Pair, slots: torch.Tensor, scales: tuple[float, float] = OWN_SCALES) -> None:
        """Stores new = (k, v) [T, Hk, D] at slots [T] int64 of caches kv [num_blocks, Hk, block_size, D].

        Caches of int8 and float8 are [.., D + 4]: entries, then the float32 scale that they are multiples of: the
        row's absmax / largest entry or, of float8, what `scales` says of keys and values. On the GPU the same bytes of
        a block and head lie otherwise: `attention_bytes` says how. On the CPU they may be of 16 bits, and of 4: uint8
        [.., 20 * ceil(D / 32)], as `reference/kv_rows.py` has it.
        """
        ...

    def rope_write_kv(
        self, qkv: Triple, positions: torch.Tensor, rotation: Rotation, kv: Pair, batch: AttentionBatch, group: int
    ) -> torch.Tensor:
        """Norms and rotates q and k, stores k and v, returns q [T, Hq, D] as it is now.

        qkv = q [T, Hq, D], k and v [T, Hk, D], which may be views as for `rope`; q and k may be overwritten.
        positions [T] int64 turn q and k; where they are stored is said by the slots of `batch`, which attends next.
        kv = caches as for `write_kv`, of the layers of `group`.
        """
        ...

    def paged_attention(
        self, q: torch.Tensor, kv: Pair, batch: AttentionBatch, group: int, shape: AttentionShape
    ) -> torch.Tensor:
        """q [T, Hq, D], kv = caches as for `write_kv` -> [T, Hq, D] (new, contiguous).

        Over int8 caches the CPU rounds queries to int8 as keys are, with a scale per token and head.
        """
        ...

    def apply_token_mask(self, logits: torch.Tensor, masks: torch.Tensor, mask_of_line: torch.Tensor) -> None:
        """Sets to -inf, in place, what a line's mask does not allow; NaN and infinities stay, so that no mask hides a
        fault of the model. Lines without a mask are not touched.

        logits [L, V], contiguous lines; masks [M, ceil(V / 32)] int32, contiguous: bit t % 32 of word t // 32 is set
        where token t is allowed; mask_of_line [L] int32: a line of masks, or -1 = no mask.
        """
        ...

    def apply_speech_rules(self, logits: torch.Tensor, own: SpeechLines, written: WrittenTokens) -> None:
        """Sets to -inf, in place, what the transcript of a line may not go on with: tokens that `own` lists, times that
        would break a pair or go back, and text where all times together are likelier than any of it.

        logits [S, V] float32, contiguous lines.
        """
        ...

    def gumbel_noise(self, seeds: torch.Tensor, positions: torch.Tensor, vocab_size: int) -> torch.Tensor:
        """seeds [S] int64, positions [S] int64 -> [S, vocab] float32, a pure function of (seed, position, token id)."""
        ...

    def draw(
        self,
        logits: torch.Tensor,
        rows: torch.Tensor,
        positions: torch.Tensor,
        params: DrawParams,
        ids: torch.Tensor = NO_IDS,
    ) -> Pair:
        """The id of the highest of logits / temperature, plus gumbel_noise(seed, position) in random rows, per line.

        logits [S, V] of any float dtype, contiguous lines, left as they are and taken to float32; rows [S] of the
        parameters' tables and positions [S], both of any integer dtype -> tokens [S] int32 (the lower id among equals),
        and the highest values [S] float32 (NaN where a logit of the line is).

        ids [V] int32, in any order, none twice: the token id of each column, where logits are of a part of the
        vocabulary. The result is that of logits over all ids with -inf for those that have no column.
        """
        ...
