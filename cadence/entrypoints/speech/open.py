"""What there is for speech, chosen by the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cadence.audio.asks import SpeechModel
from cadence.audio.feature_config import read_feature_config
from cadence.audio.limits import DEFAULT_LIMITS, AudioLimits
from cadence.audio.vocabulary import read_speech_vocabulary
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.service import NullTranscriber, Speech
from cadence.entrypoints.speech.transcriber import CheckEnd, WhisperTranscriber

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM


def open_speech(llm: AsyncLLM, check_end: CheckEnd, limits: AudioLimits = DEFAULT_LIMITS) -> Speech:
    """check_end: raises where the engine ended a request badly"""
    recordings = Recordings(limits)
    if not llm.config.model.encoder.reads_audio:
        return Speech(NullTranscriber(), recordings)
    return Speech(WhisperTranscriber(llm, speech_model(llm), recordings, check_end), recordings)


def speech_model(llm: AsyncLLM) -> SpeechModel:
    """What its files say of how it hears and writes."""
    directory, tokenizer = llm.config.model.files.directory, llm.tokenizer
    return SpeechModel(
        vocabulary=read_speech_vocabulary(directory, tokenizer.get_vocab()),
        features=read_feature_config(directory),
        decode=lambda token_ids: tokenizer.decode(list(token_ids)),
        max_length=llm.config.model.max_model_len,
    )
