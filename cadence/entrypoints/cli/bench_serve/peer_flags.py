"""Flags and datasets of vLLM's `bench serve` (2026-08) that have no option here: one line each."""

from __future__ import annotations

from dataclasses import dataclass

_BY_SERVER = "the server tokenises, also to make prompts of a length"
_DATASET = "its dataset is not read; --dataset-name custom reads prompts of any kind from lines of JSON"
_MEDIA = "prompts are texts"
_TRACE = "traces with arrival times are not replayed; --request-rate, --burstiness and --ramp-up-strategy say when"
_PLOT = "--plot FILE.png draws latencies and the course of the load"


@dataclass(frozen=True, slots=True)
class PeerBenchFlag:
    name: str
    refused: bool  # else it is accepted, and named
    why: str


def _no_effect(why: str, *names: str) -> list[PeerBenchFlag]:
    return [PeerBenchFlag(name, False, why) for name in names]


def _refused(why: str, *names: str) -> list[PeerBenchFlag]:
    return [PeerBenchFlag(name, True, why) for name in names]


PEER_FLAGS = (
    *_no_effect(_BY_SERVER, "--tokenizer", "--tokenizer-mode", "--trust-remote-code", "--skip-tokenizer-init"),
    *_no_effect("files are read whole, and nothing is fetched", "--no-stream", "--custom-ensure-client-side-data"),
    *_no_effect("prompts go to /v1/completions as they are; --backend openai-chat applies the template",
                "--skip-chat-template"),
    *_no_effect("every request has one prompt", "--random-batch-size"),
    *_no_effect("no request reranks", "--no-reranker"),
    *_refused("certificates are always checked", "--insecure"),
    *_refused("the times of tokens are measured, and a beam search does not stream", "--use-beam-search"),
    *_refused("a server is not profiled over HTTP; LLM(..., profiler_config=...) is", "--profile"),
    *_refused(_PLOT, "--plot-timeline", "--plot-dataset-stats", "--timeline-itl-thresholds"),
    *_refused(_TRACE, "--self-timed", "--probe-request-rate", "--timed-trace-chunk-hash-size",
              "--timed-trace-label-hash-ids", "--timed-trace-label-input-length", "--timed-trace-label-output-length",
              "--timed-trace-label-timestamp", "--timed-trace-sec-multiplier"),
    *_refused(_MEDIA, "--asr-max-audio-len-sec", "--asr-min-audio-len-sec", "--enable-multimodal-chat",
              "--random-mm-base-items-per-request", "--random-mm-bucket-config", "--random-mm-limit-mm-per-prompt",
              "--random-mm-num-mm-items-range-ratio"),
    *_refused(_DATASET, "--bfcl-categories", "--blazedit-max-distance", "--blazedit-min-distance", "--hf-name",
              "--hf-output-len", "--hf-split", "--hf-subset", "--sonnet-input-len", "--sonnet-output-len",
              "--sonnet-prefix-len", "--spec-bench-category", "--spec-bench-output-len", "--speed-bench-category",
              "--speed-bench-dataset-subset", "--speed-bench-output-len"),
)  # fmt: skip

OTHER_DATASETS = {
    **dict.fromkeys(("burstgpt", "sonnet", "hf", "random-rerank", "spec_bench", "speed_bench"), _DATASET),
    **dict.fromkeys(("random-mm", "custom_audio", "custom_image"), _MEDIA),
    "timed_trace": _TRACE,
}
