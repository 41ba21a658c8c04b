"""What can be said of the files that options name before anything heavy is imported, and without the network."""

from __future__ import annotations

from cadence.config.args import EngineArgs
from cadence.config.reference import ModelFiles, find_local, find_local_tokenizer
from cadence.config.speculative_options import SpeculativeOptions, draft_not_found
from cadence.core.errors import ModelNotFoundError


def check_local_files(args: EngineArgs) -> None:
    """Raises where a path leads to nothing, or the description of a model that lies here cannot be served."""
    check_model(args.model, args)
    if args.tokenizer:
        find_local_tokenizer(args.tokenizer)
    if draft := SpeculativeOptions.read(args.speculative_config).model:
        try:
            find_local(draft)
        except ModelNotFoundError as error:
            raise draft_not_found(error) from None


def check_model(reference: str, args: EngineArgs | None = None) -> ModelFiles | None:
    """The files of a model that lies here, whose config.json or GGUF file is read; None for an alias or a hub id."""
    if (files := find_local(reference)) is None:
        return None
    from cadence.config.hf import load_hf_config
    from cadence.config.implemented import AUTO, implemented
    from cadence.config.resolve_pooling import served_as

    hf = load_hf_config(files, args.hf_overrides if args is not None else {})
    if args is None:
        implemented(hf, AUTO, False)
    else:
        served_as(implemented(hf, args.model_impl, args.trust_remote_code), args)
    return files
