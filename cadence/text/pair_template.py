"""Two texts that a model reads at once, written by a chat template: a message of the role `query`, then one of the role
`document`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from cadence.text.chat_template import ChatRequest
from cadence.text.tokenizer import Tokenizer

_ROLES = [re.compile(rf"""(["']){role}\1""") for role in ("query", "document")]


def pair_template(tokenizer: Tokenizer, given: str) -> str:
    """The template that pairs are written by: `given`, or the model's own where it names both roles. "" = none: pairs
    are joined by special tokens. (A model that was made of one that chats often has that one's template, which has no
    place for them.)"""
    own = tokenizer.chat_template or ""
    return given or (own if all(role.search(own) for role in _ROLES) else "")


def pair_chat(query: str, document: str, variables: Mapping[str, Any] | None = None) -> ChatRequest:
    """variables: more of them for the template"""
    messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
    return ChatRequest(messages, add_generation_prompt=False, kwargs=variables or {})
