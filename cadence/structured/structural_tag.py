"""Structural tags for llguidance: free text, in which a trigger begins a tag whose inside is constrained."""

from __future__ import annotations

import json
from typing import Any


def structural_tag_as_lark(text: str) -> str:
    """Its format must be of the type "triggered_tags", with JSON inside. Raises ValueError for others."""
    form = json.loads(text).get("format", {})
    if form.get("type") != "triggered_tags":
        raise ValueError("llguidance takes those of the format triggered_tags alone")
    return _lark([(item["begin"], _schema(item["content"]), item["end"]) for item in form["tags"]], form["triggers"])


def _schema(content: dict[str, Any]) -> Any:
    if content.get("type") != "json_schema":
        raise ValueError("llguidance takes tags whose content is of the type json_schema")
    return content["json_schema"]


def _lark(tags: list[tuple[str, Any, str]], triggers: list[str]) -> str:
    lines = ["%llguidance {}", "start: (" + " | ".join(f"tag_{n}" for n in range(len(tags))) + ")* free", "free: TEXT"]
    lines.append(r"TEXT: /(.|\n)*/")
    for n, (begin, schema, end) in enumerate(tags):
        trigger = next((trigger for trigger in triggers if begin.startswith(trigger)), "")
        if not trigger:
            raise ValueError(f"no trigger of the structural tag begins its tag {begin[:40]!r}")
        rest, last = (json.dumps(part) if part else "" for part in (begin[len(trigger) :], end))
        lines.append(f"lead_{n}[lazy]: TEXT {json.dumps(trigger)}")
        lines.append(f"tag_{n}: lead_{n} {rest} %json {json.dumps(schema)} {last}")
    return "\n".join(lines) + "\n"
