"""Adapters on a server: an adapter's name is a model's, and requests load and unload adapters where that is allowed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from cadence import LLM, SamplingParams
from cadence.core.errors import ConfigError
from cadence.core.lora_request import LoRARequest
from cadence.entrypoints.server.routes.served_adapters import served_at_start
from tests.helpers.adapters import make_adapter
from tests.server.helpers import ServerProcess

pytestmark = pytest.mark.warm

PROMPT = [5, 6, 7, 8]
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]


@pytest.fixture(scope="module")
def root(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with adapters `first` to `third`, one of too high a rank, and one for another model."""
    place = tmp_path_factory.mktemp("served")
    for name, rank in (("first", 4), ("second", 8), ("third", 2), ("large", 64)):
        make_adapter(tiny_model("llama"), place / name, seed=rank, r=rank, lora_alpha=rank, target_modules=ATTENTION)
    make_adapter(tiny_model("gpt2"), place / "other", r=4, target_modules=["c_attn"], fan_in_fan_out=True)
    return place


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path], root: Path) -> Iterator[ServerProcess]:
    options = (
        "--served-model-name", "tiny", "--dtype", "float32", "--max-model-len", "128",
        "--num-gpu-blocks-override", "200",
        "--enable-lora", "--max-loras", "2", "--max-lora-rank", "16", "--lora-modules", f"first={root / 'first'}",
        "--allow-runtime-lora-updating", "--lora-root", str(root),
    )  # fmt: skip
    with ServerProcess(tiny_model("llama"), *options) as server:
        yield server


@pytest.fixture(scope="module")
def expected(tiny_model: Callable[[str], Path], root: Path) -> dict[str, str]:
    """What each says, by the name of the model."""
    options: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "num_gpu_blocks_override": 200}
    with LLM(str(tiny_model("llama")), enable_lora=True, max_lora_rank=16, **options) as llm:
        said = {}
        for name in ("tiny", "first", "second"):
            adapter = None if name == "tiny" else LoRARequest(name, 1, str(root / name))
            params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
            (output,) = llm.generate([PROMPT], params, lora_request=adapter, use_tqdm=False)
            said[name] = output.outputs[0].text
    return said


def said(server: ServerProcess, model: str) -> str:
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 12, "ignore_eos": True}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=240)
    assert reply.status_code == 200, reply.text
    assert reply.json()["model"] == model
    return str(reply.json()["choices"][0]["text"])


def load(server: ServerProcess, name: str, path: Path | str) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/load_lora_adapter", json={"lora_name": name, "lora_path": str(path)}, timeout=240
    )


def unload(server: ServerProcess, name: str) -> httpx.Response:
    return httpx.post(f"{server.url}/v1/unload_lora_adapter", json={"lora_name": name}, timeout=240)


def test_an_adapter_is_a_model_of_its_own_name(server: ServerProcess, root: Path, expected: dict[str, str]) -> None:
    assert said(server, "tiny") == expected["tiny"]
    assert said(server, "first") == expected["first"] != expected["tiny"]
    cards = {card["id"]: card for card in httpx.get(f"{server.url}/v1/models").json()["data"]}
    assert cards["first"]["parent"] == "tiny" and cards["first"]["root"] == str(root / "first")
    assert httpx.get(f"{server.url}/v1/models/first").json()["id"] == "first"
    chat = {"model": "first", "messages": [{"role": "user", "content": "a"}], "max_tokens": 3}
    reply = httpx.post(f"{server.url}/v1/chat/completions", json=chat, timeout=240)
    assert reply.status_code == 200 and reply.json()["model"] == "first", reply.text


def test_adapters_come_and_go(server: ServerProcess, root: Path, expected: dict[str, str]) -> None:
    assert httpx.get(f"{server.url}/v1/models/second").status_code == 404
    assert load(server, "second", root / "second").status_code == 200
    assert said(server, "second") == expected["second"] not in (expected["first"], expected["tiny"])
    assert unload(server, "second").status_code == 200
    body = {"model": "second", "prompt": PROMPT, "max_tokens": 1}
    assert httpx.post(f"{server.url}/v1/completions", json=body, timeout=240).status_code == 404
    again = unload(server, "second")
    assert again.status_code == 404 and again.json()["error"]["param"] == "lora_name"
    absent = load(server, "absent", root / "absent")
    assert (
        absent.status_code == 404 and "does not exist" in absent.text and absent.json()["error"]["param"] == "lora_path"
    )
    assert load(server, "second", root / "second").status_code == 200, "and again"
    assert said(server, "second") == expected["second"]
    assert unload(server, "second").status_code == 200


def test_what_cannot_be_served_is_refused(server: ServerProcess, root: Path, expected: dict[str, str]) -> None:
    (root / "empty").mkdir(exist_ok=True)
    link = root / "out"
    link.symlink_to("/etc") if not link.exists() else None
    linked = root / "linked"
    linked.mkdir(exist_ok=True)
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        outside = root.parent / f"{root.name}-{file}"
        outside.write_bytes((root / "first" / file).read_bytes())
        (linked / file).symlink_to(outside) if not (linked / file).exists() else None
    for name, path, why in (
        ("x", linked, "leads out of --lora-root"),
        ("first", root / "first", "served already"),
        ("tiny", root / "first", "served already"),
        ("", root / "first", "must not be empty"),
        ("x", root / "empty", "adapter_config.json"),
        ("x", root / ".." / "..", "--lora-root"),
        ("x", link, "--lora-root"),
        ("x", "/", "--lora-root"),
        ("x", root / "large", "rank"),
        ("x", root / "other", ""),
    ):
        reply = load(server, name, path)
        assert reply.status_code == 400 and why in reply.text, (name, path, reply.text)
    assert said(server, "first") == expected["first"], "nobody else is disturbed"


