"""Values between marks, as a model held to their schema writes them: strings as they are, all else as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cadence.entrypoints.server.chat.tools.arguments import json_text
from cadence.entrypoints.server.chat.tools.parameters import (
    Parameter,
    Schema,
    UnwritableError,
    keywords,
    listed_values,
    resolved,
    with_tables,
)
from cadence.entrypoints.server.chat.tools.parts import (
    NUMBER,
    Part,
    const,
    either,
    json_value,
    regex,
    sequence,
    text_until,
)
from cadence.entrypoints.server.chat.tools.schema import STRING, as_json, schema_types
from cadence.entrypoints.server.chat.tools.schema_budget import SchemaBudget

MAX_CHOICE_DEPTH = 16  # of choices within choices: those of a schema that refers to itself have no end
_SCALARS = frozenset({"null", "boolean", "integer", "number"})
_FIRST = {  # the characters that a text of this type can begin with
    "array": r"\[(",
    "object": r"{",
    "integer": r"0-9+\-",
    "number": r"0-9+\-.",
    "boolean": r"tTfF01",
    "null": r"nN",
}
_FORMATS = {
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])",
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](Z|[+-](0[0-9]|1[0-4]):00)",
    "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "email": r"[A-Za-z0-9_+-]+(\.[A-Za-z0-9_+-]+)*@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])",
    "uri": r"[a-z][a-z0-9+.-]*:(//)?[A-Za-z0-9_.~:/?#@!$&'*+,;=%-]+",
}
_FORMATS["date-time"] = f"{_FORMATS['date']}T{_FORMATS['time']}"
_OF_STRING = {"type", "pattern", "minLength", "maxLength", "format"}
# The parts of a pattern: an escape, a set of characters, the head of a group, any other character.
_ATOM = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?:|.", re.DOTALL)
_ESCAPES = re.compile(r"\\[dws\W_]")


@dataclass(frozen=True, slots=True)
class TextValues:
    """`end` is the mark after a value. `marks` end one too, so that none has them within."""

    end: str
    marks: tuple[str, ...] = ()
    trim: str = "nothing"  # what the parser takes off a value: "newlines" (one at each end), "space" or "nothing"
    pad: str = ""  # before the end of what is not a free text

    @property
    def excludes(self) -> list[str]:
        return [mark for mark in dict.fromkeys(self.marks) if mark != self.end]

    def value(self, parameter: Parameter, budget: SchemaBudget) -> Part:
        """With its end. Raises UnwritableError."""
        return self._value(parameter.schema, parameter.types, budget)

    def _value(self, schema: Schema, types: frozenset[str], budget: SchemaBudget) -> Part:
        schema = resolved(schema, budget)
        if (values := listed_values(schema, budget)) is not None:
            return self._listed(values, types)
        if keywords(schema) == {"type": "number"}:
            return sequence([NUMBER, const(self.pad + self.end)])
        if "string" not in types:
            return sequence([json_value(dict(schema), [self.end, *self.excludes]), const(self.pad + self.end)])
        options = self._options(schema, budget)
        if len(options) == 1:
            return self.text(keywords(options[0]), types, budget)
        return either([self._option(option, types, budget) for option in options])

    def _options(self, schema: Schema, budget: SchemaBudget, depth: int = 0) -> list[Schema]:
        if depth > MAX_CHOICE_DEPTH:
            raise UnwritableError(f"choices within choices, more than {MAX_CHOICE_DEPTH} deep")
        said = keywords(schema)
        for name in ("anyOf", "oneOf"):
            if name in said and isinstance(said[name], list) and len(said) == 1:
                inner = [resolved(with_tables(option, schema, budget), budget) for option in said[name]]
                return [option for one in inner for option in self._options(one, budget, depth + 1)]
        kinds = said.get("type")
        if isinstance(kinds, list) and len(kinds) > 1:
            budget.spend(len(kinds) * len(schema))
            return [{**schema, "type": kind} for kind in kinds]
        return [{**schema, "type": kinds[0]} if isinstance(kinds, list) and kinds else schema]

    def _option(self, schema: Schema, types: frozenset[str], budget: SchemaBudget) -> Part:
        """One of several: the text must be of no other type that the value may have."""
        own, is_listed = schema_types(schema, {}, budget), listed_values(schema, budget) is not None
        if is_listed or "string" not in own:
            return self._value(schema, types if is_listed else own, budget)
        return self.text(keywords(schema), types, budget)

    def _listed(self, values: Sequence[Any], types: frozenset[str]) -> Part:
        """Those that the parser reads back as they are."""
        texts = [value if isinstance(value, str) else json_text(value) for value in values]
        fine = [
            text
            for text, value in zip(texts, values)
            if self._kept(text) == text and json.loads(as_json(text, types)) == value and self._is_clean(text)
        ]
        if not fine:
            raise UnwritableError("enum")
        return either([const(text + self.pad + self.end) for text in fine])

    def _kept(self, text: str) -> str:
        return text.strip() if self.trim == "space" else text

    def _is_clean(self, text: str) -> bool:
        return not any(mark in text for mark in (self.end, *self.marks))

    def text(self, said: Mapping[str, Any], types: frozenset[str], budget: SchemaBudget) -> Part:
        """A string of these keywords, with its end."""
        budget.spend(len(str(said.get("pattern", ""))))
        if extra := set(said) - _OF_STRING:
            raise UnwritableError(min(extra))
        others = types - STRING
        limits = set(said) - {"type"}
        if not limits and others <= _SCALARS:
            return text_until(self.end, self.excludes)
        if others:
            return self._unlike(others) if not limits else self._refuse(limits)
        return sequence([regex(self._pattern(said)), const(self.pad + self.end)])

    def _refuse(self, limits: set[str]) -> Part:
        raise UnwritableError(f"{min(limits)} beside another type")

    def _unlike(self, others: frozenset[str]) -> Part:
        """A text that is no array and no object, nor a scalar."""
        first = "".join(_FIRST[name] for name in sorted(others) if name in _FIRST)
        return sequence([regex(f"[^{self._firsts}\\s{first}][^{self._firsts}]*"), const(self.end)])

    @property
    def _firsts(self) -> str:
        """The characters that marks begin with, for a set of a regular expression."""
        firsts = sorted({mark[0] for mark in (self.end, *self.marks)})
        return "".join(f"\\{char}" if char in "[]\\^-" else char for char in firsts)

    def _pattern(self, said: Mapping[str, Any]) -> str:
        if len(said.keys() - {"type", "minLength", "maxLength"}) + ("minLength" in said or "maxLength" in said) > 1:
            raise UnwritableError(" beside ".join(sorted(said.keys() - {"type"})))
        if "format" in said:
            if said["format"] not in _FORMATS:
                raise UnwritableError(f"format: {said['format']}")
            return _FORMATS[said["format"]]
        if "pattern" in said:
            return self._anchored(said["pattern"])
        return self._of_length(said.get("minLength", 0), said.get("maxLength"))

    def _anchored(self, pattern: Any) -> str:
        """As an expression for the whole text, which has the first character of no mark."""
        if not isinstance(pattern, str) or pattern[:1] != "^" or pattern[-1:] != "$":
            raise UnwritableError("pattern")
        inner, depth = pattern[1:-1], 0
        for atom in (found[0] for found in _ATOM.finditer(inner)):  # no further than the first that is refused
            depth += atom in ("(", "(?:")
            depth -= atom == ")"
            outside = atom == "|" and depth == 0
            strange = atom in "^$\\[" or (atom[0] == "\\" and not _ESCAPES.fullmatch(atom))
            if outside or strange or self._may_begin_mark(atom):
                raise UnwritableError("pattern")
        return f"({inner})"

    def _may_begin_mark(self, atom: str) -> bool:
        firsts = {mark[0] for mark in (self.end, *self.marks)}
        if len(atom) == 1 and atom != ".":
            return atom in firsts
        try:
            return atom != "(?:" and any(re.fullmatch(atom, first) for first in firsts)
        except re.error:
            raise UnwritableError("pattern") from None

    def _of_length(self, least: Any, most: Any) -> str:
        if type(least) is not int or type(most) not in (int, type(None)) or least < 0 or (most or least) < least:
            raise UnwritableError("minLength" if type(least) is not int else "maxLength")
        char, end = f"[^{self._firsts}]", f"[^{self._firsts}\\s]"
        if self.trim == "nothing":
            return f"{char}{{{least},{'' if most is None else most}}}"
        if least < 2 and (most is None or most > 1):  # the parser takes white space off the ends: they have none
            longer = f"{end}({char}{{0,{'' if most is None else most - 2}}}{end})?"
            return longer if least else f"({longer})?"
        if most is not None and most < 2:
            return f"{end}{{{least},{most}}}"
        return f"{end}{char}{{{least - 2},{'' if most is None else most - 2}}}{end}"
