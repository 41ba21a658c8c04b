"""What the benchmarks say of drafts, from outputs and from a server's metrics."""

from __future__ import annotations

import json

import pytest

from cadence.core.draft_stats import NO_DRAFTS
from cadence.core.outputs import RequestOutput
from cadence.entrypoints.cli.bench_serve import command
from cadence.entrypoints.cli.main import main
from cadence.entrypoints.cli.shared.draft_counts import DraftCounts, draft_rows
from tests.cli.scripted_server import ScriptedServer, running

RUNS = [(4, 3), (4, 1), (2, 3)]  # 10 drafts, 4 kept


def metrics(forwards: int, drafted: int, kept: list[int]) -> str:
    lines = [
        "# TYPE vllm:spec_decode_num_drafts counter",
        f'vllm:spec_decode_num_drafts_total{{engine="0"}} {forwards}.0',
        f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {drafted}.0',
        f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {sum(kept)}.0',
        f'cadence:spec_decode_num_drafts_total{{engine="0"}} {forwards}.0',
        'vllm:generation_tokens_total{engine="0"} 1e6',
    ]
    each = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    lines += [f'{each}{{engine="0",position="{i}"}} {count}.0' for i, count in enumerate(kept)]
    return "\n".join(lines) + "\n"


def test_outputs_and_metrics_say_the_same() -> None:
    outputs = [RequestOutput("r", None, [], None, [], True, speculation=NO_DRAFTS.add([run])) for run in RUNS]
    counts = DraftCounts.of_outputs(outputs)
    assert counts == DraftCounts.of(NO_DRAFTS.add(RUNS)) == DraftCounts.of_metrics(metrics(3, 10, [2, 2, 0, 0]))
    assert counts.numbers() == {
        "spec_decode_acceptance_rate": 40.0,
        "spec_decode_acceptance_length": 1 + 4 / 3,
        "spec_decode_num_drafts": 3,
        "spec_decode_draft_tokens": 10,
        "spec_decode_accepted_tokens": 4,
        "spec_decode_per_position_acceptance_rates": [2 / 3, 2 / 3, 0, 0],
    }
    assert [(row.value, row.unit) for row in draft_rows(counts.numbers())] == [(40.0, "%"), (1 + 4 / 3, "tokens")]


def test_nobody_speculates() -> None:
    assert DraftCounts.of_metrics("vllm:generation_tokens_total 3.0\n") is None
    assert DraftCounts.of(NO_DRAFTS).numbers() == {} and draft_rows({}) == []


def test_only_what_was_added_counts() -> None:
    before = DraftCounts.of_metrics(metrics(5, 20, [3]))
    after = DraftCounts.of_metrics(metrics(8, 30, [5, 2]))
    assert before is not None and after is not None
    assert after.minus(before) == DraftCounts(3, 10, 4, (2, 2))


def test_a_server_that_speculates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "SETTLE_SECONDS", 0.0)
    server = ScriptedServer()
    answers = [metrics(1, 4, [1]), metrics(2, 8, [2]), metrics(5, 18, [3, 1]), metrics(5, 18, [4, 2])]
    with running(server) as started:
        started.metrics = answers
        flags = ["--base-url", started.url, "--num-prompts", "2", "--random-input-len", "4", "--output-len", "3"]
        assert main(["bench", "serve", *flags, "--output-json", "-"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["spec_decode_num_drafts"], result["spec_decode_accepted_tokens"]) == (3, 4)
        assert result["spec_decode_acceptance_rate"] == 40.0
        started.metrics = answers
        assert main(["bench", "serve", *flags]) == 0
        assert "drafts accepted" in (out := capsys.readouterr().out) and "mean accepted length" in out
        started.metrics = []
        assert main(["bench", "serve", *flags]) == 0
        assert "drafts" not in capsys.readouterr().out
