"""Messages as bytes: msgpack by msgspec, typed on both ends. No pickle: a peer can send data, never code."""

from __future__ import annotations

import functools
from typing import Any, get_args

import msgspec
import numpy as np

from cadence.core.contract.control import A, P, Verb
from cadence.core.contract.control_messages import ControlAnswer, ControlCall, ErrorText
from cadence.core.contract.features import FEATURES
from cadence.core.contract.front_messages import FromFront, ToFront
from cadence.core.contract.messages import FromEngine, ToEngine
from cadence.core.contract.request import EngineRequest
from cadence.core.contract.step import (
    IntArray,
    Mail,
    ResultPayloads,
    RowOutput,
    RowPayloads,
    StepPayloads,
    StepPlan,
    StepResult,
)
from cadence.core.errors import InvalidRequestError
from cadence.core.failure import Failure
from cadence.core.inputs.attachments import Attachment


def _plain(value: object) -> object:
    """numpy arrays travel as (dtype, shape, bytes)."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, np.ascontiguousarray(value).tobytes()
    if isinstance(value, np.integer):
        return int(value)
    if callable(value):
        raise InvalidRequestError(
            "logits_processors are Python functions and cannot be sent to an engine in another process; use LLM",
            "logits_processors",
        )
    raise TypeError(f"{type(value).__name__} cannot be sent")


def _rich(kind: Any, value: Any) -> Any:
    if kind is object:  # refused options, always at their neutral value
        return value
    if kind is Attachment:
        return _attachment(value)
    if kind in _BY_FEATURE:
        return kind((name, _payload(_BY_FEATURE[kind], name, payload)) for name, payload in value.items())
    dtype, shape, data = value
    return np.frombuffer(data, dtype=dtype).reshape(shape)


def _payload(types: dict[str, Any], feature: str, payload: Any) -> Any:
    if feature not in types:
        raise ValueError(f"a payload of the feature {feature!r}; those with one here: {', '.join(types)}")
    return msgspec.convert(payload, types[feature], dec_hook=_rich)


def _attachment(value: Any) -> Attachment:
    known = FEATURES.get(value.get("feature", "")) if isinstance(value, dict) else None
    if known is None or known.attachment is None:
        raise ValueError("an attachment of no feature")
    return msgspec.convert(value, known.attachment, dec_hook=_rich)


_BY_FEATURE: dict[Any, dict[str, Any]] = {  # types by feature, of each place
    RowPayloads: {name: types.row for name, types in FEATURES.items() if types.row},
    StepPayloads: {name: types.step for name, types in FEATURES.items() if types.step},
    Mail: {name: types.mail for name, types in FEATURES.items() if types.mail},
    ResultPayloads: {name: types.result for name, types in FEATURES.items() if types.result},
}


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_plain)
_TO_ENGINE = msgspec.msgpack.Decoder(ToEngine, dec_hook=_rich)
_FROM_ENGINE = msgspec.msgpack.Decoder(FromEngine, dec_hook=_rich)
_TO_FRONT = msgspec.msgpack.Decoder(ToFront)
_FROM_FRONT = msgspec.msgpack.Decoder(FromFront)
_PLAN = msgspec.msgpack.Decoder(StepPlan, dec_hook=_rich)
_MAIL = msgspec.msgpack.Decoder(Mail, dec_hook=_rich)
_OUTPUTS = {kind: msgspec.msgpack.Decoder(kind, dec_hook=_rich) for kind in get_args(RowOutput)}
_RESULT = msgspec.msgpack.Decoder(
    tuple[int, IntArray, IntArray, list[tuple[int, int, msgspec.Raw]], dict[int, Failure], ResultPayloads],
    dec_hook=_rich,
)
_CALL = msgspec.msgpack.Decoder(ControlCall)
_ANSWER = msgspec.msgpack.Decoder(ControlAnswer)
_REQUEST = msgspec.msgpack.Decoder(EngineRequest, dec_hook=_rich)


def encode(message: ToEngine | FromEngine | ToFront | FromFront | ControlCall | ControlAnswer) -> bytes:
    return _ENCODER.encode(message)


def encode_request(request: EngineRequest) -> bytes:
    """Raises InvalidRequestError for what no message can carry: integers beyond 64 bits, lone surrogates, objects."""
    try:
        return _ENCODER.encode(request)
    except InvalidRequestError:
        raise
    except (OverflowError, TypeError, ValueError, RecursionError):
        field = _unsendable_field(request)
        raise InvalidRequestError(
            f"{field or 'the request'} cannot be sent to the engine: integers have at most 64 bits, "
            "text is valid Unicode, and nesting is shallow",
            field,
        ) from None


def decode_request(payload: bytes) -> EngineRequest:
    """Validates as it decodes: the parameters are constructed again. Raises msgspec.MsgspecError."""
    return _REQUEST.decode(payload)


def encode_plan(plan: StepPlan) -> bytes:
    """Raises InvalidRequestError where a row's parameters hold Python functions."""
    return _ENCODER.encode(plan)


