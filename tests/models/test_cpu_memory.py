"""What a model takes of a CPU's memory: its packed weights, once, and little besides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine

MOST = {"loaded": 200, "while loading": 240, "at work": 250}  # MB beyond torch, for weights of 97 MB

SCRIPT = """
import json, sys
import torch

def held(key):  # MB
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith(key))

found = {"torch": held("VmRSS:")}
from cadence import LLM, SamplingParams
llm = LLM("smollm2")
found["loaded"], found["while loading"] = held("VmRSS:"), held("VmHWM:")
llm.generate(["The sea is"] * 4, SamplingParams(temperature=0, max_tokens=32, ignore_eos=True), use_tqdm=False)
found["at work"] = held("VmRSS:")
found["heavy"] = sorted({"transformers", "triton", "sympy", "torch._dynamo"} & set(sys.modules))
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory")
def test_smollm2_takes_little_beyond_torch() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    for moment, most in MOST.items():
        assert found[moment] - found["torch"] < most, found
    assert found["heavy"] == []
