"""What requests for values in place of tokens have in common: checked once, however many texts are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadence.core.adapter import AdapterSpec
from cadence.core.inputs.attachments import Attachment
from cadence.core.pooled.pooling import PoolingSpec
from cadence.core.sampling_params import RequestOutputKind, SamplingParams

# Of requests that get no tokens, by `skip_reading_prefix_cache`. They share these, and nothing writes to them.
NO_SAMPLING = {
    skip: SamplingParams(
        max_tokens=1,
        temperature=0.0,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_reading_prefix_cache=skip,
    )
    for skip in (None, False, True)
}


@dataclass(frozen=True, slots=True)
class PooledOptions:
    spec: PoolingSpec
    adapter: AdapterSpec | None
    sampling: SamplingParams  # one of `NO_SAMPLING`
    kept: int  # tokens of a prompt at most; 0 = all, and one that is too long is refused
    priority: int
    lora_request: object = None  # what outputs say of it, as it was given
    warnings: Sequence[str] = ()  # options that were accepted and change nothing

    def attachments(self, spec: PoolingSpec, content: object) -> tuple[Attachment, ...]:
        """spec: this one, or with the place of a second text; content: what stands among the prompt's tokens"""
        return tuple(each for each in (spec, self.adapter, content) if isinstance(each, Attachment))
