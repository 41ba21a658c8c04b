"""A GGUF file of each family, as llama.cpp's converter writes it, computes what transformers computes from the
checkpoint that it was made of; quantised, what its own numbers say."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence.config.hf import load_hf_config
from cadence.config.reference import find_model
from cadence.gguf import architectures, open_weights
from tests.helpers.gguf_conversion import ARCHITECTURES, to_gguf
from tests.helpers.one_sequence import OneSequence, load
from tests.helpers.oracle import load_oracle, logprobs
from tests.helpers.tiny_models import VOCAB
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.device

DECODERS = (
    "bloom", "cohere", "cohere_norms_tied", "cohere2_tied", "exaone4", "falcon", "falcon_grouped", "gemma1", "glm",
    "glm4", "gptj", "gpt_neox", "gpt_neox_in_turn", "granite", "granite_moe", "llama4_chunks_of_all", "mpt",
    "olmo2", "olmo3", "phi", "stablelm", "stablelm_norms", "starcoder2",
)  # fmt: skip
STATES = (
    "mamba", "mamba_bias", "falcon_mamba", "mamba2_one_group", "jamba", "bamba_one_group", "granite_hybrid_one_group",
    "granite_hybrid_dense_one_group", "falcon_h1_gate_first", "falcon_h1_without_norm", "lfm2", "qwen3_next_routed",
)  # fmt: skip
EXACT_STATES = [family for family in STATES if "falcon_h1" not in family]  # whose factors are not in the matrices
ALWAYS = (
    "falcon_grouped",
    "granite_moe",
    "llama4_chunks_of_all",
    "stablelm_norms",
    "starcoder2",
)  # of what files have otherwise, one each
ALWAYS += ("mamba2_one_group", "jamba", "granite_hybrid_one_group", "falcon_h1_gate_first", "qwen3_next_routed")


def tokens(count: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(count)).tolist()


@pytest.mark.parametrize("family", mostly_wide([*DECODERS, *STATES], ALWAYS))
def test_computes_what_transformers_does(family: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    directory, ids = tiny_model(family), tokens(100)
    model = load(to_gguf(directory, tmp_path / "m.gguf"))
    theirs = logprobs(load_oracle(directory), ids)
    torch.testing.assert_close(OneSequence(model).feed(ids), theirs, atol=1e-4, rtol=0)


def test_groups_of_a_mamba2_are_normed_each_by_itself(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """As llama.cpp and those who made it have it; transformers norms them together, and here is told not to."""
    directory, ids = tiny_model("mamba2"), tokens(60)
    model, reference = load(to_gguf(directory, tmp_path / "m.gguf")), load_oracle(directory)
    together = logprobs(reference, ids)
    for layer in reference.backbone.layers:
        layer.mixer.norm.forward = partial(_normed_in_groups, layer.mixer.norm, layer.mixer.n_groups)
    apart = logprobs(reference, ids)
    assert float((together - apart).abs().max()) > 0.1
    torch.testing.assert_close(OneSequence(model).feed(ids), apart, atol=1e-4, rtol=0)


def _normed_in_groups(norm: Any, groups: int, values: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    by_group = (values * torch.nn.functional.silu(gate)).unflatten(-1, (groups, -1))
    scale = torch.rsqrt(by_group.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    return norm.weight * (by_group * scale).flatten(-2)


@pytest.mark.parametrize("family", mostly_wide([*DECODERS, *EXACT_STATES], ("gpt_neox", "lfm2")))
def test_weights_are_those_of_the_checkpoint(family: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """To the last bit, where the file holds the same numbers."""
    path = to_gguf(tiny_model(family), tmp_path / "m.gguf")
    ours = dict(load(path).named_parameters())
    for name, expected in load(tiny_model(family)).named_parameters():
        exact = not ("decay" in name or "norm" in name)
        torch.testing.assert_close(
            ours[name], expected, atol=0.0 if exact else 1e-6, rtol=0.0 if exact else 1e-5, msg=name
        )


def test_every_family_is_one_that_is_listed() -> None:
    import gguf

    assert {gguf.MODEL_ARCH_NAMES[arch] for arch in ARCHITECTURES.values()} <= set(architectures())
    page = (Path(__file__).parents[2] / "docs" / "using" / "models.md").read_text()
    assert [name for name in architectures() if f"`{name}`" not in page] == []


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("family", mostly_wide([*DECODERS, *STATES], ("gpt_neox", "mamba2_one_group", "jamba")))
def test_quantised_weights_are_the_blocks_of_the_file(
    family: str, kind: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Blocks, where a matrix has them, are those that `load` would dequantise, row by row."""
    from cadence.gguf import values_of_blocks

    path = to_gguf(tiny_model(family), tmp_path / "m.gguf", kind)
    weights, found = open_weights(path, load_hf_config(find_model(str(path))).raw), 0
    for name in weights.names():
        blocks: Any = weights.blocks(name, transposed=False)
        if blocks is not None and blocks[0] == kind:
            shape, found = weights.shape(name), found + 1
            assert torch.equal(values_of_blocks(*blocks, shape), weights.load(name)), name
    assert found >= 4


@pytest.mark.wide
@pytest.mark.parametrize("family", ["gpt_neox", "stablelm_norms", "jamba", "falcon_h1_gate_first", "lfm2"])
def test_files_that_lie_load_or_are_refused(family: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """In a process of its own, which a crash would end."""
    path = to_gguf(tiny_model(family), tmp_path / "m.gguf", "Q8_0")
    command = [sys.executable, "-m", "tests.helpers.gguf_fuzz", str(path), "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{path}.tried: {done.stderr[-2000:]}"
    assert re.fullmatch(r"\d+ refused, \d+ loaded", done.stdout.strip().splitlines()[-1])
