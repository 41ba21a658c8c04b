"""What an `LLM` held goes when the `LLM` goes, by reference counting alone, or when it is told to."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, SamplingParams
from cadence.core.errors import EngineDeadError

LARGE = {"hidden_size": 384, "intermediate_size": 1536, "vocab_size": 16000, "num_hidden_layers": 8}  # 120 MB

PRELUDE = """
import gc, json, os, sys, weakref
import torch
from cadence import LLM, SamplingParams
gc.collect(); gc.disable()
MODEL, LARGE, MORE = json.loads(sys.argv[1])
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)

def rss():  # MB
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmRSS:"))

def threads():
    return len(os.listdir("/proc/self/task"))

def open_llm(**options):
    return LLM(MODEL, max_model_len=128, dtype="float32", kv_cache_memory_bytes=2**26, device="cpu", **options)

def parts(llm):
    worker = llm.llm_engine._core._executor
    device, runner = worker._device, worker._runner
    threads = [device.calls.pool] if device.caps.kind == "cpu" else []
    return worker, device, *threads, runner, runner._parts.loop._parts.model, llm.llm_engine._core._scheduler

def watch(llm):
    return [weakref.ref(part) for part in (llm, llm.llm_engine, *parts(llm))]

def alive(refs):
    return sorted(type(ref()).__name__ for ref in refs if ref() is not None)

def fail_in_a_step(number, kind):
    # deep in the model, where the frames above hold all of it
    from cadence.models.layers.mlp import GatedMLP
    plain, calls = GatedMLP.after, iter(range(10**6))
    def after(*args, **named):
        if next(calls) == number:
            GatedMLP.after = plain
            raise kind("broken")
        return plain(*args, **named)
    GatedMLP.after = after
"""

LARGE_LLM = 'load_format="dummy", hf_overrides=LARGE'
# Everything that is made once per process is there then.
WARM_UP = """
llm = open_llm({options})
llm.generate("warm", GREEDY, use_tqdm=False)
del llm
"""

ENDS = {
    "del": "llm.generate(['a b c', 'd'], GREEDY, use_tqdm=False)",
    "never used": "pass",
    "torch takes part": "llm.generate('a', GREEDY, use_tqdm=False)",
    "shutdown": "llm.generate('a', GREEDY, use_tqdm=False); llm.shutdown(); llm.shutdown()",
    "with": "with llm: llm.generate('a', GREEDY, use_tqdm=False)",
    "in the middle": "llm.llm_engine.add_request('0', 'a b', GREEDY); llm.llm_engine.step(); llm.llm_engine.step()",
    "aborted": """
llm.llm_engine.add_request('0', 'a b', GREEDY); llm.llm_engine.step(); llm.llm_engine.abort_request('0')""",
    "interrupted": """
fail_in_a_step(22, KeyboardInterrupt)
try:
    llm.generate(['a b c', 'd'], GREEDY, use_tqdm=False)
except KeyboardInterrupt:
    pass
else:
    raise AssertionError""",
    "error in a step": """
fail_in_a_step(22, RuntimeError)
try:
    llm.generate(['a b c', 'd'], GREEDY, use_tqdm=False)
except RuntimeError:
    pass
else:
    raise AssertionError""",
    "an error that is kept": """
fail_in_a_step(22, RuntimeError)
try:
    llm.generate(['a b c', 'd'], GREEDY, use_tqdm=False)
except RuntimeError as error:
    kept = error
llm.shutdown()
refs = refs[2:]  # its frames name the LLM and its engine, which hold nothing any more""",
    "a bad request": """
try:
    llm.generate(['a', [10**9]], GREEDY, use_tqdm=False)
except ValueError:
    pass""",
}
EAGER = {"enforce_eager": True}  # forwards come through Python each time
OPTIONS = {
    "torch takes part": {"kernels": "reference"},
    "interrupted": EAGER,
    "error in a step": EAGER,
    "an error that is kept": EAGER,
}

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's account of memory"),
]


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


