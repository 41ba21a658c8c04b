"""What is wrong with a request, in the words of its client."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cadence.core.errors import ContextLengthError, InvalidRequestError


def check_room(num_prompt: int, max_tokens: int | None, max_model_len: int, prompt: str = "prompt") -> None:
    """A limit of the client's own must fit after the prompt, which it sent as `prompt`; None = whatever fits."""
    if max_tokens is not None and num_prompt + max_tokens > max_model_len:
        raise as_sent(ContextLengthError(max_model_len, num_prompt, max_tokens), {"prompt": prompt})


def as_sent(error: InvalidRequestError, sent_names: Mapping[str, str]) -> InvalidRequestError:
    """The error with fields under the names the client sent."""
    message = str(error)
    for name, sent in sent_names.items():
        if name != "prompt":  # also a word
            message = re.sub(rf"\b{re.escape(name)}(?!\w)", lambda _, sent=sent: sent, message)  # type: ignore[misc]
    return InvalidRequestError(message, sent_names.get(error.field, error.field), error.reason)
