"""What is attached to a request: it crosses as typed bytes, and says what changes keys."""

from __future__ import annotations

from dataclasses import fields

import msgspec
import pytest

from cadence.core.adapter import AdapterSpec
from cadence.core.contract.codec import decode_request, encode_request
from cadence.core.contract.features import FEATURES
from cadence.core.grammar import GrammarKind, GrammarSpec
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