def run(directory: Path, script: str, more: object = None) -> Any:
    command = [sys.executable, "-c", PRELUDE + script, json.dumps([str(directory), LARGE, more])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_every_way_to_end_frees_all_parts_without_the_collector(directory: Path) -> None:
    script = """
found = {}
for name, (work, options) in MORE.items():
    before = threads()
    llm = open_llm(**options)
    refs = watch(llm)
    names = {"llm": llm, "refs": refs, **{key: globals()[key] for key in ("GREEDY", "fail_in_a_step")}}
    exec(work, names)
    refs = names.pop("refs")
    del llm, names["llm"]
    found[name] = [alive(refs), threads() - before]
    del names
print(json.dumps(found))
"""
    ends = {name: (work, OPTIONS.get(name, {})) for name, work in ENDS.items()}
    assert run(directory, WARM_UP.format(options="") + script, ends) == {name: [[], 0] for name in ENDS}


def test_memory_and_threads_are_those_of_before(directory: Path) -> None:
    """Large models, one after the other: each is freed whole, so none adds to the one before."""
    script = """
found = {"rss": [rss()], "threads": [threads()], "alive": []}
most = 0
for _ in range(2):
    llm = open_llm(load_format="dummy", hf_overrides=LARGE)
    llm.generate(["some words"] * 4, GREEDY, use_tqdm=False)
    most = max(most, rss())
    refs = watch(llm)
    del llm
    found["rss"].append(rss()); found["threads"].append(threads()); found["alive"] += alive(refs)
print(json.dumps({**found, "most": most}))
"""
    found = run(directory, WARM_UP.format(options=LARGE_LLM) + script)
    print(found)
    assert found["alive"] == []
    assert len(set(found["threads"])) == 1
    assert found["most"] - found["rss"][0] > 100  # so large is the model
    assert max(found["rss"]) - found["rss"][0] < 40


def test_prompt_logprobs_take_little_memory_and_give_it_back(directory: Path) -> None:
    """At once, 250 positions of 100,000 logits would take 100 MB, and what is made of them some 500."""
    script = """
def peak():  # MB
    return next(int(line.split()[1]) / 1024 for line in open("/proc/self/status") if line.startswith("VmHWM:"))

found = {}
changes = LARGE | {"vocab_size": 100000, "max_position_embeddings": 512, "num_hidden_layers": 1}
options = {"max_model_len": 512, "kv_cache_memory_bytes": 2**24, "max_logprobs": -1, "device": "cpu"}
llm = LLM(MODEL, load_format="dummy", hf_overrides=changes, **options)
llm.generate([[5] * 250], GREEDY, use_tqdm=False)
ASKS = {
    "prompt": ([[7] * 250], {"prompt_logprobs": 5}),
    "outputs": ([[index] * 9 for index in range(64)], {"logprobs": 5}),
    "filters": ([[index] * 8 for index in range(64)], {"temperature": 1.0, "top_p": 0.9, "seed": 1}),
    "whole vocabulary": ([[7] * 3], {"prompt_logprobs": -1}),
}
for name, (prompts, wanted) in ASKS.items():
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins again
    before = rss()
    llm.generate(prompts, SamplingParams(**{"temperature": 0, "max_tokens": 2, **wanted}), use_tqdm=False)
    found[name] = [peak() - before, rss() - before]
print(json.dumps(found))
"""
    found = run(directory, script)
    print(found)
    assert found["prompt"][0] < 200 and found["prompt"][1] < 40, found
    assert found["outputs"][0] < 250 and found["filters"][0] < 300, found
    assert found["whole vocabulary"][0] < 400, found  # 200,000 names with their logprobs


@pytest.mark.gpu
def test_gpu_memory_is_that_of_before(directory: Path) -> None:
    script = """
def free():  # MB of the GPU
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0] / 2**20

options = {"load_format": "dummy", "hf_overrides": LARGE, "max_model_len": 128, "gpu_memory_utilization": 0.3}
found = []
for ending in ("del", "shutdown", "with", "del"):
    llm = LLM(MODEL, device="cuda", **options)
    llm.generate(["some words"] * 4, GREEDY, use_tqdm=False)
    refs, held = watch(llm)[2:], free()
    if ending == "shutdown":
        llm.shutdown()
    elif ending == "with":
        with llm:
            pass
    else:
        del llm
    found.append([alive(refs), held, free()])
print(json.dumps(found))
"""
    found = run(directory, WARM_UP.format(options=LARGE_LLM) + script)
    print(found)
    for alive, held, free in found:
        assert alive == []
        assert free - held > 1000  # the KV cache alone takes more
        assert abs(free - found[0][2]) < 100


def test_after_shutdown_requests_are_refused_in_a_sentence(directory: Path) -> None:
    with LLM(str(directory), dtype="float32", max_model_len=128) as llm:
        llm.generate("a", SamplingParams(max_tokens=2), use_tqdm=False)
    for _ in range(2):
        with pytest.raises(EngineDeadError, match="shut down"):
            llm.generate("a", SamplingParams(max_tokens=2), use_tqdm=False)
        with pytest.raises(EngineDeadError, match="shut down"):
            llm.chat([{"role": "user", "content": "a"}], use_tqdm=False)
        with pytest.raises(EngineDeadError, match="shut down"):
            llm.get_metrics()
        llm.shutdown()
    assert not llm.llm_engine.has_unfinished_requests()
    assert llm.get_tokenizer().decode([5])


def test_an_engine_is_a_context_manager_that_passes_errors_on(directory: Path) -> None:
    llm = LLM(str(directory), dtype="float32", max_model_len=128)
    with pytest.raises(ZeroDivisionError), llm.llm_engine as engine:
        engine.add_request("0", "a", SamplingParams(max_tokens=9))
        engine.step()
        raise ZeroDivisionError
    assert engine.get_num_unfinished_requests() == 0
    with pytest.raises(EngineDeadError, match="shut down"):
        engine.step()
