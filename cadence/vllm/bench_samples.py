"""`add_dataset_parser` and `get_samples`: the prompts that a script's own flags name."""

from __future__ import annotations

import argparse
from typing import Any

from cadence.core.errors import ConfigError
from cadence.vllm.bench_data import (
    BenchmarkDataset,
    CustomDataset,
    PrefixRepetitionRandomDataset,
    RandomDataset,
    SampleRequest,
    ShareGPTDataset,
)

_LENGTHS = {
    "random_input_len": RandomDataset.DEFAULT_INPUT_LEN,
    "random_output_len": RandomDataset.DEFAULT_OUTPUT_LEN,
    "random_prefix_len": RandomDataset.DEFAULT_PREFIX_LEN,
    "custom_output_len": 256,
    "sharegpt_output_len": None,
    "prefix_repetition_prefix_len": PrefixRepetitionRandomDataset.DEFAULT_PREFIX_LEN,
    "prefix_repetition_suffix_len": PrefixRepetitionRandomDataset.DEFAULT_SUFFIX_LEN,
    "prefix_repetition_num_prefixes": PrefixRepetitionRandomDataset.DEFAULT_NUM_PREFIXES,
    "prefix_repetition_output_len": PrefixRepetitionRandomDataset.DEFAULT_OUTPUT_LEN,
}
_DATASETS: dict[str, type[BenchmarkDataset]] = {
    "random": RandomDataset, "prefix_repetition": PrefixRepetitionRandomDataset, "sharegpt": ShareGPTDataset,
    "custom": CustomDataset,
}  # fmt: skip
_SWITCHES = (
    "trust-remote-code", "no-stream", "no-oversample", "skip-chat-template", "enable-multimodal-chat",
    "disable-shuffle",
)  # fmt: skip


def add_dataset_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn [0]")
    parser.add_argument("--num-prompts", type=int, default=1000, metavar="N", help="[1000]")
    parser.add_argument("--dataset-name", default="random", metavar="NAME", help=f"{', '.join(_DATASETS)} [random]")
    parser.add_argument("--dataset-path", metavar="FILE", help="of sharegpt and custom")
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action="store_true")
    for name, default in _LENGTHS.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default, metavar="N")
    parser.add_argument("--random-range-ratio", type=float, default=RandomDataset.DEFAULT_RANGE_RATIO, metavar="X")


def get_samples(args: argparse.Namespace, tokenizer: Any) -> list[SampleRequest]:
    name = args.dataset_name
    if name not in _DATASETS:
        raise ConfigError(f"--dataset-name {name} is not one of {', '.join(_DATASETS)}", "dataset_name")
    if args.enable_multimodal_chat:
        raise ConfigError("--enable-multimodal-chat: these datasets are texts", "enable_multimodal_chat")
    dataset = _DATASETS[name](args.dataset_path, args.seed, args.disable_shuffle)
    shape = _shape(args)
    return dataset.sample(tokenizer, args.num_prompts, no_oversample=args.no_oversample, **shape)


def _shape(args: argparse.Namespace) -> dict[str, Any]:
    if args.dataset_name == "random":
        names = ("input_len", "output_len", "prefix_len", "range_ratio")
        return {name: getattr(args, f"random_{name}") for name in names}
    if args.dataset_name == "prefix_repetition":
        return {name: getattr(args, f"prefix_repetition_{name}") for name in PrefixRepetitionRandomDataset.OPTIONS}
    if args.dataset_name == "custom":
        return {"output_len": args.custom_output_len, "skip_chat_template": args.skip_chat_template}
    return {"output_len": args.sharegpt_output_len}
