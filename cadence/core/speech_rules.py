"""Which tokens a speech model may write next, as plain data: Whisper's rules, by the ids of one vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

from cadence.core.checks import integer, invalid, token_ids

_NAME = "speech_rules"
NO_TOKEN_ID = -1


@dataclass(frozen=True, slots=True)
class SpeechRules:
    """Tokens from `first_timestamp` on are times, 0.02 s apart. They come in pairs (the end of a segment and the
    beginning of the next), never fall, and win over text where they are likelier together than any text token.
    `first_timestamp` -1: no rules of times."""

    first_timestamp: int = NO_TOKEN_ID
    no_timestamps: int = NO_TOKEN_ID  # the token that asks for none: never written
    end_of_text: int = NO_TOKEN_ID  # ids below it are text
    max_initial: int = NO_TOKEN_ID  # the first token is one of the times 0 to this many steps; -1 = any time
    suppressed: tuple[int, ...] = ()  # never
    suppressed_first: tuple[int, ...] = ()  # not as the first token

    def __post_init__(self) -> None:
        for name in ("first_timestamp", "no_timestamps", "end_of_text", "max_initial"):
            integer(f"{_NAME}.{name}", getattr(self, name), NO_TOKEN_ID)
        for name in ("suppressed", "suppressed_first"):
            token_ids(f"{_NAME}.{name}", list(getattr(self, name)))
        if self.timestamps and not (0 <= self.end_of_text < self.first_timestamp):
            raise invalid(f"{_NAME}.end_of_text", self.end_of_text, f"below first_timestamp ({self.first_timestamp})")

    @property
    def timestamps(self) -> bool:
        return self.first_timestamp >= 0

    @property
    def largest_id(self) -> int:
        named = (self.first_timestamp, self.no_timestamps, self.end_of_text)
        return max(*named, *self.suppressed, *self.suppressed_first)

    @classmethod
    def of(cls, given: object) -> SpeechRules | None:
        """Also out of a dict."""
        if isinstance(given, Mapping) and set(given) <= {field.name for field in fields(cls)}:
            lists = {name: tuple(value) for name, value in given.items() if name.startswith("suppressed")}
            given = cls(**{**given, **lists})
        if given is not None and not isinstance(given, cls):
            raise invalid(_NAME, given, "SpeechRules, a dict of their names, or None")
        return given
