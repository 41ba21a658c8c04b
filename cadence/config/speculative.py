"""Speculative decoding, resolved: who drafts, how many tokens, and how drafts are verified."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.config.encoder_config import resolve_encoder
from cadence.config.hf import HFConfig
from cadence.config.reference import ModelFiles
from cadence.config.speculative_options import (
    EXACT,
    MOST_TOKENS,
    OPTION,
    WITH_MODEL,
    SpeculativeOptions,
    model_missing,
    wrong,
)
from cadence.core.errors import ConfigError, ModelFileError

DEFAULT_TOKENS = 4  # drafts per row and forward, where neither the user nor the draft's files say it
HEADS = ("eagle", "eagle3", "mtp", "medusa")  # methods that read the target's hidden states
MODEL_METHODS = ("draft_model", *HEADS)  # methods whose drafts a model makes


@dataclass(frozen=True, slots=True)
class DraftSource:
    """A second model, or a head for the target: where it lies and what its files say."""

    method: str  # draft_model | eagle | eagle3 | mtp | medusa
    files: ModelFiles
    hf: HFConfig


@dataclass(frozen=True, slots=True)
class SpeculativeConfig:
    method: str = "none"  # none | ngram | suffix | draft_model | eagle | eagle3 | mtp | medusa
    num_tokens: int = 0  # most drafts of a row in a forward
    draft: DraftSource | None = None  # of methods that read weights beside the target's
    max_model_len: int = 0  # tokens of a sequence beyond which the draft model is not asked; 0 = its own length
    prompt_lookup_min: int = 0  # fewest tokens of an n-gram that is looked up
    prompt_lookup_max: int = 0  # most
    rejection_sample_method: str = EXACT  # exact = drafts that equal the token chosen in their place | probabilistic
    adaptive: bool = True  # fewer drafts, or none, where measured acceptance says that they do not pay
    suffix_decoding_max_tree_depth: int = 24  # most tokens of a match
    suffix_decoding_max_cached_requests: int = 10_000  # ended requests whose output is searched; 0 = none
    suffix_decoding_max_spec_factor: float = 1.0  # most drafts per token of the match
    suffix_decoding_min_token_prob: float = 0.1  # least share of the places of a match that go on as the drafts do

    @property
    def enabled(self) -> bool:
        return self.num_tokens > 0

    @property
    def by_model(self) -> bool:
        return self.method in MODEL_METHODS

    @property
    def by_head(self) -> bool:
        return self.method in HEADS


NO_SPECULATION = SpeculativeConfig()


def settled_method(asked: str | None, hf: HFConfig) -> str:
    """What the files of a second model are: a head for another model says so, or is called so; all else is a draft
    model, which is also what vLLM's users write for heads."""
    said = _said_method(hf)
    if asked in (None, "draft_model"):
        name = Path(hf.name).name.lower()
        found = said or ("eagle3" if "eagle3" in name else "eagle" if "eagle-" in name else "draft_model")
        return found
    assert asked is not None
    if said and said != asked:
        raise ConfigError(f"{OPTION}.method={asked}, but {hf.source} describes {said}", f"{OPTION}.method")
    return asked


def _said_method(hf: HFConfig) -> str:
    """ "" = nothing is said."""
    section = hf.get("speculators_config")
    algorithm = section.get("algorithm") if isinstance(section, dict) else None
    words = (hf.architecture, hf.get("speculators_model_type"), algorithm, hf.get("model_type"))
    text = " ".join(str(word) for word in words).lower()
    return next((method for method in ("eagle3", "eagle", "medusa", "mtp") if method in text), "")


def check_draft(target: HFConfig, draft: HFConfig, method: str) -> None:
    """What the two descriptions tell: whether a head was made for a model like this one. Whether the tokens of a draft
    model are the target's is seen by their tokenizers."""
    _check_encoders(target, draft, method)
    if method not in HEADS:
        return
    hidden, expected = draft.get("target_hidden_size") or _size(draft), _size(target)
    if hidden is not None and hidden != expected:
        raise ModelFileError(
            f"{draft.source}: this {method} head reads hidden states of {hidden} entries, those of {target.name} have "
            f"{expected}: it was made for another model",
            f"{OPTION}.model",
        )
    vocab, own = draft.get("vocab_size"), target["vocab_size"]
    if vocab is not None and vocab != own:
        raise ModelFileError(
            f"{draft.source}: this {method} head has a vocabulary of {vocab} tokens, {target.name} one of {own}: it "
            "was made for another model",
            f"{OPTION}.model",
        )
    if (drafted := draft.get("draft_vocab_size") or 0) > own:
        raise ModelFileError(
            f"{draft.source}: 'draft_vocab_size' is {drafted}, more than the {own} tokens of {target.name}",
            f"{OPTION}.model",
        )


