"""lm-evaluation-harness on a task of three questions: answers written by chat, and choices scored by log-likelihood."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from exchange import REAL, REAL_URL, check, expect, finish

CAPITALS = {"France": "Paris", "Italy": "Rome", "Spain": "Madrid"}
DATA = """
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
"""
WRITTEN = """
task: capitals_written
output_type: generate_until
doc_to_text: "What is the capital of {{country}}? Answer in one short sentence."
doc_to_target: "{{choices[answer]}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 24, do_sample: false, temperature: 0}
filter_list:
  - name: city
    filter: [{function: regex, regex_pattern: "(Paris|Rome|Madrid)"}, {function: take_first}]
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""
CHOSEN = """
task: capitals_chosen
output_type: multiple_choice
doc_to_text: "The capital of {{country}} is"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""
RUN_S = 240.0


def evaluate(task: str, kind: str, path: str, *flags: str, settings: str = "") -> dict[str, float]:
    """The measures of a task, which is written into a folder of its own; nothing is asked of a model hub."""
    with tempfile.TemporaryDirectory(prefix="cadence-lm-eval-") as name:
        folder = Path(name)
        choices = list(CAPITALS.values())
        rows = [{"country": c, "choices": choices, "answer": n} for n, c in enumerate(CAPITALS)]
        (folder / "capitals.jsonl").write_text("\n".join(map(json.dumps, rows)))
        (folder / "task.yaml").write_text(task + DATA.format(data=folder / "capitals.jsonl"))
        model = f"model={REAL},base_url={REAL_URL}{path},num_concurrent=2,max_retries=1{settings}"
        words = ["run", "--model", kind, "--model_args", model, "--tasks", task.split()[1], "--include_path", name]
        subprocess.run(
            [str(Path(sys.executable).with_name("lm-eval")), *words, "--output_path", f"{name}/out", *flags],
            env={**os.environ, "HF_HOME": f"{name}/hf", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
            stdout=sys.stderr,
            timeout=RUN_S,
            check=True,
        )
        (report,) = folder.glob("out/**/results_*.json")
        (measures,) = json.loads(report.read_text())["results"].values()
        return measures


@check
def chat_answers() -> None:
    measures = evaluate(WRITTEN, "local-chat-completions", "/v1/chat/completions", "--apply_chat_template")
    expect(measures["exact_match,city"] == 1.0, measures)


@check
def choices_by_log_likelihood() -> None:
    """Prompts as token ids, their logprobs back with `echo`; the tokenizer is the server's own."""
    measures = evaluate(CHOSEN, "local-completions", "/v1/completions", settings=",tokenizer_backend=remote")
    expect(measures["acc,none"] == 1.0, measures)


finish()
