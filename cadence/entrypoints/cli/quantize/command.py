"""`cadence quantize MODEL OUT`: a quantised checkpoint that others read, and its perplexity beside the original's."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from cadence.config.cli import Extend, Parser
from cadence.config.command_line import values
from cadence.config.files.output_folder import check_output
from cadence.config.local_files import check_model
from cadence.entrypoints.cli.quantize.card import Card
from cadence.entrypoints.cli.shared.progress_lines import ProgressLines
from cadence.models.quantize.formats import WeightFormat, find_format

if TYPE_CHECKING:
    from cadence.config.reference import ModelFiles

_WINDOW = 512  # tokens
_PERPLEXITY_WINDOW, _PERPLEXITY_TOKENS = 1024, 4096
_DTYPES = ("auto", "bfloat16", "float16", "float32")
_FORMATS = "W4A16, W4A16_ASYM, W8A16, W8A8, FP8_DYNAMIC, FP8_BLOCK, NVFP4A16 or MXFP4A16"


def build_parser() -> Parser:
    about = "Quantise a model's weights into a checkpoint of compressed-tensors, which vLLM and transformers read."
    parser = Parser("cadence quantize", about, positional="MODEL OUT")
    add = parser.add_argument
    add("model", help="alias, folder, .gguf file, or hub id")
    add("output", metavar="OUT", help="a folder that is not there yet, or is empty")
    add("--format", default="W4A16", metavar="NAME", help=f"{_FORMATS} [W4A16]")
    add(
        "--group-size",
        type=int,
        default=0,
        metavar="N",
        help="columns that share a scale [128 where it is free, 64 or 32 where that does not divide]",
    )
    add(
        "--ignore",
        action=Extend,
        metavar="MODULE",
        help="modules that keep their values, by name or re:pattern [lm_head]",
    )
    add(
        "--dtype",
        choices=_DTYPES,
        default="auto",
        help="of scales and of what is not quantised [as it is, or bfloat16]",
    )
    add("--calibrate", default="auto", metavar="TEXT", help="a text file, auto (one of ours, in 4 bits) or none [auto]")
    add("--calibration-tokens", type=values.human_int, default=8192, metavar="N", help="of the text, at most [8192]")
    add("--no-perplexity", action="store_true", help="do not measure what it costs")
    add("--perplexity-text", metavar="FILE", help="what it is measured on [a part of a novel]")
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    form, output = find_format(flags.format, flags.group_size), Path(flags.output)
    check_output(output)
    check_model(flags.model)

    from cadence.config.reference import find_model
    from cadence.models.quantize.checkpoint import QuantizeOptions, quantize_checkpoint
    from cadence.models.quantize.selection import HEAD

    files = find_model(flags.model)
    texts = _Texts(flags, files, form)
    ignore = tuple(getattr(flags, "ignore", (HEAD,)))
    options = QuantizeOptions(form, ignore, flags.dtype, texts.calibration)
    made = quantize_checkpoint(files, output, options, _show if sys.stderr.isatty() else ProgressLines().show)
    card = Card(flags.model, form.name, made.form.group, texts.calibrated_with, made.nbytes, made.left_out)
    card.write(output)
    print(f"{made.num_matrices} matrices, {made.nbytes / 1e6:.1f} MB  {output}", flush=True)
    if made.num_unseen:
        print(f"{made.num_unseen} experts got no token of the text, and are rounded without calibration", flush=True)
    if texts.held_out:
        _measure(card, files.path, output, texts)
    print(f"\ncadence serve {output}")
    return 0


class _Texts:
    """What the flags say of texts, as tokens of the model. Read before anything is computed."""

    def __init__(self, flags: argparse.Namespace, files: ModelFiles, form: WeightFormat) -> None:
        import torch

        from cadence.config.hf import load_hf_config
        from cadence.entrypoints.cli.quantize.texts import CALIBRATION, HELD_OUT, read_windows
        from cadence.text.load import tokenizer_for

        most = int(load_hf_config(files).get("max_position_embeddings") or _PERPLEXITY_WINDOW + 1)
        tokenizer = tokenizer_for(files)
        self.calibration: torch.Tensor | None = None  # [n, length] int32
        self.calibrated_with = ""
        if _calibrates(flags.calibrate, form):
            path = CALIBRATION if flags.calibrate == "auto" else Path(flags.calibrate)
            found = read_windows(path, tokenizer, min(_WINDOW, most), flags.calibration_tokens)
            self.calibration = torch.tensor(found, dtype=torch.int32)
            self.calibrated_with = f"{self.calibration.numel()} tokens of {path.name}"
        self.held_out: list[list[int]] = []
        self.measured_on = ""
        if not flags.no_perplexity:
            path = Path(flags.perplexity_text) if flags.perplexity_text else HELD_OUT
            self.held_out = read_windows(path, tokenizer, min(_PERPLEXITY_WINDOW, most - 1), _PERPLEXITY_TOKENS)
            self.measured_on = f"{sum(map(len, self.held_out))} tokens of {path.name}"


def _calibrates(asked: str, form: WeightFormat) -> bool:
    return form.pays if asked == "auto" else asked != "none"


def _measure(card: Card, original: str, output: Path, texts: _Texts) -> None:
    from cadence.entrypoints.cli.quantize.perplexity import perplexity

    print("measuring the perplexity of the original", file=sys.stderr, flush=True)
    before = perplexity(original, texts.held_out)
    print("measuring the perplexity of this", file=sys.stderr, flush=True)
    after = perplexity(str(output), texts.held_out)
    replace(card, perplexity=(before, after), measured_on=texts.measured_on).write(output)
    print(f"perplexity of {texts.measured_on}: original {before:.3f}, this {after:.3f} ({after / before - 1:+.2%})")


def _show(what: str, done: int, total: int) -> None:
    print(f"\rquantised {done} of {total} {what} ", end="\n" if done == total else "", file=sys.stderr, flush=True)