def long_answer(server: ServerProcess, model: str) -> str:
    body = {"model": model, "prompt": PROMPT, "temperature": 0, "max_tokens": 110, "ignore_eos": True}
    reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=240)
    assert reply.status_code == 200, reply.text
    return str(reply.json()["choices"][0]["text"])


def test_others_are_not_disturbed_by_loads_and_unloads(server: ServerProcess, root: Path) -> None:
    """Twelve times an adapter comes and goes, one more fails, and answers of the model and of another adapter are
    those of a quiet server."""
    quiet = {model: long_answer(server, model) for model in ("tiny", "first")}
    over = threading.Event()

    def ask(model: str) -> list[str]:
        answers = [long_answer(server, model)]
        while not over.is_set():
            answers.append(long_answer(server, model))
        return answers

    with ThreadPoolExecutor(4) as pool:
        jobs = [(model, pool.submit(ask, model)) for model in ("tiny", "first") * 2]
        try:
            for count in range(12):
                assert load(server, f"second {count}", root / "second").status_code == 200
                assert load(server, "large", root / "large").status_code == 400
                assert unload(server, f"second {count}").status_code == 200
        finally:
            over.set()
        for model, job in jobs:
            assert set(job.result()) == {quiet[model]}


def test_an_adapter_unloaded_in_use_serves_those_that_have_it(server: ServerProcess, root: Path) -> None:
    assert load(server, "second", root / "second").status_code == 200
    whole = long_answer(server, "second")
    body = {"model": "second", "prompt": PROMPT, "temperature": 0, "max_tokens": 110, "ignore_eos": True}
    texts = []
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body | {"stream": True}, timeout=240) as stream:
        for line in stream.iter_lines():
            if not texts:
                assert unload(server, "second").status_code == 200
                reply = httpx.post(f"{server.url}/v1/completions", json=body, timeout=240)
                assert reply.status_code == 404 and "second" in reply.text
            if line.startswith("data: {"):
                texts.append(json.loads(line.removeprefix("data: "))["choices"][0]["text"])
    assert "".join(texts) == whole


def adapters_on_metrics(server: ServerProcess, prefix: str = "vllm") -> list[Sample]:
    families = text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text)
    name = f"{prefix}:lora_requests_info"
    return [sample for family in families for sample in family.samples if sample.name == name]


def until_on_metrics(server: ServerProcess, seen: Callable[[set[str], set[str]], bool]) -> Sample:
    """seen(running, waiting). The engine is looked at once a second."""
    for _ in range(200):
        (sample,) = adapters_on_metrics(server)
        names = [sample.labels[f"{kind}_lora_adapters"].split(",") for kind in ("running", "waiting")]
        running, waiting = ({name for name in each if name} for each in names)
        assert len(running) <= int(sample.labels["max_lora"]) == 2
        if seen(running, waiting):
            return sample
        time.sleep(0.1)
    raise AssertionError(f"still {sample}")


def test_metrics_name_the_adapters_that_run_and_those_that_wait(server: ServerProcess, root: Path) -> None:
    """With two slots, one of three adapters waits, whichever it is."""
    began = time.time()
    names = {"first", "second", "third"}
    for name in ("second", "third"):
        assert load(server, name, root / name).status_code == 200

    seen = threading.Event()

    def ask(model: str) -> set[int]:
        """Again and again: on a quick machine all of it may run between two looks."""
        body = {"model": model, "prompt": PROMPT, "n": 40, "max_tokens": 110, "ignore_eos": True}
        statuses = set()
        while not seen.is_set():
            statuses.add(httpx.post(f"{server.url}/v1/completions", json=body, timeout=240).status_code)
        return statuses

    with ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(ask, model) for model in (*names, "tiny")]
        try:
            until_on_metrics(server, lambda running, waiting: bool(running) and running | waiting == names)
        finally:
            seen.set()
        assert {status for job in jobs for status in job.result()} == {200}
    idle = until_on_metrics(server, lambda running, waiting: not running | waiting)
    assert idle.labels["model_name"] == "tiny"
    assert began < idle.value <= time.time(), "the last look"
    assert len(adapters_on_metrics(server, "cadence")) == 1
    for name in ("second", "third"):
        assert unload(server, name).status_code == 200


def test_updates_and_their_metric_are_off_unless_allowed(tiny_server: ServerProcess) -> None:
    assert adapters_on_metrics(tiny_server) == []
    assert load(tiny_server, "x", "/tmp").status_code == 404


def test_bad_modules_end_the_start(root: Path) -> None:
    served = served_at_start([f"a={root / 'first'}", f'{{"name": "b", "path": "{root / "second"}"}}'], ["m"], "", True)
    assert [adapter.lora_name for adapter in served.all()] == ["a", "b"] and served.of("m") is None
    for given, why in (
        (["a"], "NAME=PATH"),
        (['{"name": "a"}'], "name and path"),
        ([f"a={root / 'nowhere'}"], "does not exist"),
        ([f"m={root / 'first'}"], "served already"),
    ):
        with pytest.raises(ConfigError, match=why):
            served_at_start(given, ["m"], "", True)
    with pytest.raises(ConfigError, match="enable_lora"):
        served_at_start([f"a={root / 'first'}"], ["m"], "", False)
