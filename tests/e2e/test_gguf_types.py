"""GGUF files of types of few bits: the engine gives what the values of their blocks give."""

from __future__ import annotations

from pathlib import Path

import pytest

from cadence import LLM, SamplingParams
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "kind", mostly_wide(["Q2_K", "Q3_K", "IQ1_M", "IQ3_S", "TQ1_0", "MXFP4"], ["Q3_K", "IQ1_M", "TQ1_0"])
)
def test_an_engine_of_their_values(tmp_path: Path, kind: str) -> None:
    path = str(make_tiny_gguf(tmp_path / "tiny.gguf", kind, "Q6_K"))
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
    prompts = [{"prompt_token_ids": [3 + 7 * at % 90 for at in range(length)]} for length in (2, 40)]
    options = {"dtype": "float32", "max_model_len": 128, "kv_cache_dtype": "float32", "num_gpu_blocks_override": 100}
    found = LLM(path, **options).generate(prompts, params, use_tqdm=False)
    plain = LLM(path, quantization="none", **options).generate(prompts, params, use_tqdm=False)
    for one, other in zip(found, plain, strict=True):
        (first, *_), (second, *_) = (each.outputs[0].logprobs or [] for each in (one, other))
        assert abs(max(at.logprob for at in first.values()) - max(at.logprob for at in second.values())) < 0.1
        assert len(one.outputs[0].token_ids) == 12
