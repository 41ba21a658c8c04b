"""What the host does for each text that is embedded: a model so small that its own work hardly counts.

    python -m benchmarks.embeddings_host --tokenizer FOLDER [--texts 2000] [--rounds 7] [--out FILE]

FOLDER has the tokenizer of a BERT, and its config.json, of which a tiny model is made. Two kinds of requests: short
texts, and token ids. A line per kind: milliseconds of the calling thread per text (the best round: other programs may
run), and calls of functions per text by the part of the house that makes them. Calls do not depend on the machine.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import shutil
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.machine import describe_machine
from cadence import LLM

_TINY = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_PACKAGE = "/cadence/"


def write_tiny(folder: Path, out: Path) -> None:
    for name in _FILES:
        if (folder / name).exists():
            shutil.copy(folder / name, out / name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (out / "config.json").write_text(json.dumps({**config, **_TINY}), encoding="utf-8")


def thread_ms(llm: LLM, work: list[Any], rounds: int) -> float:
    """Of the calling thread, per text: the best round."""
    taken = []
    for _ in range(rounds):
        start = time.thread_time()
        llm.embed(work, use_tqdm=False)
        taken.append(time.thread_time() - start)
    return 1000 * min(taken) / len(work)


def calls_by_part(llm: LLM, work: list[Any]) -> dict[str, float]:
    """Per text: functions of each part, and of everything else."""
    profile = cProfile.Profile()
    profile.enable()
    llm.embed(work, use_tqdm=False)
    profile.disable()
    counts: Counter[str] = Counter()
    for (file, _, _), (_, calls, *_) in pstats.Stats(profile).stats.items():  # type: ignore[attr-defined]
        inside = file.rpartition(_PACKAGE)[2] if _PACKAGE in file else ""
        counts["/".join(inside.split("/")[:2]) if inside else "built in"] += calls
    return {part: round(count / len(work), 1) for part, count in counts.most_common() if count >= len(work) / 10}


def measure(folder: Path, count: int, rounds: int) -> list[dict[str, Any]]:
    texts = [f"a short text of number {number}" for number in range(count)]
    lines = []
    with tempfile.TemporaryDirectory() as tiny:
        write_tiny(folder, Path(tiny))
        with LLM(tiny, load_format="dummy") as llm:
            ids = [{"prompt_token_ids": each} for each in llm.get_tokenizer().encode_batch(texts)]
            for name, work in {"texts": texts, "token ids": ids}.items():
                llm.embed(work, use_tqdm=False)
                calls = calls_by_part(llm, work)
                taken = round(thread_ms(llm, work, rounds), 4)
                total = round(sum(calls.values()))
                lines.append({"requests": name, "count": count, "thread_ms": taken, "calls": total, "by_part": calls})
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokenizer", required=True, type=Path)
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    machine = describe_machine()
    lines = [{**machine, **line} for line in measure(args.tokenizer, args.texts, args.rounds)]
    for line in lines:
        print(json.dumps(line), flush=True)
    if args.out:
        with args.out.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)


if __name__ == "__main__":
    main()
