"""/metrics: the names that vLLM's dashboards ask for, with values that agree with what clients were told."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from cadence.engine.metrics.descriptions import DESCRIPTIONS
from tests.server.helpers import ServerProcess

pytestmark = pytest.mark.warm

# What the panels of performance_statistics, query_statistics and grafana.json ask for, at vLLM of 2026-08-22.
DASHBOARD_NAMES = (
    "vllm:e2e_request_latency_seconds_bucket", "vllm:e2e_request_latency_seconds_count",
    "vllm:e2e_request_latency_seconds_sum", "vllm:generation_tokens_total", "vllm:inter_token_latency_seconds_bucket",
    "vllm:inter_token_latency_seconds_count", "vllm:inter_token_latency_seconds_sum",
    "vllm:iteration_tokens_total_count", "vllm:kv_cache_usage_perc", "vllm:num_requests_running",
    "vllm:num_requests_waiting", "vllm:prompt_tokens_total", "vllm:request_decode_time_seconds_sum",
    "vllm:request_generation_tokens_bucket", "vllm:request_max_num_generation_tokens_sum",
    "vllm:request_prefill_time_seconds_sum", "vllm:request_prompt_tokens_bucket", "vllm:request_queue_time_seconds_sum",
    "vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket", "vllm:time_to_first_token_seconds_count",
    "vllm:time_to_first_token_seconds_sum",
)  # fmt: skip
OTHER_NAMES = (
    "vllm:num_preemptions_total", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total",
    "vllm:prompt_tokens_cached_total", "vllm:prompt_tokens_by_source_total", "vllm:cache_config_info",
    "vllm:request_inference_time_seconds_sum", "vllm:request_time_per_output_token_seconds_sum",
    "vllm:request_params_n_sum", "vllm:request_params_max_tokens_sum", "vllm:num_requests_waiting_by_reason",
    "vllm:request_prefill_kv_computed_tokens_sum", "process_resident_memory_bytes",
)  # fmt: skip
DEPLOY = Path(__file__).parents[2] / "deploy"
SERVED = "served by this name"

Samples = dict[tuple[str, str], float]  # by name and one label's value


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path]) -> Iterator[ServerProcess]:
    flags = ("--served-model-name", SERVED, "other", "--max-model-len", "512")
    with ServerProcess(tiny_model("llama"), *flags) as server:
        yield server


def scrape(client: httpx.Client) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples if family.name.startswith("vllm:") else ():
            apart = [sample.labels.get(name, "") for name in ("finished_reason", "source", "le")]
            found[sample.name, "".join(apart)] = sample.value
    return found


def settled(client: httpx.Client) -> Samples:
    """Once nothing changes any more: the engine's own numbers come once a second."""
    samples = scrape(client)
    for _ in range(20):
        time.sleep(1.1)
        last, samples = samples, scrape(client)
        if samples == last:
            return samples
    raise AssertionError("the metrics never settled")


def counted(client: httpx.Client, act: Callable[[], Any]) -> tuple[dict[str, float], Any]:
    """What `act` added to each sample, and what it gave."""
    before = settled(client)
    given = act()
    after = settled(client)
    return {"".join(key): value - before.get(key, 0.0) for key, value in after.items()}, given


def ask(client: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"model": SERVED, "ignore_eos": True, "temperature": 0, **fields}
    reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def test_the_names_of_the_dashboards(server: ServerProcess) -> None:
    with server.client() as client:
        ask(client, prompt="hi", max_tokens=2)
        families = list(text_string_to_metric_families(client.get("/metrics").text))
    samples = {sample.name: sample for family in families for sample in family.samples}
    assert [name for name in (*DASHBOARD_NAMES, *OTHER_NAMES) if name not in samples] == []
    ours = [name.replace("vllm:", "cadence:") for name in DASHBOARD_NAMES]
    assert [name for name in ours if name not in samples] == []
    engine = [sample for name, sample in samples.items() if name.startswith("vllm:")]
    assert {sample.labels["model_name"] for sample in engine} == {SERVED}
    assert {sample.labels["engine"] for sample in engine} == {"0"}
    assert samples["vllm:cache_config_info"].value == 1 and samples["vllm:cache_config_info"].labels["block_size"]
    labels = samples["vllm:cache_config_info"].labels
    assert int(labels["kv_cache_size_tokens"]) == int(labels["num_gpu_blocks"]) * int(labels["block_size"]) > 0
    assert all(family.documentation for family in families)


