"""`cadence bench serve` against a server whose words are known: what it sends, measures and writes down."""

from __future__ import annotations

import builtins
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadence.entrypoints.cli.bench_serve.flags import build_parser
from cadence.entrypoints.cli.bench_serve.load import Pace, Ramp, Sample, Stopwatch
from cadence.entrypoints.cli.bench_serve.numbers import WantedMetrics, numbers, peak_concurrency, tokens_by_second
from cadence.entrypoints.cli.bench_serve.peer_flags import PEER_FLAGS
from cadence.entrypoints.cli.bench_serve.work import RandomShape
from cadence.entrypoints.cli.main import main
from tests.cli.scripted_server import ScriptedServer, running

VLLM_FLAGS = """
append-result asr-max-audio-len-sec asr-min-audio-len-sec backend base-url bfcl-categories blazedit-max-distance
blazedit-min-distance burstiness chat-template-kwargs custom-ensure-client-side-data custom-output-len dataset-name
dataset-path disable-shuffle disable-tqdm enable-multimodal-chat endpoint extra-body frequency-penalty goodput header
hf-name hf-output-len hf-split hf-subset host ignore-eos input-len insecure label logprobs lora-assignment
lora-modules max-concurrency metadata metric-percentiles min-p model no-oversample no-reranker no-stream num-prompts
num-warmups output-len percentile-metrics plot-dataset-stats plot-timeline port prefix-repetition-num-prefixes
prefix-repetition-output-len prefix-repetition-prefix-len prefix-repetition-suffix-len presence-penalty
probe-request-rate profile ramp-up-end-rps ramp-up-start-rps ramp-up-strategy random-batch-size random-input-len
random-mm-base-items-per-request random-mm-bucket-config random-mm-limit-mm-per-prompt
random-mm-num-mm-items-range-ratio random-output-len random-prefix-len random-range-ratio ready-check-timeout-sec
repetition-penalty request-id-prefix request-rate result-dir result-filename save-detailed save-result seed self-timed
served-model-name sharegpt-output-len skip-chat-template skip-tokenizer-init sonnet-input-len sonnet-output-len
sonnet-prefix-len spec-bench-category spec-bench-output-len speed-bench-category speed-bench-dataset-subset
speed-bench-output-len temperature timed-trace-chunk-hash-size timed-trace-label-hash-ids
timed-trace-label-input-length timed-trace-label-output-length timed-trace-label-timestamp timed-trace-sec-multiplier
timeline-itl-thresholds tokenizer tokenizer-mode top-k top-p trust-remote-code use-beam-search
"""  # of its `bench serve`, August 2026
WANTED = WantedMetrics.parse("ttft,tpot,itl,e2el", "25,50,99.9", [])


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with running(ScriptedServer()) as started:
        yield started


def bench(server: ScriptedServer, capsys: pytest.CaptureFixture[str], *flags: str) -> dict[str, Any]:
    common = ["--base-url", server.url, "--num-prompts", "6", "--random-input-len", "10", "--output-len", "5"]
    status = main(["bench", "serve", *common, "--output-json", "-", *flags])
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert status == (0 if result["completed"] else 1)
    return result


