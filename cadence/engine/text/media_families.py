"""How a model's pictures are prepared: as its files and the engine's options say, or as one request does."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from cadence.config.media_config import MediaConfig
from cadence.core.errors import InvalidRequestError, ModelFileError
from cadence.media.family import FamilyFiles, MediaFamily, open_family
from cadence.media.processor_kwargs import FIELD, FPS, checked_kwargs

_MOST = 16  # kept of those that requests asked for


class MediaFamilies:
    """Opened when they are first wanted; threads may ask."""

    def __init__(self, config: MediaConfig, token_id: Callable[[str], int]) -> None:
        self._config = config
        self._kwargs = checked_kwargs(config.intake.processor)
        self._token_id = token_id
        self._asked: dict[str, MediaFamily] = {}
        self._opened: MediaFamily | None = None

    @property
    def own(self) -> MediaFamily:
        """Of requests that say nothing."""
        if self._opened is None:
            self._opened = self._open(self._kwargs)
        return self._opened

    def asked(self, kwargs: Mapping[str, Any]) -> MediaFamily:
        """kwargs: checked. No picture may become longer than without them: that is what the engine has room for."""
        changes = {name: value for name, value in kwargs.items() if name != FPS}
        if not changes:
            return self.own
        name = json.dumps(changes, sort_keys=True, default=str)
        found = self._asked.get(name)
        if found is None:
            found = self._allowed({**self._kwargs, **changes})
            if len(self._asked) >= _MOST:
                self._asked.clear()
            self._asked[name] = found
        return found

    def fps(self, kwargs: Mapping[str, Any]) -> float:
        """Of frames that come without their times; 0 = as of videos that say nothing."""
        return float({**self._kwargs, **kwargs}.get(FPS, 0.0))

    def _allowed(self, changes: Mapping[str, Any]) -> MediaFamily:
        try:
            family = self._open(changes)
        except ModelFileError as error:
            raise InvalidRequestError(f"{FIELD} cannot be used: {error}", FIELD) from None
        for kind, most in self.own.max_length.items():
            if family.max_length[kind] > most:
                made = family.max_length[kind]
                raise InvalidRequestError(f"{FIELD} makes {made} tokens of one {kind}; {most} are the most", FIELD)
        return family

    def _open(self, changes: Mapping[str, Any]) -> MediaFamily:
        config, changes = self._config, {name: value for name, value in changes.items() if name != FPS}
        return open_family(config.architecture, FamilyFiles(config.raw, config.directory, self._token_id, changes))
