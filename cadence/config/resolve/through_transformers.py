"""What a model that runs through transformers' code cannot be asked for."""

from __future__ import annotations

from cadence.config.args import EngineArgs
from cadence.config.files.sharded_state import SHARDED
from cadence.config.hf import HFConfig
from cadence.config.speculative import HEADS
from cadence.core.errors import ConfigError


def check_asked(args: EngineArgs, hf: HFConfig, method: str) -> None:
    """method: of speculation"""
    if not hf.implementation.through_transformers:
        return
    if args.pipeline_parallel_size > 1:
        message = f"pipeline_parallel_size={args.pipeline_parallel_size}: its layers are not shared out"
        raise _refused(hf, message, "pipeline_parallel_size")
    if args.enable_expert_parallel:
        raise _refused(hf, "enable_expert_parallel: its experts are not shared out", "enable_expert_parallel")
    if args.load_format == SHARDED:
        raise _refused(hf, f"load_format={SHARDED}: its weights are read whole", "load_format")
    if method in HEADS:
        message = f"speculative_config: {method} reads hidden states of layers; draft_model, ngram and suffix do not"
        raise _refused(hf, message, "speculative_config")


def _refused(hf: HFConfig, message: str, field: str) -> ConfigError:
    return ConfigError(f"{message} ({hf.architecture} runs through transformers' own code)", field)
