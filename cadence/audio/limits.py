"""How large a recording may be."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.audio.errors import AudioError


@dataclass(frozen=True, slots=True)
class AudioLimits:
    """Checked before and while a file is decoded: what its header says is not believed."""

    num_bytes: int = 256 * 2**20  # of the file; two hours of 16-bit mono at 16 kHz are 230 MB
    seconds: float = 2 * 3600.0  # of sound; decoded, two hours are 460 MB
    min_seconds: float = 0.1
    channels: int = 8
    min_rate: int = 1_000  # samples a second
    max_rate: int = 384_000

    def check_bytes(self, num_bytes: int) -> None:
        if num_bytes > self.num_bytes:
            raise AudioError(f"The file must have at most {self.num_bytes} bytes.")
        if not num_bytes:
            raise AudioError("The file is empty.")

    def check_stream(self, rate: int, channels: int) -> None:
        if not self.min_rate <= rate <= self.max_rate:
            raise AudioError(f"The sample rate must be {self.min_rate} to {self.max_rate} Hz; it is {rate}.")
        if not 1 <= channels <= self.channels:
            raise AudioError(f"The audio must have 1 to {self.channels} channels; it has {channels}.")

    def check_seconds(self, seconds: float) -> None:
        if not seconds <= self.seconds:  # also where it is not a number
            raise AudioError(f"The audio must be at most {self.seconds:g} seconds long.")


DEFAULT_LIMITS = AudioLimits()
