"""Prompts with pictures, videos and sounds: each stands where its placeholder does, with a token for each vector."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cadence.config.media_config import MediaConfig
from cadence.core.errors import InvalidRequestError
from cadence.core.media import AUDIO, IMAGE, VECTORS, VIDEO, MediaInput, MediaItem
from cadence.engine.text.prompts import AudioClip, MediaList, ParsedPrompt
from cadence.engine.text.token_ids import integers
from cadence.media.as_media import as_picture, as_video
from cadence.media.family import FamilyFiles, MediaFamily, Prepared, open_family
from cadence.media.sound import as_sound
from cadence.text.null_tokenizer import AnyTokenizer

_FIELD = "multi_modal_data"
_READERS: Mapping[str, Callable[[Any, str], Any]] = {IMAGE: as_picture, VIDEO: as_video, AUDIO: as_sound}


@dataclass(frozen=True, slots=True)
class _Placed:
    """A medium, prepared, and of which kind it is."""

    kind: str
    prepared: Prepared


class MediaPrompts:
    """Of a model with a tower."""

    def __init__(self, config: MediaConfig, tokenizer: AnyTokenizer) -> None:
        self._config = config
        self._tokenizer = tokenizer
        self._opened: MediaFamily | None = None

    @property
    def _family(self) -> MediaFamily:
        """Read when the first picture comes."""
        if self._opened is None:
            files = FamilyFiles(self._config.raw, self._config.directory, self._token_id)
            self._opened = open_family(self._config.architecture, files)
        return self._opened

    @property
    def placeholders(self) -> Mapping[str, str]:
        return self._family.placeholders if self._config.architecture else {}

    def _token_id(self, text: str) -> int:
        found = self._tokenizer.single_token(text)
        return -1 if found is None else found

    def divided(self, parsed: ParsedPrompt) -> ParsedPrompt:
        """-> the tokens of the prompt with room for what comes of its media, and these"""
        if parsed.source is None or isinstance(parsed.source, MediaInput):
            return parsed
        source = parsed.source
        if isinstance(source, AudioClip):
            source = MediaList({AUDIO: [(source.samples, source.rate)]})
        if not isinstance(source, MediaList):
            raise InvalidRequestError("encoder_prompt cannot be used: this model is a decoder", "encoder_prompt")
        if source.vectors is not None:
            return vectors_prompt(parsed, source.vectors, self._config)
        token_ids, placed = self._expanded(parsed, self._prepared(source))
        items = self._items(token_ids, placed)
        segments_np = self._family.rope_segments(items)
        return replace(parsed, token_ids=token_ids, source=MediaInput(tuple(items), segments_np))

    def _prepared(self, media: MediaList) -> dict[str, list[Prepared]]:
        """By kind, in the order of their placeholders."""
        found: dict[str, list[Prepared]] = {}
        for kind, given in media.by_kind.items():
            name = f"{_FIELD}.{kind}"
            if kind not in self.placeholders:
                known = ", ".join(self.placeholders) or "text only"
                raise InvalidRequestError(f"{name} cannot be used: this model takes {known}", name)
            found[kind] = [self._one(kind, each, f"{name}[{number}]") for number, each in enumerate(given)]
        return found

    def _one(self, kind: str, given: Any, name: str) -> Prepared:
        prepared = self._family.prepare(kind, _READERS[kind](given, name))
        config, whole = self._config, self._family.both_ways
        most = min(config.longest, config.step) if whole else config.longest
        for content in prepared.contents:
            if content.length > most:
                option = "max_num_batched_tokens" if whole else "max_model_len"
                message = f"{name} takes {content.length} tokens; this engine takes at most {most} at once ({option})"
                raise InvalidRequestError(message, name)
        return prepared

    def _expanded(self, parsed: ParsedPrompt, media: dict[str, list[Prepared]]) -> tuple[list[int], list[_Placed]]:
        """-> the prompt's tokens, and the media in the order in which they stand there"""
        if parsed.text is None:
            return self._expanded_ids(integers(parsed.token_ids or []), media)
        kinds = {text: kind for kind, text in self._family.placeholders.items()}
        pattern = re.compile("|".join(map(re.escape, sorted(kinds, key=len, reverse=True))))
        order = [kinds[found] for found in pattern.findall(parsed.text)]
        _check_counts(order, media, self._family.placeholders)
        waiting = {kind: iter(each) for kind, each in media.items()}
        placed = [_Placed(kind, next(waiting[kind])) for kind in order]
        texts = iter(placed)
        text = pattern.sub(lambda _: next(texts).prepared.text, parsed.text)
        # Beside token ids, a text is what a template gave, special tokens included.
        return self._tokenizer.encode(text, add_special_tokens=parsed.token_ids is None), placed

    def _expanded_ids(self, token_ids: list[int], media: dict[str, list[Prepared]]) -> tuple[list[int], list[_Placed]]:
        signs = {kind: self._encode(text) for kind, text in self._family.placeholders.items()}
        waiting = {kind: iter(each) for kind, each in media.items()}
        ids: list[int] = []
        placed: list[_Placed] = []
        order: list[str] = []
        at = 0
        while at < len(token_ids):
            kind = next((kind for kind, sign in signs.items() if token_ids[at : at + len(sign)] == sign), None)
            if kind is None:
                ids.append(token_ids[at])
                at += 1
                continue
            order.append(kind)
            at += len(signs[kind])
            prepared = next(waiting.get(kind, iter(())), None)
            if prepared is not None:
                placed.append(_Placed(kind, prepared))
                ids += self._encode(prepared.text)
        _check_counts(order, media, self._family.placeholders)
        return ids, placed

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def _items(self, token_ids: Sequence[int], placed: Sequence[_Placed]) -> list[MediaItem]:
        ids_np = np.asarray(token_ids)
        signs = self._family.token_ids
        at_np = np.flatnonzero(np.isin(ids_np, list(signs.values())))
        items, taken = [], 0
        for each in placed:
            for content in each.prepared.contents:
                own_np = at_np[taken : taken + content.length]
                taken += content.length
                whole = len(own_np) == content.length and own_np[-1] - own_np[0] == content.length - 1
                if not whole or (ids_np[own_np] != signs[each.kind]).any():
                    raise self._strange(each.kind)
                items.append(
                    MediaItem.of(
                        kind=each.kind,
                        start=int(own_np[0]),
                        length=content.length,
                        values_np=content.values_np,
                        grid=content.grid,
                        both_ways=self._family.both_ways,
                    )
                )
        if taken != len(at_np):
            raise self._strange(IMAGE if IMAGE in signs else next(iter(signs)))
        return items

    def _strange(self, kind: str) -> InvalidRequestError:
        """A prompt says by itself what is written for a medium alone."""
        message = f"the prompt has more of the tokens that stand for {kind} data than there is such data"
        return InvalidRequestError(message, "prompt")


