"""One schema on both sides: what the front accepts, the engine reads, and reads as the same."""

from __future__ import annotations

from dataclasses import replace
from types import NoneType
from typing import Any

import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
from hypothesis import assume, given

from cadence.core.adapter import ADAPTERS, AdapterOutcome, AdapterSpec
from cadence.core.contract.codec import (
    answer_of,
    answer_to,
    call_of,
    decode_answer,
    decode_call,
    decode_from_engine,
    decode_mail,
    decode_plan,
    decode_request,
    decode_result,
    encode,
    encode_mail,
    encode_plan,
    encode_request,
    encode_result,
    payload_of,
)
from cadence.core.contract.control import ALLOCATE_KV, CONTROL, KV_BLOCKS, Verb
from cadence.core.contract.drafts import DRAFTS, DraftChanges
from cadence.core.contract.engine_state import EngineState, RequestView
from cadence.core.contract.hold import PauseCall, SleepCall
from cadence.core.contract.messages import FromEngine
from cadence.core.contract.request import FinishReason
from cadence.core.contract.sleep import WeightsState
from cadence.core.contract.step import (
    Mail,
    NewBlocks,
    NewRow,
    PromptLogprobs,
    ResultPayloads,
    RowPayloads,
    StepPayloads,
    StepPlan,
    StepResult,
    TokenLogprobs,
)
from cadence.core.contract.token_masks import TokenMasks
from cadence.core.contract.update import RequestUpdate
from cadence.core.errors import AdapterError, ConfigError, EngineDeadError, InvalidRequestError
from cadence.core.failure import Failure, FailureCode
from cadence.core.grammar import GRAMMAR
from cadence.core.model.state_spec import StateRoom
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.engine.text.input_limits import InputLimits
from cadence.engine.text.input_processor import InputProcessor
from cadence.engine.text.parallel_sampling import fan_out
from tests.helpers.tiny_tokenizers import byte_level, save
from tests.helpers.wide import examples

VOCAB, MAX_LEN = 300, 64
INTEGERS = st.one_of(st.integers(-2, 40), st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 2**70, -(2**63)]))
NUMBERS = st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(0, 2), st.integers(-3, 3))
TOKENS = st.integers(0, VOCAB - 1)
TEXTS = st.lists(st.text(min_size=1, max_size=8), max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(1, 3),
    "presence_penalty": NUMBERS,
    "frequency_penalty": NUMBERS,
    "repetition_penalty": NUMBERS,
    "temperature": NUMBERS,
    "top_p": NUMBERS,
    "top_k": INTEGERS,
    "min_p": NUMBERS,
    "seed": st.none() | INTEGERS,
    "stop": st.none() | st.text(min_size=1, max_size=5) | TEXTS,
    "stop_token_ids": st.none() | st.lists(TOKENS, max_size=3),
    "ignore_eos": st.booleans(),
    "max_tokens": st.none() | INTEGERS,
    "min_tokens": INTEGERS,
    "logprobs": st.none() | INTEGERS,
    "prompt_logprobs": st.none() | INTEGERS,
    "skip_special_tokens": st.booleans(),
    "include_stop_str_in_output": st.booleans(),
    "output_kind": st.sampled_from(RequestOutputKind),
    "stream_interval": st.none() | INTEGERS,
    "logit_bias": st.none() | st.dictionaries(TOKENS, NUMBERS, max_size=3),
    "allowed_token_ids": st.none() | st.lists(TOKENS, max_size=3),
    "bad_words": st.none() | TEXTS,
    "extra_args": st.none() | st.dictionaries(st.text(max_size=3), JSON, max_size=2),
    "skip_reading_prefix_cache": st.none() | st.booleans(),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> InputProcessor:
    from cadence.text.hf_directory import load_tokenizer

    folder = tmp_path_factory.mktemp("tokenizer")
    save(byte_level(), folder, chat_template="")
    return InputProcessor(InputLimits(VOCAB, MAX_LEN, 20, 0, frozenset({2})), load_tokenizer(folder))


@examples(100, 1000)
@given(
    options=st.dictionaries(st.sampled_from(sorted(FIELDS)), st.none(), max_size=6),
    prompt=st.lists(TOKENS, min_size=1, max_size=5),
    priority=st.integers(-(2**70), 2**70),
    data=st.data(),
)
def test_what_the_front_accepts_the_engine_reads_as_the_same(
    inputs: InputProcessor, options: dict[str, None], prompt: list[int], priority: int, data: st.DataObject
) -> None:
    chosen = {name: data.draw(FIELDS[name], label=name) for name in options}
    try:
        request = inputs.process("x", prompt, SamplingParams(**chosen), priority).request
        payload = encode_request(request)
    except InvalidRequestError:
        assume(False)
    assert decode_request(payload) == request
    for child in fan_out(request):
        assert decode_request(encode_request(child)) == child


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"top_k": 2**64}, "top_k"),
        ({"seed": -(2**63) - 1}, "seed"),
        ({"stop": ["\ud800"]}, "stop"),
        ({"extra_args": {"x": 2**64}}, "extra_args"),
        ({"extra_args": {"x": object()}}, "extra_args"),
    ],
)
def test_what_no_message_can_carry_is_refused_by_name(
    inputs: InputProcessor, changes: dict[str, Any], field: str
) -> None:
    request = inputs.process("x", [5], SamplingParams()).request
    for name, value in changes.items():
        setattr(request.params, name, value)
    with pytest.raises(InvalidRequestError, match=field) as error:
        encode_request(request)
    assert error.value.field == field


