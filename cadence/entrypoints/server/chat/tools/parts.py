"""Parts of structural tags, which say what a model may write: https://xgrammar.mlc.ai/docs names them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

Part = dict[str, Any]

MAX_SPACE = 8  # characters of white space in a row, between the tokens of JSON: some models would never stop
MANY = 8  # optional members of which any may be the first


def const(text: str) -> Part:
    return {"type": "const_string", "value": text}


def regex(pattern: str) -> Part:
    return {"type": "regex", "pattern": pattern}


NUMBER = regex(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9][0-9]?)?")  # small enough to be finite


def sequence(parts: Iterable[Part]) -> Part:
    """Without texts that are empty; those of nothing else are one."""
    elements = [part for part in parts if part != const("")]
    return {"type": "sequence", "elements": elements} if elements else const("")


def either(parts: Sequence[Part]) -> Part:
    return parts[0] if len(parts) == 1 else {"type": "or", "elements": list(parts)}


def optional(part: Part) -> Part:
    return {"type": "optional", "content": part}


def text_until(end: str, excludes: Sequence[str] = (), begin: str = "") -> Part:
    """Any text without `excludes`, up to the first `end` and with it."""
    content: Part = {"type": "any_text", "excludes": list(excludes)} if excludes else {"type": "any_text"}
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def json_value(schema: Any, excludes: Sequence[str] = (), space: int = MAX_SPACE) -> Part:
    """`excludes`: what none of its strings has within."""
    part: Part = {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": space}
    return {**part, "excludes": list(excludes)} if excludes else part


def written_size(value: Any, known: dict[int, int] | None = None) -> int:
    """Characters of a part as text, about. What stands in it many times is looked at once: some short schemas are long
    when they are written out."""
    known = {} if known is None else known
    if not isinstance(value, dict | list | tuple):
        return len(value) if isinstance(value, str) else 8
    if (found := known.get(id(value))) is None:
        inner = value.items() if isinstance(value, dict) else value
        known[id(value)] = found = 2 + sum(
            len(one[0]) + 6 + written_size(one[1], known) if isinstance(value, dict) else 2 + written_size(one, known)
            for one in inner
        )
    return found


def joined(members: Sequence[tuple[Part, bool]], separator: str) -> Part:
    """(member, whether it is required), in their order but the required first. Of many that are all optional each
    has a separator after it: so the part grows with their number and not with its square."""
    first = [part for part, required in members if required]
    others = [part for part, required in members if not required]
    gap = const(separator)
    if first:
        rest = [sequence([gap, part]) for part in first[1:]]
        return sequence([first[0], *rest, *(optional(sequence([gap, part])) for part in others)])
    if len(others) > MANY:
        return sequence([optional(sequence([part, gap])) for part in others])
    starts = [
        sequence([part, *(optional(sequence([gap, other])) for other in others[at + 1 :])])
        for at, part in enumerate(others)
    ]
    return optional(either(starts)) if starts else const("")
