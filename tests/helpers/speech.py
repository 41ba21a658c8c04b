"""A small vocabulary of a speech model, and a decoder of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.audio.feature_config import FeatureConfig
from cadence.audio.queries import SpeechModel
from cadence.audio.vocabulary import SpeechVocabulary

# Text tokens 0 to 99 are " a", " b", ..., and from 26 on the letters alone.
VOCABULARY = SpeechVocabulary(
    end_of_text=100,
    start=101,
    previous=106,
    no_speech=107,
    no_timestamps=108,
    first_timestamp=109,
    tasks={"transcribe": 105, "translate": 104},
    languages={"en": 102, "de": 103},
    suppressed=(99,),
    suppressed_first=(98, 100),
)


def at(seconds: float) -> int:
    """The token of a time."""
    return VOCABULARY.first_timestamp + round(seconds / 0.02)


def spelled(tokens: Sequence[int]) -> str:
    return "".join((" " if token < 26 else "") + chr(ord("a") + token % 26) for token in tokens)


MODEL = SpeechModel(vocabulary=VOCABULARY, features=FeatureConfig(), decode=spelled, alignment_heads=((1, 0), (2, 3)))
