"""Layers that keep a state: the reference says what formulas without a state say."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule
from transformers.models.zamba2.modeling_zamba2 import Zamba2RMSNormGated

from cadence.kernels.interface.state_ops import DeltaRule, HeadScan, Scan, StateTable
from cadence.kernels.reference.states import ReferenceStateOps
from tests.helpers.state_cases import drawn, runs_of

pytestmark = pytest.mark.device

OPS = ReferenceStateOps()
TOKENS = 13
WHOLE = runs_of([(1, TOKENS, 0, TOKENS, 0)])
CLOSE = {"rtol": 2e-5, "atol": 2e-5}


def test_convolution() -> None:
    x, weight, bias = drawn(0, TOKENS, 7), drawn(1, 7, 4), drawn(2, 7)
    inputs = torch.full((2, 3, 7), 7.0)
    inputs[1] = 0
    ours = OPS.short_conv(x, weight, bias, inputs, WHOLE, silu=True)
    theirs = F.silu(F.conv1d(F.pad(x.T, (3, 0)), weight[:, None], bias, groups=7).T)
    torch.testing.assert_close(ours, theirs, **CLOSE)
    assert torch.equal(inputs[1], x[-3:])
    assert (inputs[0] == 7).all()


def weights_of_earlier(log_decay: torch.Tensor) -> torch.Tensor:
    """log_decay [T, ...] of each token -> [T, T, ...]: what is left at the first of what the second, earlier, added."""
    total = log_decay.double().cumsum(0)
    left = (total[:, None] - total[None]).exp()
    return torch.where(torch.ones(TOKENS, TOKENS).tril().bool().view(TOKENS, TOKENS, *[1] * (left.dim() - 2)), left, 0)


def test_scan() -> None:
    x, dt, b, c = drawn(0, TOKENS, 9), drawn(1, TOKENS, 9), drawn(2, TOKENS, 4), drawn(3, TOKENS, 4)
    layer = Scan(-drawn(4, 4, 9).exp(), drawn(5, 9), drawn(6, 9))
    table = StateTable(torch.zeros(2, 4, 9), torch.zeros(2, 0, 22))
    ours = OPS.scan(x, dt, b, c, layer, table, WHOLE)
    step = F.softplus(dt + layer.dt_bias)
    left = weights_of_earlier(step[:, None] * layer.a)
    added = (step * x)[:, None].double() * b[:, :, None]
    states = torch.einsum("tsnd,snd->tnd", left, added)
    torch.testing.assert_close(ours.double(), (states * c[:, :, None]).sum(1) + layer.d * x, **CLOSE)
    torch.testing.assert_close(table.state[1].double(), states[-1], **CLOSE)
    assert not table.state[0].any()


def test_scan_by_heads() -> None:
    heads, groups, size, width = 6, 2, 5, 4
    x, dt = drawn(0, TOKENS, heads, size), drawn(1, TOKENS, heads) * 2
    b, c = drawn(2, TOKENS, groups, width), drawn(3, TOKENS, groups, width)
    layer = HeadScan(-drawn(4, heads).exp(), drawn(5, heads), drawn(6, heads), (0.1, 1.5))
    table = StateTable(torch.zeros(2, heads, width, size), torch.zeros(2, 0, heads * size + heads + groups * width))
    ours = OPS.head_scan(x, dt, b, c, layer, table, WHOLE)
    step = F.softplus(dt + layer.dt_bias).clamp(0.1, 1.5)
    b, c = b.repeat_interleave(3, dim=1), c.repeat_interleave(3, dim=1)
    left = weights_of_earlier(step * layer.a)
    added = torch.einsum("th,thp,thn->thnp", step, x, b).double()
    states = torch.einsum("tsh,shnp->thnp", left, added)
    seen = torch.einsum("thnp,thn->thp", states, c.double()) + layer.d[:, None] * x
    torch.testing.assert_close(ours.double(), seen, **CLOSE)
    torch.testing.assert_close(table.state[1].double(), states[-1], **CLOSE)


def test_delta_rule() -> None:
    q, k, v = drawn(0, TOKENS, 2, 6), drawn(1, TOKENS, 2, 6), drawn(2, TOKENS, 4, 5)
    decay, beta = drawn(3, TOKENS, 4), drawn(4, TOKENS, 4)
    layer = DeltaRule(-drawn(5, 4).exp(), drawn(6, 4))
    table = StateTable(torch.zeros(2, 4, 6, 5), torch.zeros(2, 0, 40))
    ours = OPS.delta_rule((q, k, v), decay, beta, layer, table, WHOLE)
    wide = [part.repeat_interleave(2, dim=1)[None] for part in (q, k)]
    g = layer.a * F.softplus(decay + layer.dt_bias)
    theirs, state = torch_chunk_gated_delta_rule(
        *wide, v[None], g[None], beta.sigmoid()[None], chunk_size=4, output_final_state=True,
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    torch.testing.assert_close(ours, theirs[0], **CLOSE)
    torch.testing.assert_close(table.state[1], state[0], **CLOSE)


def test_norm_and_gate() -> None:
    x, gate = drawn(0, 5, 12), drawn(1, 5, 12)
    theirs = Zamba2RMSNormGated(12, 4, 1e-5)
    theirs.weight.data = drawn(2, 12)
    ours = OPS.gated_norm(x, gate, theirs.weight.data, 1e-5, group=4, norm_first=False)
    torch.testing.assert_close(ours, theirs(x, gate).detach(), **CLOSE)
    weight = drawn(3, 4)
    first = F.rms_norm(x.view(5, 3, 4), (4,), weight, 1e-5).view(5, 12) * F.silu(gate)
    torch.testing.assert_close(OPS.gated_norm(x, gate, weight, 1e-5, group=4, norm_first=True), first, **CLOSE)
    assert torch.equal(OPS.gate(x, gate, silu=False), x * gate)
    torch.testing.assert_close(OPS.gate(x, gate, silu=True), x * F.silu(gate), **CLOSE)
    for one in (gate, gate[:, :1]):
        torch.testing.assert_close(OPS.sigmoid_gate(x, one), x * one.sigmoid(), **CLOSE)
