"""Where a model comes from and what its files say. Needs no device: the front of a server reads it too."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.config import env
from cadence.config.args import EngineArgs
from cadence.config.engine_config import EngineConfig
from cadence.config.hf import HFConfig, load_hf_config
from cadence.config.reference import ModelFiles, find_model
from cadence.config.resolve import Caps, ResolveInputs, resolve
from cadence.core.architectures import ARCHITECTURES, unsupported
from cadence.core.errors import ModelFileError, TokenizerError
from cadence.text.load import tokenizer_for
from cadence.text.null_tokenizer import AnyTokenizer, NullTokenizer


@dataclass(frozen=True, slots=True)
class ModelSource:
    files: ModelFiles
    tokenizer_files: ModelFiles  # usually the same
    hf: HFConfig

    def resolve(self, args: EngineArgs, caps: Caps, offline: bool = False) -> EngineConfig:
        known = (env.cpu_kv_cache_bytes(), env.cpu_isa(), env.has_compiler())
        inputs = ResolveInputs(self.tokenizer_files, *known, offline)
        return resolve(args, self.files, self.hf, caps, inputs)

    def load_tokenizer(self, skip: bool) -> AnyTokenizer:
        """skip: the option skip_tokenizer_init."""
        return NullTokenizer() if skip else tokenizer_for(self.tokenizer_files)


def find_source(args: EngineArgs) -> ModelSource:
    files = _find(args.model, args.revision, args)
    tokenizer_files = _find(args.tokenizer, args.tokenizer_revision, args) if args.tokenizer else files
    hf = load_hf_config(files, args.hf_overrides)
    _check_supported(hf)
    return ModelSource(files, tokenizer_files, hf)


def _check_supported(hf: HFConfig) -> None:
    """What the files say they hold, before a device is looked for."""
    if hf.architecture not in ARCHITECTURES:
        code = "; the code that comes with it is never run" if hf.get("auto_map") else ""
        raise ModelFileError(f"{hf.source}: {unsupported(hf.architecture)}{code}", "architectures")
    section = hf.get("quantization_config")
    if isinstance(section, dict) and section:
        method = str(section.get("quant_method", "an unnamed method"))[:64]
        raise ModelFileError(
            f"{hf.source}: its weights are quantised by {method}, which is not read here; take it unquantised "
            "(quantization=int8 or int4 quantises it on a CPU), or a GGUF file",
            "quantization_config",
        )


def _find(reference: str, revision: str | None, args: EngineArgs) -> ModelFiles:
    token = args.hf_token if isinstance(args.hf_token, str) else ""
    return find_model(reference, revision=revision or "", download_dir=args.download_dir or "", token=token)


def check_vocabulary(tokenizer: AnyTokenizer, vocab_size: int) -> None:
    """A tokenizer may know fewer tokens than the model has embeddings for (padding), and a few added ones more
    (prompts that use those are refused one by one). A larger vocabulary is another model's."""
    if tokenizer.vocab_size > vocab_size:
        raise TokenizerError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model's vocabulary has {vocab_size}: "
            "this tokenizer does not belong to this model"
        )