def _check_encoders(target: HFConfig, draft: HFConfig, method: str) -> None:
    """Only a model that reads what the target's encoder reads can draft for it, and it drafts for no other."""
    ours, theirs = resolve_encoder(target), resolve_encoder(draft)
    if not (ours.exists or theirs.exists):
        return
    if method != "draft_model":
        message = f"{target.architecture} has an encoder: a model that has one drafts for it, or method ngram or suffix"
        raise ConfigError(f"{OPTION}.method={method}: {message}", f"{OPTION}.method")
    if not (ours.exists and theirs.exists):
        one, other = (target, draft) if ours.exists else (draft, target)
        message = f"{one.architecture} has an encoder and {other.architecture} none: they cannot draft for each other"
        raise ConfigError(f"{OPTION}.model: {message}", f"{OPTION}.model")
    if ours.mels != theirs.mels:
        read = [f"{each.mels} mel bins" if each.mels else "texts" for each in (theirs, ours)]
        raise ConfigError(f"{OPTION}.model: its encoder reads {read[0]}, the target's {read[1]}", f"{OPTION}.model")
    if theirs.max_len < ours.max_len or (ours.mels and theirs.max_len != ours.max_len):
        message = f"its encoder reads {theirs.max_len} positions, the target's {ours.max_len}"
        raise ConfigError(f"{OPTION}.model: {message}", f"{OPTION}.model")


def resolve_speculative(options: SpeculativeOptions, target: HFConfig, draft: DraftSource | None) -> SpeculativeConfig:
    """`draft`: the files that `options.model` led to."""
    method = draft.method if draft is not None else options.method or "none"
    if method == "none":
        return NO_SPECULATION
    if draft is not None:
        check_draft(target, draft.hf, method)
    elif method in WITH_MODEL:
        raise model_missing(method)
    low, high = options.lookup if method == "ngram" else (0, 0)
    return SpeculativeConfig(
        method=method,
        num_tokens=options.num_speculative_tokens or _default_tokens(options, method, draft.hf if draft else target),
        draft=draft,
        max_model_len=options.max_model_len or 0,
        prompt_lookup_min=low,
        prompt_lookup_max=high,
        rejection_sample_method=options.verifier,
        adaptive=options.adaptive,
        suffix_decoding_max_tree_depth=options.suffix_decoding_max_tree_depth,
        suffix_decoding_max_cached_requests=options.suffix_decoding_max_cached_requests,
        suffix_decoding_max_spec_factor=options.suffix_decoding_max_spec_factor,
        suffix_decoding_min_token_prob=options.suffix_decoding_min_token_prob,
    )


def check_fits(config: SpeculativeConfig, max_model_len: int, max_num_batched_tokens: int) -> None:
    """A row's run, its newest token and all drafts, has room in a step and in the context."""
    most = min(max_model_len, max_num_batched_tokens) - 1
    if config.num_tokens > most:
        limit = "max_model_len" if max_model_len <= max_num_batched_tokens else "max_num_batched_tokens"
        raise wrong("num_speculative_tokens", config.num_tokens, f"at most {most}: {limit} is {most + 1}")


def _default_tokens(options: SpeculativeOptions, method: str, hf: HFConfig) -> int:
    """`hf`: of what drafts."""
    if method == "suffix":
        return min(options.suffix_decoding_max_tree_depth, MOST_TOKENS)
    if method in ("ngram", "draft_model"):
        return DEFAULT_TOKENS
    said = _proposal_tokens(hf) or hf.get("medusa_num_heads") or hf.get("num_lookahead_tokens")
    return min(said, MOST_TOKENS) if isinstance(said, int) and said > 0 else DEFAULT_TOKENS


def _proposal_tokens(hf: HFConfig) -> Any:
    """Of checkpoints in the format of `speculators`."""
    section = hf.get("speculators_config")
    methods = section.get("proposal_methods") if isinstance(section, dict) else None
    first = methods[0] if isinstance(methods, list) and methods else None
    return first.get("speculative_tokens") if isinstance(first, dict) else None


def _size(hf: HFConfig) -> Any:
    return hf.get("hidden_size", hf.get("n_embd"))
