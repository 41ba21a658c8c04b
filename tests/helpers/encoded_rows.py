"""A tiny encoder-decoder model by itself: contents encoded into a paged cache, and rows of it fed side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cadence.core.adapter import NO_SLOT
from cadence.core.contract.encoder_work import EncoderWork
from cadence.core.model.kv_spec import CROSS, KVLayout, plan_layout
from cadence.device.cpu import CpuDevice
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.encoder_decoder import EncoderDecoderLM
from cadence.models.interface.encoder_lengths import EncoderLengths
from cadence.models.interface.lora_batch import NO_LORA, LoraBatch
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.interface.wanted import EVERY_TOKEN, LastTokens
from cadence.runner.caches.storage import allocate_kv_cache
from cadence.runner.features.encoder.encode import ContentReader, DeviceEncoder
from cadence.runner.features.encoder.rows import EncoderRows
from cadence.runner.shapes import ExactShapes

BLOCK = 16
Content = list[int] | np.ndarray  # token ids, or features [mels, frames]


def work_of(content: Content, block_ids: tuple[list[int], ...], adapter: int = NO_SLOT) -> EncoderWork:
    """Of sound, an encoder makes a position of two frames."""
    is_sound = isinstance(content, np.ndarray)
    return EncoderWork(
        token_ids_np=np.array([] if is_sound else content, dtype=np.int32),
        features_np=content if is_sound else np.zeros((0, 0), dtype=np.float32),
        length=length_of(content),
        block_ids=block_ids,
        adapter=adapter,
    )


def length_of(content: Content) -> int:
    return (content.shape[1] + 1) // 2 if isinstance(content, np.ndarray) else len(content)


class EncodedRows:
    """Rows of one model, each with a content of its own."""

    def __init__(
        self,
        model: EncoderDecoderLM,
        contents: Sequence[Content],
        *,
        max_len: int = 128,
        ops: Ops | None = None,
        kv_dtype: str = "float32",
        slots: Sequence[int] = (),
    ) -> None:
        """slots: of the adapters of rows; () = they have none"""
        self.model = model
        self._device, self._ops = CpuDevice(), ops or ReferenceOps()
        self._lengths = torch.tensor([length_of(content) for content in contents], dtype=torch.int32)
        layout = plan_layout(model.kv_layers(), BLOCK, kv_dtype)
        self._tables = self._new_tables(layout, len(contents), -(-max_len // BLOCK))
        self.caches = allocate_kv_cache(layout, sum(table.numel() for table in self._tables) + 1, self._device)
        rows = EncoderRows(self._device, len(contents), self._ops, ExactShapes(len(contents), 64, False))
        self.encoder = DeviceEncoder(self._device, self._ops, [ContentReader(model)], rows, layout, max_len)
        self.encoder.use_caches(self.caches)
        self._slots = torch.tensor(slots or [NO_SLOT] * len(contents), dtype=torch.int32)
        with torch.inference_mode():
            self.encoder.apply(
                [
                    work_of(content, self._blocks_of(layout, row), int(self._slots[row]))
                    for row, content in enumerate(contents)
                ]
            )
        self._computed = [0] * len(contents)

    def _new_tables(self, layout: KVLayout, rows: int, blocks: int) -> tuple[torch.Tensor, ...]:
        """Blocks in no particular order; none is the null block."""
        count = len(layout.groups) * rows * blocks
        order = 1 + torch.randperm(count, generator=torch.Generator().manual_seed(1))
        return tuple(order.int().view(len(layout.groups), rows, blocks))

    def _blocks_of(self, layout: KVLayout, row: int) -> tuple[list[int], ...]:
        count = -(-int(self._lengths[row]) // BLOCK)
        return tuple(
            table[row, :count].tolist() if group.kind == CROSS else []
            for group, table in zip(layout.groups, self._tables, strict=True)
        )

    @torch.inference_mode()
    def feed(self, tokens: Sequence[list[int]], *, last_only: bool = False) -> list[torch.Tensor]:
        """So many tokens of each row, some of none -> of each row, logprobs after each token or after the last.
        Sequences of one query come first, as batches have them."""
        order = sorted((row for row, each in enumerate(tokens) if each), key=lambda row: len(tokens[row]) > 1)
        counts = [len(tokens[row]) for row in order]
        at = torch.cat([torch.arange(self._computed[row], self._computed[row] + len(tokens[row])) for row in order])
        for row in order:
            self._computed[row] += len(tokens[row])
        batch = self._batch(order, counts, at)
        lengths, counted = self._lengths[order], torch.arange(len(order) + 1, dtype=torch.int32)
        last = LastTokens((batch.query_start[1:] - 1).long(), batch.rows, batch.seq_lens, counted)
        ctx = ForwardContext(
            ops=self._ops,
            batch=batch,
            caches=self.caches,
            wanted=last if last_only else EVERY_TOKEN,
            encoder=EncoderLengths(lengths, lengths),
            lora=self._lora(order, counts, last_only),
        )
        ids = torch.tensor([token for row in order for token in tokens[row]], dtype=torch.int32)
        logits = self.model.logits(self.model(ModelInputs(ids, at), ctx), ctx)
        parts = torch.log_softmax(logits.float(), dim=-1).split([1] * len(order) if last_only else counts)
        found = dict(zip(order, parts, strict=True))
        return [found.get(row, logits[:0]) for row in range(len(tokens))]

    def _lora(self, order: list[int], counts: list[int], last_only: bool) -> LoraBatch:
        rows = self._slots[order]
        if not (rows >= 0).any():
            return NO_LORA
        tokens = rows.repeat_interleave(torch.tensor(counts))
        return LoraBatch(tokens, *[rows if last_only else tokens] * 2)

    def _batch(self, order: list[int], counts: list[int], at: torch.Tensor) -> AttentionBatch:
        rows = torch.tensor(order, dtype=torch.int32)
        of_token = rows.repeat_interleave(torch.tensor(counts)).long()
        own = [table[of_token, at // BLOCK].long() * BLOCK + at % BLOCK for table in self._tables]
        return AttentionBatch(
            rows=rows,
            query_start=torch.tensor([0, *np.cumsum(counts)], dtype=torch.int32),
            seq_lens=torch.tensor([self._computed[row] for row in order], dtype=torch.int32),
            block_tables=self._tables,
            slots=tuple(own),
            num_single=sum(count == 1 for count in counts),
            max_query_len=max(counts),
        )
