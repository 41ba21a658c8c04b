"""Messages to one prompt, by the model's chat template.

The result is text, and is encoded with special tokens recognised: a message that spells out a control token of the
model is encoded as that token, as `transformers` does by default. chats.py can tell the two apart.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import jinja2

from cadence.core.errors import InvalidRequestError, TemplateError
from cadence.text.content_format import ContentFormat, content_format
from cadence.text.messages import (
    MEDIA,
    Message,
    check_messages,
    check_tools,
    fill_content,
    flatten_content,
    wrap_content,
)
from cadence.text.special_tokens import SpecialTokens
from cadence.text.template_guard import BUDGET_KEY, GuardedEnvironment
from cadence.text.template_limits import Budget, LimitError, RaisedError, TemplateLimits

CONTENT_FORMATS = ("auto", "string", "openai")
_RESERVED = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize")
# Written after the final message to see where it ends. The space at its end tells whether the template trims.
_END_MARK = "<<cadence: the final message ends here>> "
_CACHE_SIZE = 32  # compiled templates


@dataclass(frozen=True, slots=True)
class ChatRequest:
    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False  # the prompt ends where the last message ends, for the model to go on
    content_format: str = "auto"  # auto | string | openai: content as text, or as a list of parts
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # more variables for the template
    placeholders: Mapping[str, str] = field(default_factory=dict)  # what stands for a medium, by the type of its part


@dataclass(frozen=True, slots=True)
class _Compiled:
    template: jinja2.Template
    content: ContentFormat


class ChatTemplates:
    """Renders templates, each compiled once."""

    def __init__(
        self,
        limits: TemplateLimits | None = None,
        now: Callable[[], datetime] = datetime.now,
        hide: Callable[[str], str] = str,
    ) -> None:
        """`hide` is applied to the templates' own text, not to what they are given."""
        self._limits = limits or TemplateLimits()
        self._hide = hide
        self._environment = GuardedEnvironment(self._limits, now, hide)
        self._compiled: OrderedDict[str, _Compiled] = OrderedDict()

    def render(self, template: str, chat: ChatRequest, special: SpecialTokens) -> str:
        _check_options(chat)
        compiled = self._compile(template)
        messages = check_messages(chat.messages, chat.placeholders)
        shown = {kind: self._hide(text) for kind, text in chat.placeholders.items()}
        _fit_content(messages, chat.content_format, compiled.content, shown)
        final = _mark_end(messages) if chat.continue_final_message else ""
        if not compiled.content.asks_for_none:
            fill_content(messages)
        variables = {
            "documents": None,
            **special.named(),
            **chat.kwargs,
            "messages": messages,
            "tools": check_tools(chat.tools),
            "add_generation_prompt": chat.add_generation_prompt,
        }
        text = self._run(compiled.template, variables)
        return _cut_at_mark(text, final) if chat.continue_final_message else text

    def _compile(self, source: str) -> _Compiled:
        if found := self._compiled.get(source):
            self._compiled.move_to_end(source)
            return found
        try:
            compiled = _Compiled(self._environment.from_string(source), content_format(self._environment, source))
        except TemplateError:
            raise
        except jinja2.TemplateSyntaxError as error:
            message = f"the chat template is not valid, line {error.lineno}: {error.message}"
            raise TemplateError(message, field="chat_template") from error
        except Exception as error:  # jinja fails in many ways on trees that parse but make no sense
            raise TemplateError(f"the chat template cannot be compiled: {error}", field="chat_template") from error
        self._compiled[source] = compiled
        while len(self._compiled) > _CACHE_SIZE:
            self._compiled.popitem(last=False)
        return compiled

    def _run(self, template: jinja2.Template, variables: dict[str, Any]) -> str:
        budget = Budget(self._limits)
        chunks: list[str] = []
        try:
            for chunk in template.generate({**variables, BUDGET_KEY: budget}):
                budget.charge(len(chunk))
                chunks.append(chunk)
        except RaisedError as error:
            raise TemplateError(f"the chat template refused the messages: {error}", field="messages") from error
        except LimitError as error:
            raise TemplateError(f"the chat template was stopped: {error}", field="chat_template") from error
        except RecursionError as error:
            raise TemplateError("the chat template was stopped: it calls itself too deeply", "chat_template") from error
        except (Exception, MemoryError) as error:  # whatever a template runs into is the template's error
            message = f"the chat template failed: {type(error).__name__}: {error}"
            raise TemplateError(message, field="chat_template") from error
        return "".join(chunks)


def _check_options(chat: ChatRequest) -> None:
    if chat.continue_final_message and chat.add_generation_prompt:
        raise InvalidRequestError(
            "continue_final_message and add_generation_prompt contradict each other", field="continue_final_message"
        )
    if chat.content_format not in CONTENT_FORMATS:
        choices = ", ".join(CONTENT_FORMATS)
        raise InvalidRequestError(f"content_format must be one of {choices}", field="chat_template_content_format")
    for name in chat.kwargs:
        if name in _RESERVED:
            where = f"chat_template_kwargs.{name}"
            raise InvalidRequestError(f"{where} cannot be set: {name} has a field of its own", field=where)


def _fit_content(messages: list[Message], wanted: str, found: ContentFormat, placeholders: Mapping[str, str]) -> None:
    """Parts go only to templates that read them, and a string is wrapped only for those that read nothing else. What
    tools say is a string to most templates, whatever they read elsewhere."""
    flatten_content([message for message in messages if message["role"] == "tool"], placeholders)
    if wanted == "string" or (wanted == "auto" and not found.reads_parts):
        flatten_content(messages, placeholders)
    elif wanted == "openai" or not found.reads_strings:
        wrap_content(messages)


def _mark_end(messages: list[Message]) -> str:
    """Marks the end of the last message; gives its text."""
    content = messages[-1]["content"]
    if isinstance(content, list) and content and content[-1]["type"] not in MEDIA:
        text = str(content[-1]["text"])
        content[-1] = {**content[-1], "text": text + _END_MARK}
        return text
    if isinstance(content, str):
        messages[-1]["content"] = content + _END_MARK
        return content
    where = f"messages[{len(messages) - 1}].content"
    raise InvalidRequestError(f"{where} has no text to continue", field=where)


def _cut_at_mark(text: str, final: str) -> str:
    mark = _END_MARK.rstrip()
    at = text.rfind(mark)
    if at < 0 or final.strip() not in text:
        raise TemplateError(
            "continue_final_message: the chat template does not write the final message as it is",
            field="continue_final_message",
        )
    kept = text[:at]
    return kept if text.startswith(_END_MARK, at) else kept.rstrip()
