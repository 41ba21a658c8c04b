"""What there is for speech, chosen by the model."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

from cadence.audio.feature_config import read_feature_config
from cadence.audio.limits import DEFAULT_LIMITS, AudioLimits
from cadence.audio.queries import SpeechModel
from cadence.audio.vocabulary import SpeechVocabulary, read_speech_vocabulary
from cadence.config.hf import HFConfig
from cadence.core.errors import ModelFileError
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
    vocabulary = read_speech_vocabulary(directory, tokenizer.get_vocab())
    return SpeechModel(
        vocabulary=vocabulary,
        features=read_feature_config(directory),
        decode=lambda token_ids: tokenizer.decode(list(token_ids)),
        max_length=llm.config.model.max_model_len,
        alignment_heads=_alignment_heads(vocabulary, llm.config.model.hf),
    )


def _alignment_heads(vocabulary: SpeechVocabulary, hf: HFConfig) -> tuple[tuple[int, int], ...]:
    """Those that the model's files name, or all of the upper half of its decoder."""
    layers, heads = int(hf["decoder_layers"]), int(hf["decoder_attention_heads"])
    for layer, head in vocabulary.alignment_heads:
        if layer >= layers or head >= heads:
            message = f"alignment_heads has [{layer}, {head}]; the decoder has {layers} layers with {heads} heads"
            raise ModelFileError(f"{hf.source.parent / 'generation_config.json'}: {message}.")
    return vocabulary.alignment_heads or tuple(product(range(layers // 2, layers), range(heads)))