def test_values_agree_with_what_clients_were_told(server: ServerProcess) -> None:
    with server.client() as client:
        long = "tell me everything about " * 12

        def act() -> list[dict[str, Any]]:
            return [
                ask(client, prompt="one two three", max_tokens=7),
                ask(client, prompt=long, max_tokens=5, n=3, temperature=1),
                ask(client, prompt=long, max_tokens=9),
                ask(client, prompt=["four", "five six"], max_tokens=4),
            ]

        added, answers = counted(client, act)
    usages = [answer["usage"] for answer in answers]
    outputs = sum(usage["completion_tokens"] for usage in usages)
    prompts = usages[0]["prompt_tokens"] + 3 * usages[1]["prompt_tokens"] + sum(u["prompt_tokens"] for u in usages[2:])
    completions, requests = 1 + 3 + 1 + 2, 5
    assert outputs == 7 + 15 + 9 + 8

    assert added["vllm:generation_tokens_total"] == added["vllm:request_generation_tokens_sum"] == outputs
    assert added["vllm:prompt_tokens_total"] == added["vllm:request_prompt_tokens_sum"] == prompts
    assert added["vllm:request_success_totallength"] == completions and not added["vllm:request_success_totalstop"]
    for name in ("e2e_request_latency", "time_to_first_token", "request_queue_time", "request_prefill_time",
                 "request_decode_time", "request_inference_time"):  # fmt: skip
        assert added[f"vllm:{name}_seconds_count"] == completions, name
    assert added["vllm:inter_token_latency_seconds_count"] == outputs - completions
    assert added["vllm:request_max_num_generation_tokens_count"] == added["vllm:request_params_n_count"] == requests
    assert added["vllm:request_max_num_generation_tokens_sum"] == 7 + 5 + 9 + 4 + 4
    assert added["vllm:request_params_n_sum"] == completions
    assert added["vllm:request_params_max_tokens_sum"] == 7 + 3 * 5 + 9 + 2 * 4
    cached = added["vllm:prompt_tokens_by_source_totallocal_cache_hit"]
    assert cached == added["vllm:prompt_tokens_cached_total"] == added["vllm:prefix_cache_hits_total"] > 0
    assert added["vllm:prompt_tokens_by_source_totallocal_compute"] == prompts - cached
    assert added["vllm:request_prefill_kv_computed_tokens_sum"] == prompts - cached
    assert added["vllm:prefix_cache_queries_total"] == prompts


def test_the_phases_and_forwards_of_one_request(server: ServerProcess) -> None:
    with server.client() as client:
        prompt = "never seen before " * 5
        added, answer = counted(client, lambda: ask(client, prompt=prompt, max_tokens=40))
    seconds = {
        name: added[f"vllm:request_{name}_time_seconds_sum"] for name in ("queue", "prefill", "decode", "inference")
    }
    assert seconds["prefill"] + seconds["decode"] == pytest.approx(seconds["inference"], abs=1e-6)
    first = added["vllm:time_to_first_token_seconds_sum"]
    assert seconds["queue"] + seconds["prefill"] == pytest.approx(first, abs=1e-6)
    assert added["vllm:inter_token_latency_seconds_sum"] == pytest.approx(seconds["decode"], abs=1e-6)
    assert 0 < first + seconds["decode"] <= added["vllm:e2e_request_latency_seconds_sum"] + 1e-6
    # Its prompt in one forward, then one token in each. Forwards that were under way at its end may be counted.
    computed, outputs = added["vllm:request_prefill_kv_computed_tokens_sum"], answer["usage"]["completion_tokens"]
    forwards, tokens = added["vllm:iteration_tokens_total_count"], added["vllm:iteration_tokens_total_sum"]
    assert outputs <= forwards <= outputs + 4 and computed + outputs - 1 <= tokens <= computed + outputs + 3
    assert added["vllm:iteration_tokens_total_bucket1.0"] == forwards - 1


def test_our_dashboard_asks_for_what_there_is(server: ServerProcess) -> None:
    panels = [*_json(DEPLOY / "grafana/cadence.json")["panels"]]
    with server.client() as client:
        ask(client, prompt="hi", max_tokens=2)
        samples = {sample.name for family in text_string_to_metric_families(client.get("/metrics").text)
                   for sample in family.samples}  # fmt: skip
    asked = {name for panel in panels for target in panel["targets"]
             for name in re.findall(r"(?:vllm|cadence):[a-z0-9_]+", target["expr"])}  # fmt: skip
    assert len(asked) > 20 and asked - samples == set()
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert all(panel["title"] and panel["description"] and panel["fieldConfig"]["defaults"]["unit"] for panel in panels)
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    assert config["scrape_configs"][0]["static_configs"][0]["targets"] == ["127.0.0.1:8000"]


def _json(path: Path) -> Any:
    return json.loads(path.read_text())


def test_every_metric_is_described_once() -> None:
    assert all(text.endswith(".") and "\n" not in text for text in DESCRIPTIONS.values())
    page = (Path(__file__).parents[2] / "docs/using/metrics.md").read_text()
    assert [name for name in DESCRIPTIONS if f"`{name}" not in page] == []