def vectors_prompt(parsed: ParsedPrompt, vectors: Any, config: MediaConfig) -> ParsedPrompt:
    """`prompt_embeds`: a prompt of what an embedding would give for its tokens."""
    name = "prompt_embeds"
    if not config.takes_vectors:
        raise InvalidRequestError(f"{name} cannot be used: the engine was started without --enable-prompt-embeds", name)
    values_np = _vectors(vectors, name)
    hidden = config.raw.get("hidden_size")
    if hidden and values_np.shape[1] != hidden:
        raise InvalidRequestError(
            f"{name} has vectors of {values_np.shape[1]} entries; the model's have {hidden}", name
        )
    if len(values_np) > config.longest:
        message = f"{name} has {len(values_np)} vectors; this engine takes at most {config.longest}"
        raise InvalidRequestError(message, name)
    item = MediaItem.of(VECTORS, 0, len(values_np), values_np, (), False)
    return replace(parsed, text=None, token_ids=[_filler(config.raw)] * len(values_np), source=MediaInput((item,)))


def _filler(raw: Mapping[str, Any]) -> int:
    """The id that stands in a prompt's tokens where vectors are: one that prompts begin with, so that penalties, which
    count a prompt's tokens, hold it against no token of an output."""
    given = raw.get("bos_token_id")
    return given if isinstance(given, int) and 0 <= given < int(raw.get("vocab_size") or 0) else 0


def _vectors(given: Any, name: str) -> np.ndarray:
    """[n, H] float32"""
    try:
        values_np = np.asarray(given.float().cpu() if hasattr(given, "cpu") else given, dtype=np.float32)
    except (TypeError, ValueError):
        raise InvalidRequestError(f"{name} must be numbers, [tokens, hidden size]", name) from None
    if values_np.ndim != 2 or not len(values_np):
        raise InvalidRequestError(f"{name} must be [tokens, hidden size]; got {list(values_np.shape)}", name)
    if not np.isfinite(values_np).all():
        raise InvalidRequestError(f"{name} has entries that are not finite", name)
    return values_np


def _check_counts(order: Sequence[str], media: Mapping[str, Sequence[Any]], signs: Mapping[str, str]) -> None:
    for kind in dict.fromkeys((*order, *media)):
        written, given = order.count(kind), len(media.get(kind, ()))
        if written != given:
            message = f"the prompt has {written} of {signs[kind]!r}, and {_FIELD}.{kind} has {given}"
            raise InvalidRequestError(message, f"{_FIELD}.{kind}")
