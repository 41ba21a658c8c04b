"""Prompts with pictures, videos and sounds: each stands where its placeholder does, with a token for each vector."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cadence.config.media_config import MediaConfig
from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import AUDIO, IMAGE, VECTORS, VIDEO, MediaInput, MediaItem
from cadence.engine.text.known_media import KnownMedia, MediaName
from cadence.engine.text.media_families import MediaFamilies
from cadence.engine.text.prompt_media import DATA, UUIDS, AudioClip, MediaList
from cadence.engine.text.prompts import ParsedPrompt
from cadence.engine.text.token_ids import integers
from cadence.media.as_media import as_picture, as_video
from cadence.media.family import MediaFamily, Prepared
from cadence.media.limits import MediaLimits, limits_of
from cadence.media.sound import as_sound
from cadence.media.video import Video
from cadence.text.null_tokenizer import AnyTokenizer

_Reader = Callable[[Any, str, MediaLimits], Any]
_READERS: Mapping[str, _Reader] = {
    IMAGE: as_picture,
    VIDEO: as_video,
    AUDIO: lambda given, name, limits: as_sound(given, name),
}
_NAMES = {IMAGE: "picture", VIDEO: "video", AUDIO: "sound"}


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
        self._families = MediaFamilies(config, self._token_id)
        self._limits = limits_of(config.intake)
        self._known = KnownMedia(config.intake.named_bytes)

    @property
    def placeholders(self) -> Mapping[str, str]:
        return self._families.own.placeholders if self._config.architecture else {}

    def forget(self) -> None:
        """What clients have sent under names of theirs."""
        self._known.forget()

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
        self._check_kinds(source)
        family = self._families.asked(source.processor)
        token_ids, placed = self._expanded(parsed, self._prepared(parsed, source, family), family)
        items = _items(token_ids, placed, family)
        segments_np = family.rope_segments(items)
        return replace(parsed, token_ids=token_ids, source=MediaInput(tuple(items), segments_np))

    def _check_kinds(self, media: MediaList) -> None:
        for kind, given in media.by_kind.items():
            name = f"{DATA}.{kind}"
            if kind not in self.placeholders:
                known = ", ".join(self.placeholders) or "text only"
                raise InvalidRequestError(f"{name} cannot be used: this model takes {known}", name)
            self._limits.check_count(kind, len(given), name)

    def _prepared(self, parsed: ParsedPrompt, media: MediaList, family: MediaFamily) -> dict[str, list[Prepared]]:
        """By kind, in the order of their placeholders."""
        found: dict[str, list[Prepared]] = {}
        asked = json.dumps(media.processor, sort_keys=True, default=str) if media.processor else ""
        fps = self._families.fps(media.processor)
        for kind, given in media.by_kind.items():
            uuids = media.uuids.get(kind, [None] * len(given))
            found[kind] = []
            for number, (each, uuid) in enumerate(zip(given, uuids, strict=True)):
                known = MediaName(parsed.tenant, parsed.cache_salt, kind, uuid or "", asked)
                name = f"{DATA}.{kind}[{number}]"
                found[kind].append(self._one(each, name, family, known, fps))
                self._check_room(found, name)
        return found

    def _check_room(self, found: Mapping[str, Sequence[Prepared]], name: str) -> None:
        """Before the next is prepared."""
        contents = (content for many in found.values() for each in many for content in each.contents)
        total = sum(content.length for content in contents)
        if total > self._config.room:
            message = f"{name}: with it the media take {total} tokens; a prompt has at most {self._config.room}"
            raise InvalidRequestError(message, name)

    def _one(self, given: Any, name: str, family: MediaFamily, known: MediaName, fps: float) -> Prepared:
        if given is None:
            return self._sent_before(name, known)
        medium = _READERS[known.kind](given, name, self._limits)
        if isinstance(medium, Video) and not isinstance(given, Video) and fps:
            medium = medium.paced(fps)
        prepared = family.prepare(known.kind, medium)
        self._check_lengths(prepared, name, family)
        if known.uuid:
            self._known.keep(known, prepared)
        return prepared

    def _sent_before(self, name: str, known: MediaName) -> Prepared:
        found = self._known.find(known) if known.uuid else None
        if found is None:
            named = f"none is known here as {known.uuid!r}" if known.uuid else f"it has no name in {UUIDS} either"
            raise InvalidRequestError(f"{name} is no {_NAMES[known.kind]}, and {named}: send it again", name)
        return found

    def _check_lengths(self, prepared: Prepared, name: str, family: MediaFamily) -> None:
        config, whole = self._config, family.both_ways
        most = min(config.longest, config.step) if whole else config.longest
        for content in prepared.contents:
            if content.length > most:
                option = "max_num_batched_tokens" if whole else "max_model_len"
                message = f"{name} takes {content.length} tokens; this engine takes at most {most} at once ({option})"
                raise InvalidRequestError(message, name)

    def _expanded(
        self, parsed: ParsedPrompt, media: dict[str, list[Prepared]], family: MediaFamily
    ) -> tuple[list[int], list[_Placed]]:
        """-> the prompt's tokens, and the media in the order in which they stand there"""
        if parsed.text is None:
            return self._expanded_ids(integers(parsed.token_ids or []), media, family)
        kinds = {text: kind for kind, text in family.placeholders.items()}
        pattern = re.compile("|".join(map(re.escape, sorted(kinds, key=len, reverse=True))))
        order = [kinds[found] for found in pattern.findall(parsed.text)]
        _check_counts(order, media, family.placeholders)
        waiting = {kind: iter(each) for kind, each in media.items()}
        placed = [_Placed(kind, next(waiting[kind])) for kind in order]
        texts = iter(placed)
        text = pattern.sub(lambda _: next(texts).prepared.text, parsed.text)
        # Beside token ids, a text is what a template gave, special tokens included.
        return self._tokenizer.encode(text, add_special_tokens=parsed.token_ids is None), placed

    def _expanded_ids(
        self, token_ids: list[int], media: dict[str, list[Prepared]], family: MediaFamily
    ) -> tuple[list[int], list[_Placed]]:
        signs = {kind: self._encode(text) for kind, text in family.placeholders.items()}
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
        _check_counts(order, media, family.placeholders)
        return ids, placed

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def _items(token_ids: Sequence[int], placed: Sequence[_Placed], family: MediaFamily) -> list[MediaItem]:
    ids_np = np.asarray(token_ids)
    signs = family.token_ids
    at_np = np.flatnonzero(np.isin(ids_np, list(signs.values())))
    items, taken = [], 0
    for each in placed:
        for content in each.prepared.contents:
            own_np = at_np[taken : taken + content.length]
            taken += content.length
            whole = len(own_np) == content.length and own_np[-1] - own_np[0] == content.length - 1
            if not whole or (ids_np[own_np] != signs[each.kind]).any():
                raise _strange(each.kind)
            items.append(
                MediaItem.of(
                    kind=each.kind,
                    start=int(own_np[0]),
                    length=content.length,
                    values_np=content.values_np,
                    grid=content.grid,
                    both_ways=family.both_ways,
                )
            )
    if taken != len(at_np):
        raise _strange(IMAGE if IMAGE in signs else next(iter(signs)))
    return items


def _strange(kind: str) -> InvalidRequestError:
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
        values_np = np.asarray(given.detach().float().cpu() if hasattr(given, "cpu") else given, dtype=np.float32)
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
            message = f"the prompt has {written} of {signs[kind]!r}, and {DATA}.{kind} has {given}"
            raise InvalidRequestError(message, f"{DATA}.{kind}")
