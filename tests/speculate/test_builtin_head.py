"""The head that comes with the package, on SmolLM2 and the CPU's kernels: it loads in 8 bits, and drafts are kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles, find_model
from cadence.config.resolve.builtin_heads import FOLDER, HEADS
from cadence.device.calls import Calls
from cadence.kernels.cpu.ops import CpuOps
from cadence.models.interface.build import BuildContext
from cadence.models.loader import load_model
from cadence.models.loader.load_head import HeadSource, load_head
from cadence.text.load import tokenizer_for
from tests.helpers.draft_rounds import drafts_kept
from tests.helpers.drafting import LENGTH, DraftedSequence
from training.head import Head, default_aux_layers, head_config

pytestmark = pytest.mark.device

PLACE = FOLDER / HEADS[0].folder
PROMPTS = (
    "<|im_start|>user\nExplain why the sky is blue.<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>user\nWrite a Python function that adds two numbers.<|im_end|>\n<|im_start|>assistant\n",
)


def drafted(head: Path) -> DraftedSequence:
    files = find_model("smollm2")
    config = ModelConfig(files, load_hf_config(files), "float32", LENGTH, 0, 20, "raw_logprobs")
    build = BuildContext(torch.float32, torch.device("cpu"), CpuOps(Calls(2)), LENGTH)
    load = LoadConfig("auto", use_tqdm=False, quantization="gguf")
    target = load_model(config, load, build)
    source = HeadSource("eagle3", ModelFiles("head", head, None), target, config)
    return DraftedSequence(target, load_head(source, load, build), build.ops)


def test_a_head_of_its_size_loads_and_drafts(tmp_path: Path) -> None:
    ids = torch.arange(64, 2112)
    config = head_config(load_hf_config(find_model("smollm2")), len(ids), default_aux_layers(30))
    Head(config, ids).save(tmp_path, torch.bfloat16)
    counts = drafts_kept(drafted(tmp_path), tokenizer_for(find_model("smollm2")).encode(PROMPTS[0]), 4, 3)
    assert all(0 <= count <= 3 for count in counts)


def test_what_is_shipped_drafts_well() -> None:
    tokenizer = tokenizer_for(find_model("smollm2"))
    counts = [n for prompt in PROMPTS for n in drafts_kept(drafted(PLACE), tokenizer.encode(prompt), 60, 4)]
    assert sum(counts) / len(counts) > 0.8  # 0.97 with AVX2 alone, above 1 on other processors
