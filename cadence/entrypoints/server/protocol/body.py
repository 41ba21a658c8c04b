"""How bytes become a request: JSON, names, types. What has no effect is named, what would break a promise refused."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, PrivateAttr, ValidationError

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.ignored import UNKNOWN, Ignored
from cadence.entrypoints.server.protocol.json_text import decode_json
from cadence.entrypoints.server.protocol.unsupported import UNSUPPORTED, Unsupported

MAX_NAME = 256  # characters of a field
MAX_NAME_TO_GUESS = 64  # characters of an unknown field for which similar names are looked for
MAX_UNKNOWN = 256  # unknown fields of one request that are looked at
MAX_GUESSES = 8  # unknown fields of one request for which similar names are looked for

_NUMBERS: dict[Any, str] = {int: "an integer", int | None: "an integer", float: "a number", float | None: "a number"}

_NO_TEXT = ("logprobs", "prompt_logprobs", "top_logprobs")


class BodyPart(BaseModel):
    """An object inside of a body. Unknown names are kept in `model_extra` until they are named as ignored."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, protected_namespaces=())


class RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, protected_namespaces=())

    unsupported: ClassVar[Mapping[str, Unsupported]] = {}  # what this endpoint does not honour, beside `UNSUPPORTED`

    _ignored: Ignored = PrivateAttr(default_factory=Ignored)

    @property
    def ignored(self) -> Ignored:
        """Where a route names what had no effect."""
        return self._ignored


Body = TypeVar("Body", bound=RequestBody)


def parse_body(kind: type[Body], raw: bytes, ignored: Ignored) -> Body:
    """A request out of a body, or an error that names the field."""
    return validate_body(kind, decode_json(raw), ignored)


def validate_body(kind: type[Body], content: object, ignored: Ignored) -> Body:
    if not isinstance(content, dict):
        raise InvalidRequestError("the body must be a JSON object")
    try:
        body = kind.model_validate(_known(kind, content, ignored))
    except ValidationError as error:
        raise _invalid(error) from None
    body._ignored = ignored
    _name_ignored(body, "", ignored)
    return body


def body_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI entry of a route that reads its body with `parse_body`."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": whole_schema(kind)}}}}


def whole_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """Without references, which would point out of the document it is put into."""
    schema = kind.model_json_schema()
    inlined: dict[str, Any] = _inline(schema, schema.pop("$defs", {}))
    return inlined


def _known(kind: type[RequestBody], content: Mapping[str, Any], ignored: Ignored) -> dict[str, Any]:
    """The fields that this endpoint reads; of the others each is refused or named as ignored."""
    kept: dict[str, Any] = {}
    for name, value in content.items():
        if name in kind.unsupported:
            kind.unsupported[name].check(name, value, ignored)
        elif name in kind.model_fields:
            _check_no_boolean(kind, name, value)
            _check_no_text(kind, name, value)
            kept[name] = value
        elif name in UNSUPPORTED:
            UNSUPPORTED[name].check(name, value, ignored)
        else:
            _check_unknown(kind, name, ignored)
    return kept


def _check_no_boolean(kind: type[RequestBody], name: str, value: object) -> None:
    """`"3"`, `3.0` and `"true"` are read as what they stand for; true as a number is a mistake."""
    if isinstance(value, bool) and (wanted := _NUMBERS.get(kind.model_fields[name].annotation)):
        raise InvalidRequestError(f"{name}: input should be {wanted}, not {str(value).lower()}.", name)


def _check_no_text(kind: type[RequestBody], name: str, value: object) -> None:
    """vLLM reads numbers in strings everywhere but here."""
    if isinstance(value, str) and name in _NO_TEXT and kind.model_fields[name].annotation != bool | None:
        raise InvalidRequestError(f"{name}: input should be an integer, not a string.", name)


def _check_unknown(kind: type[RequestBody], name: str, ignored: Ignored) -> None:
    if ignored.count >= MAX_UNKNOWN:
        raise InvalidRequestError(f"the body has more than {MAX_UNKNOWN} unknown fields", name[:80])
    if len(name) > MAX_NAME:
        raise InvalidRequestError(
            f"a field's name has {len(name)} characters; at most {MAX_NAME} are allowed", name[:80]
        )
    near: list[str] = []
    if len(name) <= MAX_NAME_TO_GUESS and ignored.count < MAX_GUESSES:
        near = difflib.get_close_matches(name, [*kind.model_fields, *UNSUPPORTED], n=1)
    ignored.add(name, f"{UNKNOWN}; did you mean {near[0]}?" if near else UNKNOWN)


def _name_ignored(part: BaseModel, where: str, ignored: Ignored) -> None:
    """Unknown names in the objects that a body holds."""
    for name in list(part.model_extra or ())[:MAX_UNKNOWN]:
        ignored.add(f"{where}{name}")
    for name in part.model_fields_set:
        value = getattr(part, name)
        if isinstance(value, BodyPart):
            _name_ignored(value, f"{where}{name}.", ignored)


def _invalid(error: ValidationError) -> InvalidRequestError:
    """One sentence: for a union, what each of its members expected."""
    details = error.errors(include_url=False, include_context=False, include_input=False)
    field = _path(details[0]["loc"])
    reasons = dict.fromkeys(_lower(d["msg"]) for d in details if d["loc"][:1] == details[0]["loc"][:1])
    return InvalidRequestError(f"{field}: {' or '.join(list(reasons)[:4])}.", field)


def _path(location: tuple[int | str, ...]) -> str:
    """`stop[3]`, `stream_options.include_usage`: without the names of union members that pydantic puts between."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part not in ("str", "int", "float", "bool") and not any(mark in part for mark in "[(-"):
            path += f".{part[:80]}" if path else part[:80]
    return path


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]


def _inline(node: Any, definitions: Mapping[str, Any]) -> Any:
    """A schema without references; the bodies nest no model in itself."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inline(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {key: _inline(value, definitions) for key, value in node.items()}
    return [_inline(item, definitions) for item in node] if isinstance(node, list) else node
