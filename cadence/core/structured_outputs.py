"""What users say of the output they want, under vLLM's names; checked when made, and read as one `GrammarSpec`."""

from __future__ import annotations

import json as json_module
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from cadence.core.checks import invalid, typed
from cadence.core.errors import InvalidRequestError
from cadence.core.grammar import MAX_TEXT_BYTES, NO_DEFAULTS, GrammarBackend, GrammarDefaults, GrammarKind, GrammarSpec

MAX_DEPTH = 64  # of nested JSON
MAX_CHOICES = 65_536
_NO_TEXT = re.compile("[\ud800-\udfff\0]")
CONSTRAINTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_BACKENDS = {
    "auto": GrammarBackend.AUTO,
    "xgrammar": GrammarBackend.XGRAMMAR,
    "llguidance": GrammarBackend.LLGUIDANCE,
    "guidance": GrammarBackend.LLGUIDANCE,  # vLLM's name of it
}


@dataclass(frozen=True, slots=True)
class StructuredOutputsParams:
    """Exactly one constraint, and how it is meant."""

    json: str | dict[str, Any] | None = None  # a JSON schema; also a pydantic model
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # EBNF (GBNF, with a rule `root`) or Lark (with a rule `start`)
    json_object: bool | None = None  # any JSON object
    disable_any_whitespace: bool = False  # JSON in one compact form
    disable_additional_properties: bool = False  # JSON has only the properties that its schema names: always so
    whitespace_pattern: str | None = None  # JSON: a regular expression for white space
    structural_tag: str | dict[str, Any] | None = None
    backend: str | None = None  # auto, xgrammar or llguidance ("guidance"); None = the engine's
    source: str = ""  # not for users: the request's field that says so

    def __post_init__(self) -> None:
        given = [name for name in CONSTRAINTS if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            found = f"{' and '.join(given)} are given" if given else "there is none"
            message = f"{self._name} must hold exactly one of {', '.join(CONSTRAINTS)}; {found}."
            raise InvalidRequestError(message, field=self._name)
        for name in ("disable_any_whitespace", "disable_additional_properties"):
            typed(f"{self._name}.{name}", getattr(self, name), bool, "True or False")
        self.spec(NO_DEFAULTS)

    @classmethod
    def of(cls, value: object, name: str) -> StructuredOutputsParams | None:
        """From what a user may give: an object of this kind, its fields by name, or nothing."""
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise invalid(name, value, "StructuredOutputsParams, its fields by name, or None")
        known = [field.name for field in fields(cls) if field.name != "source"]
        for key in value:
            if key not in known:
                near = get_close_matches(str(key), known, n=1)
                hint = f" Did you mean {near[0]}?" if near else f" Known: {', '.join(known)}."
                raise InvalidRequestError(f"{name} has no field {str(key)[:40]!r}.{hint}", field=name)
        return cls(**{key: item for key, item in value.items() if item is not None})

    def spec(self, defaults: GrammarDefaults) -> GrammarSpec:
        """What is to be compiled. `defaults`: the engine's."""
        kind, text, field = self._content()
        if len(text.encode("utf-8", "surrogatepass")) > MAX_TEXT_BYTES:
            raise InvalidRequestError(f"{field} must have at most {MAX_TEXT_BYTES} bytes.", field=field)
        if _NO_TEXT.search(text):
            raise InvalidRequestError(f"{field} must be text: without half a character, and without U+0000.", field)
        pattern = self.whitespace_pattern or ""
        typed(f"{self._name}.whitespace_pattern", pattern, str, "a string")
        return GrammarSpec(
            kind=kind,
            text=text,
            backend=defaults.backend if self.backend is None else backend_named(self.backend, f"{self._name}.backend"),
            any_whitespace=defaults.any_whitespace and not self.disable_any_whitespace,
            whitespace_pattern=pattern if kind in (GrammarKind.JSON_OBJECT, GrammarKind.JSON_SCHEMA) else "",
            source=field,
        )

    @property
    def _name(self) -> str:
        return self.source or "structured_outputs"

    def _content(self) -> tuple[GrammarKind, str, str]:
        """-> kind, text, and the field that holds it."""

        def at(name: str) -> str:
            return self.source or f"structured_outputs.{name}"

        if self.json is not None:
            return GrammarKind.JSON_SCHEMA, _schema_text(self.json, at("json")), at("json")
        if self.regex is not None:
            return GrammarKind.REGEX, _text(self.regex, at("regex")), at("regex")
        if self.choice is not None:
            return GrammarKind.CHOICE, _choice_text(self.choice, at("choice")), at("choice")
        if self.grammar is not None:
            text = _text(self.grammar, at("grammar"))
            return GrammarKind.EBNF if _is_ebnf(text) else GrammarKind.LARK, text, at("grammar")
        if self.structural_tag is not None:
            return (
                GrammarKind.STRUCTURAL_TAG,
                _tag_text(self.structural_tag, at("structural_tag")),
                at("structural_tag"),
            )
        typed(at("json_object"), self.json_object, bool, "True or False")
        return GrammarKind.JSON_OBJECT, "", at("json_object")


def backend_named(value: object, name: str) -> GrammarBackend:
    if not isinstance(value, str) or value.partition(":")[0] not in _BACKENDS:
        raise invalid(name, value, "auto, xgrammar or llguidance")
    return _BACKENDS[value.partition(":")[0]]


def _text(value: object, field: str) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(field, value, "a string that is not empty")
    return value


def _schema_text(value: object, field: str) -> str:
    if hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    schema = _parsed(value, field) if isinstance(value, str) else value
    if not isinstance(schema, dict):
        raise invalid(field, schema, "a JSON schema: an object")
    return _dumped(schema, field)


def _choice_text(value: object, field: str) -> str:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, Iterable):
        raise invalid(field, value, "a list of strings")
    choices = list(value)
    if not 0 < len(choices) <= MAX_CHOICES:
        raise invalid(field, choices, f"a list of 1 to {MAX_CHOICES} strings")
    for choice in choices:
        if not isinstance(choice, str) or not choice:
            raise invalid(field, choice, "a list of strings that are not empty")
    return _dumped(list(dict.fromkeys(choices)), field)


