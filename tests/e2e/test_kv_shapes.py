"""A model whose attention layers differ in heads, head sizes and windows: they share blocks, and no token knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from cadence import LLM, SamplingParams
from cadence.core.model.kv_spec import plan_layout
from cadence.kernels.interface.attention_batch import AttentionShape
from cadence.models import headed
from cadence.models.decoder import DecoderLM
from cadence.models.dims import gated_decoder, read_dims
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.positions.rope_config import read_rope
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.llama import LLAMA_WEIGHTS
from tests.e2e.test_promise import requests, run
from tests.helpers.one_sequence import OneSequence, load
from tests.helpers.tiny_models import MAX_LEN, WINDOW
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.engine

SHAPES = [(4, 4, 16, 0), (4, 1, 32, WINDOW), (8, 2, 8, WINDOW), (2, 2, 32, 0), (4, 1, 16, 0), (2, 1, 16, WINDOW)]
OPTIONS = {"dtype": "float32", "max_model_len": 256, "load_format": "dummy", "enforce_eager": False}
WAYS = {
    "together": {"max_num_seqs": 32},
    "one by one": {"max_num_seqs": 1, "enable_prefix_caching": False},
    "chunks of 16, depth 2": {"max_num_batched_tokens": 16, "max_num_seqs": 16, "async_scheduling": True},
    "tiny pool": {"num_gpu_blocks_override": 68, "max_num_seqs": 32},
}


class UnequalForCausalLM(DecoderLM):
    """A Llama whose layers are those of SHAPES: (heads, kv heads, head size, window)."""

    weights = LLAMA_WEIGHTS

    def __init__(self, hf: ConfigView, build: BuildContext) -> None:
        dims = read_dims(hf)

        def attention(index: int) -> Attention:
            heads, kv_heads, size, window = SHAPES[index]
            shape = AttentionShape(heads, kv_heads, size, size**-0.5, window)
            return Attention(build, index, AttentionSpec(dims.hidden, shape), Rotary(build, read_rope(hf, size)))

        super().__init__(gated_decoder(build, dims, attention))


@pytest.fixture
def directory(tiny_model: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(headed, "model_class", lambda name: UnequalForCausalLM)
    source: Path = tiny_model("llama")  # type: ignore[operator]
    config = json.loads((source / "config.json").read_text()) | {"num_hidden_layers": len(SHAPES)}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).symlink_to(source / name)
    return tmp_path


@pytest.mark.parametrize("cache", mostly_wide(["auto", "int8", "int4", "fp8"], ["int8"]))
def test_the_same_bits_in_any_company(directory: Path, cache: str) -> None:
    """Alone without prefix cache, nothing is shared and no block used twice; a slot is by every group."""
    found = {}
    for way, changes in WAYS.items():
        llm = LLM(str(directory), kv_cache_dtype=cache, **{"num_gpu_blocks_override": 1200, **OPTIONS, **changes})  # type: ignore[arg-type]
        work = requests(llm.get_tokenizer().vocab_size)[:16]
        found[way] = run(llm, list(range(16)), work)
        if way == "together":
            found["from the prefix cache"] = run(llm, list(range(16))[::-1], work)
    assert any(reply.preemptions for reply in found["tiny pool"].values())
    for way, answers in found.items():
        for index in range(16):
            assert answers[index].token_ids == found["one by one"][index].token_ids, (way, index)
            assert answers[index].logprobs == found["one by one"][index].logprobs, (way, index)


def test_tokens_are_those_of_caches_of_their_own(directory: Path) -> None:
    model = load(directory, fmt="dummy", max_model_len=256)
    layout = plan_layout(model.kv_layers(), 16, "float32")
    assert len(layout.groups) == 2 and len(layout.slots) < 2 * len(SHAPES), "groups share slots"
    assert max(start for place in layout.places for _, start in place.parts) > 0, "layers of one group share a slot"
    prompt = torch.randint(3, 300, (70,), generator=torch.Generator().manual_seed(1)).tolist()
    llm = LLM(str(directory), **OPTIONS)  # type: ignore[arg-type]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=0)
    output = llm.generate([prompt], params, use_tqdm=False)[0].outputs[0]
    assert len(set(output.token_ids)) > 5
    lines = OneSequence(model, MAX_LEN).feed([*prompt, *output.token_ids])[len(prompt) - 1 : -1]
    ours = torch.tensor([line[token].logprob for line, token in zip(output.logprobs, output.token_ids, strict=True)])
    torch.testing.assert_close(ours, lines.max(dim=-1).values, atol=1e-4, rtol=0)
