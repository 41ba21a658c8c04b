"""Weights in 4 and 8 bits on the CPU: near the unquantised model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cadence import LLM, SamplingParams
from cadence.core.errors import ConfigError
from tests.helpers.wide import mostly_wide_rows

pytestmark = pytest.mark.engine

OPTIONS = {"max_model_len": 256, "dtype": "float32", "num_gpu_blocks_override": 100}

TEXT = (
    "The lighthouse keeper wrote in his log every evening: the wind, the sea, the ships that passed. In forty years he "
    "had missed no day, and when they came to tell him that the lamp would be lit by a machine from now on, he asked "
    "who would write the log."
)


NEARNESS = [("gguf", 0.12), ("int8", 0.12), ("int4", 0.4), ("fp8", 0.25)]


@pytest.mark.parametrize(("quantization", "nearness"), mostly_wide_rows(NEARNESS, NEARNESS[:2]))
def test_smollm2_stays_near_itself(smollm2_logprobs: list[float], quantization: str, nearness: float) -> None:
    """Mean difference of the logprobs of a text. The reference is the same file, widened to float32."""
    ours = logprobs_of(LLM("smollm2", quantization=quantization, **OPTIONS))
    differences = [abs(one - other) for one, other in zip(ours, smollm2_logprobs, strict=True)]
    mean = sum(differences) / len(differences)
    print(f"{quantization}: mean difference of logprobs {mean:.4f}")
    assert mean < nearness


@pytest.fixture(scope="module")
def smollm2_logprobs() -> list[float]:
    return logprobs_of(LLM("smollm2", quantization="none", **OPTIONS))


def logprobs_of(llm: LLM, prompt: str | list[int] = TEXT) -> list[float]:
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    asked = prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}
    output = llm.generate([asked], params, use_tqdm=False)[0]
    assert output.prompt_logprobs is not None
    pairs = list(zip(output.prompt_logprobs, output.prompt_token_ids or (), strict=True))[1:]
    return [position[token].logprob for position, token in pairs if position is not None]


def test_fp8_has_the_values_that_others_write(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """Those of a float8 for each entry and a float32 scale for each row, in the plain model."""
    from safetensors.torch import load_file, save_file

    from tests.helpers.tiny_quantized import make_quantized

    quantised = make_quantized("FP8 channel", tmp_path)  # beside it lies the same in plain values, here made anew
    plain = quantised.parent / "plain"
    tensors = load_file(plain / "model.safetensors")
    for name, values in tensors.items():
        if values.dim() == 2:
            scales = values.abs().amax(1, keepdim=True) / 448.0
            tensors[name] = (values / scales).to(torch.float8_e4m3fn).float() * scales
    ours = logprobs_of(LLM(str(plain), quantization="fp8", **OPTIONS), [5, 9, 40, 77, 8, 130, 22])
    save_file(tensors, plain / "model.safetensors", {"format": "pt"})
    expected = logprobs_of(LLM(str(plain), quantization="none", **OPTIONS), [5, 9, 40, 77, 8, 130, 22])
    assert ours == pytest.approx(expected, abs=1e-5)


def test_what_cannot_be_quantised_is_said(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="is not a"):
        LLM(str(tiny_model("llama")), quantization="gguf")
    with pytest.raises(ConfigError, match="plain torch"):
        LLM(str(tiny_model("llama")), quantization="int8", kernels="reference")
    with pytest.raises(ConfigError, match="not one of"):
        LLM(str(tiny_model("llama")), quantization="hqq")
    with pytest.raises(ConfigError, match=r"quantization=awq: the weights of .* are not quantised"):
        LLM(str(tiny_model("llama")), quantization="awq")
