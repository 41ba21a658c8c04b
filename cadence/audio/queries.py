"""What a transcription asks an engine, and what it wants to hear of the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
import numpy.typing as npt

from cadence.audio.activity import DEFAULT_ACTIVITY, ActivityOptions
from cadence.audio.feature_config import FeatureConfig
from cadence.audio.quality import DEFAULT_QUALITY, QualityLimits
from cadence.audio.vocabulary import SpeechVocabulary
from cadence.core.inputs.alignment import AlignmentSpec
from cadence.core.outputs import CompletionOutput
from cadence.core.sampling_params import SamplingParams

FloatArray = npt.NDArray[np.float32]
Decode = Callable[[Sequence[int]], str]  # tokens of text -> text
_NO_ALIGNMENT = AlignmentSpec(0, 0, ())


def _no_matrix() -> FloatArray:
    return np.zeros((0, 0), np.float32)


class QueryKind(Enum):
    LANGUAGE = "language"
    TEXT = "text"
    NO_SPEECH = "no_speech"
    WORDS = "words"


@dataclass(frozen=True, slots=True)
class SpeechModel:
    """What is known of a model before its first recording. Shared."""

    vocabulary: SpeechVocabulary
    features: FeatureConfig
    decode: Decode
    max_length: int = 448  # of the decoder: prompt and output
    alignment_heads: tuple[tuple[int, int], ...] = ()  # (layer, head) whose attention follows the words


@dataclass(frozen=True, slots=True)
class SpeechOptions:
    language: str = ""  # "" = the model says which
    task: str = "transcribe"
    timestamps: bool = True  # False = windows end at quiet places, and segments are windows
    prompt: tuple[int, ...] = ()  # tokens of a text that comes before: names, style
    previous_text: bool = True  # each window knows the text before it; False = it knows `prompt` alone
    temperatures: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)  # tried in this order while the text is bad
    quality: QualityLimits = DEFAULT_QUALITY
    always_no_speech: bool = False  # asks how likely silence is for every window, for answers that show it
    drop_silence: bool = False  # long silences are not heard; times are those of the recording all the same
    activity: ActivityOptions = DEFAULT_ACTIVITY  # what is silence, then
    word_times: bool = False  # segments say when each of their words is said
    max_tokens: int = 0  # of a window; 0 = as many as the decoder has room for
    seed: int = 0


@dataclass(frozen=True, slots=True)
class SpeechQuery:
    """One request to the engine."""

    kind: QueryKind
    features_np: FloatArray  # [mels, frames]
    digest: str  # of the features
    prompt_token_ids: list[int]
    sampling: SamplingParams
    alignment: AlignmentSpec = _NO_ALIGNMENT  # of WORDS, which asks for no token


@dataclass(frozen=True, slots=True)
class SpeechAnswer:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # of these tokens
    named: dict[int, float]  # of the first token: logprobs of tokens that the query named
    matrix_np: FloatArray = field(default_factory=_no_matrix, compare=False)  # [tokens, positions] of WORDS

    @classmethod
    def of(cls, output: CompletionOutput) -> SpeechAnswer:
        """`output`: of a request with the query's sampling parameters."""
        tokens, given = tuple(output.token_ids), output.logprobs or ()
        chosen = (found[token].logprob for token, found in zip(tokens, given, strict=False))
        first = {token: found.logprob for token, found in next(iter(given), {}).items()}
        return cls(token_ids=tokens, logprobs=tuple(chosen), named=first)

    def without(self, end_of_text: int) -> SpeechAnswer:
        """The same, without the token that ended it."""
        if end_of_text not in self.token_ids:
            return self
        count = self.token_ids.index(end_of_text)
        return SpeechAnswer(token_ids=self.token_ids[:count], logprobs=self.logprobs[:count], named=self.named)
