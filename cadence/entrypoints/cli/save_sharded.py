"""`cadence save-sharded`: a model's weights, cut for ranks that share its layers, each in files of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cadence.config.cli import Parser
from cadence.config.files.output_folder import check_output
from cadence.config.local_files import check_model


def run(argv: Sequence[str]) -> int:
    about = "Cut a model's weights for ranks. Each then reads its own files: --load-format sharded_state."
    parser = Parser("cadence save-sharded", about, positional="MODEL")
    parser.add_argument("model", help="alias, folder, .gguf file, or hub id")
    parser.add_argument("--output", required=True, metavar="DIR", help="a folder that is not there yet, or is empty")
    parser.add_argument("--tensor-parallel-size", "-tp", type=int, required=True, metavar="N", help="ranks")
    flags = parser.parse(argv)
    output = Path(flags.output)
    check_output(output)
    check_model(flags.model)

    from cadence.config.reference import find_model
    from cadence.models.loader.sharded_state import save_sharded

    for path in save_sharded(find_model(flags.model), flags.tensor_parallel_size, output):
        print(f"{path.stat().st_size / 1e6:10.1f} MB  {path}")
    print(f"\ncadence serve {output} --load-format sharded_state --tensor-parallel-size {flags.tensor_parallel_size}")
    return 0
