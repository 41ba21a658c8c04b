"""A tiny model by itself: loaded onto plain torch, and fed one sequence through a paged cache."""

from __future__ import annotations

from pathlib import Path

import torch

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles, find_model
from cadence.core.model.kv_spec import plan_layout
from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.state_ops import StateRuns
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.decoder import DecoderLM
from cadence.models.interface.aux_hidden import NO_AUX, AuxHiddenStates
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, LayerCache, ModelInputs
from cadence.models.interface.row_states import RowStates
from cadence.models.interface.wanted import EVERY_TOKEN, LastTokens
from cadence.models.loader import load_model
from tests.helpers.state_rows import state_tables
from tests.helpers.tiny_models import MAX_LEN

BLOCK = 16
MOST_DRAFTS = 4
_ROW, _NUM_ROWS = 1, 3  # of the tables of states


def load(directory: Path, *, max_model_len: int = MAX_LEN, dtype: str = "float32", fmt: str = "auto") -> DecoderLM:
    files = find_model(str(directory)) if directory.is_file() else ModelFiles(str(directory), directory, None)
    config = ModelConfig(files, load_hf_config(files), dtype, max_model_len, 0, 20, "raw_logprobs")
    build = BuildContext(getattr(torch, dtype), torch.device("cpu"), ReferenceOps(), max_model_len)
    return load_model(config, LoadConfig(fmt, use_tqdm=False), build)


class OneSequence:
    """A model and the cache of a single sequence, whose blocks lie in no particular order."""

    def __init__(self, model: DecoderLM, max_len: int = MAX_LEN, dtype: torch.dtype = torch.float32) -> None:
        self.model = model
        layout = plan_layout(model.kv_layers(), BLOCK, "float32")
        num_blocks = (max_len + BLOCK - 1) // BLOCK
        order = torch.Generator().manual_seed(1)
        self._tables = [torch.randperm(num_blocks, generator=order)[None].int() for _ in layout.groups]
        self._caches = []
        for layer, place in zip(layout.layers, layout.places, strict=True):
            shape = (num_blocks, layer.num_kv_heads, BLOCK, layer.head_dim)
            kv = torch.full((2, *shape), 1e3, dtype=dtype)
            self._caches.append(LayerCache(place.group, kv[0], kv[1]))
        self._states = state_tables(model, _NUM_ROWS, MOST_DRAFTS, dtype)
        self._length = 0
        self._drafts = 0  # the last tokens so far, which may be dropped

    @torch.inference_mode()
    def feed(
        self,
        ids: list[int],
        *,
        last_only: bool = False,
        turned: int = 0,
        aux: AuxHiddenStates = NO_AUX,
        drafts: int = 0,
        dropped: int = 0,
    ) -> torch.Tensor:
        """Logprobs [len(ids), vocab] after each token, or [1, vocab] after the last. turned: rope positions are so much
        further on than the places in the cache. drafts: the last of ids, of which the next call may say that it has
        dropped some."""
        states = RowStates(self._states, _one_run(len(ids), self._drafts - dropped, drafts))
        self._length, self._drafts = self._length - dropped, drafts
        positions = torch.arange(self._length, self._length + len(ids))
        self._length += len(ids)
        batch = AttentionBatch(
            rows=torch.zeros(1, dtype=torch.int32),
            query_start=torch.tensor([0, len(ids)], dtype=torch.int32),
            seq_lens=torch.tensor([self._length], dtype=torch.int32),
            block_tables=tuple(self._tables),
            slots=tuple(table[0, positions // BLOCK].long() * BLOCK + positions % BLOCK for table in self._tables),
            num_single=int(len(ids) == 1),
            max_query_len=len(ids),
        )
        counted = torch.arange(2, dtype=torch.int32)
        last = LastTokens(torch.tensor([len(ids) - 1]), batch.rows, batch.seq_lens, counted)
        wanted = last if last_only else EVERY_TOKEN
        ctx = ForwardContext(ReferenceOps(), batch, self._caches, wanted, aux, states=states)
        hidden = self.model(ModelInputs(torch.tensor(ids, dtype=torch.int32), positions + turned), ctx)
        logits = self.model.logits(hidden, ctx)
        assert logits.dtype in (torch.float32, hidden.dtype)
        assert logits.shape == (1 if last_only else len(ids), self.model.vocab_size)
        return torch.log_softmax(logits.float(), dim=-1)


def _one_run(length: int, replayed: int, drafts: int) -> StateRuns:
    def of(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32)

    return StateRuns(
        rows=of(_ROW),
        query_start=of(0, length),
        replayed=of(replayed),
        certain=of(length - drafts),
        kept=of(drafts),
        num_single=int(length == 1),
        max_query_len=length,
    )
