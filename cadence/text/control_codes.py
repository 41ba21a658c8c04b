"""Control tokens told apart from text that looks like them: each is written as one private character.

A template's own text is rewritten before it is compiled: where it spells out a control token, the token's private
character stands instead. Messages are left as they are and may not hold such characters. In what is rendered, then, a
private character is a control token of the template, and everything else is text, however it was put together.
`ControlCodes.twin` is the tokenizer for it: it knows control tokens by their private characters alone.

Some templates make a control token of a message's role ("<|" + role + "|>"). The parts around a role get private
characters as well; with the name of a role between them they are the control token, with anything else they are text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from tokenizers import Tokenizer as Backend

from cadence.core.errors import InvalidRequestError, TemplateError, TokenizerError

ROLES = ("system", "developer", "user", "assistant", "tool", "function", "model", "observation", "ipython")
_END = 0x10FFFE  # private characters are taken from below this one: the end of the last private area of Unicode
_MOST = 0xF000  # characters of that area


class ControlCodes:
    def __init__(self, control: Iterable[str]) -> None:
        tokens = sorted(set(control) - {""}, key=len, reverse=True)
        around = _around_roles(tokens)
        heads, tails = ({pair[side] for pair in around.values()} for side in (0, 1))
        count = len(tokens) + len(heads) + len(tails)
        if count > _MOST:
            raise TokenizerError(f"escape_control_tokens: {len(tokens)} control tokens are too many")
        codes = map(chr, range(_END - count, _END))
        self.of_token = dict(zip(tokens, codes, strict=False))
        self._heads = dict(zip(sorted(heads, key=len, reverse=True), codes, strict=False))
        self._tails = dict(zip(sorted(tails, key=len, reverse=True), codes, strict=False))
        self._composed = {
            self._heads[head] + role + self._tails[tail]: self.of_token[token]
            for (token, role), (head, tail) in around.items()
        }
        self._text_of = {
            code: text for table in (self.of_token, self._heads, self._tails) for text, code in table.items()
        }
        self._spelled = _any_of(tokens)
        self._pieces = _any_of(self._composed)
        self._parts = _any_of([*self._heads.values(), *self._tails.values()])
        self._private = re.compile(f"[{chr(_END - max(count, 1))}-{chr(_END - 1)}]")

    def hide(self, text: str) -> str:
        """A template's own text, with private characters for the control tokens it spells out."""
        if self._private.search(text):
            raise TemplateError("the chat template holds a character that stands for a control token", "chat_template")
        text = self._spelled.sub(lambda found: self.of_token[found[0]], text)
        for tail, code in self._tails.items():
            if text.startswith(tail):
                text = code + text[len(tail) :]
                break
        for head, code in self._heads.items():
            if text.endswith(head):
                return text[: -len(head)] + code
        return text

    def settle(self, rendered: str) -> str:
        """Rendered text in which private characters are control tokens, and nothing else."""
        rendered = self._pieces.sub(lambda found: self._composed[found[0]], rendered)
        return self._parts.sub(lambda found: self._text_of[found[0]], rendered)

    def show(self, settled: str) -> str:
        """The text as people read it."""
        return self._private.sub(lambda found: self._text_of[found[0]], settled)

    def check(self, value: Any, where: str) -> None:
        """Refuses private characters in what a request brings."""
        if isinstance(value, str):
            if not value.isascii() and self._private.search(value):
                raise InvalidRequestError(f"{where} holds a private character that is reserved on this server", where)
        elif isinstance(value, Mapping):
            for key, item in value.items():
                self.check(key, where)
                self.check(item, f"{where}.{key}")
        elif isinstance(value, list | tuple):
            for index, item in enumerate(value):
                self.check(item, f"{where}[{index}]")

    def twin(self, backend: Backend) -> Backend:
        """The same tokenizer, with private characters in the place of control tokens."""
        state = json.loads(backend.to_str())
        for token in state["added_tokens"]:
            token["content"] = self.of_token.get(token["content"], token["content"])
        self._rename_model(state["model"])
        twin = Backend.from_str(json.dumps(state))
        for token, code in self.of_token.items():
            if twin.token_to_id(code) != backend.token_to_id(token):
                raise TokenizerError(f"escape_control_tokens: {token!r} cannot be told apart from text")
        return twin

    def _rename_model(self, model: dict[str, Any]) -> None:
        """A model's vocabulary may list control tokens, and merges may lead to them."""
        if isinstance(model["vocab"], dict):
            model["vocab"] = {self.of_token.get(piece, piece): index for piece, index in model["vocab"].items()}
        else:
            model["vocab"] = [[self.of_token.get(piece, piece), score] for piece, score in model["vocab"]]
        if model.get("unk_token") is not None:
            model["unk_token"] = self.of_token.get(model["unk_token"], model["unk_token"])
        if model.get("merges"):
            model["merges"] = [merge for merge in model["merges"] if not self._touches_control(merge)]

    def _touches_control(self, merge: str | list[str]) -> bool:
        left, right = merge.split(" ") if isinstance(merge, str) else merge
        return not self.of_token.keys().isdisjoint((left, right, left + right))


def _around_roles(tokens: list[str]) -> dict[tuple[str, str], tuple[str, str]]:
    """(token, role) -> what stands before and after the role in the token, where something stands on both sides."""
    found = {}
    for token in tokens:
        for role in ROLES:
            head, _, tail = token.partition(role)
            if head and tail:
                found[token, role] = (head, tail)
    return found


def _any_of(words: Iterable[str]) -> re.Pattern[str]:
    """Matches the longest of `words`; never, where there are none."""
    ordered = sorted(words, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered)) or r"(?!)")
