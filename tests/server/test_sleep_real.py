"""A server put to sleep, woken, and given other weights over HTTP."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.warm]

FLAGS = ("--dtype", "float32", "--max-model-len", "256", "--enable-sleep-mode")
BODY: dict[str, Any] = {"prompt": "the quick brown fox", "max_tokens": 12, "temperature": 0, "ignore_eos": True}


def said(client: httpx.Client) -> str:
    answer = client.post("/v1/completions", json=BODY)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["choices"][0]["text"])


def test_sleeps_wakes_and_changes_weights(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    """As vLLM's clients ask for it. Requests that come meanwhile are answered when it wakes."""
    first = tiny_model("llama")
    other = shutil.copytree(first, tmp_path / "other")
    tensors = load_file(first / "model.safetensors")
    save_file({name: tensor.flip(0) for name, tensor in tensors.items()}, other / "model.safetensors")
    with (
        ServerProcess(first, *FLAGS, environment={"VLLM_SERVER_DEV_MODE": "1"}) as server,
        server.client() as client,
        ThreadPoolExecutor(1) as beside,
    ):
        wanted = said(client)
        for level in (1, 2):
            assert client.post(f"/sleep?level={level}").status_code == 200
            assert client.get("/is_sleeping").json() == {"is_sleeping": True}
            waiting = beside.submit(said, client)
            assert client.get("/health").status_code == 200
            client.post("/wake_up?tags=weights")
            assert client.get("/is_sleeping").json() == {"is_sleeping": True} and not waiting.done()
            client.post("/wake_up?tags=kv_cache")
            assert waiting.result(60) == wanted and client.get("/is_sleeping").json() == {"is_sleeping": False}
        for path, kwargs in (("/sleep?level=9", {}), ("/update_weights", {"json": {"path": str(tmp_path / "none")}})):
            refused = client.post(path, **kwargs)
            assert refused.status_code == 400 and refused.json()["error"]["message"]
        empty = client.post("/update_weights", json={"path": str(tmp_path)})
        assert empty.status_code == 400 and "no *.safetensors weights here" in empty.json()["error"]["message"]
        assert said(client) == wanted, "nothing has changed"
        assert client.post("/update_weights", json={"path": str(other)}).json() == {"success": True}
        changed = said(client)
        assert changed != wanted
        body = {"method": "reload_weights", "kwargs": {"weights_path": str(first)}}
        assert client.post("/collective_rpc", json=body).json() == {"results": [None]}
        assert said(client) == wanted
        unknown = client.post("/collective_rpc", json={"method": "run_anything"})
        assert unknown.status_code == 400 and "none of sleep" in unknown.json()["error"]["message"]
