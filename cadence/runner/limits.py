"""How large the runner's tables and forwards may be."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.config.speculative import NO_SPECULATION, SpeculativeConfig


@dataclass(frozen=True, slots=True)
class RunnerLimits:
    max_num_seqs: int
    max_model_len: int
    max_num_tokens: int  # of one forward
    logprobs_mode: str
    graphs: str  # recorded forwards: padded | exact | none
    burst_steps: int  # most forwards of one plan
    max_encoder_len: int = 0  # positions of an encoder's output, at most; 0 = the model has no encoder
    encoder_cache: int = 0  # vectors of pictures and sounds that are kept; 0 = the model takes text alone
    longest_media: int = 0  # most vectors of one content
    dtype: str = "float32"  # of these
    speculative: SpeculativeConfig = NO_SPECULATION

    @property
    def num_rows(self) -> int:
        return self.max_num_seqs + 1

    @property
    def width(self) -> int:
        """Most tokens that a row computes and samples in one forward: its newest, and drafts."""
        return 1 + self.speculative.num_tokens

    @property
    def dummy_row(self) -> int:
        """The last row: padding, warm-up and profiling live there."""
        return self.max_num_seqs
