"""Where in a recording there is speech, by its energy, and the recording without its long silences.

A frame is loud from `enter` on; once it is, speech goes on until frames stay below `leave` for a while.

state    stays                       goes to
silence  until `begin_frames` loud   speech, from the first of these
speech   while not quiet for long    silence, from the first quiet frame on

`enter` follows the recording: well above its noise, well below its loud parts. Noise without a pause cannot be told
from speech by energy, and is kept.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from cadence.audio.windows import Window

FloatArray = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ActivityOptions:
    frame_seconds: float = 0.02
    begin_frames: int = 3  # loud ones in a row: a click is shorter
    hangover_seconds: float = 0.4  # of quiet within speech
    padding_seconds: float = 0.3  # kept before and after: soft beginnings and ends of words
    min_silence_seconds: float = 2.0  # a shorter one is kept
    silence_db: float = -60.0  # quieter is silence in any recording; 0 dB is a full-scale square wave
    above_noise_db: float = 12.0
    below_loud_db: tuple[float, float] = (20.0, 40.0)  # `enter` lies at least and at most so far below loud frames
    hysteresis_db: float = 6.0  # from `enter` down to `leave`


DEFAULT_ACTIVITY = ActivityOptions()
_EMPHASIS = 0.97  # of the difference to the sample before: hum and rumble count less than voices
_BLOCK = 1 << 20  # samples at once


def find_speech(samples_np: FloatArray, rate: int, options: ActivityOptions = DEFAULT_ACTIVITY) -> list[Window]:
    """samples [n] -> spans of speech, padded, in order, apart by at least `min_silence_seconds`."""
    frame = int(options.frame_seconds * rate)
    levels_np = _levels(samples_np, frame)
    if not len(levels_np):
        return [Window(0, len(samples_np))] if len(samples_np) else []
    enter, leave = _thresholds(levels_np, options)
    frames = _spans(levels_np >= enter, levels_np >= leave, options)
    padding = int(options.padding_seconds * rate)
    padded = [
        Window(max(first * frame - padding, 0), min(last * frame + padding, len(samples_np))) for first, last in frames
    ]
    return _joined(padded, int(options.min_silence_seconds * rate))


def _levels(samples_np: FloatArray, frame: int) -> npt.NDArray[np.float64]:
    """[frames] in dB."""
    count = len(samples_np) // frame
    powers_np = np.empty(count)
    step = max(_BLOCK // frame, 1)
    for start in range(0, count, step):
        end = min(start + step, count)
        part_np = samples_np[start * frame : end * frame].astype(np.float64)
        part_np[1:] -= _EMPHASIS * part_np[:-1]
        powers_np[start:end] = np.square(part_np).reshape(end - start, frame).mean(axis=1)
    return 10 * np.log10(np.maximum(powers_np, 1e-12))


def _thresholds(levels_np: npt.NDArray[np.float64], options: ActivityOptions) -> tuple[float, float]:
    """-> enter, leave. Noise alone, which varies by a few dB, does not keep speech going."""
    noise, loud = np.percentile(levels_np, (10, 95)).tolist()
    least, most = options.below_loud_db
    enter = max(min(max(noise + options.above_noise_db, loud - most), loud - least), options.silence_db)
    return enter, min(max(enter - options.hysteresis_db, noise + options.hysteresis_db / 2), enter)


def _spans(
    loud_np: npt.NDArray[np.bool_], heard_np: npt.NDArray[np.bool_], options: ActivityOptions
) -> list[tuple[int, int]]:
    """Frames [n] -> (first, one past the last) of each stretch of speech."""
    hangover = max(int(options.hangover_seconds / options.frame_seconds), 1)
    found, first, last, run = list[tuple[int, int]](), -1, -1, 0
    for place, (loud, heard) in enumerate(zip(loud_np.tolist(), heard_np.tolist(), strict=True)):
        run = run + 1 if loud else 0
        if first < 0 and run >= options.begin_frames:
            first = place - run + 1
        if first >= 0 and heard:
            last = place + 1
        if first >= 0 and place + 1 - last >= hangover:
            found.append((first, last))
            first = -1
    return [*found, (first, last)] if first >= 0 else found


def _joined(spans: list[Window], least: int) -> list[Window]:
    """Those less than `least` apart are one."""
    joined: list[Window] = []
    for span in spans:
        if joined and span.first - joined[-1].last < least:
            joined[-1] = Window(joined[-1].first, span.last)
        else:
            joined.append(span)
    return joined


class KeptSpans:
    """A recording of which only some spans are kept, one after the other, and what its times were before."""

    def __init__(self, spans: list[Window], rate: int, slack_seconds: float = 0.0) -> None:
        """`spans`: in order, apart. `slack_seconds`: at either end of a span, where no speech is."""
        self._spans = spans
        self._rate = rate
        self._slack = int(slack_seconds * rate)
        lengths = [0, *(span.num_samples for span in spans)]
        self._starts: list[int] = np.cumsum(lengths).tolist()  # among what is kept, in samples; then the end

    def cut(self, samples_np: FloatArray) -> FloatArray:
        """samples [n] of the whole recording -> of what is kept."""
        if self._spans == [Window(0, len(samples_np))]:
            return samples_np
        return np.concatenate([samples_np[:0], *(samples_np[span.first : span.last] for span in self._spans)])

    def original(self, seconds: float, is_end: bool = False) -> float:
        """A time in what is kept -> the time in the recording. Near where two spans meet, a beginning belongs to the
        later one and an end to the earlier."""
        if not self._spans:
            return seconds
        sample, starts = round(seconds * self._rate), self._starts
        if is_end:
            place = bisect_left(starts, sample - self._slack) - 1
        else:
            place = bisect_right(starts, sample + self._slack) - 1
        place = min(max(place, 0), len(self._spans) - 1)
        inside = min(max(sample - starts[place], 0), self._spans[place].num_samples)
        return (self._spans[place].first + inside) / self._rate


def silences(spans: list[Window], num_samples: int) -> list[Window]:
    """What lies between spans, before the first and after the last."""
    edges = [Window(0, 0), *spans, Window(num_samples, num_samples)]
    return [Window(left.last, right.first) for left, right in pairwise(edges) if left.last < right.first]
