"""What a body says of the output it wants, in each of the ways there are, as `StructuredOutputsParams`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from cadence.core.errors import InvalidRequestError
from cadence.core.structured_outputs import StructuredOutputsParams

if TYPE_CHECKING:
    from cadence.entrypoints.server.protocol.common import GenerationBody

_GUIDED = {
    "guided_json": "json", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}  # fmt: skip
_OPTIONS = {"guided_whitespace_pattern": "whitespace_pattern", "guided_decoding_backend": "backend"}
NAME = "structured_outputs"
FORMATS = ("text", "json_object", "json_schema", "structural_tag")


def structured_outputs(body: GenerationBody) -> StructuredOutputsParams | None:
    """None where the output is free. Two that differ are an error, whatever they are called."""
    formatted = of_format(body.response_format, "response_format")
    return one_of(formatted, StructuredOutputsParams.of(body.structured_outputs or None, NAME), *_guided(body))


def one_of(*found: StructuredOutputsParams | None) -> StructuredOutputsParams | None:
    given = [params for params in found if params is not None]
    if len(given) > 1:
        names = [params.source or NAME for params in given]
        raise InvalidRequestError(f"{' and '.join(names)} each say what the output must be: give one.", names[0])
    return given[0] if given else None


def _guided(body: GenerationBody) -> list[StructuredOutputsParams]:
    """The older names, each a field of its own."""
    options = {ours: value for name, ours in _OPTIONS.items() if (value := getattr(body, name))}
    given = {name: value for name in _GUIDED if (value := getattr(body, name)) not in (None, "", [])}
    return [StructuredOutputsParams(**{_GUIDED[name]: value}, **options, source=name) for name, value in given.items()]


def of_format(given: Mapping[str, Any] | None, name: str, flat: bool = False) -> StructuredOutputsParams | None:
    """OpenAI's `response_format`. `flat`: the schema stands in it directly, as in /v1/responses and /v1/messages."""
    if not given:
        return None
    kind = given.get("type")
    if kind == "text":
        return None
    if kind == "json_object":
        return StructuredOutputsParams(json_object=True, source=name)
    if kind == "json_schema":
        return _of_schema(given if flat else given.get("json_schema"), name if flat else f"{name}.json_schema")
    if kind == "structural_tag":
        content = {key: value for key, value in given.items() if value is not None}
        return StructuredOutputsParams(structural_tag=content, source=name)
    shown = kind[:40] if isinstance(kind, str) else kind
    message = f"{name}.type {shown!r} is not supported: it must be one of {', '.join(FORMATS)}"
    raise InvalidRequestError(message, f"{name}.type" if flat else name)


def _of_schema(holder: object, name: str) -> StructuredOutputsParams:
    if not isinstance(holder, Mapping):
        raise InvalidRequestError(f"{name} must be an object with a name and a schema", name)
    schema = holder.get("schema", holder.get("json_schema"))
    if not isinstance(schema, dict):
        raise InvalidRequestError(f"{name}.schema must be a JSON schema: an object", f"{name}.schema")
    return StructuredOutputsParams(json=schema, source=f"{name}.schema")
