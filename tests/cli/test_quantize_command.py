"""`cadence quantize`: what it writes runs, it says what that costs, and what it cannot do."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from cadence import LLM, SamplingParams
from cadence.entrypoints.cli.main import main
from cadence.entrypoints.cli.quantize.texts import CALIBRATION, HELD_OUT, read_windows
from cadence.text.hf_directory import load_tokenizer
from tests.helpers import oracle
from tests.helpers.tiny_plain import make_plain
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.engine

PROMPT = [5, 9, 40, 77, 8, 130, 22, 61, 250]


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_plain(tmp_path_factory.mktemp("plain") / "tiny")


def test_it_says_what_it_costs(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out"
    assert main(["quantize", str(plain), str(output), "--group-size", "32", "--calibration-tokens", "1024"]) == 0
    said, progress = capsys.readouterr()
    assert "2 of 2 layers" in progress and "measuring the perplexity of the original" in progress
    before, after = (float(each) for each in re.findall(r"(?:original|this) ([\d.]+)", said))
    assert "14 matrices" in said and 0.5 < after / before < 2.0
    card = (output / "README.md").read_text()
    assert f"| original | {before:.3f} |" in card and f"| this | {after:.3f} |" in card
    assert "W4A16, groups of 32 columns" in card and "1024 tokens of calibration.txt" in card
    assert not list(output.glob("*.part")) and (output / "tokenizer.json").is_file()
    model = oracle.load_oracle(plain)
    windows = read_windows(HELD_OUT, load_tokenizer(plain), 511, 4096)
    found = [oracle.logprobs(model, ids)[:-1].gather(1, torch.tensor(ids[1:])[:, None]) for ids in windows]
    assert before == pytest.approx(float(torch.cat(found).mean().neg().exp()), rel=0.01)  # of bfloat16


def test_groups_are_shorter_where_the_default_does_not_divide(tmp_path: Path) -> None:
    odd = make_plain(tmp_path / "odd", hidden_size=192, intermediate_size=256, head_dim=64, num_hidden_layers=1)
    output = tmp_path / "out"
    assert main(["quantize", str(odd), str(output), "--no-perplexity", "--calibrate", "none"]) == 0
    section = json.loads((output / "config.json").read_text())["quantization_config"]
    assert section["config_groups"]["group_0"]["weights"]["group_size"] == 64
    assert "W4A16, groups of 64 columns" in (output / "README.md").read_text()


@pytest.mark.parametrize("name", mostly_wide(["W4A16", "W8A8", "FP8_BLOCK", "MXFP4A16"], always=["FP8_BLOCK"]))
@pytest.mark.filterwarnings("ignore:You passed `quantization_config`")  # that is what is asked for
def test_what_it_writes_is_what_transformers_gives(plain: Path, tmp_path: Path, name: str) -> None:
    from transformers import AutoModelForCausalLM
    from transformers.utils.quantization_config import CompressedTensorsConfig

    output = tmp_path / "out"
    flags = ["--format", name, "--no-perplexity", "--calibrate", "none"]
    assert main(["quantize", str(plain), str(output), *flags]) == 0
    reference = AutoModelForCausalLM.from_pretrained(
        output, quantization_config=CompressedTensorsConfig(dequantize=True)
    )
    model = oracle.load_oracle(plain)
    found = dict(reference.named_parameters())
    model.load_state_dict({name: found[name].float() for name in model.state_dict()})
    expected = oracle.logprobs(model, PROMPT)  # activations are not rounded
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    options = {"dtype": "float32", "kv_cache_dtype": "float32", "max_model_len": 64}
    for quantization, bound in (("none", 2e-4), (None, 0.4)):
        with LLM(str(output), quantization=quantization, **options) as llm:
            places = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)[0].prompt_logprobs
        assert places is not None
        for place, token, line in zip(places[1:], PROMPT[1:], expected, strict=False):
            assert place is not None and abs(place[token].logprob - float(line[token])) < bound


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--format", "W5A16"], "known are W4A16"),
        (["--group-size", "256"], "groups of 256 do not divide the 128 columns"),
        (["--group-size", "48"], "32 or 64 or 128 or 256"),
        (["--calibrate", "/no/such/text"], "not a text that can be read"),
        (["--perplexity-text", "/no/such/text"], "not a text that can be read"),
        (["--ignore", "nothing.of.it"], "names no matrix"),
        (["--dtype", "float8"], "invalid choice"),
    ],
)
def test_what_it_cannot_do_is_said(
    plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["quantize", str(plain), str(tmp_path / "out"), *flags])
    assert left.value.code == 2 and message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_is_left_alone(plain: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(SystemExit):
        main(["quantize", str(plain), str(tmp_path)])
    assert "not an empty folder" in capsys.readouterr().err and (tmp_path / "mine.txt").read_text() == "mine"


def test_texts_are_cut_into_windows(plain: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(plain)
    windows = read_windows(CALIBRATION, tokenizer, 100, 1000)
    assert len(windows) == 10 and {len(window) for window in windows} == {100}
    assert len({tuple(window) for window in windows}) == 10
    whole = tokenizer.encode(CALIBRATION.read_text(), add_special_tokens=False)
    assert windows[0][-90:] == whole[:100][-90:] or windows[0][1:] == whole[:99]
    short = tmp_path / "short.txt"
    short.write_text("one two three " * 20)
    (window,) = read_windows(short, tokenizer, 512, 8192)
    assert 32 <= len(window) < 512


def test_the_texts_are_not_the_same() -> None:
    """What is measured was not seen before."""
    seen, measured = CALIBRATION.read_text(encoding="utf-8"), HELD_OUT.read_text(encoding="utf-8")
    sentences = [each for each in re.split(r"[.!?]\s", measured) if len(each) > 40]
    assert len(sentences) > 100 and not any(each in seen for each in sentences)
