"""Where a model comes from and what its files say. Needs no device: the front of a server reads it too."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from cadence.config import env
from cadence.config.args import EngineArgs
from cadence.config.caps import Caps
from cadence.config.engine_config import EngineConfig
from cadence.config.hf import HFConfig, load_hf_config
from cadence.config.implemented import AUTO, check_generates, implemented
from cadence.config.parallel import SHARES_EXPERTS, shares_experts
from cadence.config.reference import ModelFiles, find_model, find_tokenizer
from cadence.config.resolve.builtin_heads import builtin_head
from cadence.config.resolve.resolve import ResolveInputs, resolve
from cadence.config.resolve_pooling import served_as
from cadence.config.speculative import DraftSource, settled_method
from cadence.config.speculative_options import MAYBE_BUILT_IN, SpeculativeOptions, draft_not_found
from cadence.config.tower_file import NONE, with_tower
from cadence.core.contract.messages import EngineInfo
from cadence.core.errors import ConfigError, ModelNotFoundError, TokenizerError
from cadence.core.model.model_heads import ModelHead
from cadence.core.model.model_registry import ModelRegistry, registered
from cadence.text.load import tokenizer_for
from cadence.text.null_tokenizer import AnyTokenizer, NullTokenizer
from cadence.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class ModelSource:
    files: ModelFiles
    tokenizer_files: ModelFiles  # usually the same
    hf: HFConfig
    draft: DraftSource | None = None  # what speculative_config names
    tokenizer_mode: str = "auto"

    def resolve(self, args: EngineArgs, caps: Caps, offline: bool = False) -> EngineConfig:
        inputs = ResolveInputs(
            tokenizer_files=self.tokenizer_files,
            cpu_kv_bytes=env.cpu_kv_cache_bytes(),
            cpu_isa=env.cpu_isa(),
            compiler=env.has_compiler(),
            draft=self.draft,
            offline=offline,
        )
        return resolve(args, self.files, self.hf, caps, inputs)

    def resolve_front(self, args: EngineArgs, info: EngineInfo) -> EngineConfig:
        """For the front of an engine in another process, by what that one says of its device."""
        config = self.resolve(args, info)
        return replace(config, model=replace(config.model, max_model_len=info.max_model_len))

    def engine_options(self, args: EngineArgs) -> dict[str, Any]:
        """What an engine process is told. The model's files are found by now, so it needs no access to the hub."""
        found: dict[str, Any] = {"model": self.files.path, "revision": None, "hf_token": None}
        found["model_class_overrides"] = registered()
        if self.files.gguf is not None:
            found["mmproj"] = NONE if self.files.tower is None else str(self.files.tower.absolute())
        found |= {"tokenizer": self.tokenizer_files.path, "tokenizer_revision": None}
        if (draft := self.draft) is not None:
            names = {"method": draft.method, "model": draft.files.path, "revision": None}
            found["speculative_config"] = {**args.speculative_config, **names}
        if shares_experts(args, self.hf):
            found[SHARES_EXPERTS] = True
        return {**asdict(args), **found}

    def load_tokenizer(self, skip: bool) -> AnyTokenizer:
        """skip: the option skip_tokenizer_init."""
        if skip:
            return NullTokenizer()
        tokenizer = tokenizer_for(self.tokenizer_files, self.tokenizer_mode)
        if self.draft is not None and self.draft.method == "draft_model":
            check_draft_vocabulary(tokenizer, self.draft, self.hf)
        return tokenizer


def find_source(args: EngineArgs) -> ModelSource:
    for architecture, path in args.model_class_overrides.items():
        ModelRegistry.register_model(architecture, path)
    hub, named = _hub_options(args.revision, args), args.tokenizer
    files = with_tower(find_model(args.model, **hub), args.mmproj, **hub)
    tokenizer_files = find_tokenizer(named, **_hub_options(args.tokenizer_revision, args)) if named else files
    hf = load_hf_config(files, args.hf_overrides)
    hf = implemented(hf, args.model_impl, args.trust_remote_code)
    hf = with_token_ids(served_as(hf, args), tokenizer_files)
    return ModelSource(files, tokenizer_files, hf, _find_draft(args, hf), args.tokenizer_mode)


