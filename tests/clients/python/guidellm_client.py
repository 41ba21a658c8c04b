"""GuideLLM: a benchmark of a few requests, chat and completions, with every one answered and counted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from exchange import REAL_URL, check, expect, finish

REQUESTS, WORDS = 4, 8
RUN_S = 200.0


def benchmark(backend: str, profile: str) -> Any:
    with tempfile.TemporaryDirectory(prefix="cadence-guidellm-") as name:
        folder = Path(name)
        rows = [{"prompt": f"Tell me about the number {n}.", "output_tokens_count": WORDS} for n in range(REQUESTS)]
        (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, rows)))
        flags = {
            "--backend": f"kind=openai_http,target={REAL_URL}{backend}",
            "--profile": profile,
            "--constraint": f"kind=max_requests,count={REQUESTS}",
            "--data": f"kind=json_file,path={name}/prompts.jsonl",
            "--output": f"kind=json,path={name}/out.json",
        }
        words = [word for pair in flags.items() for word in pair]
        subprocess.run(
            [str(Path(sys.executable).with_name("guidellm")), "run", *words, "--disable-console-interactive"],
            env={**os.environ, "HF_HOME": f"{name}/hf", "HF_HUB_OFFLINE": "1"},
            stdout=sys.stderr,
            timeout=RUN_S,
            check=True,
        )
        return json.loads((folder / "out.json").read_text())["benchmarks"][0]["metrics"]


def expect_all(metrics: Any) -> None:
    totals = metrics["request_totals"]
    expect((totals["successful"], totals["errored"]) == (REQUESTS, 0), totals)
    expect(metrics["output_token_count"]["successful"]["mean"] == WORDS, metrics["output_token_count"]["successful"])
    expect(metrics["time_to_first_token_ms"]["successful"]["mean"] > 0)


@check
def chat_streams() -> None:
    expect_all(benchmark("", "kind=concurrent,streams=2"))


@check
def completions() -> None:
    expect_all(benchmark(",request_format=/v1/completions", "kind=synchronous"))


finish()