def decode_plan(data: bytes) -> StepPlan:
    return _PLAN.decode(data)


def encode_mail(mail: Mail) -> bytes:
    return _ENCODER.encode(mail)


def decode_mail(data: bytes) -> Mail:
    return _MAIL.decode(data)


def encode_result(result: StepResult) -> bytes:
    """Outputs of rows travel as (row, number of their kind, fields)."""
    kinds = list(_OUTPUTS)
    outputs = [(row, kinds.index(type(output)), output) for row, output in result.outputs]
    arrays = (result.token_ids_np, result.num_verified_np)
    return _ENCODER.encode((result.step_id, *arrays, outputs, result.errors, result.payloads))


def decode_result(data: bytes) -> StepResult:
    step_id, token_ids_np, num_verified_np, found, errors, payloads = _RESULT.decode(data)
    decoders = list(_OUTPUTS.values())
    outputs = [(row, decoders[kind].decode(raw)) for row, kind, raw in found]
    return StepResult(step_id, token_ids_np, num_verified_np, outputs, errors, payloads)


def call_of(verb: Verb[P, Any], payload: P, call_id: int = 0) -> ControlCall:
    return ControlCall(verb.name, _ENCODER.encode(payload), call_id)


def payload_of(verb: Verb[P, Any], call: ControlCall) -> P:
    """Raises msgspec.MsgspecError for another's payload."""
    kind: Any = verb.payload
    payload: P = _decoder(kind).decode(call.payload)
    return payload


def answer_to(call: ControlCall, answer: Any) -> ControlAnswer:
    """answer: the verb's answer, or the error that it raised"""
    if isinstance(answer, Exception):
        return ControlAnswer(call.call_id, failure=ErrorText.of(answer))
    return ControlAnswer(call.call_id, _ENCODER.encode(answer))


def answer_of(verb: Verb[Any, A], answer: ControlAnswer) -> A:
    """Raises the error that it may be, and msgspec.MsgspecError for another's answer."""
    if answer.failure is not None:
        raise answer.failure.error()
    kind: Any = verb.answer
    found: A = _decoder(kind).decode(answer.payload)
    return found


@functools.cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    """Of a payload or an answer."""
    return msgspec.msgpack.Decoder(kind)


def decode_call(data: bytes) -> ControlCall:
    return _CALL.decode(data)


def decode_answer(data: bytes) -> ControlAnswer:
    return _ANSWER.decode(data)


def decode_to_engine(data: bytes) -> ToEngine:
    return _TO_ENGINE.decode(data)


def decode_from_engine(data: bytes) -> FromEngine:
    return _FROM_ENGINE.decode(data)


def decode_to_front(data: bytes) -> ToFront:
    return _TO_FRONT.decode(data)


def decode_from_front(data: bytes) -> FromFront:
    return _FROM_FRONT.decode(data)


def _unsendable_field(request: EngineRequest) -> str:
    """The name of the first field, of the parameters or of the request, that cannot be encoded."""
    for owner in (request.params, request):
        for name in owner.__dataclass_fields__:
            try:
                _ENCODER.encode(getattr(owner, name))
            except Exception:
                return name
    return ""
