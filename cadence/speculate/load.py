"""From files to a model that drafts for a target, with its place after the target's layers."""

from __future__ import annotations

from dataclasses import replace

from cadence.config.context_length import model_context_length
from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.speculative import MODEL_METHODS, DraftSource, SpeculativeConfig
from cadence.core.errors import ConfigError
from cadence.kernels.interface.collectives import ONE_RANK
from cadence.models.decoder import DecoderLM
from cadence.models.encoder_decoder import EncoderDecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.loader.load import load_model
from cadence.models.loader.load_head import HeadSource, load_head
from cadence.speculate.draft_lm import DraftLM
from cadence.speculate.draft_model import NO_DRAFT_MODEL, AnyDraftModel, DraftModel, StatesOfToken
from cadence.speculate.shared_encoder import share_encoder
from cadence.speculate.shared_tower import NO_TOWER, tower_for


def load_draft(
    speculative: SpeculativeConfig,
    target_config: ModelConfig,
    load: LoadConfig,
    build: BuildContext,
    target: DecoderLM,
) -> AnyDraftModel:
    """A second model, or a head; one that is part of the target's files is read from there."""
    if speculative.method not in MODEL_METHODS:
        return NO_DRAFT_MODEL
    limit = min(build.max_model_len, speculative.max_model_len or build.max_model_len)
    source = speculative.draft or DraftSource(speculative.method, target_config.files, target_config.hf)
    if speculative.method == "draft_model":
        found = "dummy" if load.load_format == "dummy" else "auto"  # its files are its own
        config = replace(target_config, files=source.files, hf=source.hf)
        return _model(config, replace(load, load_format=found), build, target, limit)
    # A head drafts at every length: its file's is that of the texts it was trained on. Every rank has all of it: it is
    # a layer or so, and would wait for other ranks as often as its target's layers do, once for each draft.
    alone = replace(build, ranks=ONE_RANK, expert_ranks=ONE_RANK)
    head = load_head(HeadSource(speculative.method, source.files, target, target_config, build.ranks), load, alone)
    states = StatesOfToken(len(head.aux_layers) or 1, target.embed.tokens.weight.cols, build.dtype)
    first = len(target.kv_layers())
    return DraftModel(head, target.vocab_size, first, limit, states, tower=tower_for(head.width, NO_TOWER, target))


def _model(config: ModelConfig, load: LoadConfig, build: BuildContext, target: DecoderLM, limit: int) -> DraftModel:
    """One of the same tokenizer, which the caller has made sure of. It drafts as far as it was made for."""
    max_len = min(limit, model_context_length(config.hf))
    model = load_model(config, load, replace(build, max_model_len=max_len))
    states = model.state_layers()
    if states and not target.state_layers():
        message = "speculative_config: a model with layers that keep a state drafts for one that has such, too"
        raise ConfigError(message, "speculative_config")
    proposer = DraftLM(model, target.vocab_size, build.device)
    readers = []
    if isinstance(model, EncoderDecoderLM) and isinstance(target, EncoderDecoderLM):
        share_encoder(target, model, build.ranks, build.device)
        readers.append(model)
    return DraftModel(
        proposer=proposer,
        vocab_size=model.vocab_size,
        first_layer=len(target.kv_layers()),
        max_len=max_len,
        readers=readers,
        state_layers=states,
        tower=tower_for(proposer.width, model.tower, target) if isinstance(model, DecoderLM) else None,
    )
