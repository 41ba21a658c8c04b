"""Models with states whose projections are quantised, in checkpoints or as they are loaded: what transformers gives
with the values that they stand for. Convolutions, decays and skips stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cadence import LLM
from tests.e2e.test_quantized_checkpoints import OPTIONS, PACKED, PARAMS, WIDENED, differences, prompts
from tests.helpers import oracle
from tests.helpers.tiny_quantized import make_quantized
from tests.helpers.wide import mostly_wide_rows

pytestmark = [pytest.mark.engine, pytest.mark.warm]

FORMS = ("AWQ", "GPTQ 4 bits, by activation", "W4A16 group 128", "INT8 W8A8", "FP8 channel", "FP8 block", "nf4")
CASES = [(family, form) for family in ("mamba2", "bamba") for form in FORMS]
SOME = [("mamba2", "AWQ"), ("bamba", "FP8 channel"), ("bamba", "GPTQ 4 bits, by activation")]
NEARNESS = {"int8": 0.08, "fp8": 0.15, "int4": 0.5}  # mean difference of logprobs: twice what was seen


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    found: dict[tuple[str, str], Path] = {}

    def get(family: str, form: str) -> Path:
        if (family, form) not in found:
            found[family, form] = make_quantized(form, tmp_path_factory.mktemp("form"), family)
        return found[family, form]

    return get


def distances(model: Path, plain: Path, **options: str) -> list[float]:
    """Of logprobs, from those of transformers with the values in `plain`."""
    reference = oracle.load_oracle(plain)
    with LLM(str(model), **OPTIONS | options) as llm:
        outputs = llm.generate(prompts(), PARAMS, use_tqdm=False)
    return [
        each for prompt, out in zip(prompts(), outputs, strict=True) for each in differences(reference, prompt, out)
    ]


@pytest.mark.parametrize(("family", "form"), mostly_wide_rows(CASES, SOME))
def test_checkpoints_say_what_their_values_do(made: Callable[[str, str], Path], family: str, form: str) -> None:
    """Dequantised, and as they are stored."""
    model = made(family, form)
    assert max(distances(model, model.parent / "plain", quantization="none")) < WIDENED
    found = distances(model, model.parent / "plain")
    print(f"{family}, {form}: mean {sum(found) / len(found):.4f}, largest {max(found):.4f}")
    assert sum(found) / len(found) < PACKED[0] and max(found) < PACKED[1]


@pytest.mark.parametrize(
    ("family", "method"),
    mostly_wide_rows(
        [(family, method) for family in ("mamba2", "bamba") for method in NEARNESS],
        [("mamba2", "int8"), ("bamba", "int4")],
    ),
)
def test_quantised_on_load_it_stays_near(made: Callable[[str, str], Path], family: str, method: str) -> None:
    plain = made(family, "FP8 channel").parent / "plain"
    found = distances(plain, plain, quantization=method)
    print(f"{family}, {method}: mean {sum(found) / len(found):.4f}, largest {max(found):.4f}")
    assert 0.0 < sum(found) / len(found) < NEARNESS[method]
