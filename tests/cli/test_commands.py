"""The shell on a tiny model: what it prints is what the Python API gives."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from cadence import LLM, SamplingParams
from cadence.entrypoints.cli.main import main

pytestmark = pytest.mark.engine

GREEDY = ["--temperature", "0", "--max-tokens", "12", "--ignore-eos"]


@pytest.fixture
def engine_flags(tiny_model: Callable[[str], Path]) -> list[str]:
    flags = ["--model", str(tiny_model("llama")), "--device", "cpu", "--dtype", "float32", "--max-model-len", "256"]
    return [*flags, "--kv-cache-memory-bytes", "16M"]


@pytest.fixture
def llm(tiny_model: Callable[[str], Path]) -> LLM:
    model = str(tiny_model("llama"))
    return LLM(model, device="cpu", dtype="float32", max_model_len=256, kv_cache_memory_bytes=2**24)


def expected(llm: LLM, prompt: object) -> str:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    return llm.generate(prompt, params, use_tqdm=False)[0].outputs[0].text  # type: ignore[arg-type]


def test_generate(engine_flags: list[str], llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", "the quick brown", *GREEDY, *engine_flags]) == 0
    captured = capsys.readouterr()
    assert captured.out == expected(llm, "the quick brown") + "\n"
    assert "12 out" in captured.err and "tokens/s" in captured.err


def test_generate_from_stdin(
    engine_flags: list[str], llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("to be or not"))
    assert main(["generate", "-", *GREEDY, "--no-stats", *engine_flags]) == 0
    assert capsys.readouterr() == (expected(llm, "to be or not") + "\n", "")


def test_chat_through_a_pipe(
    engine_flags: list[str], llm: LLM, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("one two\n/reset\none two\n"))
    assert main(["chat", *GREEDY, *engine_flags]) == 0
    ids = llm.get_tokenizer().apply_chat_template([{"role": "user", "content": "one two"}], add_generation_prompt=True)
    assert capsys.readouterr().out == (expected(llm, {"prompt_token_ids": ids}) + "\n") * 2


def test_quick_question(engine_flags: list[str], llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", "-q", "one", "--system-prompt", "two", *GREEDY, *engine_flags]) == 0
    messages = [{"role": "system", "content": "two"}, {"role": "user", "content": "one"}]
    ids = llm.get_tokenizer().apply_chat_template(messages, add_generation_prompt=True)
    assert capsys.readouterr().out == expected(llm, {"prompt_token_ids": ids}) + "\n"


def test_bench_latency(engine_flags: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "numbers.json"
    shape = ["--input-len", "8", "--output-len", "4", "--batch-size", "2", "--num-iters", "2"]
    assert main(["bench", "latency", *shape, "--output-json", str(path), *engine_flags]) == 0
    assert "p99 latency" in capsys.readouterr().out
    numbers = json.loads(path.read_text())
    assert len(numbers["latencies"]) == 2 and numbers["percentiles"]["50"] == pytest.approx(numbers["avg_latency"])
    assert numbers["output_tokens_per_s"] == pytest.approx(8 / numbers["avg_latency"])


def test_bench_throughput(engine_flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    shape = ["--input-len", "8", "--output-len", "4", "--num-prompts", "5"]
    assert main(["bench", "throughput", *shape, "--output-json", "-", *engine_flags]) == 0
    numbers = json.loads(capsys.readouterr().out)
    assert numbers["total_num_tokens"] == 5 * 12
    assert 0 < numbers["ttft"]["50"] <= numbers["elapsed_time"]
    assert numbers["output_tokens_per_second"] == pytest.approx(20 / numbers["elapsed_time"])


def test_embed(
    engine_flags: list[str],
    llm: LLM,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    texts = ["the quick brown", "to be or not", "to be"]
    vectors_np = np.array([output.outputs.embedding for output in llm.embed(texts, use_tqdm=False)], np.float32)
    assert main(["embed", *texts, *engine_flags]) == 0
    captured = capsys.readouterr()
    found = [json.loads(line) for line in captured.out.splitlines()]
    assert [(line["index"], line["text"]) for line in found] == list(enumerate(texts)) and captured.err == ""
    assert np.array_equal(np.array([line["embedding"] for line in found], np.float32), vectors_np)
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(texts * 40) + "\n"))
    path = tmp_path / "vectors.npy"
    assert main(["embed", "--output", str(path), *engine_flags]) == 0
    assert np.array_equal(np.load(path), np.tile(vectors_np, (40, 1)))
    assert "120 of 120 texts" in capsys.readouterr().err
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    assert main(["embed", "--file", str(tmp_path / "texts.txt"), "--format", "table", *engine_flags]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["0", "1", "2"] and last.startswith("3 texts")
    shown = np.array([row.split()[-3:] for row in rows], np.float32)
    np.testing.assert_allclose(shown, vectors_np @ vectors_np.T, atol=0.0051)


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["embed", "a", "--dimensions", "7"], "entries"),
        (["embed", "a", "--format", "npy"], "--format npy needs --output"),
        (["embed", "--file", "/nowhere"], "--file /nowhere cannot be read"),
        (["embed", "a", "--output", "/nowhere/a.npy"], "--output /nowhere/a.npy cannot be written"),
        (["bench", "latency", "--input-len", "200", "--output-len", "100"], "is above max_model_len=256"),
        (["generate", "word " * 300], "256"),
        (["generate", "hi", "--block-size", "24"], "block_size=24 is not a power of two"),
        (["chat", "-q", "hi", "--max-num-seqs", "0"], "max_num_seqs=0"),
    ],
)
def test_mistakes(argv: list[str], said: str, engine_flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([*argv, *engine_flags])
    error = capsys.readouterr().err
    assert left.value.code == 2 and said in error and error.count("\n") == 1


def test_no_such_model(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["generate", "hi", "--model", "./not/there"])
    assert left.value.code == 2 and "./not/there" in capsys.readouterr().err


def test_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert listed["aliases"][0]["alias"] == "smollm2" and "LlamaForCausalLM" in listed["architectures"]
    assert main(["models"]) == 0
    assert "smollm2" in capsys.readouterr().out


def test_collect_env(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect-env"]) == 0
    text = capsys.readouterr().out
    assert "torch" in text and "GiB" in text and "Error" not in text