def with_token_ids(hf: HFConfig, files: ModelFiles) -> HFConfig:
    """With the ids of the tokens whose logits scores are made of, where they are: `classifier_from_token`."""
    names = hf.get("classifier_from_token")
    if hf.head is not ModelHead.SCORES or not names or hf.get("classifier_token_ids"):
        return hf
    known = tokenizer_for(files).get_vocab()
    missing = [name for name in names if name not in known]
    if missing:
        message = f"classifier_from_token: {missing[0]!r} is no token of {files.name}"
        raise ConfigError(message, "classifier_from_token")
    return replace(hf, raw={**hf.raw, "classifier_token_ids": [known[name] for name in names]})


def _find_draft(args: EngineArgs, target: HFConfig) -> DraftSource | None:
    """What `speculative_config` names: a second model, or a head for this one, which may be built in. None where it
    names none."""
    options = SpeculativeOptions.read(args.speculative_config)
    if options.method in MAYBE_BUILT_IN and options.model is None:
        files = builtin_head(options.method, target)
    elif options.model is None:
        return None
    else:
        files = _named_draft(options.model, options.revision, args)
    unnamed = {"architectures": ["MedusaModel"]} if options.method == "medusa" else {}  # its files may name no class
    hf = load_hf_config(files, unnamed)
    draft = DraftSource(settled_method(options.method, hf), files, hf)
    if draft.method == "draft_model":
        draft = replace(draft, hf=implemented(hf, AUTO, False))
        check_generates(draft.hf)
    return draft


def _named_draft(reference: str, revision: str | None, args: EngineArgs) -> ModelFiles:
    try:
        return find_model(reference, **_hub_options(revision, args))
    except ModelNotFoundError as error:
        raise draft_not_found(error) from None


def _hub_options(revision: str | None, args: EngineArgs) -> dict[str, str]:
    """As keywords of `find_model` and `find_tokenizer`."""
    token = args.hf_token if isinstance(args.hf_token, str) else ""
    return {"revision": revision or "", "download_dir": args.download_dir or "", "token": token}


def check_vocabulary(tokenizer: AnyTokenizer, vocab_size: int) -> None:
    """A tokenizer may know fewer tokens than the model has embeddings for (padding), and a few added ones more
    (prompts that use those are refused one by one). A larger vocabulary is another model's."""
    if tokenizer.vocab_size > vocab_size:
        raise TokenizerError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model's vocabulary has {vocab_size}: "
            "this tokenizer does not belong to this model"
        )


def check_draft_vocabulary(tokenizer: Tokenizer, draft: DraftSource, target: HFConfig) -> None:
    """A draft model's tokens are the target's, or one vocabulary is the beginning of the other; tokens that were added
    for chats and the like may have other names. A draft without a tokenizer has as many tokens."""
    try:
        other = tokenizer_for(draft.files)
    except TokenizerError:
        if draft.hf["vocab_size"] == target["vocab_size"]:
            return
        found = f"has no tokenizer and {draft.hf['vocab_size']} tokens, where the target has {target['vocab_size']}"
    else:
        if (differing := _first_difference(tokenizer, other)) is None:
            return
        mine, theirs = (one.convert_ids_to_tokens(differing) for one in (tokenizer, other))
        found = f"calls token {differing} {theirs!r}, and the target {mine!r}"
    raise ConfigError(
        f"speculative_config.model: {draft.files.name} {found}: its vocabulary must be the target's, or one of the two "
        "the beginning of the other",
        "speculative_config.model",
    )


def _first_difference(one: Tokenizer, other: Tokenizer) -> int | None:
    """The first id that is another token in the other vocabulary, of those that both have and neither added."""
    ids = [{token_id: token for token, token_id in each.get_vocab().items()} for each in (one, other)]
    added = {token_id for each in (one, other) for token_id in each.get_added_vocab().values()}
    both = ids[0].keys() & ids[1].keys() - added
    return min((token_id for token_id in both if ids[0][token_id] != ids[1][token_id]), default=None)
