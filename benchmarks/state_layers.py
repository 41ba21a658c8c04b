"""Layers that keep a state, as their kernels see them in models of well-known shapes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from cadence.kernels.interface.state_ops import DeltaRule, HeadScan, Scan, StateOps, StateRuns, StateTable


@dataclass(frozen=True)
class LayerShape:
    """kind: scan, head_scan or delta_rule. sizes: of the recurrent state of a row; groups: pairs of b and c, or key
    heads; channels: that are convolved; width: of a result; group: that is normed together, 0 = none."""

    name: str
    kind: str
    state: tuple[int, ...]
    groups: int
    channels: int
    width: int
    group: int
    layers: int
    taps: int = 4

    @property
    def state_bytes(self) -> int:
        return 4 * torch.Size(self.state).numel()

    @property
    def token_entries(self) -> int:
        """What a token brings, and what is made of it: x, b, c (q, k, v), dt (decay, beta) and the result."""
        heads = self.state[0]
        if self.kind == "scan":
            return 3 * self.width + 2 * heads
        if self.kind == "head_scan":
            return 2 * self.width + 2 * self.groups * self.state[1] + heads
        return 2 * self.width + 2 * self.groups * self.state[1] + 2 * heads

    def chunk_flops(self, chunk: int = 64) -> float:
        """Products that a token needs on matrix units where runs are taken in chunks: pairs of a chunk's tokens count
        half; of the delta rule without the inverse."""
        if self.kind == "scan":
            return 0.0
        heads, rows, columns = self.state
        states = 2 * heads * 2 * rows * columns  # read and written
        if self.kind == "head_scan":
            return states + chunk * (heads * columns + self.groups * rows)
        return states + 2 * heads * rows * columns + chunk * heads * (3 * rows + 2 * columns)


MAMBA2 = LayerShape("mamba2-2.7b", "head_scan", (80, 128, 64), 1, 5120 + 256, 5120, 5120, 64)
MAMBA = LayerShape("mamba-2.8b", "scan", (16, 5120), 1, 5120, 5120, 0, 64)
QWEN3_NEXT = LayerShape("qwen3-next-80b", "delta_rule", (32, 128, 128), 16, 8192, 4096, 128, 36)
SHAPES = (MAMBA2, MAMBA, QWEN3_NEXT)


@dataclass
class Bench:
    """Some layers of a shape, each with tables of its own, and a forward's runs: `lengths` tokens of each row."""

    shape: LayerShape
    lengths: list[int]
    copies: int  # layers
    dtype: torch.dtype = torch.bfloat16
    device: str = "cuda"
    inputs: list[torch.Tensor] = field(init=False)
    tables: list[StateTable] = field(init=False)

    def __post_init__(self) -> None:
        shape, rows = self.shape, len(self.lengths) + 1
        generator = torch.Generator(self.device).manual_seed(0)
        self._random = lambda *sizes: torch.randn(sizes, device=self.device, generator=generator)
        tokens = sum(self.lengths)
        self.projected = self._random(tokens, self._projected_width()).to(self.dtype)
        self.given = [self._random(tokens, shape.channels).to(self.dtype) for _ in range(min(self.copies, 4))]
        self.weight = self._random(shape.channels, shape.taps).to(self.dtype)
        self.norm_weight = self._random(shape.group or 1).to(self.dtype)
        heads = shape.width if shape.kind == "scan" else shape.state[0]
        self.a = -self._random(*(shape.state if shape.kind == "scan" else (heads,))).exp()
        self.bias, self.skip = self._random(heads) - 3, self._random(heads)
        self.inputs = [
            torch.zeros((rows, shape.taps - 1, shape.channels), dtype=self.dtype, device=self.device)
            for _ in range(self.copies)
        ]
        none = torch.zeros((rows, 0, 1), dtype=self.dtype, device=self.device)
        self.tables = [
            StateTable(torch.zeros((rows, *shape.state), device=self.device), none) for _ in range(self.copies)
        ]
        self.runs = self._make_runs()
        self.step_sizes = self._random(tokens, shape.width).to(self.dtype)

    def _projected_width(self) -> int:
        shape, heads = self.shape, self.shape.state[0]
        if shape.kind == "scan":
            return 2 * shape.width
        return shape.width + shape.channels + heads * (1 if shape.kind == "head_scan" else 2)

    def _make_runs(self) -> StateRuns:
        lengths = torch.tensor(self.lengths, dtype=torch.int32)
        start = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int()
        single = next((at for at, length in enumerate(self.lengths) if length != 1), len(self.lengths))
        rows, nothing = torch.arange(len(lengths)).int(), torch.zeros_like(lengths)
        parts = [part.to(self.device) for part in (rows, start, nothing, lengths, nothing)]
        return StateRuns(*parts, num_single=single, max_query_len=max(self.lengths))

    def conv(self, ops: StateOps, layer: int) -> torch.Tensor:
        first = 0 if self.shape.kind == "scan" else self.shape.width
        x = self.projected[:, first : first + self.shape.channels]
        return ops.short_conv(x, self.weight, None, self.inputs[layer], self.runs, silu=True)

    def core(self, ops: StateOps, layer: int, convolved: torch.Tensor | None = None) -> torch.Tensor:
        shape, table = self.shape, self.tables[layer]
        convolved = self.given[layer % len(self.given)] if convolved is None else convolved
        heads = shape.state[0]
        if shape.kind == "scan":
            small = self.projected[:, : 2 * heads]
            b, c = small.split([heads, heads], dim=1)
            found = ops.scan(convolved, self.step_sizes, b, c, Scan(self.a, self.skip, self.bias), table, self.runs)
        elif shape.kind == "head_scan":
            shared = shape.groups * shape.state[1]
            x, b, c = convolved.split([shape.width, shared, shared], dim=1)
            b, c = (part.unflatten(1, (shape.groups, shape.state[1])) for part in (b, c))
            layer_of = HeadScan(self.a, self.skip, self.bias)
            dt = self.projected[:, -heads:]
            found = ops.head_scan(x.unflatten(1, (heads, -1)), dt, b, c, layer_of, table, self.runs)
        else:
            keys = shape.groups * shape.state[1]
            q, k, v = convolved.split([keys, keys, shape.width], dim=1)
            q, k = (part.unflatten(1, (shape.groups, shape.state[1])) for part in (q, k))
            decay, beta = self.projected[:, -2 * heads :].split([heads, heads], dim=1)
            delta = DeltaRule(self.a, self.bias)
            found = ops.delta_rule((q, k, v.unflatten(1, (heads, -1))), decay, beta, delta, table, self.runs)
        return found.view(found.shape[0], -1)

    def finish(self, ops: StateOps, found: torch.Tensor) -> torch.Tensor:
        gate = self.projected[:, : self.shape.width]
        if not self.shape.group:
            return ops.gate(found, gate, silu=True)
        first = self.shape.kind == "delta_rule"
        return ops.gated_norm(found, gate, self.norm_weight, 1e-5, group=self.shape.group, norm_first=first)

    def chain(self, ops: StateOps, layer: int) -> torch.Tensor:
        return self.finish(ops, self.core(ops, layer, self.conv(ops, layer)))

    def core_bytes(self) -> int:
        rows, tokens = len(self.lengths), sum(self.lengths)
        return 2 * rows * self.shape.state_bytes + tokens * self.shape.token_entries * self.dtype.itemsize

    def chain_bytes(self) -> int:
        """Beside these: what is convolved, read and written, and the row's last inputs; gate, and the result."""
        rows, tokens, size = len(self.lengths), sum(self.lengths), self.dtype.itemsize
        convolved = 2 * tokens * self.shape.channels + 2 * rows * (self.shape.taps - 1) * self.shape.channels
        return self.core_bytes() + size * (convolved + 3 * tokens * self.shape.width)
