"""Samples to numbers, under the names that scripts for vLLM's benchmark read, and numbers to a table."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cadence.core.errors import ConfigError
from cadence.entrypoints.cli.bench_serve.load import Sample
from cadence.entrypoints.cli.shared.draft_counts import draft_rows
from cadence.entrypoints.cli.shared.report import Measure, mean, percentile, table

METRICS = {
    "ttft": "to the first token",
    "tpot": "per token after it",
    "itl": "between arrivals",
    "e2el": "to the last token",
}


@dataclass(frozen=True, slots=True)
class WantedMetrics:
    """What to report: metrics in detail, which percentiles, and the limits (ms) of a good request."""

    metrics: tuple[str, ...]
    percentiles: tuple[float, ...]
    goodput: dict[str, float]

    @classmethod
    def parse(cls, metrics: str, percentiles: str, goodput: Sequence[str]) -> WantedMetrics:
        names = tuple(name.strip() for name in metrics.split(",") if name.strip())
        for name in names:
            _known(name, METRICS, "percentile_metrics")
        try:
            percents = tuple(float(text) for text in percentiles.split(",") if text.strip())
        except ValueError:
            percents = (-1.0,)
        if not all(0 <= percent <= 100 for percent in percents):
            raise ConfigError(f"metric_percentiles={percentiles!r} is not numbers from 0 to 100", "metric_percentiles")
        return cls(names, percents, dict(_limit(text) for text in goodput))


def _limit(text: str) -> tuple[str, float]:
    name, _, number = text.partition(":")
    _known(name, {"ttft", "tpot", "e2el"}, "goodput")
    try:
        return name, float(number)
    except ValueError:
        raise ConfigError(f"goodput: {text!r} is not of the form ttft:200 (milliseconds)", "goodput") from None


def _known(name: str, names: dict[str, str] | set[str], field: str) -> None:
    if name not in names:
        raise ConfigError(f"{field}: {name!r} is not one of {', '.join(sorted(names))}", field)


def series(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """Milliseconds of every completed request, by metric."""
    done = [sample for sample in samples if not sample.error]
    return {
        "ttft": [1000 * sample.ttft for sample in done],
        "tpot": [1000 * sample.tpot for sample in done if sample.output_tokens > 1],
        "itl": [1000 * gap for sample in done for gap in sample.itls],
        "e2el": [1000 * sample.latency for sample in done],
    }


def numbers(samples: Sequence[Sample], duration: float, wanted: WantedMetrics) -> dict[str, Any]:
    done = [sample for sample in samples if not sample.error]
    tokens_in = sum(sample.prompt_tokens for sample in done)
    tokens_out = sum(sample.output_tokens for sample in done)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(done),
        "failed": len(samples) - len(done),
        "total_input_tokens": tokens_in,
        "total_output_tokens": tokens_out,
        "request_throughput": len(done) / duration,
        "request_goodput": sum(_good(sample, wanted.goodput) for sample in done) / duration if wanted.goodput else None,
        "output_throughput": tokens_out / duration,
        "total_token_throughput": (tokens_in + tokens_out) / duration,
        "max_output_tokens_per_s": float(max(tokens_by_second(done, duration), default=0)),
        "max_concurrent_requests": peak_concurrency(samples),
        "tokens_counted_by": "usage" if all(sample.usage_known for sample in done) else "arrivals",
    }
    values = series(samples)
    for name in METRICS:
        result |= _summary(name, values[name], wanted.percentiles if name in wanted.metrics else ())
    return result


def _summary(name: str, values: list[float], percentiles: Sequence[float]) -> dict[str, float]:
    summary = {
        f"mean_{name}_ms": mean(values),
        f"median_{name}_ms": percentile(values, 50),
        f"std_{name}_ms": statistics.pstdev(values) if values else 0.0,
    }
    return summary | {f"p{percent:g}_{name}_ms": percentile(values, percent) for percent in percentiles}


def _good(sample: Sample, limits: dict[str, float]) -> bool:
    measured = {"ttft": sample.ttft, "tpot": sample.tpot, "e2el": sample.latency}
    return all(1000 * measured[name] <= limit for name, limit in limits.items())


def tokens_by_second(samples: Sequence[Sample], duration: float) -> list[int]:
    """Arrivals in each second of the load, each worth its share of the request's tokens."""
    buckets = [0.0] * (int(duration) + 1)
    for sample in samples:
        moments = list(itertools.accumulate(sample.itls, initial=sample.start + sample.ttft))
        for moment in moments:
            buckets[min(int(moment), len(buckets) - 1)] += sample.output_tokens / len(moments)
    return [round(bucket) for bucket in buckets]


def peak_concurrency(samples: Sequence[Sample]) -> int:
    changes = [(sample.start, 1) for sample in samples] + [(sample.start + sample.latency, -1) for sample in samples]
    return max(itertools.accumulate(change for _, change in sorted(changes)), default=0)


def details(samples: Sequence[Sample]) -> dict[str, list[Any]]:
    """Every request, in the order they were sent."""
    return {
        "input_lens": [sample.prompt_tokens for sample in samples],
        "output_lens": [sample.output_tokens for sample in samples],
        "ttfts": [sample.ttft for sample in samples],
        "itls": [sample.itls for sample in samples],
        "e2els": [sample.latency for sample in samples],
        "start_times": [sample.start for sample in samples],
        "errors": [sample.error for sample in samples],
    }


def readable(result: dict[str, Any], wanted: WantedMetrics) -> str:
    lines = [
        f"{result['completed']} requests completed, {result['failed']} failed, {result['duration']:.2f} s",
        f"{result['total_input_tokens']} tokens in, {result['total_output_tokens']} out",
        "",
        table(_rates(result, wanted)),
    ]
    if wanted.metrics:
        lines += ["", _latencies(result, wanted)]
    return "\n".join(lines)


def _rates(result: dict[str, Any], wanted: WantedMetrics) -> list[Measure]:
    rows = [
        Measure("requests", result["request_throughput"], "/s"),
        Measure("output", result["output_throughput"], "tokens/s"),
        Measure("output, best second", result["max_output_tokens_per_s"], "tokens/s"),
        Measure("input + output", result["total_token_throughput"], "tokens/s"),
        Measure("most requests at once", result["max_concurrent_requests"], ""),
    ]
    if wanted.goodput:
        limits = ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in wanted.goodput.items())
        rows.append(Measure(f"good requests ({limits})", result["request_goodput"], "/s"))
    return rows + draft_rows(result)


def _latencies(result: dict[str, Any], wanted: WantedMetrics) -> str:
    """One line a metric, one column a number."""
    kinds = ["mean", "std", "median", *(f"p{percent:g}" for percent in wanted.percentiles)]
    width = max(len(METRICS[name]) for name in wanted.metrics) + len("ttft  ")
    lines = [f"  {'ms':<{width}}" + "".join(f"{kind:>11}" for kind in kinds)]
    for name in wanted.metrics:
        numbers = (f"{result[f'{kind}_{name}_ms']:>11.2f}" for kind in kinds)
        lines.append(f"  {f'{name:<4}  {METRICS[name]}':<{width}}" + "".join(numbers))
    return "\n".join(line.rstrip() for line in lines)


def complaints(samples: Sequence[Sample]) -> list[str]:
    """What went wrong most often, five at most."""
    counted = Counter(sample.error for sample in samples if sample.error)
    return [f"{count} × {message}" for message, count in counted.most_common(5)]
