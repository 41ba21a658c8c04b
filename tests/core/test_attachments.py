"""What is attached to a request: it crosses as typed bytes, and says what changes keys."""

from __future__ import annotations

from dataclasses import fields, replace

import msgspec
import numpy as np
import pytest

from cadence.core.adapter import AdapterSpec
from cadence.core.contract.codec import decode_plan, decode_request, encode_plan, encode_request
from cadence.core.contract.encoder_work import EncoderWork
from cadence.core.contract.features import FEATURES
from cadence.core.contract.step import NO_PLAN, StepPayloads
from cadence.core.grammar import GrammarKind, GrammarSpec
from cadence.core.inputs.encoder_input import ENCODER, EncoderInput
from tests.helpers.toy_model import make_request

GRAMMAR = GrammarSpec(GrammarKind.REGEX, "a+", source="regex")
ADAPTER = AdapterSpec("sql", "/adapters/sql", number=3)


def test_attachments_cross_as_what_they_are() -> None:
    request = make_request("r", [1], attachments=(GRAMMAR, ADAPTER))
    assert decode_request(encode_request(request)) == request


@pytest.mark.parametrize("sent_as", [5, {}, {"feature": "nothing"}, {"feature": "drafts"}, {"feature": "adapters"}])
def test_an_attachment_of_no_feature_or_of_another_shape_cannot_be_read(sent_as: object) -> None:
    sent = msgspec.msgpack.decode(encode_request(make_request("r", [1], attachments=(ADAPTER,))))
    sent["attachments"] = [sent_as]
    with pytest.raises(msgspec.ValidationError):
        decode_request(msgspec.msgpack.encode(sent))


def test_types_of_attachments_say_their_feature() -> None:
    """By that they are read again."""
    for name, types in FEATURES.items():
        if types.attachment is not None:
            (default,) = (field.default for field in fields(types.attachment) if field.name == "feature")  # type: ignore[arg-type]
            assert default == name


def test_an_adapter_changes_keys_once_its_content_is_known_and_a_grammar_never() -> None:
    request = make_request("r", [1], attachments=(GRAMMAR, ADAPTER))
    assert (request.keys_digest, request.keys_name) == ("", "/adapters/sql")
    resolved = request.with_attachment(ADAPTER.resolved("abc"))
    assert (resolved.keys_digest, resolved.keys_name) == ("abc", "abc")
    assert resolved.attached(AdapterSpec) == AdapterSpec("sql", "/adapters/sql", "abc", 3)


def test_an_encoder_input_crosses_with_its_arrays_and_its_content_changes_keys() -> None:
    text = EncoderInput.of_tokens([5, 6, 7])
    sound = EncoderInput.of_features(np.arange(12, dtype=np.float32).reshape(3, 4), length=2)
    for given in (text, sound):
        request = make_request("r", [1], attachments=(given,))
        read = decode_request(encode_request(request)).attached(EncoderInput)
        assert read == given and request.keys_digest == given.digest
        np.testing.assert_array_equal(read.token_ids_np, given.token_ids_np)
        np.testing.assert_array_equal(read.features_np, given.features_np)
    assert (text.length, sound.length) == (3, 2)


def test_encoder_inputs_of_other_contents_have_other_digests() -> None:
    features_np = np.zeros((2, 4), dtype=np.float32)
    inputs = [
        EncoderInput.of_tokens([1, 2]),
        EncoderInput.of_tokens([2, 1]),
        EncoderInput.of_features(features_np, 2),
        EncoderInput.of_features(features_np, 4),
        EncoderInput.of_features(features_np.reshape(4, 2), 2),
    ]
    assert len({each.digest for each in inputs}) == len(inputs)
    assert EncoderInput.of_tokens([1, 2]) == inputs[0]


def test_encoder_work_crosses_with_a_plan() -> None:
    work = EncoderWork(
        token_ids_np=np.array([5, 6, 7], dtype=np.int32),
        features_np=np.zeros((0, 0), dtype=np.float32),
        length=3,
        block_ids=([4], []),
        adapter=1,
    )
    plan = replace(NO_PLAN, payloads=StepPayloads({ENCODER: [work]}))
    (read,) = decode_plan(encode_plan(plan)).payloads[ENCODER]
    assert (read.length, read.block_ids, read.adapter) == (3, ([4], []), 1)
    np.testing.assert_array_equal(read.token_ids_np, work.token_ids_np)
    assert read.features_np.shape == (0, 0) and read.features_np.dtype == np.float32
