"""What a server has for speech, chosen by its model."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cadence.audio.limits import DEFAULT_LIMITS
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.service import NullTranscriber, Speech

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM


def open_speech(llm: AsyncLLM, max_bytes: int) -> Speech:
    """max_bytes: of a file"""
    return Speech(NullTranscriber(), Recordings(replace(DEFAULT_LIMITS, num_bytes=max_bytes)))
