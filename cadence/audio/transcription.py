"""One recording, window by window, as a state machine without an engine.

    while (query := transcription.next()) is not None:    what to ask the engine
        new = transcription.answer(SpeechAnswer.of(output))   what it said -> segments that are final

state      the engine is asked                    goes to
LANGUAGE   the first token among the languages    TEXT
TEXT       the window's tokens, at a temperature  NO_SPEECH where they are doubtful, else the verdict
NO_SPEECH  how likely silence is                  the verdict
WORDS      where its text lies in its sound       the next window

verdict: the next window (with the segments of this one, or without where it is silence), or TEXT again, hotter. Where
words are to have times, a window with text goes to WORDS first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cadence.audio.activity import KeptSpans, find_speech
from cadence.audio.features import features_digest, log_mel
from cadence.audio.prompts import context_tokens, start_tokens
from cadence.audio.quality import Quality, average_logprob, compression_ratio
from cadence.audio.queries import FloatArray, QueryKind, SpeechAnswer, SpeechModel, SpeechOptions, SpeechQuery
from cadence.audio.segments import SpeechSegment, TimedTokens, WindowTokens, WordTime, split_window
from cadence.audio.timed_words import WindowText
from cadence.audio.windows import Window, Windows, quiet_end
from cadence.core.sampling_params import SamplingParams

FRAMES_A_POSITION = 2  # of features, of the encoder's output
_TRUSTED_BELOW = 0.5  # a window that was decoded hotter is no context for the next


class Transcription:
    """Query, answer, query …: never two queries without an answer between. Any number of these run side by side."""

    def __init__(self, samples_np: FloatArray, model: SpeechModel, options: SpeechOptions) -> None:
        """samples [n] at the model's rate."""
        self._model = model
        self._options = options
        self._rate = model.features.sampling_rate
        self.seconds = len(samples_np) / self._rate  # of the recording
        self._kept = _kept(samples_np, self._rate, options)
        self._samples_np = self._kept.cut(samples_np)
        self._windows = Windows(len(self._samples_np), model.features.num_samples, self._rate)
        self._context = list(options.prompt)  # tokens before the current window
        self._state = QueryKind.TEXT
        self._window = Window(0, 0)  # the current one, its features and their digest
        self._features_np = np.zeros((0, 0), np.float32)
        self._digest = ""
        self._text = SpeechAnswer((), (), {})  # of the current window, while it waits for the verdict
        self._tries = 0  # of the temperatures, before the current one
        self._no_speech = math.nan  # how likely the current window is silence; NaN = not known yet
        self._found = WindowTokens((), 0.0)  # what the verdict was, while words get their times
        self.segments: list[SpeechSegment] = []
        self.language = options.language if model.vocabulary.multilingual else "en"
        if self.language:
            start_tokens(model.vocabulary, self.language, options.task, options.timestamps)  # refused now, if at all
        else:
            self._state = QueryKind.LANGUAGE
        self._begin_window()

    @property
    def seconds_done(self) -> float:
        window = self._windows.current
        return self.seconds if window is None else self._kept.original(window.first / self._rate)

    @property
    def text(self) -> str:
        """So far."""
        return "".join(segment.text for segment in self.segments).strip()

    def next(self) -> SpeechQuery | None:
        """What to ask; None after the end."""
        if self._windows.current is None:
            return None
        vocabulary = self._model.vocabulary
        if self._state is QueryKind.TEXT:
            prompt = [*self._prompt_context(), *self._start(self._options.timestamps)]
            return self._query(prompt, self._text_sampling(len(prompt)))
        if self._state is QueryKind.WORDS:
            return self._query_words()
        languages = sorted(vocabulary.languages.values()) if self._state is QueryKind.LANGUAGE else None
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            allowed_token_ids=languages,
            logprob_token_ids=[vocabulary.no_speech],
            detokenize=False,
        )
        context = self._prompt_context() if self._state is QueryKind.NO_SPEECH else []
        return self._query([*context, vocabulary.start], sampling)

    def answer(self, answer: SpeechAnswer) -> list[SpeechSegment]:
        """What the engine said to the last query -> segments that are now final."""
        vocabulary = self._model.vocabulary
        if self._state is QueryKind.TEXT:
            self._text = answer.without(vocabulary.end_of_text)
            if math.isnan(self._no_speech) and self._wants_no_speech(self._quality()):
                self._state = QueryKind.NO_SPEECH
                return []
            return self._verdict()
        if self._state is QueryKind.WORDS:
            self._state = QueryKind.TEXT
            return self._end_window(self._words(answer.matrix_np))
        self._no_speech = math.exp(answer.named.get(vocabulary.no_speech, -math.inf))
        if self._state is QueryKind.LANGUAGE:
            self.language = vocabulary.language_of(answer.token_ids[0])
            self._state = QueryKind.TEXT
            return []
        return self._verdict()

    def _begin_window(self) -> None:
        self._tries, self._no_speech = 0, math.nan
        window = self._windows.current
        if window is None:
            return
        if not self._options.timestamps:
            window = Window(window.first, quiet_end(self._samples_np, window, self._rate))
        self._window = window
        self._features_np = log_mel(self._samples_np[window.first : window.last], self._model.features)
        self._digest = features_digest(self._features_np)

    def _query(self, prompt: list[int], sampling: SamplingParams) -> SpeechQuery:
        return SpeechQuery(
            kind=self._state,
            features_np=self._features_np,
            digest=self._digest,
            prompt_token_ids=prompt,
            sampling=sampling,
        )

    def _query_words(self) -> SpeechQuery:
        text, start = self._window_text(), self._start(timestamps=False)
        config = self._model.features
        positions = max(self._window.num_samples // (FRAMES_A_POSITION * config.hop_length), 1)
        query = self._query([*start, *text.tokens], SamplingParams())
        return replace(query, alignment=text.spec(start, positions, self._model.alignment_heads))

    def _start(self, timestamps: bool) -> list[int]:
        return start_tokens(self._model.vocabulary, self.language, self._options.task, timestamps)

    def _prompt_context(self) -> list[int]:
        return context_tokens(self._model.vocabulary, self._context, self._model.max_length)

    def _text_sampling(self, prompt_len: int) -> SamplingParams:
        room = self._model.max_length - prompt_len
        return SamplingParams(
            temperature=self._temperature,
            seed=self._options.seed,
            max_tokens=min(self._options.max_tokens or room, room),
            logprobs=0,
            detokenize=False,
            speech_rules=self._model.vocabulary.rules(self._options.timestamps),
        )

    @property
    def _temperature(self) -> float:
        return self._options.temperatures[self._tries]

    def _quality(self) -> Quality:
        is_time = self._model.vocabulary.is_time
        # A time's own probability says how sure the model is of a hundredth of a second, not of the words.
        of_words = [
            logprob
            for token, logprob in zip(self._text.token_ids, self._text.logprobs, strict=False)
            if not is_time(token)
        ]
        return Quality(
            compression_ratio=compression_ratio(self._decoded(self._text.token_ids)),
            average_logprob=average_logprob(of_words),
        )

    def _wants_no_speech(self, quality: Quality) -> bool:
        limits = self._options.quality
        return self._options.always_no_speech or (limits.no_speech is not None and quality.is_doubtful(limits))

    def _verdict(self) -> list[SpeechSegment]:
        """The current window's text is final, silence, or tried again."""
        self._state = QueryKind.TEXT
        quality, limits = self._quality(), self._options.quality
        silent = limits.no_speech is not None and quality.is_doubtful(limits) and self._no_speech > limits.no_speech
        if not silent and quality.needs_retry(limits) and self._tries + 1 < len(self._options.temperatures):
            self._tries += 1
            return []
        self._found = WindowTokens((), self._window.num_samples / self._rate) if silent else self._split()
        if self._options.word_times and self._window_text().tokens:
            self._state = QueryKind.WORDS
            return []
        return self._end_window([()] * len(self._found.segments))

    def _end_window(self, words: Sequence[tuple[WordTime, ...]]) -> list[SpeechSegment]:
        """words: of each segment that was found"""
        found, quality = self._found, self._quality()
        new = [
            self._segment(timed, quality, of_it)
            for timed, of_it in zip(found.segments, words, strict=True)
            if self._decoded(timed.tokens).strip()
        ]
        self.segments += new
        self._note_context(found)
        self._windows.advance(found.seconds)
        self._begin_window()
        return new

    def _window_text(self) -> WindowText:
        return WindowText.of(self._found.segments, self._model.vocabulary.end_of_text)

    def _words(self, matrix_np: FloatArray) -> list[tuple[WordTime, ...]]:
        """Of each segment that was found; times are those of the recording."""
        a_position = FRAMES_A_POSITION * self._model.features.hop_length / self._rate
        found = self._window_text().words(matrix_np, a_position, self.language, self._model.decode)
        return [tuple(self._of_recording(word) for word in words) for words in found]

    def _of_recording(self, word: WordTime) -> WordTime:
        start, end = self._times(word.start, word.end)
        return WordTime(word.word, start, end)

    def _times(self, start: float, end: float) -> tuple[float, float]:
        """Of the current window -> of the recording."""
        offset = self._window.first / self._rate
        begin = min(self._kept.original(offset + start), self.seconds)
        return begin, max(begin, min(self._kept.original(offset + end, is_end=True), self.seconds))

    def _split(self) -> WindowTokens:
        seconds = self._window.num_samples / self._rate
        return split_window(self._text.token_ids, self._model.vocabulary, seconds)

    def _segment(self, timed: TimedTokens, quality: Quality, words: tuple[WordTime, ...]) -> SpeechSegment:
        start, end = self._times(timed.start, timed.end)
        return SpeechSegment(
            start=start,
            end=end,
            text=self._decoded(timed.tokens),
            tokens=timed.tokens,
            window_start=self._kept.original(self._window.first / self._rate),
            temperature=self._temperature,
            average_logprob=quality.average_logprob,
            compression_ratio=quality.compression_ratio,
            no_speech_prob=0.0 if math.isnan(self._no_speech) else self._no_speech,
            words=words,
            logprobs=self._logprobs(timed),
        )

    def _logprobs(self, timed: TimedTokens) -> tuple[tuple[int, float], ...]:
        logprobs = self._text.logprobs[timed.place : timed.place + len(timed.tokens)]
        pairs = zip(timed.tokens, logprobs, strict=False)
        return tuple((token, logprob) for token, logprob in pairs if token < self._model.vocabulary.end_of_text)

    def _note_context(self, found: WindowTokens) -> None:
        if not self._options.previous_text or self._temperature > _TRUSTED_BELOW:
            self._context = list(self._options.prompt) if not self._options.previous_text else []
            return
        self._context += [token for segment in found.segments for token in segment.tokens]

    def _decoded(self, tokens: Sequence[int]) -> str:
        return self._model.decode([token for token in tokens if token < self._model.vocabulary.end_of_text])


def _kept(samples_np: FloatArray, rate: int, options: SpeechOptions) -> KeptSpans:
    if not options.drop_silence:
        return KeptSpans([Window(0, len(samples_np))], rate)
    return KeptSpans(find_speech(samples_np, rate, options.activity), rate, options.activity.padding_seconds)