FAILURE = Failure(FailureCode.NO_TOKEN_LEFT, "none is left")


def test_a_payload_of_an_unknown_feature_is_named() -> None:
    for feature in ("weather", DRAFTS):  # drafts send no mail
        with pytest.raises(msgspec.ValidationError, match=f"a payload of the feature '{feature}'.*{GRAMMAR}"):
            decode_mail(msgspec.msgpack.encode({feature: 1}))


def test_plans_and_results_cross_as_bytes() -> None:
    rows_np = np.array([3, 1], dtype=np.int32)
    said = RowPayloads({ADAPTERS: 1, GRAMMAR: True, DRAFTS: 2})
    row = NewRow(3, "r", rows_np, 2, 0, ([4, 5],), SamplingParams(top_k=7), 11, frozenset({2}), 30, payloads=said)
    plan = StepPlan(8, [1], [row], [NewBlocks(1, 0, 2, [6])], rows_np, rows_np, rows_np, rows_np, 4, 2, 3)
    changes = DraftChanges([(1, 3)], [(3, 9)])
    sent_down = StepPayloads({ADAPTERS: [(1, "digest")], GRAMMAR: [(3, [7, 8])], DRAFTS: changes})
    found = decode_plan(encode_plan(replace(plan, waits=[3], payloads=sent_down)))
    assert found.waits == [3] and found.payloads == sent_down
    (begun,) = found.begun
    assert begun.payloads == said
    assert begun.sampling == row.sampling and begun.stop_token_ids == {2} and begun.seed == 11
    assert found.blocks == plan.blocks and (found.num_forwards, found.num_together, found.width) == (4, 2, 3)
    assert found.rows_np.dtype == np.int32 and found.num_samples_np.tolist() == [3, 1]

    masks = TokenMasks(rows_np, np.array([[-1, 7], [5, -(2**31)]], dtype=np.int32))
    mail = decode_mail(encode_mail(Mail({GRAMMAR: masks})))[GRAMMAR]
    assert mail.rows_np.tolist() == [3, 1] and mail.words_np.tolist() == [[-1, 7], [5, -(2**31)]]

    tokens = TokenLogprobs(rows_np, rows_np.astype(np.float32) / 2, 2)
    prompt = PromptLogprobs(1, rows_np[:, None], rows_np[:, None].astype(np.float32), rows_np)
    outputs, ahead = [(3, tokens), (1, prompt)], ResultPayloads({GRAMMAR: {3: [5, 6]}})
    sent = StepResult(8, rows_np[None, :, None], rows_np[None], outputs, {1: FAILURE}, ahead)
    result = decode_result(encode_result(sent))
    assert result.token_ids_np.tolist() == [[[3], [1]]] and result.num_verified_np.tolist() == [[3, 1]]
    assert result.errors == {1: FAILURE} and result.payloads == ahead
    (first, one), (second, other) = result.outputs
    assert (first, second) == (3, 1) and isinstance(one, TokenLogprobs) and isinstance(other, PromptLogprobs)
    assert one.logprobs_np.tolist() == [1.5, 0.5] and one.rank == 2
    assert other.start == 1 and other.ranks_np.tolist() == [3, 1]


