"""From options to a running engine, stage by stage."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from cadence.config import env
from cadence.config.args import EngineArgs
from cadence.config.engine_config import EngineConfig
from cadence.config.generation import default_sampling
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles, find_model
from cadence.config.resolve import Surroundings, fit_context, resolve
from cadence.core.errors import TokenizerError
from cadence.core.kv_spec import KVLayout
from cadence.engine.core import EngineCore
from cadence.executor.worker import Worker, device_caps
from cadence.scheduler.budget import TokenBudget
from cadence.scheduler.kv.sizing import max_len_that_fits
from cadence.scheduler.scheduler import Scheduler
from cadence.text.load import tokenizer_for
from cadence.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class EngineParts:
    config: EngineConfig
    core: EngineCore
    tokenizer: Tokenizer | None  # None with skip_tokenizer_init
    vocab_size: int
    num_blocks: int
    default_sampling: dict[str, Any]


def build_engine(args: EngineArgs, logits_processors: Sequence[Callable[..., Any]] = ()) -> EngineParts:
    """Loads tokenizer and weights side by side, sizes the KV cache, and ties scheduler and worker together."""
    config = _resolved(args)
    with ThreadPoolExecutor(1) as pool:
        tokenizer_job = pool.submit(_load_tokenizer, config)
        worker = Worker(config, logits_processors)
        tokenizer = tokenizer_job.result()
    _check_vocabulary(tokenizer, worker.vocab_size)
    num_blocks = config.cache.num_blocks_override or worker.kv_bytes() // worker.kv_block_bytes()
    config = fit_context(config, args, _longest_request(config, worker.layout, num_blocks))
    scheduler = Scheduler(config.scheduler, config.cache, worker.layout, num_blocks, config.model.max_model_len)
    worker.allocate_kv(num_blocks)
    core = EngineCore(scheduler, worker, config.scheduler.steps_in_flight)
    defaults = default_sampling(args, config.model.hf)
    return EngineParts(config, core, tokenizer, worker.vocab_size, num_blocks, defaults)


def _resolved(args: EngineArgs) -> EngineConfig:
    files = _find(args.model, args.revision, args)
    tokenizer_files = _find(args.tokenizer, args.tokenizer_revision, args) if args.tokenizer else files
    hf = load_hf_config(files, args.hf_overrides)
    around = Surroundings(tokenizer_files, env.cpu_kv_cache_bytes())
    return resolve(args, files, hf, device_caps(args.device), around)


def _longest_request(config: EngineConfig, layout: KVLayout, num_blocks: int) -> int:
    upper = config.model.max_model_len
    return max_len_that_fits(layout, num_blocks, TokenBudget.of(config.scheduler, upper).in_flight, upper)


def _find(reference: str, revision: str | None, args: EngineArgs) -> ModelFiles:
    token = args.hf_token if isinstance(args.hf_token, str) else ""
    return find_model(reference, revision=revision or "", download_dir=args.download_dir or "", token=token)


def _load_tokenizer(config: EngineConfig) -> Tokenizer | None:
    return None if config.tokenizer.skip else tokenizer_for(config.tokenizer.files)




def _check_vocabulary(tokenizer: Tokenizer | None, vocab_size: int) -> None:
    """A tokenizer may know fewer tokens than the model has embeddings for (padding), and a few added ones more
    (prompts that use those are refused one by one). A larger vocabulary is another model's."""
    if tokenizer is not None and tokenizer.vocab_size > vocab_size:
        raise TokenizerError(
            f"the tokenizer has {tokenizer.vocab_size} tokens, but the model's vocabulary has {vocab_size}: "
            "this tokenizer does not belong to this model"
        )
