"""What a prompt has beside its tokens: `multi_modal_data`, `multi_modal_uuids`, `mm_processor_kwargs`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cadence.core.checks import integer
from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import AUDIO, IMAGE, VIDEO
from cadence.media.processor_kwargs import checked_kwargs
from cadence.media.sound import Sound

DATA, UUIDS = "multi_modal_data", "multi_modal_uuids"
MOST_UUID = 256  # characters


@dataclass(frozen=True, slots=True)
class AudioClip:
    samples: Any  # [n] of one channel: what numpy makes an array of
    rate: int  # samples per second


@dataclass(frozen=True, slots=True)
class MediaList:
    """What stands among a prompt's tokens, or in their place."""

    by_kind: Mapping[str, list[Any]]  # in order of their placeholders; None = what its name has stood for
    vectors: Any = None  # [n, H]: all of the prompt
    uuids: Mapping[str, list[str | None]] = field(default_factory=dict)  # what the client calls each, by kind
    processor: Mapping[str, Any] = field(default_factory=dict)  # `mm_processor_kwargs`, checked


def media_of(prompt: Mapping[str, Any]) -> AudioClip | MediaList | None:
    """What an encoder hears, or what stands among tokens."""
    data, named = prompt.get(DATA), _by_kind(prompt.get(UUIDS), UUIDS)
    if not data and not named:
        return None
    given = _by_kind(data, DATA)
    if set(given) == {AUDIO} and not named and (clip := _clip(given[AUDIO])) is not None:
        return clip
    uuids = {kind: _listed(each) for kind, each in named.items()}
    by_kind = {kind: _given(kind, each, uuids) for kind, each in {**dict.fromkeys(uuids), **given}.items()}
    for kind, names in uuids.items():
        _check_names(kind, names, len(by_kind[kind]))
    return MediaList(by_kind, uuids=uuids, processor=checked_kwargs(prompt.get("mm_processor_kwargs")))


def _by_kind(given: Any, field: str) -> Mapping[str, Any]:
    if not given:
        return {}
    if not isinstance(given, Mapping) or not set(given) <= {AUDIO, IMAGE, VIDEO}:
        known = "{'image': …, 'video': …}, or {'audio': (samples, rate)}"
        raise InvalidRequestError(f"{field} must be {known}", field)
    return given


def _listed(given: Any) -> list[Any]:
    return list(given) if isinstance(given, list) else [given]


def _given(kind: str, given: Any, uuids: Mapping[str, list[Any]]) -> list[Any]:
    """None alone stands for as many as are named."""
    return [None] * len(uuids.get(kind, [None])) if given is None else _listed(given)


def _check_names(kind: str, names: list[Any], count: int) -> None:
    field = f"{UUIDS}.{kind}"
    if len(names) != count:
        raise InvalidRequestError(f"{field} has {len(names)} names, and {DATA}.{kind} has {count}", field)
    for name in names:
        if name is not None and not (isinstance(name, str) and 0 < len(name) <= MOST_UUID):
            raise InvalidRequestError(f"{field} must be texts of at most {MOST_UUID} characters, or None", field)


def _clip(given: Any) -> AudioClip | None:
    """One sound as programs have it; None of several, and of what was read before."""
    if isinstance(given, list) and (len(given) > 1 or any(isinstance(each, Sound) for each in given)):
        return None
    audio = given[0] if isinstance(given, list) and given else given
    if not isinstance(audio, tuple) or len(audio) != 2:
        raise InvalidRequestError(f"{DATA}.audio must be one pair (samples, rate)", DATA)
    return AudioClip(samples=audio[0], rate=integer(f"{DATA}.audio rate", audio[1], low=1))
