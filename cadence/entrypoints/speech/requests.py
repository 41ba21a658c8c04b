"""What a user may ask of a recording, and whose it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cadence.audio.activity import DEFAULT_ACTIVITY, ActivityOptions

TRANSCRIBE, TRANSLATE = "transcribe", "translate"


@dataclass(frozen=True, slots=True)
class TranscriptionParams:
    task: str = TRANSCRIBE  # or TRANSLATE: to English
    language: str = ""  # of the speech, by its code or name; "" = it is found out
    prompt: str = ""  # text before the recording, or names that are spoken in it
    temperature: float = 0.0  # 0 = the best guess, and more where that gives a poor text
    max_tokens: int = 0  # of each window; 0 = what fits
    seed: int = 0
    sampling: Mapping[str, Any] = field(default_factory=dict)  # further fields of `SamplingParams`
    partial_text: bool = False  # also tells the text of a window while it is written
    word_times: bool = False  # segments say when each of their words is said
    drop_silence: bool = False  # long silences are not heard; times stay those of the recording
    activity: ActivityOptions = DEFAULT_ACTIVITY  # what is silence, then


@dataclass(frozen=True, slots=True)
class SpeechRequest:
    """Whose recording it is, for the engine."""

    name: str  # of the request
    priority: int = 0
    prompt_fields: Mapping[str, Any] = field(default_factory=dict)  # of every prompt: salt, tenant, engine
    lora_request: object = None
