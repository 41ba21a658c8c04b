"""A recording driven by an engine that says what a test tells it to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cadence.audio.errors import AudioError
from cadence.audio.feature_config import FeatureConfig
from cadence.audio.features import features_digest, log_mel
from cadence.audio.queries import QueryKind, SpeechAnswer, SpeechOptions, SpeechQuery
from cadence.audio.segments import SpeechSegment, TimedTokens
from cadence.audio.timed_words import WindowText
from cadence.audio.transcription import Transcription
from cadence.core.inputs.alignment import AlignmentSpec
from cadence.core.outputs import CompletionOutput, Logprob
from tests.helpers.speech import MODEL, VOCABULARY, at

END = VOCABULARY.end_of_text
RATE = 16_000


def said(tokens: Sequence[int], logprob: float = -0.1, no_speech: float = 0.0) -> SpeechAnswer:
    named = {VOCABULARY.no_speech: math.log(no_speech) if no_speech else -math.inf}
    return SpeechAnswer(token_ids=tuple(tokens), logprobs=(logprob,) * len(tokens), named=named)


def drive(
    seconds: float, reply: Callable[[SpeechQuery], SpeechAnswer], **options: object
) -> tuple[Transcription, list[SpeechQuery]]:
    samples_np = np.random.default_rng(0).uniform(-0.1, 0.1, int(seconds * RATE)).astype(np.float32)
    run, queries = Transcription(samples_np, MODEL, SpeechOptions(**options)), list[SpeechQuery]()
    while (query := run.next()) is not None:
        queries.append(query)
        run.answer(reply(query))
        assert len(queries) < 50
    return run, queries


def times(segments: Sequence[SpeechSegment]) -> list[tuple[float, float]]:
    return [(round(each.start, 2), round(each.end, 2)) for each in segments]


def test_a_short_recording_is_one_window() -> None:
    run, queries = drive(3.0, lambda _: said([at(0), 7, 8, at(2.5), END]), language="en")
    assert [query.kind for query in queries] == [QueryKind.TEXT]
    assert queries[0].prompt_token_ids == [101, 102, 105]
    assert queries[0].sampling.speech_rules == VOCABULARY.rules(timestamps=True)
    assert queries[0].features_np.shape == (80, 3000)
    assert queries[0].digest == features_digest(queries[0].features_np)
    assert (run.text, times(run.segments), run.seconds_done) == ("h i", [(0.0, 2.5)], 3.0)


def test_the_language_is_asked_for_once() -> None:
    def reply(query: SpeechQuery) -> SpeechAnswer:
        return said([103]) if query.kind is QueryKind.LANGUAGE else said([at(0), 1, at(20), END])

    run, queries = drive(40.0, reply, task="translate")
    assert [query.kind for query in queries] == [QueryKind.LANGUAGE, QueryKind.TEXT, QueryKind.TEXT]
    assert queries[0].prompt_token_ids == [101]
    assert queries[0].sampling.allowed_token_ids == [102, 103]
    assert queries[0].sampling.max_tokens == 1
    assert queries[1].prompt_token_ids == [101, 103, 104]
    assert run.language == "de"


def test_windows_begin_where_the_last_whole_segment_ended() -> None:
    replies = iter([[at(0), 1, at(10), at(10), 2, at(24), at(24), 3], [at(0), 3, 4, at(6), at(6), 5, at(16)]])
    run, queries = drive(40.0, lambda _: said([*next(replies), END]), language="en")
    samples_np = run._samples_np
    np.testing.assert_array_equal(queries[1].features_np, log_mel(samples_np[24 * RATE :]))
    assert times(run.segments) == [(0.0, 10.0), (10.0, 24.0), (24.0, 30.0), (30.0, 40.0)]
    assert run.text == "b c d e f"
    # The text before comes first, without what was cut off.
    assert queries[1].prompt_token_ids[:-3] == [106, at(0), 1, at(10), at(10), 2, at(24)]


def test_text_before_is_optional_and_a_prompt_stays() -> None:
    _, queries = drive(61.0, lambda _: said([at(0), 1, at(20), END]), language="en", previous_text=False, prompt=(7, 8))
    assert [query.prompt_token_ids for query in queries] == [[106, 7, 8, 101, 102, 105]] * 3


def test_context_is_at_most_half_of_the_decoder() -> None:
    _, queries = drive(1.0, lambda _: said([END]), language="en", prompt=tuple(range(90)) * 5)
    prompt = queries[0].prompt_token_ids
    assert len(prompt) == 1 + 223 + 3
    assert prompt[1:224] == (list(range(90)) * 5)[-223:]
    assert queries[0].sampling.max_tokens == 448 - len(prompt)


def test_bad_text_is_tried_again_hotter() -> None:
    def reply(query: SpeechQuery) -> SpeechAnswer:
        hot = query.sampling.temperature
        return said([at(0), *([1] * 60 if hot < 0.4 else [1, 2, 3]), at(2), END])

    run, queries = drive(3.0, reply, language="en")
    assert [query.sampling.temperature for query in queries] == [0.0, 0.2, 0.4]
    assert (run.text, run.segments[0].temperature) == ("b c d", 0.4)


def test_the_last_try_counts_and_is_no_context() -> None:
    run, queries = drive(35.0, lambda _: said([at(0), *[1] * 60, at(2), END]), language="en", temperatures=(0.0, 1.0))
    assert [query.sampling.temperature for query in queries] == [0.0, 1.0] * 2
    assert len(run.segments) == 2
    assert queries[2].prompt_token_ids == [101, 102, 105]


@pytest.mark.parametrize(("no_speech", "text"), [(0.9, ""), (0.1, "b")])
def test_doubtful_text_over_silence_is_dropped(no_speech: float, text: str) -> None:
    def reply(query: SpeechQuery) -> SpeechAnswer:
        return said([at(0), 1, at(2), END], logprob=-2.0, no_speech=no_speech)

    run, queries = drive(3.0, reply, language="en", temperatures=(0.0,))
    assert [query.kind for query in queries] == [QueryKind.TEXT, QueryKind.NO_SPEECH]
    assert queries[1].prompt_token_ids == [101]
    assert queries[1].sampling.logprob_token_ids == [VOCABULARY.no_speech]
    assert run.text == text


def test_times_do_not_count_as_doubts() -> None:
    answer = SpeechAnswer(token_ids=(at(0), 1, at(2)), logprobs=(-9.0, -0.1, -9.0), named={})
    _, queries = drive(3.0, lambda _: answer, language="en")
    assert len(queries) == 1


def along(*places: tuple[float, float], positions: int = 1500) -> SpeechAnswer:
    """Tokens that look at these seconds, and at no others; the last one at what is left."""
    matrix_np = np.full((len(places), positions), -1.0, np.float32)
    for row_np, (start, end) in zip(matrix_np, places, strict=True):
        row_np[round(start / 0.02) : round(end / 0.02)] = 3.0
    return SpeechAnswer((), (), {}, matrix_np)


def test_words_have_the_times_at_which_their_tokens_are_said() -> None:
    def reply(query: SpeechQuery) -> SpeechAnswer:
        if query.kind is QueryKind.TEXT:
            return said([at(0.5), 7, 33, 8, at(2.5), at(2.5), 9, at(3), at(3), END])
        return along((0, 1), (1, 1.2), (1.2, 2.5), (2.5, 2.8), (2.8, 3), positions=150)

    run, queries = drive(3.0, reply, language="en", word_times=True)
    assert [query.kind for query in queries] == [QueryKind.TEXT, QueryKind.WORDS]
    assert queries[1].prompt_token_ids == [101, 102, 105, 108, 7, 33, 8, 9]
    assert queries[1].alignment == AlignmentSpec(3, 150, MODEL.alignment_heads)
    assert queries[1].digest == queries[0].digest
    words = [[(one.word, round(one.start, 2), round(one.end, 2)) for one in each.words] for each in run.segments]
    assert words == [[(" hh", 0.5, 1.2), (" i", 1.2, 2.5)], [(" j", 2.5, 2.8)]]
    assert [segment.text for segment in run.segments] == [" hh i", " j"]


def test_words_of_a_recording_without_its_silences_have_its_times() -> None:
    """Speech from 4 to 6 s and from 12 to 14 s, with what is kept around it."""
    samples_np = np.zeros(16 * RATE, np.float32)
    for start in (4, 12):
        samples_np[start * RATE : (start + 2) * RATE] = np.random.default_rng(0).uniform(-0.5, 0.5, 2 * RATE)
    options = SpeechOptions(language="en", word_times=True, drop_silence=True)
    run, heard = Transcription(samples_np, MODEL, options), 2 * 2.6
    assert run._windows.current is not None and run._windows.current.num_samples == round(heard * RATE)
    run.next()
    run.answer(said([at(0.3), 7, 8, 9, at(5), at(5), END]))
    query = run.next()
    assert query is not None and query.alignment.positions == 260
    run.answer(along((0, 1), (1, 2.3), (2.3, 4), (4, 5.2), positions=260))
    (segment,) = run.segments
    found = [(round(word.start, 2), round(word.end, 2)) for word in segment.words]
    assert found == [(4.0, 4.7), (4.7, 6.0), (11.7, 13.1)]


def test_a_window_without_text_is_not_looked_for() -> None:
    run, queries = drive(3.0, lambda _: said([at(0), at(2), END]), language="en", word_times=True)
    assert [query.kind for query in queries] == [QueryKind.TEXT] and run.segments == []


def test_a_pause_belongs_to_no_word() -> None:
    """Words last twice as long as a slow one at most."""
    text = WindowText.of([TimedTokens(0.0, 9.0, (0, 1, 2, 3, 4))], 100)
    spelled = [" a", " b", ".", " c", " d"]
    places = [(0, 2), (2, 2.4), (2.4, 5), (5, 5.4), (5.4, 5.8), (5.8, 6)]
    answer = along(*places, positions=300)
    ((a, b, c, d),) = text.words(answer.matrix_np, 0.02, "en", lambda tokens: "".join(spelled[each] for each in tokens))
    found = [(each.word, round(each.start, 2), round(each.end, 2)) for each in (a, b, c, d)]
    assert found == [
        (" a", 0.6, 2.0),
        (" b.", 2.0, 3.4),
        (" c", 5.0, 5.4),
        (" d", 5.4, 5.8),
    ]


def test_segments_have_the_logprobs_of_their_text() -> None:
    answer = SpeechAnswer((at(0), 1, at(1), at(1), 2, 3, at(2)), (-1, -0.1, -1, -1, -0.2, -0.3, -1), {})
    run, _ = drive(3.0, lambda _: answer, language="en")
    assert [segment.logprobs for segment in run.segments] == [((1, -0.1),), ((2, -0.2), (3, -0.3))]


def test_silence_can_be_asked_for_always() -> None:
    run, queries = drive(3.0, lambda _: said([at(0), 1, at(2)], no_speech=0.25), language="en", always_no_speech=True)
    assert [query.kind for query in queries] == [QueryKind.TEXT, QueryKind.NO_SPEECH]
    assert run.segments[0].no_speech_prob == pytest.approx(0.25)


def test_without_times_windows_end_at_a_quiet_place() -> None:
    samples_np = np.random.default_rng(0).uniform(-0.1, 0.1, 40 * RATE).astype(np.float32)
    samples_np[int(27.0 * RATE) : int(27.3 * RATE)] = 0.0
    run = Transcription(samples_np, MODEL, SpeechOptions(language="en", timestamps=False))
    query = run.next()
    assert query is not None
    assert query.prompt_token_ids == [101, 102, 105, 108]
    assert not query.sampling.speech_rules.timestamps
    run.answer(said([1, 2, END]))
    assert 27.0 <= run.seconds_done <= 27.3
    run.next()
    run.answer(said([3, END]))
    assert run.next() is None
    assert run.segments[0].end == run.segments[1].start
    assert run.text == "b c d"


def test_a_window_without_progress_is_left() -> None:
    run, queries = drive(70.0, lambda _: said([at(0), at(0), 1]), language="en")
    assert len(queries) == 3
    assert run.seconds_done == 70.0


SMALL = replace(MODEL, features=FeatureConfig(num_mels=2, sampling_rate=1000, n_fft=40, hop_length=20))


@given(
    seconds=st.floats(0.2, 100),
    said_tokens=st.lists(st.lists(st.integers(0, 109 + 1500), max_size=9), min_size=1, max_size=5),
    logprob=st.sampled_from([-0.1, -2.0]),
    options=st.fixed_dictionaries({"timestamps": st.booleans(), "drop_silence": st.booleans()}),
)
def test_any_tokens_lead_to_the_end_with_times_in_the_recording(
    seconds: float, said_tokens: list[list[int]], logprob: float, options: dict[str, bool]
) -> None:
    random = np.random.default_rng(0)
    samples_np = random.uniform(-0.2, 0.2, int(seconds * 1000)).astype(np.float32)
    samples_np[4000:9000] = 0.0
    run, tokens = Transcription(samples_np, SMALL, SpeechOptions(language="de", **options)), cycle(said_tokens)
    most = 6 * 2 * len(samples_np) / 20 + 12  # tries of a window, asks of a try, steps of time
    while (query := run.next()) is not None:
        before = run.seconds_done
        run.answer(said(next(tokens), logprob, no_speech=0.5))
        assert run.seconds_done >= before
        assert len(query.prompt_token_ids) + (query.sampling.max_tokens or 0) <= MODEL.max_length
        most -= 1
        assert most > 0
    assert all(0 <= each.start <= each.end <= run.seconds for each in run.segments)


def test_what_cannot_be_is_refused_before_the_first_ask() -> None:
    samples_np = np.zeros(RATE, np.float32)
    for options, field in (({"language": "tlh"}, "language"), ({"language": "en", "task": "sing"}, "task")):
        with pytest.raises(AudioError) as found:
            Transcription(samples_np, MODEL, SpeechOptions(**options))
        assert found.value.field == field


def test_answers_are_read_off_outputs() -> None:
    output = CompletionOutput(0, "", [5, END], logprobs=[{5: Logprob(-0.5), 107: Logprob(-3.0)}, {END: Logprob(-0.2)}])
    answer = SpeechAnswer.of(output)
    assert answer.named[107] == -3.0
    assert answer.without(END) == SpeechAnswer((5,), (-0.5,), answer.named)


def test_long_silence_is_not_heard_and_times_stay() -> None:
    random = np.random.default_rng(0)
    samples_np = np.zeros(60 * RATE, np.float32)
    for first in (10, 50):
        samples_np[first * RATE : (first + 5) * RATE] = random.uniform(-0.3, 0.3, 5 * RATE)
    run = Transcription(samples_np, MODEL, SpeechOptions(language="en", drop_silence=True))
    assert run.next() is not None
    run.answer(said([at(0), 1, at(5.6), at(5.6), 2, at(11), END]))
    assert run.next() is None
    (first, second) = times(run.segments)
    assert first == pytest.approx((9.7, 15.3), abs=0.05)
    assert second == pytest.approx((49.7, 55.1), abs=0.1)
    assert run.seconds == 60.0


def test_silence_alone_asks_for_nothing() -> None:
    run = Transcription(np.zeros(RATE, np.float32), MODEL, SpeechOptions(drop_silence=True))
    assert run.next() is None
    assert (run.text, run.seconds_done) == ("", 1.0)
