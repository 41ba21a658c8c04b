"""Structural tags: which JSON schemas are in them, and the same written in Lark for llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cadence.structured.schema import closed_text
from cadence.structured.schema_marks import without_marks

Part = Mapping[str, Any]

_KEYS = {  # what a part of this type may say, beside its type
    "const_string": {"value"},
    "json_schema": {"json_schema", "style", "max_whitespace_cnt", "excludes"},
    "regex": {"pattern"},
    "any_text": {"excludes"},
    "sequence": {"elements"},
    "or": {"elements"},
    "optional": {"content"},
    "plus": {"content"},
    "star": {"content"},
    "tag": {"begin", "content", "end"},
    "triggered_tags": {"triggers", "tags", "at_least_one", "stop_after_first"},
    "tags_with_separator": {"tags", "separator", "at_least_one", "stop_after_first"},
}
_SIGNS = {"optional": "?", "plus": "+", "star": "*"}


def schemas_in(text: str) -> Iterator[Any]:
    """The JSON schemas of a structural tag, whose contents are written as JSON."""
    return (part.get("json_schema") for part in schema_parts(text))


def schema_parts(text: str) -> Iterator[Part]:
    """The parts of a structural tag that are JSON of a schema."""
    todo = [json.loads(text).get("format")]
    while todo:
        part = todo.pop()
        if isinstance(part, list):
            todo += reversed(part)
        elif isinstance(part, dict):
            if part.get("type") == "json_schema" and part.get("style", "json") == "json":
                yield part
            else:
                todo += [value for key, value in part.items() if key in ("elements", "tags", "content")]


def structural_tag_as_lark(text: str, special: Mapping[str, int], regex: Callable[[str], str]) -> str:
    """`special`: special tokens by name; `regex`: from a pattern to one that stands between slashes. Raises ValueError
    for a tag that says what llguidance cannot do."""
    writer = _LarkWriter(special, regex)
    try:
        writer.lines.insert(1, f"start: {writer.written(json.loads(text)['format'])}")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a part of the structural tag is not as it must be: {error}") from None
    return "\n".join(writer.lines) + "\n"


def _in_slashes(text: str) -> str:
    """As a regular expression between slashes."""
    return re.escape(text).replace("/", "\\/").replace("\\\n", "\\n")


class _LarkWriter:
    """Parts become expressions; those that need it, rules with numbers for names."""

    def __init__(self, special: Mapping[str, int], regex: Callable[[str], str]) -> None:
        self.lines = ["%llguidance {}", r"TEXT: /(.|\n)*/"]
        self._special = special
        self._regex = regex
        self._count = 0

    def written(self, part: Part) -> str:
        kind = part.get("type", "tag")
        extra = {key for key in part if key != "type"} - _KEYS.get(kind, set())
        if kind not in _KEYS or extra:
            raise ValueError(f"llguidance takes no structural tags with {kind} {' '.join(sorted(extra))}".strip())
        match kind:
            case "const_string":
                return self._text(part["value"])
            case "json_schema":
                return self._json(part)
            case "regex":
                return f"/{self._regex(part['pattern'])}/"
            case "any_text":
                return self._plain_text(part.get("excludes", []))
            case "sequence":
                return "(" + " ".join(map(self.written, part["elements"])) + ")"
            case "or":
                return self._either(list(map(self.written, part["elements"])))
            case "tag":
                return self._tag(part, self._text(part["begin"]))
            case "triggered_tags":
                return self._triggered(part)
            case "tags_with_separator":
                return self._separated(part)
            case _:
                return f"({self.written(part['content'])}){_SIGNS[kind]}"

    def _json(self, part: Part) -> str:
        if part.get("style", "json") != "json":
            raise ValueError(f"llguidance takes no arguments in the style {part['style']}")
        schema = without_marks(json.loads(closed_text(json.dumps(part["json_schema"]))), part.get("excludes", []))
        if isinstance(schema, dict) and (most := part.get("max_whitespace_cnt")) is not None:
            schema["x-guidance"] = {"whitespace_pattern": f"[ \\n\\r\\t]{{0,{most}}}"}
        return f"%json {json.dumps(schema)}"

    def _tag(self, part: Part, begin: str) -> str:
        ends = [part["end"]] if isinstance(part["end"], str) else list(part["end"])
        if part["content"].get("type") == "any_text":
            return f"({begin} {self._until(ends, part['content'].get('excludes', []))})"
        return f"({begin} {self.written(part['content'])} {self._either([self._text(end) for end in ends])})"

    def _triggered(self, part: Part) -> str:
        tags = []
        for tag in part["tags"]:
            trigger = next((trigger for trigger in part["triggers"] if tag["begin"].startswith(trigger)), "")
            if not trigger:
                raise ValueError(f"no trigger of the structural tag begins its tag {tag['begin'][:40]!r}")
            tags.append((trigger, self._tag(tag, self._text(tag["begin"][len(trigger) :]))))
        leads = {trigger: self._until([trigger], []) for trigger, _ in tags}
        block = self._either([f"{leads[trigger]} {tag}" for trigger, tag in tags])
        if part.get("stop_after_first"):
            return block if part.get("at_least_one") else f"({block} | TEXT)"
        return f"({block}{'+' if part.get('at_least_one') else '*'} TEXT)"

    def _separated(self, part: Part) -> str:
        tag = self._rule(self._either(list(map(self.written, part["tags"]))))
        block = tag if part.get("stop_after_first") else f"({tag} ({self._text(part['separator'])} {tag})*)"
        return block if part.get("at_least_one") else f"({block})?"

    def _until(self, ends: list[str], excludes: list[str]) -> str:
        """Any text without `excludes`, up to the first of `ends` and with it."""
        text = self._plain_text(excludes)
        if any(end in self._special for end in ends):  # no text has a special token
            return f"({text} {self._either([self._text(end) for end in ends])})"
        return self._rule(f"{text} {self._either([json.dumps(end) for end in ends])}", "[lazy]")

    def _plain_text(self, excludes: list[str]) -> str:
        if not excludes:
            return "TEXT"
        self._count += 1
        parts = "|".join(_in_slashes(text) for text in excludes)
        self.lines.append(f"TEXT_{self._count}: /(.|\\n)*/ & ~/(.|\\n)*({parts})(.|\\n)*/")
        return f"TEXT_{self._count}"

    def _rule(self, body: str, how: str = "") -> str:
        self._count += 1
        self.lines.append(f"rule_{self._count}{how}: {body}")
        return f"rule_{self._count}"

    def _either(self, options: list[str]) -> str:
        return "(" + " | ".join(option or '""' for option in options) + ")"

    def _text(self, text: str) -> str:
        """In quotes; special tokens by their numbers."""
        for name, token in self._special.items():
            if name in text:
                before, _, after = text.partition(name)
                return " ".join(filter(None, (self._text(before), f"<[{token}]>", self._text(after))))
        return json.dumps(text) if text else ""
