"""From updates of the core to outputs of users: n completions in one, stop strings that end a request here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cadence.core.contract.engine_state import EngineStats
from cadence.core.contract.request import FinishReason
from cadence.core.draft_stats import NO_DRAFTS
from cadence.core.failure import Failure, FailureCode
from cadence.core.pooled.pooling import EMBED, LAST, PoolingSpec
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.metrics.by_engine import MetricsByEngine
from cadence.engine.metrics.metric import Counter, Vector, in_vectors
from cadence.engine.text.output_processor import OutputProcessor
from cadence.engine.text.parallel_sampling import fan_out
from cadence.text.tokenizer import Tokenizer
from tests.engine.updates import make_request, make_update


@pytest.fixture
def outputs(tokenizer: Tokenizer) -> OutputProcessor:
    return OutputProcessor(tokenizer, MetricsByEngine("m"))


def add(outputs: OutputProcessor, **params: Any) -> list[str]:
    """A request `r`. -> its ids in the core"""
    children = fan_out(make_request(**params))
    outputs.add("r", children, "prompt", ["a warning"])
    return [child.request_id for child in children]


def test_one_request_from_first_to_last_output(outputs: OutputProcessor, tokenizer: Tokenizer) -> None:
    add(outputs)
    ids = tokenizer.encode("the dog", add_special_tokens=False)
    (first,), stopped = outputs.process([make_update(ids[:1])])
    assert not first.finished and not stopped and first.warnings == ["a warning"] and first.prompt == "prompt"
    (last,), stopped = outputs.process([make_update(ids[1:], FinishReason.LENGTH)])
    assert last.finished and not stopped and last.outputs[0].text == "the dog"
    assert outputs.num_unfinished() == 0 and outputs.core_ids("r") == []


def test_a_stop_string_is_reported_to_the_core(outputs: OutputProcessor, tokenizer: Tokenizer) -> None:
    """What the core still sends of the request is dropped."""
    add(outputs, stop=["lazy"])
    ids = tokenizer.encode("the lazy dog", add_special_tokens=False)
    (last,), stopped = outputs.process([make_update(ids)])
    assert stopped == ["r"] and last.finished and last.outputs[0].text == "the "
    assert outputs.process([make_update(ids)]) == ([], [])
    assert outputs.process([make_update([], FinishReason.STOP)]) == ([], [])


def test_an_end_that_the_core_reports_is_not_reported_back(outputs: OutputProcessor) -> None:
    add(outputs)
    assert outputs.process([make_update([9], FinishReason.STOP, 9)])[1] == []


def test_completions_stream_apart_and_end_together(outputs: OutputProcessor) -> None:
    ids = add(outputs, n=2, output_kind=RequestOutputKind.DELTA)
    assert ids == ["0_r", "1_r"]
    shown, _ = outputs.process([make_update([9], request_id="1_r"), make_update([8], request_id="0_r")])
    assert [output.outputs[0].index for output in shown] == [1, 0] and {output.request_id for output in shown} == {"r"}
    (early,), _ = outputs.process([make_update([], FinishReason.LENGTH, request_id="1_r")])
    assert not early.finished and outputs.core_ids("r") == ["0_r"]
    (last,), _ = outputs.process([make_update([], FinishReason.LENGTH, request_id="0_r")])
    assert last.finished and outputs.num_unfinished() == 0


def test_final_only_has_every_completion_in_order(outputs: OutputProcessor) -> None:
    add(outputs, n=3, output_kind=RequestOutputKind.FINAL_ONLY)
    for number in (2, 0):
        ended = make_update([number + 10], FinishReason.LENGTH, request_id=f"{number}_r")
        assert outputs.process([ended])[0] == []
    (last,), _ = outputs.process([make_update([11], FinishReason.LENGTH, request_id="1_r")])
    assert [one.token_ids for one in last.outputs] == [[10], [11], [12]] and last.finished


def test_drafts_are_summed_per_completion_and_per_request(outputs: OutputProcessor) -> None:
    add(outputs, n=2)
    (first,), _ = outputs.process([make_update([9, 10, 11], request_id="0_r", runs=[(4, 2), (0, 1)])])
    assert first.speculation == first.outputs[0].speculation == NO_DRAFTS.add([(4, 2)])
    (other,), _ = outputs.process([make_update([9], request_id="1_r", runs=[(2, 1)])])
    assert other.outputs[0].speculation == NO_DRAFTS.add([(2, 1)])
    assert other.speculation == NO_DRAFTS.add([(4, 2), (2, 1)])
    (last,), _ = outputs.process([make_update([9], FinishReason.LENGTH, request_id="0_r", runs=[(4, 1)])])
    assert last.outputs[0].speculation == NO_DRAFTS.add([(4, 2), (4, 1)])
    assert last.speculation == NO_DRAFTS.add([(4, 2), (2, 1), (4, 1)])


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA])
def test_which_tokens_were_drafts(outputs: OutputProcessor, kind: RequestOutputKind) -> None:
    add(outputs, output_kind=kind)
    (first,), _ = outputs.process([make_update([9, 10, 11, 12], runs=[(2, 3), (0, 1)])])
    assert first.outputs[0].drafted == [0, 1]
    (last,), _ = outputs.process([make_update([13, 14], FinishReason.LENGTH, runs=[(2, 2)])])
    delta = kind is RequestOutputKind.DELTA
    assert last.outputs[0].drafted == ([0] if delta else [0, 1, 4])
    assert len(last.outputs[0].token_ids) == (2 if delta else 6)


def test_drafts_after_a_stop_string_are_no_part_of_the_output(outputs: OutputProcessor, tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("The quick brown fox jumps", add_special_tokens=False)
    add(outputs, stop=["quick"])
    (output,), _ = outputs.process([make_update(tokens, runs=[(len(tokens), len(tokens))])])
    completion = output.outputs[0]
    assert completion.finish_reason == "stop" and len(completion.token_ids) < len(tokens) - 1
    assert completion.drafted == list(range(len(completion.token_ids)))
    assert output.speculation.num_accepted == len(completion.drafted) < output.speculation.num_drafted == len(tokens)


def test_nobody_speculates(outputs: OutputProcessor) -> None:
    add(outputs)
    (output,), _ = outputs.process([make_update([9], FinishReason.LENGTH)])
    assert output.speculation is NO_DRAFTS and output.outputs[0].speculation is NO_DRAFTS


def test_drafts_are_counted_under_the_names_of_vllm() -> None:
    stats = EngineStats(drafts=NO_DRAFTS.add([(2, 2), (2, 3), (1, 1)]))

    def counters(most_drafts: int) -> dict[tuple[str, str | None], int]:
        found = [one for one in MetricsByEngine("m", None, most_drafts).snapshot([stats]) if isinstance(one, Counter)]
        return {(one.name, one.labels.get("position")): one.value for one in found if "spec_decode" in one.name}

    each = "vllm:spec_decode_num_accepted_tokens_per_pos"
    assert counters(3) == {
        ("vllm:spec_decode_num_drafts", None): 3,
        ("vllm:spec_decode_num_draft_tokens", None): 5,
        ("vllm:spec_decode_num_accepted_tokens", None): 3,
        (each, "0"): 2,
        (each, "1"): 1,
        (each, "2"): 0,
    }
    assert counters(0) == {}
    (vector,) = [one for one in in_vectors(MetricsByEngine("m", None, 3).snapshot([stats])) if isinstance(one, Vector)]
    assert (vector.name, vector.values) == (each, [2, 1, 0]) and "position" not in vector.labels


def test_a_request_that_was_discarded_is_gone(outputs: OutputProcessor) -> None:
    add(outputs)
    assert outputs.discard("r") == "r" and outputs.num_unfinished() == 0
    assert outputs.process([make_update([9])]) == ([], [])


def add_pooled(outputs: OutputProcessor) -> None:
    request = replace(make_request(max_tokens=1), attachments=(PoolingSpec(LAST, EMBED),))
    outputs.add("r", [request], "prompt", ["a warning"], "an adapter")


def test_a_request_for_values_ends_with_them_and_is_counted(tokenizer: Tokenizer) -> None:
    metrics = MetricsByEngine("m")
    outputs = OutputProcessor(tokenizer, metrics)
    add_pooled(outputs)
    assert outputs.num_unfinished() == 1 and outputs.core_ids("r") == ["r"]
    update = make_update([], FinishReason.STOP)
    update.pooled_np = np.ones(3, dtype=np.float32)
    (output,), stopped = outputs.process([update])
    assert output.finished and not stopped and output.pooled_np is update.pooled_np
    assert (output.prompt, output.warnings, output.lora_request) == ("prompt", ["a warning"], "an adapter")
    assert output.outputs[0].finish_reason == "stop" and output.outputs[0].token_ids == []
    assert outputs.num_unfinished() == 0 and outputs.core_ids("r") == [] and outputs.process([update]) == ([], [])
    counted = {one.name: one.value for one in metrics.snapshot([EngineStats()]) if isinstance(one, Counter)}
    assert counted["cadence:pooling_requests"] == 1


def test_a_request_for_values_that_fails_says_why(outputs: OutputProcessor) -> None:
    add_pooled(outputs)
    (output,), _ = outputs.process([make_update([], FinishReason.ERROR, Failure(FailureCode.BAD_LOGITS, "no numbers"))])
    end = output.outputs[0]
    assert output.pooled_np is None and (end.finish_reason, end.stop_reason) == ("error", "no numbers")
    assert end.failure is FailureCode.BAD_LOGITS
    add_pooled(outputs)
    assert outputs.discard("r") == "r" and outputs.num_unfinished() == 0


def test_metrics_count_tokens_and_ends(tokenizer: Tokenizer) -> None:
    metrics = MetricsByEngine("m", num_engines=2)
    outputs = OutputProcessor(tokenizer, metrics)
    add(outputs)
    outputs.process([make_update([9, 10])])
    last = make_update([11], FinishReason.LENGTH)
    last.engine = 1  # it moved
    outputs.process([last])
    found = [one for one in metrics.snapshot([EngineStats(), EngineStats()]) if isinstance(one, Counter) and one.value]
    counted = {(one.name, one.labels["engine"], one.labels.get("finished_reason")): one.value for one in found}
    assert counted["vllm:generation_tokens", "0", None] == 2 and counted["vllm:generation_tokens", "1", None] == 1
    assert counted["vllm:request_success", "1", "length"] == 1 and len(found) == 5
