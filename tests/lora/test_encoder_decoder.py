"""Adapters of models with an encoder: what PEFT computes with them on both sides, and none where a row has none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from cadence.core.adapter import NO_SLOT
from cadence.device.cpu import CpuDevice
from cadence.kernels.reference.ops import ReferenceOps
from cadence.lora.adapter import open_adapter
from cadence.lora.limits import LoraLimits
from cadence.lora.model import LoraModel
from tests.helpers.encoded_rows import EncodedRows
from tests.helpers.one_sequence import load
from tests.helpers.tiny_models import VOCAB
from tests.helpers.tiny_seq2seq import POSITIONS, Seq2SeqOracle, make_seq2seq

pytestmark = pytest.mark.device

MODULES = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]  # of both sides, and between them
SLOT = 1


def tokens(count: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def adapted(oracle: Seq2SeqOracle, to: Path) -> Seq2SeqOracle:
    """The same model with an adapter, which is saved into `to`."""
    from peft import LoraConfig, get_peft_model

    config: Any = LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, lora_alpha=8, target_modules=MODULES)
    peft = get_peft_model(oracle.model, config).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in peft.named_parameters():
            if "lora_" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.12)
    peft.save_pretrained(to)
    return oracle


def test_rows_with_and_without_an_adapter_equal_peft_side_by_side(tmp_path: Path) -> None:
    directory = make_seq2seq("bart", tmp_path / "bart")
    contents, prompts = [tokens(37, 1), tokens(37, 1), tokens(20, 2)], [tokens(30, 3), tokens(30, 3), tokens(5, 4)]
    plain = Seq2SeqOracle(directory)
    without = [plain.logprobs(content, prompt) for content, prompt in zip(contents, prompts, strict=True)]
    with_it = adapted(plain, tmp_path / "adapter")
    changed = [with_it.logprobs(content, prompt) for content, prompt in zip(contents, prompts, strict=True)]
    model, limits = load(directory, max_model_len=POSITIONS), LoraLimits(4, 16)
    lora = LoraModel(model, limits, CpuDevice(1), ReferenceOps().lora, torch.float32)
    lora.put(SLOT, lora.prepare(open_adapter(tmp_path / "adapter", limits)))
    slots = [SLOT, NO_SLOT, SLOT]
    for last_only in (False, True):
        ours = EncodedRows(model, contents, slots=slots).feed(prompts, last_only=last_only)
        for row, expected in enumerate((changed[0], without[1], changed[2])):
            torch.testing.assert_close(ours[row], expected[-1:] if last_only else expected, atol=1e-4, rtol=0)
    assert (changed[0] - without[0]).abs().max() > 0.5
