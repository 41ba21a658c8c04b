"""`cadence embed`: texts in, their embeddings out."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from cadence.config.cli import Parser, add_engine_flags, checked_options
from cadence.core.errors import ConfigError, InvalidRequestError
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.cli.shared.open_llm import open_llm
from cadence.entrypoints.cli.shared.progress_lines import ProgressLines

if TYPE_CHECKING:
    import numpy as np

FORMATS = ("jsonl", "npy", "table")
WIDE = 12  # texts that a table compares each with each; of more it shows the nearest
LABEL = 40  # characters of a text in a table
MANY = 100  # texts of which progress is shown without a terminal


def build_parser() -> Parser:
    about = "Embed texts: JSON lines on stdout, a table of their similarities on a terminal, or a file of numpy's."
    parser = Parser("cadence embed", about, positional="[TEXT ...]")
    parser.add_argument("texts", nargs="*", metavar="TEXT", help="texts to embed; - or none: a text per line of stdin")
    parser.add_argument("--file", metavar="FILE", help="embed each line of a file")
    group = parser.add_argument_group("embedding")
    group.add_argument("--prompt-name", metavar="NAME", help="begin texts with this prompt of the model's files")
    group.add_argument(
        "--dimensions", type=int, metavar="N", help="keep the first N entries, where the model allows it"
    )
    group.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="to length 1 [as the model's files say]",
    )
    group.add_argument(
        "--truncate-prompt-tokens", type=int, metavar="N", help="cut longer texts; -1: to what the model takes"
    )
    group = parser.add_argument_group("output")
    group.add_argument("--output", default="", metavar="FILE", help="write there; .npy: one array of all embeddings")
    group.add_argument("--format", choices=FORMATS, help="[by the name of --output; table on a terminal, else jsonl]")
    add_engine_flags(parser)
    return parser


def run(argv: Sequence[str]) -> int:
    flags = build_parser().parse(argv)
    params = PoolingParams(
        task="embed",
        dimensions=flags.dimensions,
        normalize=flags.normalize,
        truncate_prompt_tokens=flags.truncate_prompt_tokens,
    )
    kind = _format(flags.format, flags.output)
    _check_output(flags.output)
    options = checked_options(flags, use_tqdm_on_load=sys.stderr.isatty())
    texts = _read_texts(flags.texts, flags.file)

    import numpy as np

    llm = open_llm(options)
    outputs = llm.encode(texts, params, use_tqdm=_progress(len(texts)), prompt_name=flags.prompt_name)
    vectors_np = np.stack([np.asarray(output.outputs.data) for output in outputs])
    _write(kind, flags.output, texts, vectors_np)
    return 0


def _format(asked: str | None, output: str) -> str:
    kind: str = asked or ("npy" if output.endswith(".npy") else "table" if _is_seen(output) else "jsonl")
    if kind == "npy" and not output:
        raise ConfigError("--format npy needs --output FILE", "format")
    return kind


def _check_output(output: str) -> None:
    """Before a model is loaded. What the file holds already stays until there is something to write."""
    try:
        if output:
            open(output, "ab").close()
    except OSError as error:
        raise ConfigError(f"--output {output} cannot be written: {error.strerror}", "output") from None


def _is_seen(output: str) -> bool:
    return not output and sys.stdout.isatty()


def _read_texts(given: Sequence[str], file: str | None) -> list[str]:
    if file is not None:
        if given:
            raise ConfigError("give texts or --file, not both", "file")
        try:
            return _lines(Path(file).read_text(encoding="utf-8"), file)
        except (OSError, UnicodeError) as error:
            raise ConfigError(f"--file {file} cannot be read: {error}", "file") from None
    if given and list(given) != ["-"]:
        return list(given)
    if not given and sys.stdin.isatty():
        raise InvalidRequestError('give texts, for example: cadence embed "a cat" "a dog"', "prompt")
    return _lines(sys.stdin.read(), "stdin")


def _lines(content: str, name: str) -> list[str]:
    lines = content.splitlines()
    if not lines:
        raise InvalidRequestError(f"{name} holds no text", "prompt")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise InvalidRequestError(f"line {number} of {name} is empty: each line is a text", "prompt")
    return lines


class LinesBar:
    """In tqdm's place where there is no terminal."""

    def __init__(self, total: int, **_: Any) -> None:
        self._total = total
        self._done = 0
        self._lines = ProgressLines()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None: ...

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        """Lines say how many, not how fast."""

    def update(self, count: int) -> None:
        self._done += count
        self._lines.show("texts", self._done, self._total)


def _progress(count: int) -> Any:
    return sys.stderr.isatty() or (LinesBar if count >= MANY else False)


def _write(kind: str, output: str, texts: list[str], vectors_np: np.ndarray) -> None:
    """vectors [texts, entries]"""
    import numpy as np

    if kind == "npy":
        with open(output, "wb") as file:
            np.save(file, vectors_np)
        return
    lines = _table(texts, vectors_np) if kind == "table" else _json_lines(texts, vectors_np)
    if not output:
        sys.stdout.writelines(f"{line}\n" for line in lines)
        return
    with open(output, "w", encoding="utf-8") as text_file:
        text_file.writelines(f"{line}\n" for line in lines)


def _json_lines(texts: list[str], vectors_np: np.ndarray) -> list[str]:
    return [
        json.dumps({"index": number, "text": text, "embedding": vector_np.tolist()}, ensure_ascii=False)
        for number, (text, vector_np) in enumerate(zip(texts, vectors_np, strict=True))
    ]


def _table(texts: list[str], vectors_np: np.ndarray) -> list[str]:
    """How similar the texts are: each with each, or each with its nearest."""
    import numpy as np

    from cadence.core.pooled.similarity import all_cosines
    from cadence.entrypoints.cli.shared.report import columns

    cosines_np = all_cosines(vectors_np)
    labels = [f"{number} {_short(text)}" for number, text in enumerate(texts)]
    if len(texts) <= WIDE:
        head = ["", *map(str, range(len(texts)))]
        rows = [
            [label, *(f"{value:.2f}" for value in row_np)] for label, row_np in zip(labels, cosines_np, strict=True)
        ]
    else:
        np.fill_diagonal(cosines_np, -np.inf)
        nearest = cosines_np.argmax(axis=1).tolist()
        head = ["", "", "nearest"]
        rows = [[labels[at], f"{cosines_np[at, other]:.2f}", labels[other]] for at, other in enumerate(nearest)]
    return [*columns([head, *rows]).splitlines(), f"{len(texts)} texts, {vectors_np.shape[1]} entries each"]


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LABEL else line[: LABEL - 1] + "…"