SAMPLES: dict[Any, Any] = {  # by the type of a payload or an answer
    NoneType: None,
    int: 2**40,
    str: "lazy",
    bool: True,
    list[int]: [1, 2**62],
    list[str]: ["weights", ""],
    WeightsState: WeightsState("/weights", ("/patch",)),
    list[AdapterOutcome]: [AdapterOutcome("/sql", "9f", ""), AdapterOutcome("/no", "", "no such file")],
    AdapterSpec: AdapterSpec("sql", "/sql", "9f", 7),
    StateRoom: StateRoom(64, 12),
    PauseCall: PauseCall("wait", False),
    SleepCall: SleepCall(2, "abort"),
    EngineState: EngineState(running=[RequestView("a", 1, 2, 3, 0)], block_owners=[0, 2]),
}


@pytest.mark.parametrize("verb", list(CONTROL.values()), ids=lambda verb: verb.name)
def test_a_call_and_its_answer_arrive_as_they_left(verb: Verb[Any, Any]) -> None:
    payload, answer = SAMPLES[verb.payload], SAMPLES[verb.answer]
    call = decode_call(encode(call_of(verb, payload, 7)))
    assert (call.verb, call.call_id, payload_of(CONTROL[call.verb], call)) == (verb.name, 7, payload)
    sent = decode_answer(encode(answer_to(call, answer)))
    assert sent.call_id == 7 and answer_of(verb, sent) == answer


def test_a_call_is_typed_on_both_ends() -> None:
    with pytest.raises(KeyError, match="format_disk"):
        CONTROL["format_disk"]
    call: Any = call_of(ALLOCATE_KV, "many")  # type: ignore[arg-type]
    with pytest.raises(msgspec.MsgspecError):
        payload_of(ALLOCATE_KV, call)
    with pytest.raises(msgspec.MsgspecError):
        answer_of(KV_BLOCKS, answer_to(call, None))


@pytest.mark.parametrize(
    "error",
    [AdapterError("no such file"), InvalidRequestError("too large", "lora_id"), ConfigError("no", "enable_lora")],
    ids=lambda error: type(error).__name__,
)
def test_an_error_of_ours_is_raised_where_the_call_came_from(error: Exception) -> None:
    answer = decode_answer(encode(answer_to(call_of(KV_BLOCKS, None), error)))
    with pytest.raises(type(error)) as raised:
        answer_of(KV_BLOCKS, answer)
    assert str(raised.value) == str(error)
    assert getattr(raised.value, "field", "") == getattr(error, "field", "")


def test_an_error_of_others_is_told_by_its_name() -> None:
    with pytest.raises(EngineDeadError, match=r"^ValueError: bad magic$"):
        answer_of(KV_BLOCKS, answer_to(call_of(KV_BLOCKS, None), ValueError("bad magic")))


def test_why_a_request_failed_crosses_as_a_value() -> None:
    ends = [FAILURE, 7, None]
    updates = [RequestUpdate("r", [], (), (), FinishReason.ERROR, end, 0, 0, 0.0) for end in ends]
    found = decode_from_engine(encode(FromEngine(updates=updates))).updates
    assert [update.stop_reason for update in found] == ends
    assert isinstance(found[0].stop_reason, Failure) and found[0].stop_reason.code is FailureCode.NO_TOKEN_LEFT