def _tag_text(value: object, field: str) -> str:
    tag = _parsed(value, field) if isinstance(value, str) else value
    if not isinstance(tag, dict):
        raise invalid(field, tag, "a structural tag: an object")
    return _dumped(_newer_tag(tag, field) if "structures" in tag else tag, field)


def _newer_tag(tag: dict[str, Any], field: str) -> dict[str, Any]:
    """{"structures": [{"begin", "schema", "end"}], "triggers": [...]} in the words that replaced it."""
    structures, triggers = tag["structures"], tag.get("triggers")
    if not isinstance(structures, list) or not isinstance(triggers, list):
        raise InvalidRequestError(f"{field} must have structures and triggers, a list each.", field=field)
    for item in structures:
        if not isinstance(item, dict) or not isinstance(item.get("begin"), str) or not isinstance(item.get("end"), str):
            raise InvalidRequestError(f"{field}.structures must hold objects with begin, schema and end.", field=field)
    tags = [
        {
            "begin": item["begin"],
            "content": {"type": "json_schema", "json_schema": item.get("schema", {})},
            "end": item["end"],
        }
        for item in structures
    ]
    return {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": triggers, "tags": tags}}


def _parsed(text: str, field: str) -> Any:
    if len(text) > MAX_TEXT_BYTES:
        raise InvalidRequestError(f"{field} must have at most {MAX_TEXT_BYTES} bytes.", field=field)
    try:
        return json_module.loads(text)
    except ValueError:
        raise InvalidRequestError(f"{field} is no valid JSON.", field=field) from None
    except RecursionError:
        raise _too_deep(field) from None


def _dumped(value: Any, field: str) -> str:
    """As JSON, in the order in which it was given: properties are written in it."""
    if _depth_exceeds(value, MAX_DEPTH):
        raise _too_deep(field)
    try:
        return json_module.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError):
        raise InvalidRequestError(f"{field} holds what is not JSON.", field=field) from None


def _too_deep(field: str) -> InvalidRequestError:
    return InvalidRequestError(f"{field} must be nested at most {MAX_DEPTH} deep.", field=field)


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        level = [
            inner
            for item in level
            if isinstance(item, dict | list)
            for inner in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


def _is_ebnf(text: str) -> bool:
    """EBNF says `rule ::= ...`, Lark `rule: ...`."""
    return any("::=" in line.partition("#")[0] for line in text.splitlines())