def test_tokens_are_counted_from_usage(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    result = bench(server, capsys, "--ignore-eos")
    assert (result["completed"], result["failed"], result["tokens_counted_by"]) == (6, 0, "usage")
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (60, 30)
    assert result["model_id"] == "scripted" and result["request_rate"] == "inf"
    assert result["output_throughput"] == pytest.approx(30 / result["duration"])
    assert result["total_token_throughput"] == pytest.approx(90 / result["duration"])
    assert result["request_throughput"] == pytest.approx(6 / result["duration"])
    for metric, kind in itertools.product(("ttft", "tpot", "itl", "e2el"), ("mean", "median", "std", "p90", "p99")):
        assert result[f"{kind}_{metric}_ms"] >= 0
    assert 0 < result["mean_ttft_ms"] <= result["mean_e2el_ms"]


def test_requests_are_what_was_asked_for(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    bench(server, capsys, "--ignore-eos", "--extra-body", '{"top_k": 3}', "--api-key", "secret", "--header", "X-A=b")
    assert len(server.bodies) == 7  # with the warm-up
    for body in server.bodies:
        assert body["stream"] is True and body["stream_options"] == {"include_usage": True}
        assert (body["model"], body["max_tokens"], body["ignore_eos"], body["top_k"]) == ("scripted", 5, True, 3)
        assert len(body["prompt"]) == 10 and all(isinstance(token, int) for token in body["prompt"])
    assert len({tuple(body["prompt"]) for body in server.bodies}) == 7
    assert all("Authorization: Bearer secret\r\nX-A: b" in head for head in server.heads)


def test_the_same_seed_asks_the_same(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--max-concurrency", "1", "--random-range-ratio", "0.5", "--num-warmups", "0")
    for seed in ("1", "1", "2"):
        bench(server, capsys, *flags, "--seed", seed)
    first, again, other = server.bodies[:6], server.bodies[6:12], server.bodies[12:]
    assert first == again != other
    assert all(5 <= len(body["prompt"]) <= 15 and 2 <= body["max_tokens"] <= 8 for body in server.bodies)


def test_chat_and_a_server_that_cannot_tokenise(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.has_tokenize = False
    result = bench(server, capsys, "--backend", "openai-chat")
    assert result["endpoint"] == "/v1/chat/completions" and result["completed"] == 6
    text = server.bodies[0]["messages"][0]["content"]
    assert len(text.split()) == 10 and server.bodies[0]["max_completion_tokens"] == 5
    assert result["total_output_tokens"] == 18  # three words each: the role in front is no token
    bench(server, capsys)
    assert isinstance(server.bodies[-1]["prompt"], str)


def test_without_usage_arrivals_are_counted(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.usage = False
    result = bench(server, capsys)
    assert (result["total_output_tokens"], result["tokens_counted_by"]) == (18, "arrivals")


def test_concurrency_is_bounded_and_connections_are_kept(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.delay = 0.01
    result = bench(server, capsys, "--max-concurrency", "2")
    assert server.most_under_way == 2 == result["max_concurrent_requests"]
    assert server.connections == 2
    server.keep_alive = False
    assert bench(server, capsys, "--max-concurrency", "2")["completed"] == 6
    server.keep_alive = True
    bench(server, capsys)
    assert server.most_under_way == 6


def test_latencies_are_those_of_the_server(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.delay = 0.03
    result = bench(server, capsys, "--ignore-eos")
    assert 28 < result["median_ttft_ms"] < 400
    assert 28 < result["median_itl_ms"] < 300
    assert 28 < result["median_tpot_ms"] < 300
    assert result["median_e2el_ms"] == pytest.approx(result["median_ttft_ms"] + 4 * result["median_tpot_ms"], rel=0.2)


def test_failures_are_counted_and_told(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.refuse = {2: (429, {"error": {"message": "too many"}}), 3: (500, {"oops": 1})}
    status = main(["bench", "serve", "--base-url", server.url, "--num-prompts", "5", "--max-concurrency", "1"])
    captured = capsys.readouterr()
    assert status == 0 and "1 × 429: too many" in captured.err and "1 × 500" in captured.err
    assert "3 requests completed, 2 failed" in captured.out


@pytest.mark.parametrize("attribute", ["break_after", "error_after"])
def test_a_stream_that_breaks_is_a_failure(
    attribute: str, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    setattr(server, attribute, 2)
    flags = ["--num-prompts", "3", "--num-warmups", "0", "--output-json", "-", "--save-detailed"]
    status = main(["bench", "serve", "--base-url", server.url, *flags])
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert status == 1 and (result["completed"], result["failed"]) == (0, 3)
    said = "out of luck" if attribute == "error_after" else "closed the connection"
    assert all(said in error for error in result["errors"]) and "3 × " in captured.err


def test_results_and_a_picture_are_saved(
    server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "latency.png"
    flags = ["--save-result", "--save-detailed", "--result-dir", str(tmp_path / "out"), "--plot", str(picture)]
    argv = ["bench", "serve", "--base-url", server.url, "--num-prompts", "4", "--metadata", "commit=abc", *flags]
    assert main([*argv, "--result-filename", "r.json"]) == 0
    assert "ttft  to the first token" in capsys.readouterr().out
    saved = json.loads((tmp_path / "out/r.json").read_text())
    assert saved["commit"] == "abc" and len(saved["ttfts"]) == 4 and len(saved["itls"][0]) == 2
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000
    assert main([*argv, "--label", "mine", "--request-rate", "500"]) == 0
    assert [path.name[:20] for path in (tmp_path / "out").glob("mine-*")] == ["mine-500.0qps-script"]


def test_without_matplotlib_a_picture_is_refused_before_the_load(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = builtins.__import__

    def guarded(name: str, *rest: Any) -> Any:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return original(name, *rest)

    monkeypatch.setattr(builtins, "__import__", guarded)
    with pytest.raises(SystemExit):
        main(["bench", "serve", "--base-url", server.url, "--plot", "x.png"])
    assert "needs the package matplotlib" in capsys.readouterr().err and not server.bodies


def test_custom_and_sharegpt_files(server: ScriptedServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = tmp_path / "prompts.jsonl"
    lines.write_text('{"prompt": "one two", "output_tokens": 2}\n\n{"prompt": "three"}\n')
    common = ["bench", "serve", "--base-url", server.url, "--num-warmups", "0", "--max-concurrency", "1"]
    assert main([*common, "--num-prompts", "3", "--dataset-path", str(lines)]) == 0
    assert [(b["prompt"], b["max_tokens"]) for b in server.bodies] == [("one two", 2), ("three", 256), ("one two", 2)]
    assert "they are asked again" in capsys.readouterr().err
    talks = tmp_path / "talks.json"
    turns = [{"from": "human", "value": "why"}, {"from": "gpt", "value": "because it is so"}]
    talks.write_text(json.dumps([{"conversations": turns}, {"conversations": turns[:1]}, {"conversations": []}]))
    server.bodies.clear()
    assert main([*common, "--num-prompts", "1", "--dataset-path", str(talks), "--backend", "openai-chat"]) == 0
    assert server.bodies[0]["messages"] == [{"role": "user", "content": "why"}]
    assert server.bodies[0]["max_completion_tokens"] == 4


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--request-rate", "0"], "request_rate=0.0"),
        (["--burstiness", "-1"], "burstiness=-1.0"),
        (["--num-prompts", "0"], "num_prompts=0"),
        (["--percentile-metrics", "ttft,speed"], "'speed' is not one of"),
        (["--metric-percentiles", "101"], "metric_percentiles='101'"),
        (["--goodput", "ttft=5"], "'ttft=5' is not one of"),
        (["--goodput", "ttft:fast"], "not of the form ttft:200"),
        (["--endpoint", "/v1/embeddings"], "endpoint='/v1/embeddings'"),
        (["--dataset-name", "custom"], "needs --dataset-path"),
        (["--dataset-path", "/not/there.jsonl"], "/not/there.jsonl"),
        (["--base-url", "ftp://x"], "is not an address"),
        (["--base-url", "http://127.0.0.1:1"], "cannot reach http://127.0.0.1:1"),
        (["--random-range-ratio", "1"], "random_range_ratio=1.0"),
        (["--plot", "x.pdf"], "does not end in .png"),
        (["--nonsense"], "unknown flag --nonsense"),
        (["--header", "novalue"], "NAME=VALUE"),
        (["--profile"], "--profile cannot be honoured: a server is not profiled over HTTP"),
        (["--dataset-name", "sonnet"], "its dataset is not read"),
        (["--dataset-name", "nonsense"], "'nonsense' is not one of random"),
        (["--ramp-up-start-rps", "1"], "need ramp_up_strategy"),
        (["--ramp-up-strategy", "linear", "--ramp-up-start-rps", "1"], "ramp_up_end_rps=None is not above 0"),
        (["--ramp-up-strategy", "linear", "--request-rate", "5"], "cannot both be given"),
        (["--dataset-name", "prefix_repetition", "--prefix-repetition-num-prefixes", "0"], "num_prefixes=0"),
    ],
)
def test_mistakes_are_one_line_and_status_2(
    flags: list[str], said: str, server: ScriptedServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["bench", "serve", "--base-url", server.url, *flags])
    error = capsys.readouterr().err
    assert left.value.code == 2 and said in error and error.count("\n") == 1
    assert not server.bodies


def test_flags_of_vllm_reach_the_requests(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    sampling = {"top_p": 0.5, "top_k": 4, "min_p": 0.1, "frequency_penalty": 0.2, "presence_penalty": 0.3,
                "repetition_penalty": 1.1, "temperature": 0.7, "logprobs": 2}  # fmt: skip
    flags = [word for name, value in sampling.items() for word in ("--" + name.replace("_", "-"), str(value))]
    more = ("--request-id-prefix", "run-", "--lora-modules", "a", "b", "--lora-assignment", "round-robin")
    common = ["--base-url", server.url, "--num-prompts", "4", "--random-input-len", "3", "--num-warmups", "0"]
    assert main(["bench", "serve", *common, *flags, *more, "--tokenizer", "x", "--trust-remote-code"]) == 0
    said = capsys.readouterr().err
    assert "--tokenizer has no effect here" in said and "--trust-remote-code has no effect here" in said
    bodies = sorted(server.bodies, key=lambda body: body["request_id"])
    assert [(body["request_id"], body["model"]) for body in bodies] == [
        ("run-0", "a"), ("run-1", "b"), ("run-2", "a"), ("run-3", "b")
    ]  # fmt: skip
    assert all(body[name] == value for body in bodies for name, value in sampling.items())


def test_prefixes_are_repeated(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", "7")
    lengths = ("--prefix-repetition-suffix-len", "5", "--prefix-repetition-num-prefixes", "3")
    bench(server, capsys, *flags, *lengths, "--prefix-repetition-output-len", "4", "--num-warmups", "0")
    prompts = [tuple(body["prompt"]) for body in server.bodies]
    assert len(set(prompts)) == 6 and {len(prompt) for prompt in prompts} == {12}
    assert sorted(Counter(prompt[:7] for prompt in prompts).values()) == [2, 2, 2]
    assert {body["max_tokens"] for body in server.bodies} == {4}


def test_results_are_appended(server: ScriptedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "all.json"
    for count in ("1", "2"):
        bench(server, capsys, "--append-result", "--result-filename", str(file), "--num-prompts", count)
    results = [json.loads(line) for line in file.read_text().splitlines()]
    assert [result["completed"] for result in results] == [1, 2]


def test_a_file_in_its_order_and_once(
    server: ScriptedServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    talks = [{"conversations": [{"value": f"question {number}"}, {"value": "answer"}]} for number in range(3)]
    (tmp_path / "s.json").write_text(json.dumps(talks))
    flags = ("--dataset-path", str(tmp_path / "s.json"), "--disable-shuffle", "--no-oversample", "--num-warmups", "0")
    result = bench(server, capsys, *flags, "--max-concurrency", "1")
    assert result["completed"] == 3
    assert [body["prompt"] for body in server.bodies] == ["question 0", "question 1", "question 2"]


@pytest.mark.parametrize(("strategy", "middle"), [("linear", 50.5), ("exponential", 10.0)])
def test_a_ramp_goes_from_rate_to_rate(strategy: str, middle: float) -> None:
    ramp = Ramp.of(strategy, 1.0, 100.0, float("inf"))
    assert ramp is not None
    assert [ramp.rate(progress) for progress in (0, 0.5, 1)] == pytest.approx([1, middle, 100])
    due = np.array(list(Pace(float("inf"), 1e6, 0, 0, ramp).due_times(101)))
    assert 1 / (due[1] - due[0]) == pytest.approx(1, rel=0.1)
    assert 1 / (due[51] - due[50]) == pytest.approx(middle, rel=0.1)


def test_every_flag_of_vllm_is_known() -> None:
    parser = build_parser()
    known = {name for action in parser._actions for name in action.option_strings}
    assert [name for name in VLLM_FLAGS.split() if f"--{name}" not in known] == []
    reasons = {flag.name: flag for flag in PEER_FLAGS}
    assert len(reasons) == len(PEER_FLAGS) and all(flag.why for flag in PEER_FLAGS)
    assert {f"--{name}" for name in VLLM_FLAGS.split()} >= reasons.keys()


def test_a_failed_warm_up_ends_it(server: ScriptedServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.refuse = {0: (404, {"error": {"message": "no such model"}})}
    with pytest.raises(SystemExit):
        main(["bench", "serve", "--base-url", server.url + "/v1", "--model", "other"])
    assert "404: no such model" in capsys.readouterr().err and len(server.bodies) == 1


def make_samples(count: int) -> list[Sample]:
    dice = random.Random(5)
    samples = []
    for index in range(count):
        gaps = [dice.random() / 50 for _ in range(dice.randrange(9))]
        first = dice.random() / 5
        samples.append(Sample(index / 10, first, gaps, first + sum(gaps), 7, len(gaps) + 1, True))
    return [*samples, Sample(0.0, 9.0, [9.0], 9.0, 9, 9, True, "broken")]


def test_numbers_are_numpys() -> None:
    samples = make_samples(40)
    result = numbers(samples, 2.0, WANTED)
    done = samples[:-1]
    expected = {
        "ttft": [s.ttft for s in done],
        "tpot": [(s.latency - s.ttft) / (s.output_tokens - 1) for s in done if s.output_tokens > 1],
        "itl": [gap for s in done for gap in s.itls],
        "e2el": [s.latency for s in done],
    }
    for name, seconds in expected.items():
        ms = 1000 * np.array(seconds)
        assert result[f"mean_{name}_ms"] == pytest.approx(ms.mean())
        assert result[f"median_{name}_ms"] == pytest.approx(np.median(ms))
        assert result[f"std_{name}_ms"] == pytest.approx(ms.std())
        for percent, key in ((25, "p25"), (50, "p50"), (99.9, "p99.9")):
            assert result[f"{key}_{name}_ms"] == pytest.approx(np.percentile(ms, percent))
    assert (result["completed"], result["failed"], result["total_input_tokens"]) == (40, 1, 280)
    assert result["request_throughput"] == 20 and result["request_goodput"] is None


def test_goodput_counts_requests_within_every_limit() -> None:
    samples = [Sample(0, 0.1, [0.1], 0.2, 1, 2), Sample(0, 0.1, [0.4], 0.5, 1, 2), Sample(0, 0.3, [0.1], 0.4, 1, 2)]
    assert numbers(samples, 1.0, WantedMetrics.parse("ttft", "99", ["ttft:200", "tpot:200"]))["request_goodput"] == 1
    assert numbers(samples, 1.0, WantedMetrics.parse("ttft", "99", ["e2el:450"]))["request_goodput"] == 2
    assert numbers([], 1.0, WANTED)["p50_ttft_ms"] == 0.0


def test_peaks() -> None:
    samples = [Sample(0.0, 0.5, [1.0], 1.5, 1, 4), Sample(1.0, 0.2, [], 0.2, 1, 1), Sample(1.2, 0.1, [], 0.1, 1, 1)]
    assert tokens_by_second(samples, 2.0) == [2, 4, 0]
    assert peak_concurrency(samples) == 2 and peak_concurrency([]) == 0


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_spread_asked_for(burstiness: float) -> None:
    times = list(Pace(20.0, burstiness, 0, 3).due_times(4001))
    gaps = np.diff(times)
    assert times[0] == 0.0 and gaps.mean() == pytest.approx(1 / 20, rel=0.1)
    assert gaps.std() / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.1)  # a gamma distribution's
    assert set(Pace(float("inf"), 1.0, 0, 0).due_times(9)) == {0.0}


def test_lengths_lie_in_their_range() -> None:
    shape = RandomShape(100, 1, 0.25, 0)
    dice = random.Random(0)
    drawn = {shape.draw(100, dice) for _ in range(2000)}
    assert min(drawn) == 75 and max(drawn) == 125 and min(shape.draw(1, dice) for _ in range(50)) == 1


def test_the_first_token_is_not_the_role() -> None:
    sample = Sample()
    watch = Stopwatch(sample, 10.0)
    deltas = [{"role": "assistant", "content": ""}, {"reasoning": "hm"}, {"content": ""}, {"content": "hi"}]
    for moment, delta in enumerate(deltas, start=11):
        watch({"choices": [{"delta": delta, "finish_reason": None}]}, moment)
    watch({"choices": [{"delta": {}, "finish_reason": "stop"}]}, 15.0)
    watch({"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 6}}, 16.0)
    watch.stop(17.0)
    assert (sample.ttft, sample.itls, sample.latency) == (2.0, [1.0, 1.0], 4.0)
    assert (sample.prompt_tokens, sample.output_tokens, sample.tpot) == (4, 6, 0.4)
