"""From files to a model that drafts for a target, with its place behind the target's layers."""

from __future__ import annotations

from dataclasses import replace

from cadence.config.context_length import model_context_length
from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.loader.load import load_model
from cadence.models.loader.load_head import HeadSource, load_head
from cadence.speculate.draft_lm import DraftLM
from cadence.speculate.draft_model import DraftModel


def load_draft_model(config: ModelConfig, load: LoadConfig, build: BuildContext, target: DecoderLM) -> DraftModel:
    """A smaller model of the same tokenizer, which the caller has made sure of. It drafts as far as it was made for."""
    max_len = min(build.max_model_len, model_context_length(config.hf))
    model = load_model(config, load, replace(build, max_model_len=max_len))
    drafter = DraftLM(model, target.vocab_size, build.device)
    return DraftModel(drafter, len(target.kv_layers()), max_len)


def load_draft_head(source: HeadSource, load: LoadConfig, build: BuildContext) -> DraftModel:
    """A head drafts at every length: its file's is that of the texts it was trained on."""
    return DraftModel(load_head(source, load, build), len(source.target.kv_layers()), build.max_model_len)
